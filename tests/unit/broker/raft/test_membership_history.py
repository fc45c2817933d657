"""Steps of membership, and the history that truncation goes back in."""

from __future__ import annotations

import pytest

from semel.broker.raft import Membership
from semel.broker.raft.membership_history import (
    MembershipHistory,
    add_learner,
    check_step,
    promote,
    remove,
)
from semel.protos.errors import InvalidRequest
from semel.protos.ids import NodeId


def nodes(*numbers: int) -> frozenset[NodeId]:
    return frozenset(NodeId(number) for number in numbers)


THREE = Membership(voters=nodes(1, 2, 3))
WITH_LEARNER = Membership(voters=nodes(1, 2, 3), learners=nodes(4))
FOUR = Membership(voters=nodes(1, 2, 3, 4))


def test_a_node_is_replaced_step_by_step() -> None:
    assert add_learner(THREE, NodeId(4)) == WITH_LEARNER
    assert promote(WITH_LEARNER, NodeId(4)) == FOUR
    assert remove(FOUR, NodeId(1)) == Membership(voters=nodes(2, 3, 4))
    assert remove(WITH_LEARNER, NodeId(4)) == THREE


@pytest.mark.parametrize(("voters", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_quorum_is_more_than_half_of_the_voters(voters: int, quorum: int) -> None:
    membership = Membership(voters=nodes(*range(1, voters + 1)), learners=nodes(8, 9))
    assert membership.quorum == quorum


def test_impossible_memberships_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="at least one voter"):
        Membership(voters=frozenset())
    with pytest.raises(InvalidRequest, match="voters and learners"):
        Membership(voters=nodes(1, 2), learners=nodes(2))
    with pytest.raises(InvalidRequest, match="start at 1"):
        Membership(voters=nodes(0, 1))


def test_impossible_steps_are_refused() -> None:
    for step, node in [(add_learner, 3), (add_learner, 4), (promote, 3), (promote, 9), (remove, 9)]:
        with pytest.raises(InvalidRequest):
            step(WITH_LEARNER, NodeId(node))
    with pytest.raises(InvalidRequest, match="at least one voter"):
        remove(Membership(voters=nodes(1)), NodeId(1))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (THREE, THREE, "one node changes"),
        (THREE, FOUR, "join as a learner"),
        (THREE, Membership(voters=nodes(1)), "one node changes"),
        (THREE, Membership(voters=nodes(1, 2), learners=nodes(3)), "cannot become a learner"),
        (WITH_LEARNER, Membership(voters=nodes(1, 2, 4)), "one node changes"),
    ],
)
def test_only_one_node_changes_and_only_forwards(
    old: Membership, new: Membership, reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        check_step(old, new)


def test_every_pure_step_passes_the_check() -> None:
    for old in (THREE, WITH_LEARNER, FOUR):
        steps = [add_learner(old, NodeId(9))]
        steps += [promote(old, node) for node in old.learners]
        steps += [remove(old, node) for node in old.nodes]
        for new in steps:
            check_step(old, new)


def test_truncation_brings_the_membership_before_back() -> None:
    history = MembershipHistory(THREE, 10)
    history.append(12, WITH_LEARNER)
    history.append(20, FOUR)
    assert (history.current, history.index) == (FOUR, 20)
    assert [history.at(index) for index in (10, 11, 12, 19, 20, 99)] == [
        THREE,
        THREE,
        WITH_LEARNER,
        WITH_LEARNER,
        FOUR,
        FOUR,
    ]
    assert not history.truncate(21)
    assert history.truncate(20)
    assert history.current == WITH_LEARNER
    assert history.truncate(11)
    assert history.current == THREE
    assert not history.truncate(1)
    assert history.current == THREE


def test_what_is_committed_cannot_be_truncated() -> None:
    history = MembershipHistory(THREE, 0)
    history.append(5, WITH_LEARNER)
    history.append(7, FOUR)
    history.commit(6)
    assert history.current == FOUR
    history.truncate(6)
    assert history.current == WITH_LEARNER


def test_a_node_may_be_a_voter_until_its_removal_is_committed() -> None:
    history = MembershipHistory(THREE, 0)
    history.append(5, remove(THREE, NodeId(3)))
    assert history.may_be_voter(NodeId(3))
    assert not history.may_be_voter(NodeId(4))
    history.commit(5)
    assert not history.may_be_voter(NodeId(3))


def test_memberships_rise_by_index() -> None:
    history = MembershipHistory(THREE, 5)
    with pytest.raises(AssertionError):
        history.append(5, WITH_LEARNER)


def test_the_past_before_the_base_is_the_base() -> None:
    old = Membership(voters=frozenset({NodeId(1), NodeId(2)}))
    history = MembershipHistory(old, 5)
    new = add_learner(old, NodeId(3))
    history.append(9, new)
    assert [history.at(index) for index in (4, 5, 8, 9, 10)] == [old, old, old, new, new]
    assert history.truncate(10) is False
    assert history.truncate(9) is True
    assert (history.current, history.index) == (old, 5)
    history.append(9, new)
    history.commit(8)
    assert history.at(5) == old
    history.commit(9)
    assert (history.at(5), history.index) == (new, 9)
    assert history.truncate(1) is False
