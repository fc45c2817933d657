"""Whole runs of a group with members that die, answers that are lost and coordinators that change.

Planted bugs show that the world's checks catch what a coordinator may do wrong.
"""

from __future__ import annotations

from typing import Any

import pytest

from semel.gateway.groups.kafka_group import KafkaGroup
from semel.gateway.groups.kafka_member import KafkaMember
from semel.gateway.groups.results import GroupError, JoinResult, Ticket
from tests.kit.kafka_group_world import GroupWorld

SEEDS = 40


def test_members_share_all_partitions_whatever_fails() -> None:
    commits = 0
    for seed in range(SEEDS):
        world = GroupWorld(seed)
        try:
            world.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        commits += world.commits
    assert commits > SEEDS * 100, "the runs did nothing"


class CommitsOfOldGenerations(KafkaGroup):
    """Looks at the member of a commit and not at its generation."""

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> GroupError:
        return super().check_commit(member_id, instance_id, self.generation, now_ms)


class CommitsOfAnybody(KafkaGroup):
    """Takes every commit."""

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> GroupError:
        super().check_commit(member_id, instance_id, generation, now_ms)
        return GroupError.NONE


class ForgottenSessions(KafkaGroup):
    """Nobody is ever taken for dead."""

    def _heard_of(self, member: KafkaMember, now_ms: int) -> None:
        member.deadline_ms = 1 << 60


class ForgottenJoinTimer(KafkaGroup):
    """A rebalance waits for ever for who is missing."""

    def _set_join_deadline(self, at_ms: int) -> None:
        self._join_deadline_ms = 1 << 60


class AnswersTwice(KafkaGroup):
    """Answers a JoinGroup once more."""

    def _answer_join(self, ticket: Ticket, result: JoinResult) -> None:
        super()._answer_join(ticket, result)
        if result.generation > 2:
            super()._answer_join(ticket, result)


class SameGeneration(KafkaGroup):
    """A rebalance that ends does not raise the generation."""

    def _complete_join(self, now_ms: int) -> None:
        super()._complete_join(now_ms)
        self.generation = 1


class StaysWithoutRebalance(KafkaGroup):
    """A member that is gone leaves its partitions to nobody."""

    def _remove(self, member: KafkaMember, now_ms: int) -> None:
        self._drop(member)
        if not self.members:
            self.state = type(self.state).EMPTY


BUGS: list[Any] = [
    CommitsOfOldGenerations,
    CommitsOfAnybody,
    ForgottenSessions,
    ForgottenJoinTimer,
    AnswersTwice,
    SameGeneration,
    StaysWithoutRebalance,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_planted_bugs_are_caught(bug: type[KafkaGroup]) -> None:
    for seed in range(SEEDS):
        try:
            GroupWorld(seed, bug).run()
        except (AssertionError, KeyError):
            return
    raise AssertionError("no seed caught it")
