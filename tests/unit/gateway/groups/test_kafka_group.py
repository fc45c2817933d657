"""Rules of one Kafka group, each by itself; the names and codes are Kafka's."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from semel.gateway.groups.kafka_group import TRANSITIONS
from semel.gateway.groups.results import GroupError, GroupLimits, GroupState
from tests.kit.kafka_group_talk import RANGE, REBALANCE_MS, SESSION_MS, GroupTalk

STICKY_FIRST = (("sticky", b"s"), ("range", b"r"))


def test_errors_are_kafkas() -> None:
    for error in GroupError:
        assert ErrorCode(int(error)).name == error.name.lower()


def test_every_state_may_be_reached_and_only_dead_ends() -> None:
    reached = {state for after in TRANSITIONS.values() for state in after}
    assert reached == set(GroupState)
    assert [state for state, after in TRANSITIONS.items() if not after] == [GroupState.DEAD]


def test_two_members_share_a_generation_and_get_what_the_leader_decides() -> None:
    talk = GroupTalk()
    leader, other = talk.stable(2)
    assert talk.group.state is GroupState.STABLE
    assert leader.leader == leader.member_id == other.leader
    assert [member.metadata for member in leader.members] == [b"range-metadata"] * 2
    assert not other.members
    again = talk.sync_answer(talk.sync(other))
    assert again.assignment == other.member_id.encode()


def test_a_new_client_gets_an_id_first_and_joins_with_it() -> None:
    talk = GroupTalk()
    refused = talk.joined(id_required=True)
    assert refused.error is GroupError.MEMBER_ID_REQUIRED
    assert talk.group.state is GroupState.EMPTY
    assert talk.joined(refused.member_id, id_required=True).generation == 1


def test_an_id_that_is_not_used_is_forgotten_after_its_session() -> None:
    talk = GroupTalk()
    refused = talk.joined(id_required=True)
    talk.after(SESSION_MS)
    assert talk.joined(refused.member_id).error is GroupError.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_a_member_that_was_given_its_id() -> None:
    talk = GroupTalk()
    first = talk.joined()
    pending = talk.joined(id_required=True)
    waiting = talk.join(first.member_id, protocols=(("range", b"new"),))
    assert waiting not in talk.answers
    talk.join(pending.member_id)
    assert talk.join_answer(waiting).generation == 2


def test_the_first_rebalance_waits_for_more_members() -> None:
    talk = GroupTalk(GroupLimits(initial_delay_ms=500))
    first = talk.join()
    talk.after(400)
    second = talk.join()
    talk.after(400)
    assert not talk.answers
    talk.after(600)
    assert talk.join_answer(first).generation == talk.join_answer(second).generation == 1
    assert len(talk.join_answer(first).members) == 2


def test_the_initial_wait_ends_with_the_rebalance_timeout_however_many_come() -> None:
    talk = GroupTalk(GroupLimits(initial_delay_ms=500))
    first = talk.join(rebalance_ms=1_000)
    for _ in range(20):
        talk.after(100)
        talk.join(rebalance_ms=1_000)
    assert talk.join_answer(first).generation == 1


def test_a_member_that_comes_makes_the_others_join_again() -> None:
    talk = GroupTalk()
    leader, other = talk.stable(2)
    third = talk.join()
    assert talk.heartbeat(leader) is GroupError.REBALANCE_IN_PROGRESS
    again = [talk.join(leader.member_id), talk.join(other.member_id)]
    assert {talk.join_answer(ticket).generation for ticket in [third, *again]} == {
        leader.generation + 1
    }
    assert talk.join_answer(third).leader == leader.member_id


def test_members_that_do_not_join_again_are_dropped_after_the_rebalance_timeout() -> None:
    talk = GroupTalk(GroupLimits(initial_delay_ms=0))
    leader, other = talk.stable(2)
    third = talk.join()
    stays = talk.join(other.member_id)
    for _ in range(REBALANCE_MS // 5_000):
        talk.after(5_000)
        talk.heartbeat(leader)
    assert talk.join_answer(third).leader == talk.join_answer(stays).member_id
    assert leader.member_id not in talk.group.members
    assert talk.heartbeat(leader) is GroupError.UNKNOWN_MEMBER_ID


def test_a_silent_member_ends_with_its_session_and_one_that_beats_does_not() -> None:
    talk = GroupTalk()
    leader, other = talk.stable(2)
    talk.after(SESSION_MS - 1)
    assert talk.heartbeat(leader) is GroupError.NONE
    talk.after(1)
    assert talk.heartbeat(leader) is GroupError.REBALANCE_IN_PROGRESS
    assert list(talk.group.members) == [leader.member_id]
    assert talk.heartbeat(other) is GroupError.UNKNOWN_MEMBER_ID


def test_who_waits_for_an_answer_is_alive() -> None:
    talk = GroupTalk()
    leader, other = talk.stable(2)
    waiting = talk.join(leader.member_id)
    for _ in range(3):
        talk.after(SESSION_MS - 1_000)
        assert talk.heartbeat(other) is GroupError.REBALANCE_IN_PROGRESS
    assert waiting not in talk.answers
    talk.join(other.member_id)
    assert talk.join_answer(waiting).error is GroupError.NONE


def test_a_new_member_that_never_gets_its_answer_is_dropped_at_last() -> None:
    talk = GroupTalk(GroupLimits(initial_delay_ms=0, new_member_ms=20_000))
    leader, other = talk.stable(2)
    talk.join(rebalance_ms=600_000)
    for _ in range(5):
        talk.after(5_000)
        talk.heartbeat(leader)
        talk.heartbeat(other)
    assert set(talk.group.members) == {leader.member_id, other.member_id}


def test_a_lost_answer_to_join_group_is_given_again() -> None:
    talk = GroupTalk()
    first = talk.joined()
    assert talk.joined(first.member_id) == first
    assert talk.group.state is GroupState.COMPLETING


def test_the_leader_of_a_stable_group_may_begin_a_rebalance_and_a_follower_may_not() -> None:
    talk = GroupTalk()
    leader, other = talk.stable(2)
    assert talk.joined(other.member_id).generation == leader.generation
    assert talk.state is GroupState.STABLE
    talk.join(leader.member_id)
    assert talk.group.describe().state is GroupState.PREPARING


def test_a_later_join_group_of_a_member_ends_the_one_before() -> None:
    talk = GroupTalk()
    leader, other = talk.stable(2)
    before, after = talk.join(leader.member_id), talk.join(leader.member_id)
    assert talk.join_answer(before).error is GroupError.REBALANCE_IN_PROGRESS
    talk.join(other.member_id)
    assert talk.join_answer(after).error is GroupError.NONE


def test_sync_group_is_refused_by_generation_member_and_state() -> None:
    talk = GroupTalk()
    leader, other = talk.stable(2)
    old = talk.sync(leader.__class__(member_id=leader.member_id, generation=0))
    assert talk.sync_answer(old).error is GroupError.ILLEGAL_GENERATION
    nobody = talk.sync(leader.__class__(member_id="nobody", generation=leader.generation))
    assert talk.sync_answer(nobody).error is GroupError.UNKNOWN_MEMBER_ID
    talk.join()
    assert talk.sync_answer(talk.sync(other)).error is GroupError.REBALANCE_IN_PROGRESS


def test_followers_that_wait_for_the_leader_are_told_of_a_new_rebalance() -> None:
    talk = GroupTalk()
    leader, other = talk.stable(2)
    tickets = [talk.join(leader.member_id), talk.join(other.member_id)]
    follower = talk.join_answer(tickets[1])
    waiting = talk.sync(follower)
    assert waiting not in talk.answers
    talk.join()
    assert talk.sync_answer(waiting).error is GroupError.REBALANCE_IN_PROGRESS


def test_a_leader_that_never_decides_is_dropped_after_the_rebalance_timeout() -> None:
    talk = GroupTalk()
    leader, other = talk.stable(2)
    tickets = [talk.join(leader.member_id), talk.join(other.member_id)]
    follower = talk.join_answer(tickets[1])
    waiting = talk.sync(follower)
    for _ in range(REBALANCE_MS // 5_000):
        talk.after(5_000)
        talk.heartbeat(talk.join_answer(tickets[0]))
    assert talk.sync_answer(waiting).error is GroupError.REBALANCE_IN_PROGRESS
    assert list(talk.group.members) == [other.member_id]


def test_the_protocol_is_what_most_prefer_of_what_all_have() -> None:
    talk = GroupTalk()
    first = talk.joined(protocols=STICKY_FIRST)
    assert first.protocol == "sticky"
    second = talk.join(protocols=(("range", b"r"), ("other", b"o")))
    again = talk.joined(first.member_id, protocols=STICKY_FIRST)
    assert again.protocol == talk.join_answer(second).protocol == "range"
    assert {member.metadata for member in again.members} == {b"r"}


@pytest.mark.parametrize(
    "wishes",
    [
        {"protocols": (("other", b""),)},
        {"protocols": ()},
        {"protocol_type": "connect"},
        {"protocol_type": ""},
    ],
)
def test_who_shares_no_protocol_is_refused(wishes: dict[str, Any]) -> None:
    talk = GroupTalk()
    talk.stable(1)
    assert talk.joined(**wishes).error is GroupError.INCONSISTENT_GROUP_PROTOCOL


def test_an_empty_group_takes_another_protocol_type() -> None:
    talk = GroupTalk()
    (only,) = talk.stable(1)
    assert talk.leave(only.member_id) is GroupError.NONE
    assert talk.group.state is GroupState.EMPTY
    joined = talk.joined(protocol_type="connect", protocols=(("default", b""),))
    assert (joined.protocol, joined.generation) == ("default", 3)


def test_bounds_of_sessions_sizes_and_members() -> None:
    limits = GroupLimits(
        initial_delay_ms=0, members_max=2, member_bytes_max=100, group_bytes_max=150
    )
    talk = GroupTalk(limits)
    assert talk.joined(session_ms=10).error is GroupError.INVALID_SESSION_TIMEOUT
    assert talk.joined(session_ms=1 << 40).error is GroupError.INVALID_SESSION_TIMEOUT
    big = (("range", bytes(100)),)
    assert talk.joined(protocols=big).error is GroupError.INVALID_REQUEST
    assert talk.joined(protocols=RANGE * 2).error is GroupError.INVALID_REQUEST
    assert talk.joined(client_id="c" * 5_000).error is GroupError.INVALID_REQUEST
    first = talk.joined(protocols=(("range", bytes(90)),))
    full = talk.joined(protocols=(("range", bytes(90)),))
    assert full.error is GroupError.GROUP_MAX_SIZE_REACHED
    talk.join()
    assert talk.joined().error is GroupError.GROUP_MAX_SIZE_REACHED
    assert talk.joined(id_required=True).error is GroupError.GROUP_MAX_SIZE_REACHED
    assert talk.joined(first.member_id).error is GroupError.NONE


def test_an_assignment_that_is_too_large_is_refused_and_a_smaller_one_taken() -> None:
    talk = GroupTalk(GroupLimits(initial_delay_ms=0, member_bytes_max=100))
    first = talk.joined()
    name = first.member_id.replace("-", "_")
    assert talk.sync_answer(talk.sync(first, **{name: bytes(101)})).error is (
        GroupError.INVALID_REQUEST
    )
    assert talk.sync_answer(talk.sync(first, **{name: b"all"})).assignment == b"all"


def test_a_static_member_is_back_without_a_rebalance_and_the_one_before_is_fenced() -> None:
    talk = GroupTalk()
    first = talk.joined(instance_id="i")
    talk.sync(first, **{first.member_id.replace("-", "_"): b"mine"})
    era = talk.group.era
    back = talk.joined(instance_id="i")
    assert (back.error, back.generation) == (GroupError.NONE, first.generation)
    assert talk.group.era > era, "another process reads what this one has read"
    assert back.member_id != first.member_id
    assert back.leader != back.member_id, "as the leader it would assign anew"
    assert talk.sync_answer(talk.sync(back)).assignment == b"mine"
    assert talk.heartbeat(first, "i") is GroupError.FENCED_INSTANCE_ID
    assert talk.heartbeat(back, "i") is GroupError.NONE
    assert talk.group.leader == back.member_id


def test_a_static_member_that_waits_is_fenced_when_another_takes_its_place() -> None:
    talk = GroupTalk()
    leader, _ = talk.stable(2)
    talk.join(instance_id="i")
    before = talk.join(instance_id="i")
    after = talk.join(instance_id="i")
    assert talk.join_answer(before).error is GroupError.FENCED_INSTANCE_ID
    assert after not in talk.answers
    assert talk.leave(leader.member_id) is GroupError.NONE


def test_static_members_keep_their_place_while_others_rebalance() -> None:
    talk = GroupTalk()
    static = talk.joined(instance_id="i", session_ms=600_000)
    talk.sync(static)
    other = talk.join()
    talk.after(REBALANCE_MS)
    assert [member.instance_id for member in talk.join_answer(other).members] == ["i", None]
    assert static.member_id in talk.group.members


def test_a_static_member_is_removed_by_its_instance_alone() -> None:
    talk = GroupTalk()
    talk.joined(instance_id="i")
    assert talk.leave(instance_id="other") is GroupError.UNKNOWN_MEMBER_ID
    assert talk.leave("somebody", "i") is GroupError.FENCED_INSTANCE_ID
    assert talk.leave(instance_id="i") is GroupError.NONE
    assert talk.group.state is GroupState.EMPTY


def test_a_member_that_leaves_is_unknown_and_the_others_share_anew() -> None:
    talk = GroupTalk()
    leader, other = talk.stable(2)
    assert talk.leave(leader.member_id) is GroupError.NONE
    assert talk.leave(leader.member_id) is GroupError.UNKNOWN_MEMBER_ID
    again = talk.joined(other.member_id)
    assert (again.leader, again.generation) == (other.member_id, leader.generation + 1)


def test_commits_count_under_the_current_generation_and_member_alone() -> None:
    talk = GroupTalk()
    check = talk.group.check_commit
    assert check("", None, -1, talk.now_ms) is GroupError.NONE, "nobody is in: offsets alone"
    assert check("somebody", None, 1, talk.now_ms) is GroupError.UNKNOWN_MEMBER_ID
    leader, _ = talk.stable(2)
    assert check(leader.member_id, None, leader.generation, talk.now_ms) is GroupError.NONE
    assert check(leader.member_id, None, 1, talk.now_ms) is GroupError.ILLEGAL_GENERATION
    assert check("", None, -1, talk.now_ms) is GroupError.UNKNOWN_MEMBER_ID
    talk.join()
    assert check(leader.member_id, None, leader.generation, talk.now_ms) is GroupError.NONE, (
        "what was read before the rebalance may be committed in its first half"
    )
    for member_id in list(talk.group.members):
        talk.join(member_id)
    assert talk.group.state is GroupState.COMPLETING
    again = talk.group.generation
    assert check(leader.member_id, None, again, talk.now_ms) is GroupError.REBALANCE_IN_PROGRESS


def test_a_commit_is_a_sign_of_life() -> None:
    talk = GroupTalk()
    (only,) = talk.stable(1)
    for _ in range(3):
        talk.after(SESSION_MS - 1)
        assert (
            talk.group.check_commit(only.member_id, None, only.generation, talk.now_ms)
            is GroupError.NONE
        )


def test_time_in_which_the_gateway_stood_still_counts_against_nobody() -> None:
    talk = GroupTalk()
    (only,) = talk.stable(1)
    talk.group.forgive(60_000)
    talk.after(SESSION_MS + 59_000)
    assert talk.heartbeat(only) is GroupError.NONE


def test_all_that_wait_are_told_when_the_coordinator_is_another() -> None:
    talk = GroupTalk()
    leader, _ = talk.stable(2)
    waiting = talk.join(leader.member_id)
    talk.group.end(GroupError.NOT_COORDINATOR)
    talk.take()
    assert talk.join_answer(waiting).error is GroupError.NOT_COORDINATOR
    assert talk.joined().error is GroupError.COORDINATOR_NOT_AVAILABLE
    assert talk.heartbeat(leader) is GroupError.COORDINATOR_NOT_AVAILABLE
    assert talk.leave(leader.member_id) is GroupError.COORDINATOR_NOT_AVAILABLE
    assert talk.group.check_commit("", None, -1, 0) is GroupError.COORDINATOR_NOT_AVAILABLE
    assert talk.group.describe().state is GroupState.DEAD


def test_descriptions_have_metadata_and_assignments_of_a_stable_group_alone() -> None:
    talk = GroupTalk()
    leader, _ = talk.stable(2)
    described = talk.group.describe()
    assert (described.state, described.protocol) == (GroupState.STABLE, "range")
    assert described.members[0].assignment == leader.member_id.encode()
    talk.join()
    described = talk.group.describe()
    assert (described.state, described.protocol) == (GroupState.PREPARING, "")
    assert {member.assignment for member in described.members} == {b""}
