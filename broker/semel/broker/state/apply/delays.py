"""Delayed batches: they are stored, and have no offsets until they are due.

How it works. When a delayed batch is applied, or a staged one is published, it becomes a *delayed
extent* of its queue. A RELEASE record takes the first extents and appends them to the queue by
reference: their offsets begin where the queue ends. Every node takes the same ones, because they
are ordered by due time, then by *ordinal*, a number that the broker group gives each extent when it
is added. The master names how many to take, and below which ordinal. So extents that are added
between its decision and the apply do not change what is released.

The extents of one queue are packed in blocks, in their order: a million of them take 36 MB, and a
checkpoint takes them as they are. Queues are in a heap by their first due time, so that a search
for due batches costs nothing for queues that have none.

Invariants
1. The extents of a queue rise strictly by (due_us, ordinal); an ordinal is used only once.
2. `bytes`, `messages` and `batches` are the sums over all extents. Each extent is live for
   cleaning, kept files and snapshots.
3. A queue has an entry here if and only if it has delayed batches.
4. A queue with delayed batches is neither split nor moved (checked at admission and at apply).
5. Blocks and heap follow from the extents; where blocks are cut never shows in the bytes.

Format. docs/formats/state.md.

Not here: whether a batch may be delayed and what a release takes
(`state/admission/delay_admission.py`), when a release is proposed
(`semel.broker.background.delayed_release`), offsets (`queues.py`).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final, NamedTuple

from semel.broker.state.apply.codec import Reader
from semel.broker.state.apply.queues import QueueState
from semel.broker.state.apply.results import DelayedReleased, StateDiverged
from semel.protos.batch import BatchFlags
from semel.protos.errors import CorruptSegment
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import control_pb2

RELEASE_BATCHES_MAX: Final = 1_000
"""One entry releases at most this many batches of all queues: no more than it can store."""
COLUMN_FLAG: Final = BatchFlags.DELIVER_AT
HEAD: Final = struct.Struct("<QI")
DELAYED_QUEUE: Final = struct.Struct("<QII")
DELAYED_EXTENT: Final = struct.Struct("<qQqIII")
_BLOCK_BYTES: Final = 512 * DELAYED_EXTENT.size
_DUE: Final = struct.Struct("<q")
_PLACE: Final = struct.Struct("<qQ")
_HEAP_SLACK: Final = 1_024


class DelayedPlace(NamedTuple):
    """The place of a delayed extent in the order of its queue."""

    due_us: int
    ordinal: int


class DelayedExtent(NamedTuple):
    """One delayed batch: in the log, and without offsets."""

    due_us: int
    ordinal: int
    """Its number among all batches that were ever delayed in this broker group."""
    entry: int
    """Index of the entry that holds it."""
    position: int
    length: int
    """Length of the record's payload: broker header and batch."""
    messages: int


class DelayedQueue:
    """The delayed batches of one queue, at least one."""

    __slots__ = ("_blocks", "batches", "bytes", "messages")

    def __init__(self) -> None:
        self._blocks: list[bytearray] = []
        """Packed extents in order; no block is empty."""
        self.batches = 0
        self.messages = 0
        self.bytes = 0

    @property
    def first_due_us(self) -> int:
        """When the first batch is due."""
        return _due(self._blocks[0])

    @property
    def last(self) -> DelayedPlace:
        """The place of the last batch."""
        block = self._blocks[-1]
        return _place(block, len(block) // DELAYED_EXTENT.size - 1)

    @property
    def last_due_us(self) -> int:
        """When the last batch is due."""
        return self.last.due_us

    def add(self, extent: DelayedExtent) -> None:
        """Adds an extent; its ordinal must be the highest so far."""
        blocks = self._blocks
        if not blocks:
            blocks.append(bytearray())
            at = place = 0
        else:
            at = max(0, bisect_right(blocks, extent.due_us, key=_due) - 1)
            block = blocks[at]
            ordinals = range(len(block) // DELAYED_EXTENT.size)
            place = bisect_right(ordinals, extent.due_us, key=lambda each: _due(block, each))
        block, cut = blocks[at], place * DELAYED_EXTENT.size
        block[cut:cut] = DELAYED_EXTENT.pack(*extent)
        if len(block) > _BLOCK_BYTES:
            half = len(block) // DELAYED_EXTENT.size // 2 * DELAYED_EXTENT.size
            blocks.insert(at + 1, block[half:])
            del block[half:]
        self._count(extent, 1)

    def first(self, until_us: int, below_ordinal: int, batches_max: int) -> list[DelayedExtent]:
        """The first `batches_max` extents below the ordinal that are due at `until_us`."""
        found: list[DelayedExtent] = []
        for extent in self:
            if extent.due_us > until_us or len(found) >= batches_max:
                break
            if extent.ordinal < below_ordinal:
                found.append(extent)
        return found

    def page(
        self, after: DelayedPlace | None, before_us: int | None, messages_max: int, bytes_max: int
    ) -> tuple[list[DelayedExtent], bool]:
        """The extents behind `after` that are due before `before_us`, and whether there are more.

        The last one brings them to `messages_max` messages. All together have at most `bytes_max`
        bytes, unless the first one alone has more.
        """
        found: list[DelayedExtent] = []
        messages = length = 0
        for extent in self._behind(after):
            if before_us is not None and extent.due_us >= before_us:
                break
            length += extent.length
            if found and (messages >= messages_max or length > bytes_max):
                return found, True
            found.append(extent)
            messages += extent.messages
        return found, False

    def packed(self, after: DelayedPlace | None, blocks_max: int) -> bytes:
        """The packed extents behind `after`, of at most so many blocks; empty at the end."""
        return b"".join(islice(self._blocks_behind(after), blocks_max))

    def _behind(self, after: DelayedPlace | None) -> Iterator[DelayedExtent]:
        for block in self._blocks_behind(after):
            yield from map(DelayedExtent._make, DELAYED_EXTENT.iter_unpack(block))

    def _blocks_behind(self, after: DelayedPlace | None) -> Iterator[bytearray]:
        """Blocks of extents behind `after`: the rest of the first one, if any, then whole ones."""
        if after is None:
            yield from self._blocks
            return
        at = max(0, bisect_right(self._blocks, after, key=_place) - 1)
        block = self._blocks[at]
        ordinals = range(len(block) // DELAYED_EXTENT.size)
        start = bisect_right(ordinals, after, key=lambda each: _place(block, each))
        if start < len(ordinals):
            yield block[start * DELAYED_EXTENT.size :]
        yield from islice(self._blocks, at + 1, None)

    def remove(self, extents: list[DelayedExtent]) -> None:
        """Removes extents that `first` has returned."""
        gone = {extent.ordinal for extent in extents}
        while gone:
            block = self._blocks[0]
            kept = bytearray()
            end = 0
            for extent in map(DelayedExtent._make, DELAYED_EXTENT.iter_unpack(block)):
                end += DELAYED_EXTENT.size
                if extent.ordinal in gone:
                    gone.discard(extent.ordinal)
                    self._count(extent, -1)
                    if not gone:
                        break
                else:
                    kept += DELAYED_EXTENT.pack(*extent)
            kept += block[end:]
            if gone and kept:  # a newer extent than the master knew precedes the rest
                self._merge(kept)
            elif kept:
                self._blocks[0] = kept
            else:
                del self._blocks[0]

    def _merge(self, kept: bytearray) -> None:
        """Replaces the first block: its rest goes to the front of the second one."""
        del self._blocks[0]
        self._blocks[0][:0] = kept

    def _count(self, extent: DelayedExtent, sign: int) -> None:
        self.batches += sign
        self.messages += sign * extent.messages
        self.bytes += sign * extent.length

    def __iter__(self) -> Iterator[DelayedExtent]:
        for block in self._blocks:
            yield from map(DelayedExtent._make, DELAYED_EXTENT.iter_unpack(block))

    def parts(self) -> list[bytes]:
        """Canonical bytes."""
        return [bytes(block) for block in self._blocks]

    @classmethod
    def read(cls, data: bytes) -> DelayedQueue:
        """The inverse of `parts`, joined. Raises CorruptSegment."""
        queue = cls()
        queue._blocks = [
            bytearray(data[at : at + _BLOCK_BYTES]) for at in range(0, len(data), _BLOCK_BYTES)
        ]
        before = (-1, -1)
        for extent in queue:
            if extent[:2] <= before:
                raise CorruptSegment(f"state holds delayed batch {extent} after {before}")
            before = extent[:2]
            queue._count(extent, 1)
        return queue


class Delays:
    """All delayed batches of one broker group."""

    __slots__ = ("_heap", "batches", "bytes", "messages", "next_ordinal", "queues")

    def __init__(self) -> None:
        self.queues: dict[QueueKey, DelayedQueue] = {}
        self.next_ordinal = 0
        self.batches = 0
        self.messages = 0
        self.bytes = 0
        self._heap: list[tuple[int, QueueKey]] = []
        """(first due time, queue); also holds stale times, which `_counts` tells apart."""

    # --- changes ----------------------------------------------------------------------------

    def add(
        self, key: QueueKey, due_us: int, entry: int, position: int, length: int, messages: int
    ) -> None:
        """Adds a stored batch that is due at `due_us`."""
        queue = self.queues.get(key)
        first_us = None if queue is None else queue.first_due_us
        if queue is None:
            queue = self.queues[key] = DelayedQueue()
        queue.add(DelayedExtent(due_us, self.next_ordinal, entry, position, length, messages))
        self.next_ordinal += 1
        self._sum(1, messages, length)
        if first_us is None or due_us < first_us:
            self._push(key, queue)

    def release(
        self,
        record: control_pb2.ReleaseDelayed,
        queue: QueueState | None,
        index: int,
        now_us: int,
    ) -> DelayedReleased:
        """Appends the batches that the record names to the queue. Raises StateDiverged."""
        key = queue_key_of(record.queue)
        found = self.first(key, record.until_us, record.below_ordinal, record.batches)
        messages = sum(extent.messages for extent in found)
        if (
            queue is None
            or not 0 < record.batches <= RELEASE_BATCHES_MAX
            or (len(found), messages) != (record.batches, record.messages)
            or record.until_us > now_us
            or record.base_offset != queue.log_end_offset
            or queue.sealed
            or queue.frozen
        ):
            raise StateDiverged(
                f"entry {index} of {now_us} releases {record}; there are {len(found)} batches with"
                f" {messages} messages, the end is {queue and queue.log_end_offset}"
            )
        self._remove(key, found)
        append_time_us = queue.append_time_us(now_us)
        for extent in found:
            queue.append(
                extent.messages, extent.entry, extent.position, extent.length, append_time_us
            )
        return DelayedReleased(
            queue_key=key,
            base_offset=record.base_offset,
            messages=messages,
            batches=len(found),
            late_us=now_us - found[0].due_us,
        )

    def first(
        self, key: QueueKey, until_us: int, below_ordinal: int, batches_max: int
    ) -> list[DelayedExtent]:
        """The batches that a release with these bounds takes, in the order of their offsets."""
        queue = self.queues.get(key)
        return [] if queue is None else queue.first(until_us, below_ordinal, batches_max)

    def _remove(self, key: QueueKey, extents: list[DelayedExtent]) -> None:
        queue = self.queues[key]
        queue.remove(extents)
        self._sum(
            -len(extents),
            -sum(extent.messages for extent in extents),
            -sum(extent.length for extent in extents),
        )
        if queue.batches:
            self._push(key, queue)
        else:
            del self.queues[key]
        self._prune()

    def remove_queue(self, key: QueueKey) -> None:
        """Removes a deleted queue with its delayed batches."""
        queue = self.queues.pop(key, None)
        if queue is not None:
            self._sum(-queue.batches, -queue.messages, -queue.bytes)
            self._prune()

    def _sum(self, batches: int, messages: int, length: int) -> None:
        self.batches += batches
        self.messages += messages
        self.bytes += length

    def _push(self, key: QueueKey, queue: DelayedQueue) -> None:
        heappush(self._heap, (queue.first_due_us, key))
        if len(self._heap) > 2 * len(self.queues) + _HEAP_SLACK:
            self._heap = [(each.first_due_us, name) for name, each in self.queues.items()]
            heapify(self._heap)

    def _prune(self) -> None:
        while self._heap and not self._counts(*self._heap[0]):
            heappop(self._heap)

    def _counts(self, due_us: int, key: QueueKey) -> bool:
        queue = self.queues.get(key)
        return queue is not None and queue.first_due_us == due_us

    # --- questions --------------------------------------------------------------------------

    def due(self, now_us: int, count_max: int) -> list[QueueKey]:
        """Up to `count_max` queues with due batches, the longest overdue first."""
        found: dict[QueueKey, None] = {}
        heap = self._heap
        near = [(*heap[0], 0)] if heap else []
        while near and near[0][0] <= now_us and len(found) < count_max:
            due_us, key, at = heappop(near)
            if self._counts(due_us, key):
                found[key] = None
            for below in range(2 * at + 1, min(2 * at + 3, len(heap))):
                heappush(near, (*heap[below], below))
        return list(found)

    def held(self, key: QueueKey) -> str | None:
        """A text that says what prevents a split or move of the queue; None if nothing does."""
        queue = self.queues.get(key)
        if queue is None:
            return None
        when = datetime.fromtimestamp(queue.last_due_us / 1_000_000, UTC)
        return (
            f"{queue.messages} messages of queue {key.queue_id} are delayed, the last until"
            f" {when:%Y-%m-%d %H:%M:%S} UTC"
        )

    def live_records(self, lo_index: int, hi_index: int) -> Iterator[tuple[int, int, int]]:
        """(index, position, length) of delayed records in entries `[lo_index, hi_index)`."""
        for key in sorted(self.queues):
            for extent in self.queues[key]:
                if lo_index <= extent.entry < hi_index:
                    yield extent.entry, extent.position, extent.length

    # --- canonical bytes --------------------------------------------------------------------

    def parts(self) -> list[bytes]:
        """Canonical bytes: queues by rising number, each with its extents in order."""
        parts = [HEAD.pack(self.next_ordinal, len(self.queues))]
        for key in sorted(self.queues):
            queue = self.queues[key]
            parts.append(DELAYED_QUEUE.pack(*key, queue.batches))
            parts += queue.parts()
        return parts

    @classmethod
    def read_parts(cls, reader: Reader) -> Delays:
        """The inverse of `parts`. Raises CorruptSegment."""
        delays = cls()
        delays.next_ordinal, count = reader.unpack(HEAD)
        for _ in range(count):
            topic_id, queue_id, batches = reader.unpack(DELAYED_QUEUE)
            queue = DelayedQueue.read(bytes(reader.take(batches * DELAYED_EXTENT.size)))
            if not batches:
                raise CorruptSegment(f"state lists queue {queue_id} without a delayed batch")
            delays.queues[QueueKey(TopicId(topic_id), QueueId(queue_id))] = queue
            delays._sum(queue.batches, queue.messages, queue.bytes)
        delays._heap = [(queue.first_due_us, key) for key, queue in delays.queues.items()]
        heapify(delays._heap)
        return delays


def _due(block: bytearray, at: int = 0) -> int:
    return int(_DUE.unpack_from(block, at * DELAYED_EXTENT.size)[0])


def _place(block: bytearray, at: int = 0) -> DelayedPlace:
    return DelayedPlace._make(_PLACE.unpack_from(block, at * DELAYED_EXTENT.size))
