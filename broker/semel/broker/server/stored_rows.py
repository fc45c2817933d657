"""Finds a message by its id in stored batches that may hold it.

How it works. The index of message ids says where a message was when it arrived: at an offset; or
due at a time, and in which entry of the log, which is another one here if it came with a move or
was handed to a child by a split (`state/apply/moved_origins.py`). So a few batches at most may hold
it. They are read, and the ids in them are compared byte by byte: the index knows fingerprints only.

Not here: the index (`replica/message_ids.py`), what a caller is told (`id_calls.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from semel.broker.dedup.id_places import ENTRY_MASK
from semel.broker.log import Log
from semel.broker.replica.message_ids import IdPlace
from semel.broker.replica.stored_batches import read_batch
from semel.broker.state import (
    DelayedExtent,
    Extent,
    QueueState,
    State,
    descendants,
    entries_of,
)
from semel.protos.batch import BROKER_HEADER_BYTES, BatchFlags, check_batch, decode_broker_header
from semel.protos.columns import decode_columns
from semel.protos.compacted_rows import offsets_of_rows
from semel.protos.ids import QueueKey
from semel.tier import ColdBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Rows of a stored batch, one of which may be the message."""

    queue_key: QueueKey
    entry: int
    position: int
    length: int
    first_row: int
    count: int
    extent: Extent | None
    """The extent of the queue; None for a delayed batch."""
    ordinal: int
    """Names the delayed batch; -1 for one with offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRow:
    """A message that was found."""

    candidate: Candidate
    stored: bytes
    """Broker header and batch."""
    row: int
    offset: int
    """Its offset; -1 if it is delayed."""


def candidates(state: State, key: QueueKey, place: IdPlace) -> list[Candidate]:
    """The batches that may hold the message at a place of a queue, as of now. If the queue was
    split, its delayed messages are in its children."""
    queue = state.queues.get(key)
    if queue is None:
        return []
    if not place.due_us:
        if not queue.log_start_offset <= place.offset < queue.log_end_offset:
            return []
        return [_of_extent(key, each) for each in queue.extents_from(place.offset, 1)]
    found = list[Candidate]()
    for each in (queue, *descendants(state.queues, queue)):
        entries = entries_of(state.delays.origins.of(each.key), place.entry)
        for entry in (place.entry, *entries) if each is queue else entries:
            found += _delayed(state, each, place.due_us, entry)
    return found


def _delayed(state: State, queue: QueueState, due_us: int, entry: int) -> list[Candidate]:
    """The batches of an entry that wait in the queue, or were released."""
    key, delayed = queue.key, state.delays.queues.get(queue.key)
    waiting = delayed.due_at(due_us, entry, ENTRY_MASK) if delayed else ()
    released = queue.extents_of_entry(entry, ENTRY_MASK, due_us)
    return [*(_of_delayed(key, each) for each in waiting), *(_of_extent(key, e) for e in released)]


def read_row(
    log: Log, among: Sequence[Candidate], message_id: bytes, due_us: int = 0
) -> FoundRow | None:
    """BLOCKING. The message with the id; None if none of the batches has it.

    Of a message that was due at `due_us`, the batch with that time is looked for first: an entry
    that came with a move may hold an older message with the same id, which the window had left
    behind, and both may have been released in one moment. Raises CorruptBatch, CorruptSegment.
    """
    wanted = pa.scalar(message_id, pa.binary())
    other: FoundRow | None = None
    for each in among:
        stored = read_batch(log, (each.entry, each.position, each.length), "a batch is")
        data = stored[BROKER_HEADER_BYTES:]
        header = check_batch(data)
        if header.flags & BatchFlags.POSITION_MARK:
            continue  # compaction has removed all of its messages
        columns = decode_columns(data, header)
        if columns.message_ids is None:
            continue
        row = pc.index(columns.message_ids, wanted).as_py()
        if row < 0:
            continue
        if each.extent is None:  # found by the time for which it waits
            if each.first_row <= row < each.first_row + each.count:
                return FoundRow(candidate=each, stored=stored, row=row, offset=-1)
            continue
        base_offset = each.extent.base_offset
        offsets = offsets_of_rows(columns, base_offset, each.first_row, each.count)
        if offsets[row] >= 0:
            found = FoundRow(candidate=each, stored=stored, row=row, offset=int(offsets[row]))
            if not due_us or header.deliver_at_us == due_us:
                return found
            other = other or found
    return other


class ColdRow(NamedTuple):
    """A message in a batch from the object store."""

    batch: ColdBatch
    row: int
    offset: int
    arrival_us: int
    """Log time at which it was stored, before it waited to be due."""


def cold_row(batch: ColdBatch, message_id: bytes) -> ColdRow | None:
    """The message with the id in a batch from the object store; None if it does not have it. Raises
    CorruptBatch."""
    data = batch.stored[BROKER_HEADER_BYTES:]
    columns = decode_columns(data, check_batch(data))
    if columns.message_ids is None:
        return None
    row = pc.index(columns.message_ids, pa.scalar(message_id, pa.binary())).as_py()
    if row < 0:
        return None
    offsets = offsets_of_rows(columns, batch.base_offset, 0, batch.offset_count)
    arrival_us = decode_broker_header(batch.stored).append_time_us
    return ColdRow(batch, row, int(offsets[row]), arrival_us)


def _of_extent(key: QueueKey, extent: Extent) -> Candidate:
    return Candidate(
        queue_key=key,
        entry=extent.index,
        position=extent.position,
        length=extent.length,
        first_row=extent.first_row,
        count=extent.count,
        extent=extent,
        ordinal=-1,
    )


def _of_delayed(key: QueueKey, extent: DelayedExtent) -> Candidate:
    return Candidate(
        queue_key=key,
        entry=extent.entry,
        position=extent.position,
        length=extent.length,
        first_row=0,
        count=extent.messages,
        extent=None,
        ordinal=extent.ordinal,
    )
