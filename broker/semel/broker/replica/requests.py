"""Requests that wait to become records of an entry, one class for each kind.

Not here: their order, and their answers when they are applied (`replica/proposer.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from semel.broker.compaction import CompactedBatch
from semel.broker.replica.ack_sink import AckSink
from semel.broker.state import EXPIRED_ROWS_MAX, ApplyResult, CheckedIds, TransactionIds
from semel.protos.batch import BatchHeader
from semel.protos.errors import SemelError
from semel.protos.frames import RecordKind
from semel.protos.ids import QueueKey
from semel.protos.v1.control_pb2 import ControlRecord
from semel.protos.values import value

RecordParts = tuple[RecordKind, Sequence[bytes | memoryview]]
_EXPIRY_BYTES = 64 + 10 * EXPIRED_ROWS_MAX
_RELEASE_BYTES = 64


@value
class Batch:
    header: BatchHeader
    data: bytes
    sink: AckSink
    ids: CheckedIds | None = None
    """Its message ids, looked up."""


@dataclass(frozen=True, slots=True)
class Control:
    record: ControlRecord
    future: asyncio.Future[ApplyResult]
    looked_up: TransactionIds | None = None
    """For a publication to topics that compare message ids, and for a rewrite."""
    compacted: tuple[CompactedBatch, ...] = ()
    """For a COMPACT record: the batches that take the places of others."""
    parted: tuple[tuple[int, bytes], ...] = ()
    """For a PART_DELAYED record: append time and bytes of each part."""

    @property
    def is_large(self) -> bool:
        """It may fill an entry alone."""
        return bool(self.looked_up or self.compacted or self.parted)


@dataclass(frozen=True, slots=True)
class Copy:
    """A stored batch of another broker group; it is decided at apply."""

    stored: bytes
    future: asyncio.Future[ApplyResult]
    in_memory: bool = False
    """Its topic is in memory: the record has both headers, and no body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """A look at the rows of a queue. Nobody waits for it; the next look does the rest."""

    queue_key: QueueKey
    now_us: int
    idle_ms: int
    rows_max: int
    spare_ms: int = 0
    """Surplus rows that have changed since are left alone."""


@dataclass(frozen=True, slots=True)
class Release:
    """Delayed batches of a queue are due. Nobody waits for it."""

    queue_key: QueueKey


@dataclass(frozen=True, slots=True)
class Eviction:
    """A topic's window of message ids may be too large. Nobody waits for it."""

    topic_id: int
    arrival: int


@dataclass(frozen=True, slots=True)
class Preceding:
    """A record that must stand before another one. Nobody waits for it."""


Item = Batch | Control | Copy | Eviction | Expiry | Release


@value
class Entry:
    """Records of one entry to append now."""

    records: list[RecordParts]
    size: int
    bodies: list[tuple[int, bytes]]
    """The stored batches of MEMORY and MEMORY_COPY records, by the numbers of the records."""


def answer_with(item: Item | Preceding, error: SemelError) -> None:
    if isinstance(item, Batch):
        item.sink.refuse(item.header, error)
    elif isinstance(item, Control | Copy) and not item.future.done():
        item.future.set_exception(error)


def control_parts(record: ControlRecord) -> RecordParts:
    return RecordKind.CONTROL, (record.SerializeToString(deterministic=True),)


def size_of(item: Item) -> int:
    """Upper bound of the record's payload, broker header aside."""
    if isinstance(item, Batch):
        return len(item.data)
    if isinstance(item, Copy):
        return len(item.stored)
    if isinstance(item, Control):
        made = sum(len(each.batch) for each in item.compacted)
        return item.record.ByteSize() + made + sum(len(part) for _, part in item.parted)
    if isinstance(item, Release | Eviction):
        return _RELEASE_BYTES
    return _EXPIRY_BYTES
