"""What tests of delayed batches share: a group that knows them, and `semel verify` over its log."""

from __future__ import annotations

from typing import Any

from semel.broker.state import (
    BatchVerifier,
    QueueReport,
    State,
    TableVerifier,
)
from semel.protos.batch import BatchHeader
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.levels import DELAY_LEVEL
from semel.protos.v1 import control_pb2
from tests.kit.state_log import KEY, START_US, Group, header, ref

SECOND_US = 1_000_000
OTHER = QueueKey(TopicId(7), QueueId(1))


def delaying_group() -> Group:
    """With two queues, and a producer who may write to both."""
    made = Group(queues=(KEY, OTHER))
    made.raise_level(DELAY_LEVEL)
    made.fence(keys=(KEY, OTHER))
    return made


def late(previous: int, seconds: float, *, last: int | None = None, **rest: Any) -> BatchHeader:
    """A batch that is due so many seconds after the start of the tests."""
    return header(previous, last=last, due_us=START_US + int(seconds * SECOND_US), **rest)


def crcs(group: Group, key: QueueKey = KEY) -> list[int]:
    return [batch.content_crc for _, batch in group.stored_batches(key)]


def restarted(state: State) -> State:
    data = b"".join(state.to_parts())
    again = State.from_bytes(data)
    assert b"".join(again.to_parts()) == data
    return again


def verify(group: Group, key: QueueKey = KEY) -> QueueReport:
    """The queue as `semel verify` reads it, with its table rebuilt from the log."""
    table = TableVerifier()
    for frame in group.frames:
        table.feed(frame)
    queue = group.state.queues[key]
    assert not table.problems
    assert table.log_end_offset(key) == queue.log_end_offset
    assert table.queue_digest(key) == group.state.producers.queue_digest(key)
    verifier = BatchVerifier(key, queue.log_start_offset, queue.log_end_offset)
    for extent in queue.extents_from(queue.log_start_offset, 1 << 40):
        stored = group.payload(extent.index, extent.position)
        verifier.feed(extent.base_offset, extent.count, stored, 0, extent.append_time_us)
    for delayed in group.state.delays.queues.get(key, ()):
        stored = group.payload(delayed.entry, delayed.position)
        verifier.feed_delayed(delayed.entry, delayed.messages, stored)
    verifier.hold_against(table.windows(key))
    return verifier.finish()


def split_record(key: QueueKey = KEY) -> control_pb2.SplitQueue:
    record = control_pb2.SplitQueue(queue=ref(key))
    for number, (lo, hi) in enumerate(((0, 100), (100, 65_536)), 10):
        record.children.add(queue_id=number, slot_start=lo, slot_end=hi)
    return record
