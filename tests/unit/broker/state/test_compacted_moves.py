"""Queues that were compacted move with their gaps, and none moves while it is compacted."""

from __future__ import annotations

from typing import Any

import pytest

from semel.client.message import Rows
from semel.protos.batch import BROKER_HEADER_BYTES
from semel.protos.errors import InvalidRequest
from semel.protos.frames import RecordKind
from semel.protos.ids import QueueKey
from semel.protos.levels import COMPACTION_LEVEL
from semel.protos.v1 import common_pb2, control_pb2
from tests.kit.compacting import CompactedGroup
from tests.kit.state_log import KEY, control
from tests.unit.broker.state.moving import Home, begin, bring_slice, copy_some


class Source(CompactedGroup):
    """The group that a compacted queue leaves."""

    number = 1
    key = KEY
    step: Any = Home.step

    def stored(self, what: Any) -> bytes:
        return Home.stored(self, what) if isinstance(what, int) else super().stored(what)  # type: ignore[arg-type]

    def alter(self, settings: common_pb2.TopicSettings) -> None:
        record = control_pb2.AlterTopic(topic_id=KEY.topic_id, settings=settings)
        self.entry.append(control(alter_topic=record))
        self.apply(*self.entry)
        self.entry = []
        self.new_master()


@pytest.fixture
def source() -> Source:
    group = Source()
    for number in range(6):
        group.send([(b"a", b"%d" % number), (b"b%d" % number, b"x"), (None, b"y")])
    group.send([(b"b0", b"z"), (b"b1", None)])
    group.compact(run_extents=4)
    group.send([(b"a", b"last")])
    return group


def read(home: Home) -> list[tuple[int, Any]]:
    queue, found = home.state.queues[KEY], []
    for extent in queue.extents_from(queue.log_start_offset, 1 << 40):
        stored = memoryview(home.payload(extent.index, extent.position))
        end = extent.first_row + extent.count
        rows = Rows("t", QueueKey(*KEY), stored, extent.base_offset, extent.first_row, end)
        found += [(each.offset, (each.key, each.value)) for each in rows.messages()]
    return found


def test_a_queue_that_is_compacted_does_not_move(source: Source) -> None:
    error = source.step("SEAL", 1, 2)
    assert isinstance(error, InvalidRequest)
    assert "--cleanup delete" in error.message


def test_gaps_move_along(source: Source) -> None:
    source.alter(common_pb2.TopicSettings())
    before = source.read()
    assert before[0][0] > 0
    target = Home(2, at_level=COMPACTION_LEVEL)
    assert begin(source, target, 1) is None  # type: ignore[arg-type]
    copy_some(source, target, 3)  # type: ignore[arg-type]
    assert source.step("SEAL", 1, 2) is None
    assert bring_slice(source, target, 1) is None  # type: ignore[arg-type]
    target.restart()
    assert target.step("ACTIVATE", 1, 1) is None
    assert source.step("FORWARD", 1, 2) is None
    assert read(target) == before
    queue = target.state.queues[KEY]
    assert queue.compaction.gaps_to > 0
    assert (queue.compaction.compacted_to, queue.compaction.marks) == (0, [])
    target.restart()
    assert read(target) == before


def test_a_span_that_is_not_of_the_batch_is_not_taken(source: Source) -> None:
    target = Home(2, at_level=COMPACTION_LEVEL)
    begin(source, target, 1)  # type: ignore[arg-type]
    plain = Source()
    plain.send([(b"a", b"1")])
    stored = plain.stored(0)
    compacted = source.stored(0)
    wrong = compacted[:BROKER_HEADER_BYTES] + stored[BROKER_HEADER_BYTES:]
    target.entry.append((RecordKind.COPY, [wrong]))
    error = target.commit()[-1].error  # type: ignore[union-attr]
    assert isinstance(error, InvalidRequest)
