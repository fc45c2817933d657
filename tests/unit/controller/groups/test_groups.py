"""One consumer group: joins, silence, generations."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from semel.controller.groups.group import ConsumerGroup, Wish, check_name
from semel.protos.errors import InvalidRequest, MemberFenced, UnknownMember
from semel.protos.ids import QueueId, QueueKey, TopicId

TOPICS = {
    "t": [QueueKey(TopicId(1), QueueId(n)) for n in range(6)],
    "u": [QueueKey(TopicId(2), QueueId(n)) for n in range(3)],
}
WISH = Wish(topics=("t",), session_ms=1_000)


def settle(group: ConsumerGroup) -> None:
    plan = group.plan(TOPICS)
    if plan is not None:
        group.adopt(plan)


def held(group: ConsumerGroup, member: str) -> list[int]:
    return [ref.queue_id for ref in group.reply(member).assignment]


def test_each_change_is_a_new_generation_and_nothing_else_is() -> None:
    group = ConsumerGroup("g", generation=7)
    group.join("a", WISH, 0)
    settle(group)
    assert group.generation == 8
    assert held(group, "a") == [0, 1, 2, 3, 4, 5]
    group.join("a", WISH, 1)
    group.heartbeat("a", 2)
    assert group.settled
    settle(group)
    assert group.generation == 8
    group.join("b", WISH, 3)
    settle(group)
    assert group.generation == 9
    assert len(held(group, "a")) == len(held(group, "b")) == 3
    assert group.leave("b")
    assert not group.leave("b")
    settle(group)
    assert group.generation == 10
    assert len(held(group, "a")) == 6


def test_many_changes_at_once_are_one_generation() -> None:
    group = ConsumerGroup("g", generation=0)
    for number in range(50):
        group.join(f"m{number}", WISH, 0)
    settle(group)
    assert group.generation == 1
    assert group.settled


def test_a_change_while_a_plan_is_stored_waits_for_the_next() -> None:
    group = ConsumerGroup("g", generation=0)
    group.join("a", WISH, 0)
    plan = group.plan(TOPICS)
    assert plan is not None
    group.join("b", WISH, 0)
    group.adopt(plan)
    assert not group.settled
    assert held(group, "b") == []
    settle(group)
    assert len(held(group, "b")) == 3


def test_a_silent_member_is_dropped_after_its_session() -> None:
    group = ConsumerGroup("g", generation=0)
    group.join("a", WISH, 0)
    group.join("b", Wish(topics=("t",), session_ms=500), 0)
    assert group.expire(499) == []
    assert group.expire(500) == ["b"]
    with pytest.raises(UnknownMember, match="join again"):
        group.heartbeat("b", 501)
    group.heartbeat("a", 900)
    assert group.expire(1_899) == []
    assert group.expire(1_900) == ["a"]
    assert group.empty


def test_time_in_which_the_controller_stood_still_counts_against_nobody() -> None:
    group = ConsumerGroup("g", generation=0)
    group.join("a", WISH, 0)
    group.forgive(60_000)
    assert group.expire(60_999) == []
    assert group.expire(61_000) == ["a"]


def test_after_a_restart_everything_stands_and_members_get_time_to_come_back() -> None:
    group = ConsumerGroup("g", generation=3)
    group.join("a", WISH, 0)
    group.join("b", Wish(topics=("t", "u"), session_ms=5_000, client="host"), 0)
    plan = group.plan(TOPICS)
    assert plan is not None
    record = group.record(plan)
    group.adopt(plan)

    again = ConsumerGroup.restore(record, 100)
    assert again.info() == group.info()
    settle(again)
    assert again.generation == group.generation
    assert again.expire(100 + 5_000 + 999) == []
    again.heartbeat("b", 6_000)
    assert again.expire(100 + 5_000 + 1_000) == ["a"]


def test_after_a_restart_queues_that_came_meanwhile_are_assigned() -> None:
    """A topic may have changed after the group was stored, and before the controller ended."""
    group = ConsumerGroup("g", generation=3)
    group.join("a", WISH, 0)
    plan = group.plan({"t": TOPICS["t"][:2]})
    assert plan is not None
    again = ConsumerGroup.restore(group.record(plan), 100)
    assert held(again, "a") == [0, 1]
    assert not again.settled, "whoever looks for unsettled groups finds it"
    settle(again)
    assert again.settled
    assert (again.generation, held(again, "a")) == (5, [0, 1, 2, 3, 4, 5])


def test_a_member_that_was_dropped_may_come_back_under_its_id() -> None:
    group = ConsumerGroup("g", generation=0)
    group.join("a", WISH, 0)
    settle(group)
    assert group.expire(1_000) == ["a"]
    group.join("a", WISH, 1_001)
    settle(group)
    assert len(held(group, "a")) == 6


def test_a_static_member_keeps_its_queues_over_a_restart_within_its_grace_time() -> None:
    def wish(incarnation: bytes) -> Wish:
        return Wish(topics=("t",), session_ms=1_000, grace_ms=5_000, incarnation=incarnation)

    group = ConsumerGroup("g", generation=0)
    group.join("a", wish(b"1"), 0)
    group.join("b", WISH, 0)
    settle(group)
    before, generation = held(group, "a"), group.generation
    group.heartbeat("b", 4_900)
    assert group.expire(4_999) == []
    group.join("a", wish(b"2"), 4_999)
    settle(group)
    assert held(group, "a") == before
    assert group.generation > generation, "else brokers would give locks to the one before"
    group.heartbeat("b", 9_998)
    assert group.expire(9_998) == []
    assert group.expire(9_999) == ["a"]
    settle(group)
    assert len(held(group, "b")) == 6


def test_of_two_processes_under_one_id_the_later_is_the_member_also_after_a_restart() -> None:
    group = ConsumerGroup("g", generation=0)
    group.join("a", Wish(topics=("t",), incarnation=b"1"), 0)
    group.join("a", Wish(topics=("t",), incarnation=b"2"), 0)
    plan = group.plan(TOPICS)
    assert plan is not None
    record = group.record(plan)
    group.adopt(plan)
    for each in (group, ConsumerGroup.restore(record, 0)):
        with pytest.raises(MemberFenced, match="its own member_id"):
            each.heartbeat("a", 1, b"1")
        assert not each.leave("a", b"1")
        each.heartbeat("a", 1, b"2")
        each.heartbeat("a", 1)
        assert each.leave("a", b"2")


def test_topics_that_come_and_go_are_followed() -> None:
    group = ConsumerGroup("g", generation=0)
    group.join("a", Wish(topics=("t", "later")), 0)
    settle(group)
    group.on_topic_changed("other")
    assert group.settled
    group.on_topic_changed("later")
    plan = group.plan({"later": [QueueKey(TopicId(9), QueueId(0))]})
    assert plan is not None
    group.adopt(plan)
    assert [(ref.topic_id, ref.queue_id) for ref in group.reply("a").assignment] == [(9, 0)]


def test_heartbeats_come_several_times_in_a_session() -> None:
    group = ConsumerGroup("g", generation=0)
    group.join("a", Wish(topics=("t",), session_ms=600), 0)
    group.join("b", Wish(topics=("t",), session_ms=60_000), 0)
    assert group.reply("a").heartbeat_ms == 200
    assert group.reply("b").heartbeat_ms == 1_000


@pytest.mark.parametrize("session_ms", [0, 199, 600_001])
def test_senseless_wishes_are_refused(session_ms: int) -> None:
    with pytest.raises(InvalidRequest):
        Wish(topics=("t",), session_ms=session_ms)
    with pytest.raises(InvalidRequest):
        Wish(topics=())
    for name in ("", "x" * 250, "a\tb"):
        with pytest.raises(InvalidRequest):
            check_name(name)


class GroupMachine(RuleBasedStateMachine):
    """A group against a model: who is a member is a dictionary of deadlines."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.deadlines: dict[str, int] = {}
        self.group = ConsumerGroup("g", generation=0)
        self.generations = [0]

    @rule(
        member=st.sampled_from("abcd"),
        topics=st.sampled_from([("t",), ("t", "u"), ("u", "x")]),
        session_ms=st.sampled_from([300, 1_000]),
    )
    def join(self, member: str, topics: tuple[str, ...], session_ms: int) -> None:
        self.group.join(member, Wish(topics=topics, session_ms=session_ms), self.now)
        self.deadlines[member] = self.now + session_ms

    @rule(member=st.sampled_from("abcd"))
    def leave(self, member: str) -> None:
        assert self.group.leave(member) == (self.deadlines.pop(member, None) is not None)

    @rule(milliseconds=st.integers(0, 600))
    def wait(self, milliseconds: int) -> None:
        self.now += milliseconds
        gone = sorted(m for m, deadline in self.deadlines.items() if deadline <= self.now)
        assert self.group.expire(self.now) == gone
        for member in gone:
            del self.deadlines[member]

    @precondition(lambda self: not self.group.settled)
    @rule(late=st.booleans())
    def settle(self, late: bool) -> None:
        plan = self.group.plan(TOPICS)
        if plan is None:
            return
        assert set(plan.assignment) == set(self.deadlines)
        if late:
            self.leave("a")
        self.group.adopt(plan)
        self.generations.append(self.group.generation)

    @invariant()
    def generations_rise(self) -> None:
        assert self.generations == sorted(set(self.generations))

    @invariant()
    def what_is_told_is_owned_once(self) -> None:
        told = [
            (ref.topic_id, ref.queue_id)
            for member in self.group.info().members
            for ref in member.assignment
        ]
        assert len(told) == len(set(told))
        assert {member.member_id for member in self.group.info().members} == set(self.deadlines)


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
