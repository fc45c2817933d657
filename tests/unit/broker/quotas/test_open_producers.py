"""How many producers of a user are open: against a model that forgets nothing by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.broker.quotas.open_producers import IDLE_S
from semel.protos.errors import Throttled
from semel.protos.security.quotas import QuotaKind
from tests.kit.quota_node import Clock, QuotaNode

OPENED, SENT = "opened", "sent"


def node_with(clock: Clock, **limits: int) -> QuotaNode:
    """Quotas of producers by user; "etl" is a group of alice and bob, "all" is for every other."""
    node = QuotaNode(clock, {})
    node.join("etl", ["user:alice", "user:bob"])
    subjects = {"etl": "group:etl", "all": "*"}
    for name, limit in limits.items():
        node.set(subjects.get(name, f"user:{name}"), {QuotaKind.PRODUCERS: limit})
    return node


def is_let_in(node: QuotaNode, user: str, producer_id: int) -> bool:
    try:
        node.producers.on_open(f"user:{user}", producer_id)
    except Throttled:
        return False
    return True


def test_no_more_than_the_quota_are_open_and_the_error_says_what_counts() -> None:
    node = node_with(Clock(), alice=2)
    assert [is_let_in(node, "alice", number) for number in (1, 2, 3, 1)] == [True] * 2 + [
        False,
        True,
    ]
    with pytest.raises(Throttled) as refused:
        node.producers.on_open("user:alice", 4)
    assert "user:alice has 2 producers open on this broker group" in refused.value.message
    assert "until it was idle for 10 minutes" in refused.value.message
    assert refused.value.retry_after_ms > 0


def test_whoever_has_no_quota_opens_any_number() -> None:
    node = node_with(Clock(), alice=1)
    assert not node.producers.limits("user:carol")
    assert all(is_let_in(node, "carol", number) for number in range(1_000))


def test_an_idle_producer_makes_room_and_one_that_sends_does_not() -> None:
    clock = Clock()
    node = node_with(clock, alice=2)
    assert is_let_in(node, "alice", 1)
    assert is_let_in(node, "alice", 2)
    clock.now_s = IDLE_S
    assert not is_let_in(node, "alice", 3), "they are idle from now on, not before"
    node.producers.on_batch("user:alice", 2)
    clock.now_s += 1
    assert is_let_in(node, "alice", 3), "1 has made room"
    assert not is_let_in(node, "alice", 1), "2 has sent"


def test_members_of_a_group_share_its_quota() -> None:
    node = node_with(Clock(), etl=3)
    assert [is_let_in(node, user, at) for at, user in enumerate(("alice", "bob", "bob"), 1)] == [
        True
    ] * 3
    assert not is_let_in(node, "alice", 4)
    assert is_let_in(node, "carol", 5)


def test_each_user_has_the_quota_of_every_other_alone() -> None:
    node = node_with(Clock(), all=1)
    assert is_let_in(node, "carol", 1)
    assert is_let_in(node, "dave", 2)
    assert not is_let_in(node, "carol", 3)


def test_a_new_master_learns_of_open_producers_by_what_they_send() -> None:
    node = node_with(Clock(), alice=2)
    for number in (1, 2, 3):  # they were opened at another master
        node.producers.on_batch("user:alice", number)
    assert is_let_in(node, "alice", 1)
    assert not is_let_in(node, "alice", 4)


def test_a_quota_that_is_gone_is_forgotten_with_what_was_counted() -> None:
    node = node_with(Clock(), alice=1)
    assert is_let_in(node, "alice", 1)
    node.remove("user:alice")
    assert is_let_in(node, "alice", 2)
    node.set("user:alice", {QuotaKind.PRODUCERS: 1})
    assert is_let_in(node, "alice", 3), "those that were open without a quota count when they send"
    assert not is_let_in(node, "alice", 1)


STEPS = st.lists(
    st.tuples(
        st.sampled_from((OPENED, SENT)),
        st.sampled_from(("alice", "bob", "carol")),
        st.integers(1, 6),
        st.sampled_from((0.0, 0.0, 1.0, IDLE_S / 2, IDLE_S + 1)),
    ),
    max_size=60,
)


@given(STEPS, st.integers(0, 3), st.integers(0, 4), st.integers(0, 2))
def test_they_are_let_in_as_by_a_model(
    steps: list[tuple[str, str, int, float]], alice: int, etl: int, every_other: int
) -> None:
    """The model keeps when each producer was heard of, and counts those that are not idle."""
    clock = Clock()
    node = node_with(clock, alice=alice, etl=etl, all=every_other)
    limits: dict[str, list[tuple[int, tuple[str, ...]]]] = {
        "alice": [(alice, ("alice",)), (etl, ("alice", "bob"))],
        "bob": [(etl, ("alice", "bob"))],
        "carol": [(every_other, ("carol",))],
    }
    heard: dict[tuple[str, int], float] = {}

    def count(users: tuple[str, ...]) -> int:
        return sum(
            1 for (user, _), at_s in heard.items() if user in users and clock.now_s - at_s <= IDLE_S
        )

    for what, user, number, pause_s in steps:
        clock.now_s += pause_s
        known = clock.now_s - heard.get((user, number), -1e9) <= IDLE_S
        room = all(count(users) < limit for limit, users in limits[user])
        if what == OPENED:
            assert is_let_in(node, user, number) == (known or room)
        else:
            node.producers.on_batch(f"user:{user}", number)
        if known or room:
            heard[user, number] = clock.now_s
