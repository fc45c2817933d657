"""Hands the delayed batches of a queue that was split to its children.

How it works. A split leaves the parent's delayed batches where they are. The master reads them in
their order and writes what each child gets of a batch as a PARTED record. The PART_DELAYED record
behind those in the same entry names the batches: they end, and the parts become delayed batches of
the children, under the same due time and the same *ordinal*. So the order of one due time survives,
also among what the child has taken itself since, whose ordinals are higher.

Of several parts each has the rows of its child, without the cancelled ones. A single part has all
rows of its batch, and the cancelled ones are cancelled there. The sequence table knows nothing of
parts: the batch is remembered as it was sent, by the parent.

A batch that no node can read stays where it is, until an operator gives it up: a GIVE_UP_DELAYED
record names it, and it ends without parts.

The message ids of a batch are known by its first entry. The children note in which entries their
parts are, as a queue does that has moved (`moved_origins.py`).

Invariants
1. Each row that is not cancelled is in one part, of the same due time and ordinal, unless its batch
   was given up: the numbers of rows must fit, or the node halts.
2. Batches are parted in their order, and a child releases nothing that comes after the first one
   that its parent still holds. So the order of delivery is that of due times and ordinals.
3. A queue is neither split nor moved as long as its parent holds delayed batches. In a topic that
   compares message ids it is not moved as long as parts wait in it either: the index knows their
   ids as those of the parent, which the other broker group does not have.

Format. docs/formats/state.md, "Delayed"; docs/formats/frame.md.

Not here: which rows a child gets (`semel.protos.parted_rows`), when that is done
(`background/delayed_parting.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice, pairwise
from typing import Final, NamedTuple

import numpy as np

from semel.broker.state.apply.delayed_extent import DelayedExtent, DelayedPlace
from semel.broker.state.apply.delays import Delays
from semel.broker.state.apply.moved_origins import joined_origins, origins_after
from semel.broker.state.apply.queues import QueueState
from semel.broker.state.apply.results import DelayedGivenUp, DelayedParted, StateDiverged
from semel.broker.state.apply.splits import ancestors
from semel.protos.batch import (
    BROKER_HEADER_BYTES,
    BatchFlags,
    decode_broker_header,
    decode_header,
)
from semel.protos.crc import crc32c
from semel.protos.delays import is_delayed
from semel.protos.ids import QueueId, QueueKey
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import control_pb2

PARTED_BATCHES_MAX: Final = 128
"""One record takes at most this many batches of a parent."""


class Parted(NamedTuple):
    """A PARTED record of the entry that is being applied."""

    key: QueueKey
    due_us: int
    messages: int
    position: int
    length: int


def parted(index: int, position: int, payload: memoryview, term: int) -> Parted:
    """Reads a PARTED record. Raises CorruptBatch, StateDiverged."""
    head = decode_broker_header(payload)
    batch = decode_header(payload, BROKER_HEADER_BYTES)
    if (
        head.base_offset != -1
        or head.term != term
        or not is_delayed(batch)
        or batch.flags & BatchFlags.OFFSET
        or len(payload) != batch.stored_length
    ):
        raise StateDiverged(f"entry {index} at {position}: {batch} is no part of a delayed batch")
    return Parted(batch.queue_key, batch.deliver_at_us, batch.count, position, len(payload))


def rows_crc(rows: Sequence[int]) -> int:
    """CRC32C over the numbers of cancelled rows."""
    return crc32c(np.array(rows, "<u4").tobytes())


def held_before(
    queues: Mapping[QueueKey, QueueState], delays: Delays, queue: QueueState
) -> DelayedPlace | None:
    """The place of the first delayed batch that an ancestor of the queue still holds; None if none
    holds any. The queue releases nothing from there on."""
    if not delays.sealed or queue.parent is None:
        return None
    holders = (each.key for each in ancestors(queues, queue) if each.key in delays.sealed)
    return min((delays.queues[key].first_place for key in holders), default=None)


def held_above(
    queues: Mapping[QueueKey, QueueState], delays: Delays, queue: QueueState
) -> str | None:
    """A text that says what an ancestor still has to hand to the queue; None if nothing."""
    if not delays.sealed or queue.parent is None:
        return None
    for each in ancestors(queues, queue):
        if each.key in delays.sealed:
            return (
                f"{delays.queues[each.key].messages} delayed messages of queue"
                f" {each.key.queue_id} are still being handed to its children, of which queue"
                f" {queue.key.queue_id} is one"
            )
    return None


def holds_parts(queues: Mapping[QueueKey, QueueState], delays: Delays, queue: QueueState) -> bool:
    """Whether parts of a parent that is here wait in the queue. Some milliseconds for many."""
    held = delays.queues.get(queue.key)
    if queue.parent is None or held is None:
        return False
    if next(ancestors(queues, queue), None) is None:
        return False
    parts = delays.origins.of(queue.key)["entry"]
    return bool(np.isin(held.table()["entry"], parts).any())


def misfit(
    record: control_pb2.PartDelayed,
    queues: Mapping[QueueKey, QueueState],
    delays: Delays,
    parts: Sequence[Parted],
) -> str | None:
    """Why a record and the parts in front of it do not fit the state; None if they do."""
    key = queue_key_of(record.queue)
    parent, held = queues.get(key), delays.queues.get(key)
    if parent is None or held is None or not parent.sealed or parent.frozen:
        return "the queue was not split, or holds no delayed batches"
    if not 0 < len(record.batches) <= min(PARTED_BATCHES_MAX, held.batches):
        return f"it names {len(record.batches)} of {held.batches} batches"
    if sum(batch.parts for batch in record.batches) != len(parts):
        return f"{len(parts)} parts are there"
    order = [QueueKey(key.topic_id, QueueId(child.queue_id)) for child in parent.children]
    at = 0
    for batch, extent in zip(record.batches, held, strict=False):
        named = batch.due_us, batch.ordinal, batch.entry, batch.position
        if named != extent[:4]:
            return f"the next batch is {extent}"
        rows = held.cancelled.rows(extent.ordinal)
        if (batch.cancelled, batch.cancelled_crc) != (len(rows), rows_crc(rows)):
            return f"other rows of batch {extent.ordinal} are cancelled"
        taken = parts[at : at + batch.parts]
        at += batch.parts
        total = sum(part.messages for part in taken)
        if not taken or total != (extent.messages if len(taken) == 1 else held.left(extent)):
            return f"the parts of batch {extent.ordinal} have {total} messages"
        for part in taken:
            child = queues.get(part.key)
            if child is None or child.sealed or child.frozen or part.due_us != extent.due_us:
                return f"{part} is no part of batch {extent.ordinal}, or its queue takes none"
        places = [order.index(part.key) if part.key in order else -1 for part in taken]
        if places[0] < 0 or any(low >= high for low, high in pairwise(places)):
            return f"the parts of batch {extent.ordinal} are not for its children, in their order"
    return None


def apply_part(
    record: control_pb2.PartDelayed,
    queues: Mapping[QueueKey, QueueState],
    delays: Delays,
    parts: Sequence[Parted],
    index: int,
) -> DelayedParted:
    """Puts the parts into the children, in the place of the batches. Raises StateDiverged."""
    if (reason := misfit(record, queues, delays, parts)) is not None:
        raise StateDiverged(f"entry {index} parts {record}: {reason}")
    key = queue_key_of(record.queue)
    held = delays.queues[key]
    found = list(islice(held, len(record.batches)))
    cancelled = [held.cancelled.rows(extent.ordinal) for extent in found]
    delays.remove(key, found)
    before = delays.origins.of(key)
    came: dict[QueueKey, list[int]] = {}
    """The entries of the batches, by the child that gets a part of them."""
    at = 0
    for batch, extent, rows in zip(record.batches, found, cancelled, strict=True):
        for part in parts[at : at + batch.parts]:
            due_us, ordinal = extent.due_us, extent.ordinal
            made = DelayedExtent(due_us, ordinal, index, part.position, part.length, part.messages)
            delays.insert(part.key, made)
            if batch.parts == 1:
                delays.leave_out(part.key, made, rows)
            came.setdefault(part.key, []).append(extent.entry)
        at += batch.parts
    for child, entries in came.items():
        there = np.array(entries, np.int64)
        new = origins_after(before, there, np.full(len(there), index, np.int64))
        delays.origins.queues[child] = joined_origins(delays.origins.of(child), new)
    return DelayedParted(queue_key=key, batches=len(found))


def next_batch(
    record: control_pb2.GiveUpDelayed, queues: Mapping[QueueKey, QueueState], delays: Delays
) -> DelayedExtent | None:
    """The batch that the record gives up, if it is the first one that a queue that was split still
    holds; else None."""
    key = queue_key_of(record.queue)
    parent, held = queues.get(key), delays.queues.get(key)
    if parent is None or held is None or not parent.sealed or parent.frozen:
        return None
    first = next(iter(held))
    named = record.due_us, record.ordinal, record.entry, record.position
    return first if (*named, record.messages) == (*first[:4], held.left(first)) else None


def apply_give_up(
    record: control_pb2.GiveUpDelayed,
    queues: Mapping[QueueKey, QueueState],
    delays: Delays,
    index: int,
) -> DelayedGivenUp:
    """Ends the first batch of a queue that was split. Raises StateDiverged."""
    extent = next_batch(record, queues, delays)
    if extent is None:
        raise StateDiverged(f"entry {index} gives up {record}, which is not the next batch")
    key = queue_key_of(record.queue)
    delays.remove(key, [extent])
    return DelayedGivenUp(queue_key=key, messages=record.messages)
