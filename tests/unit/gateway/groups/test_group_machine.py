"""Any requests in any order: the invariants of one Kafka group hold after each of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from semel.gateway.groups.kafka_group import KafkaGroup
from semel.gateway.groups.kafka_member import KafkaMember
from semel.gateway.groups.results import (
    GroupError,
    GroupLimits,
    GroupState,
    JoinResult,
    SyncResult,
    Ticket,
)
from tests.kit.kafka_group_talk import GroupTalk

PROTOCOLS = [
    (("range", b"1"),),
    (("range", b"2"),),
    (("sticky", b"3"), ("range", b"4")),
    (("other", b"5"),),
]
LIMITS = GroupLimits(initial_delay_ms=200, new_member_ms=3_000, members_max=5)
WHOSE = st.integers(0, 5)


class GroupMachine(RuleBasedStateMachine):
    kind: type[KafkaGroup] = KafkaGroup

    def __init__(self) -> None:
        super().__init__()
        self.talk = GroupTalk(LIMITS, self.kind)
        self.ids: list[str] = []
        self.generation = 0

    def _id(self, whose: int) -> str:
        known = self.ids[-6:]
        return known[whose % len(known)] if known else "nobody"

    @rule(
        protocols=st.sampled_from(PROTOCOLS),
        instance=st.sampled_from([None, None, "a", "b"]),
        id_required=st.booleans(),
        session_ms=st.sampled_from([1_000, 2_000, 100]),
    )
    def come(
        self, protocols: Any, instance: str | None, id_required: bool, session_ms: int
    ) -> None:
        self.talk.join(
            instance_id=instance,
            protocols=protocols,
            id_required=id_required,
            session_ms=session_ms,
            rebalance_ms=2_500,
        )
        self._learn()

    @rule(
        whose=WHOSE,
        protocols=st.sampled_from(PROTOCOLS),
        instance=st.sampled_from([None, "a", "b"]),
    )
    def join_again(self, whose: int, protocols: Any, instance: str | None) -> None:
        member = self.talk.group.members.get(self._id(whose))
        if member is not None and instance is None:
            instance = member.instance_id
        self.talk.join(
            self._id(whose),
            protocols=protocols,
            instance_id=instance,
            session_ms=1_500,
            rebalance_ms=2_500,
        )
        self._learn()

    @rule(whose=WHOSE, behind=st.integers(0, 1))
    def sync(self, whose: int, behind: int) -> None:
        generation = self.talk.group.generation - behind
        result = JoinResult(member_id=self._id(whose), generation=generation)
        given = {name.replace("-", "_"): name.encode() for name in self.talk.group.members}
        ticket = self.talk.sync(result, **given)
        answer = self.talk.answers.get(ticket)
        if isinstance(answer, SyncResult) and answer.error is GroupError.NONE:
            assert behind == 0
            assert self.talk.group.state is GroupState.STABLE

    @rule(whose=WHOSE, behind=st.integers(0, 1))
    def beat_or_commit(self, whose: int, behind: int) -> None:
        group, now_ms = self.talk.group, self.talk.now_ms
        for error in (
            group.heartbeat(self._id(whose), None, group.generation - behind, now_ms),
            group.check_commit(self._id(whose), None, group.generation - behind, now_ms),
        ):
            assert error is not GroupError.NONE or (
                behind == 0 and self._id(whose) in group.members
            )

    @rule(whose=WHOSE)
    def leave(self, whose: int) -> None:
        self.talk.leave(self._id(whose))
        assert self._id(whose) not in self.talk.group.members

    @rule(instance=st.sampled_from(["a", "b"]))
    def remove_static(self, instance: str) -> None:
        self.talk.leave(instance_id=instance)

    @rule(milliseconds=st.sampled_from([1, 100, 300, 1_000, 5_000]))
    def wait(self, milliseconds: int) -> None:
        self.talk.after(milliseconds)

    def _learn(self) -> None:
        known = [*self.talk.group.members, *self.talk.group.pending]
        self.ids += [member_id for member_id in known if member_id not in self.ids]

    @invariant()
    def generations_rise_by_one(self) -> None:
        generation = self.talk.group.generation
        assert self.generation <= generation
        self.generation = generation
        for answer in self.talk.answers.values():
            if isinstance(answer, JoinResult) and answer.error is GroupError.NONE:
                assert 1 <= answer.generation <= generation

    @invariant()
    def who_waits_may_wait(self) -> None:
        group = self.talk.group
        waiting: list[Ticket] = []
        for member in group.members.values():
            if member.joining is not None:
                assert group.state is GroupState.PREPARING
                waiting.append(member.joining)
            if member.syncing is not None:
                assert group.state is GroupState.COMPLETING
                waiting.append(member.syncing)
        assert len(set(waiting)) == len(waiting)
        assert not set(waiting) & self.talk.answers.keys()

    @invariant()
    def members_and_state_fit(self) -> None:
        group = self.talk.group
        if group.state in (GroupState.COMPLETING, GroupState.STABLE):
            assert group.leader in group.members
            assert all(group.protocol in member.protocols for member in group.members.values())
        if group.state is GroupState.EMPTY:
            assert not group.members
        assert len(group.members) <= LIMITS.members_max
        static = {m.instance_id: m.member_id for m in group.members.values() if m.is_static}
        assert static == group._static

    @invariant()
    def the_group_wakes_in_time(self) -> None:
        group = self.talk.group
        deadlines = [member.deadline_ms for member in group.members.values() if not member.waits]
        deadlines += group.pending.values()
        if group.state is GroupState.PREPARING:
            assert group._join_deadline_ms is not None
            deadlines.append(group._join_deadline_ms)
        if group._unsynced and group.state is GroupState.COMPLETING:
            assert group._sync_deadline_ms is not None
            deadlines.append(group._sync_deadline_ms)
        if deadlines:
            assert group.wake_ms is not None
            assert group.wake_ms <= max(min(deadlines), self.talk.now_ms + 1)

    @invariant()
    def every_ticket_is_answered_or_waits(self) -> None:
        group = self.talk.group
        waiting = {m.joining for m in group.members.values()} | {
            m.syncing for m in group.members.values()
        }
        asked = set(range(1, self.talk.asked + 1))
        assert asked == self.talk.answers.keys() | (waiting - {None})


def test_the_invariants_hold() -> None:
    run_state_machine_as_test(
        GroupMachine, settings=settings(max_examples=80, stateful_step_count=40, deadline=None)
    )


class LateTimers(KafkaGroup):
    """Is not woken for what is new."""

    def _wake_at(self, at_ms: int) -> None:
        if self.wake_ms is None:
            self.wake_ms = at_ms


class ForgetsTickets(KafkaGroup):
    """Ends nobody's wait when a member is dropped."""

    def _end_waits(self, member: KafkaMember, error: GroupError) -> None:
        member.joining = member.syncing = None


class KeepsInstances(KafkaGroup):
    """Remembers the instance of a static member that is gone."""

    def _drop(self, member: KafkaMember) -> None:
        instance_id, member.instance_id = member.instance_id, None
        super()._drop(member)
        member.instance_id = instance_id


@pytest.mark.parametrize("bug", [LateTimers, ForgetsTickets, KeepsInstances])
def test_planted_bugs_are_caught(bug: type[KafkaGroup]) -> None:
    machine = type("Planted", (GroupMachine,), {"kind": bug})
    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=200, stateful_step_count=40, deadline=None, database=None
            ),
        )
