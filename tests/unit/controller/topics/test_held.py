"""Which queues are split with what is delayed in them is asked before a split is decided."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from semel.controller.topics.held import require_nothing_delayed
from semel.protos.errors import InvalidRequest, Throttled, Unavailable
from semel.protos.levels import DELAYED_SPLIT_LEVEL
from semel.protos.v1.broker_pb2 import ListOffsetsReply
from semel.protos.v1.common_pb2 import QueueRef
from semel.protos.v1.metadata_pb2 import SplitRecord, TopicRecord

RECORD = TopicRecord(name="t", topic_id=7, placement=[1, 2])
PLAN = [SplitRecord(queue_id=0), SplitRecord(queue_id=1)]


class Groups:
    """Two groups, each with one queue of the topic."""

    def __init__(self, *levels: int | None, delayed: int = 3) -> None:
        self._levels = dict(enumerate(levels, 1))
        self._delayed = delayed
        self.asked: list[int] = []
        self.silent = False

    def level(self, group_id: int) -> int | None:
        return self._levels[group_id]

    async def ask(self, group_id: int, queues: Sequence[QueueRef]) -> ListOffsetsReply:
        self.asked.append(group_id)
        if self.silent:
            raise Unavailable("no answer")
        reply = ListOffsetsReply()
        for queue in queues:
            reply.queues.add(queue=queue, delayed_messages=self._delayed, next_due_us=1)
        return reply

    async def check(self) -> None:
        await require_nothing_delayed(self.ask, self, RECORD, PLAN)


async def test_a_group_that_can_hand_messages_over_is_not_asked() -> None:
    groups = Groups(DELAYED_SPLIT_LEVEL, DELAYED_SPLIT_LEVEL + 1)
    await groups.check()
    assert groups.asked == []


async def test_an_older_one_keeps_its_queue_whole() -> None:
    groups = Groups(DELAYED_SPLIT_LEVEL, DELAYED_SPLIT_LEVEL - 1)
    with pytest.raises(InvalidRequest, match="queue 1 of topic 't' holds 3 delayed messages"):
        await groups.check()
    assert groups.asked == [2]
    await Groups(1, 1, delayed=0).check()


async def test_who_has_not_told_its_level_is_asked_again() -> None:
    with pytest.raises(Throttled, match="group 2 has not told"):
        await Groups(DELAYED_SPLIT_LEVEL, None).check()
    await Groups(DELAYED_SPLIT_LEVEL, None, delayed=0).check()


async def test_a_group_that_does_not_answer_prevents_nothing() -> None:
    groups = Groups(1, 1)
    groups.silent = True
    await groups.check()
    assert groups.asked == [1, 2]
