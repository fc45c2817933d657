"""Delayed batches: they are stored, and have no offsets until they are due.

How it works. When a delayed batch is applied, or a staged one is published, it becomes a *delayed
extent* of its queue. A RELEASE record takes the first extents and appends them to the queue by
reference: their offsets begin where the queue ends. Every node takes the same ones, because they
are ordered by due time, then by *ordinal*, a rising number that the broker group gives each extent
when it is added. The master names how many to take, and below which ordinal. So extents that are
added between its decision and the apply do not change what is released. A CANCEL record takes one
message out of a batch that is not due yet: its row is noted, and the release leaves it out.

The extents of one queue are packed in blocks, in their order: a million of them take 36 MB, and a
checkpoint takes them as they are. Queues are in a heap by their first due time, so that a search
for due batches costs nothing for queues that have none.

Invariants
1. The extents of a queue rise strictly by (due_us, ordinal); in one queue an ordinal is used only
   once. A queue that moves keeps its ordinals, and the other group goes on above them.
2. `bytes`, `messages` and `batches` are the sums over all extents; cancelled messages do not count.
   Each extent is live for cleaning, kept files and snapshots.
3. A queue has an entry here if and only if it has delayed batches.
4. A queue with delayed batches is not split, and below level 8 not moved (checked at admission and
   at apply). Nothing of a queue that a move has sealed is released or cancelled.
5. Blocks and heap follow from the extents; where blocks are cut never shows in the bytes.
6. `seconds` is changed with every batch and message that comes or goes, see `due_seconds.py`.
7. Nothing is cancelled that is due at the time of the entry, and nothing is released before. So a
   release in flight never takes a batch from which an entry behind it cancels.

Format. docs/formats/state.md.

Not here: cancelled rows (`cancelled_rows.py`), how much is due in which second (`due_seconds.py`),
whether a batch may be delayed and what a release takes (`state/admission/delay_admission.py`), when
a release is proposed (`semel.broker.background.delayed_release`), offsets (`queues.py`).
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime
from heapq import heapify, heappop, heappush
from itertools import groupby, islice
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from semel.broker.state.apply.cancelled_rows import CancelledRows
from semel.broker.state.apply.codec import Reader
from semel.broker.state.apply.due_seconds import DueSeconds, Numbers, second_of
from semel.broker.state.apply.extents import I64, add_lengths
from semel.broker.state.apply.moved_origins import Origins, OriginTable
from semel.broker.state.apply.queues import QueueState
from semel.broker.state.apply.results import DelayedCancelled, DelayedReleased, StateDiverged
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
EXTENT: Final = np.dtype(
    [
        ("due_us", "<i8"),
        ("ordinal", "<u8"),
        ("entry", "<i8"),
        ("position", "<u4"),
        ("length", "<u4"),
        ("messages", "<u4"),
    ]
)
assert EXTENT.itemsize == DELAYED_EXTENT.size
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
    """Its number. The batches of a queue have rising ones, as they were delayed."""
    entry: int
    """Index of the entry that holds it."""
    position: int
    length: int
    """Length of the record's payload: broker header and batch."""
    messages: int
    """Rows of the batch, cancelled ones as well."""


class DelayedQueue:
    """The delayed batches of one queue, at least one."""

    __slots__ = ("_blocks", "batches", "bytes", "cancelled", "messages")

    def __init__(self) -> None:
        self._blocks: list[bytearray] = []
        """Packed extents in order; no block is empty."""
        self.cancelled = CancelledRows()
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

    def left(self, extent: DelayedExtent) -> int:
        """How many messages of an extent are not cancelled."""
        return extent.messages - self.cancelled.count(extent.ordinal)

    def find(self, place: DelayedPlace) -> DelayedExtent | None:
        """The extent at a place; None if there is none."""
        extent = next(self._behind(DelayedPlace(place.due_us, place.ordinal - 1)), None)
        return extent if extent is not None and extent[:2] == place else None

    def due_at(self, due_us: int, entry: int, mask: int) -> Iterator[DelayedExtent]:
        """The extents that are due at a time, and whose entry agrees with `entry` in the bits of
        `mask`. A million that are due at once take some ten milliseconds."""
        for block in self._blocks_behind(DelayedPlace(due_us, -1)):
            extents = np.frombuffer(bytes(block), EXTENT)
            agree = (extents["due_us"] == due_us) & ((extents["entry"] & mask) == entry & mask)
            for at in np.flatnonzero(agree).tolist():
                yield DelayedExtent(*extents[at].tolist())
            if extents["due_us"][-1] > due_us:
                return

    def cancel(self, extent: DelayedExtent, row: int) -> bool:
        """Cancels a row that is not cancelled yet; True if it was the last one of the extent, which
        is gone then."""
        if self.left(extent) > 1:
            self.cancelled.add(extent.ordinal, row)
            self.messages -= 1
            return False
        place = DelayedPlace(extent.due_us, extent.ordinal)
        at = bisect_right(self._blocks, place, key=_place) - 1
        block = self._blocks[at]
        ordinals = range(len(block) // DELAYED_EXTENT.size)
        cut = bisect_left(ordinals, place, key=lambda each: _place(block, each))
        del block[cut * DELAYED_EXTENT.size : (cut + 1) * DELAYED_EXTENT.size]
        if not block:
            del self._blocks[at]
        self._count(extent, -1)
        self.cancelled.forget(extent.ordinal)
        return True

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
            messages += self.left(extent)
        return found, False

    def columns(self) -> tuple[Numbers, Numbers, Numbers]:
        """Due time, messages that are not cancelled and length of each extent, in order."""
        extents = self.table()
        messages = extents["messages"].astype(np.int64)
        if self.cancelled.batches:
            concerned = np.isin(extents["ordinal"], self.cancelled.ordinals())
            for at in np.flatnonzero(concerned).tolist():
                messages[at] -= self.cancelled.count(int(extents["ordinal"][at]))
        return extents["due_us"], messages, extents["length"].astype(np.int64)

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
                    self.cancelled.forget(extent.ordinal)
                    if not gone:
                        break
                else:
                    kept += DELAYED_EXTENT.pack(*extent)
            kept += block[end:]
            if gone and kept:  # a newer extent than the master knew precedes the rest
                del self._blocks[0]
                self._blocks[0][:0] = kept
            elif kept:
                self._blocks[0] = kept
            else:
                del self._blocks[0]

    def add_live_bytes(self, bounds: I64, sums: I64) -> None:
        """Adds to `sums[k]` the lengths of records in entries `[bounds[k], bounds[k + 1])`."""
        for block in self._blocks:
            extents = np.frombuffer(block, EXTENT)
            add_lengths(extents["entry"], extents["length"], bounds, sums)

    def _count(self, extent: DelayedExtent, sign: int) -> None:
        self.batches += sign
        self.messages += sign * self.left(extent)
        self.bytes += sign * extent.length

    def __iter__(self) -> Iterator[DelayedExtent]:
        for block in self._blocks:
            yield from map(DelayedExtent._make, DELAYED_EXTENT.iter_unpack(block))

    def table(self) -> npt.NDArray[np.void]:
        """All extents in their order, as an array of EXTENT that does not change with the queue."""
        return np.frombuffer(b"".join(self._blocks), EXTENT)

    def parts(self, *, cancelled: bool) -> list[bytes]:
        """Canonical bytes; `cancelled` adds the cancelled rows."""
        rows = self.cancelled.parts() if cancelled else []
        return [*(bytes(block) for block in self._blocks), *rows]

    @classmethod
    def read_parts(cls, reader: Reader, batches: int, *, cancelled: bool) -> DelayedQueue:
        """The inverse of `parts`. Raises CorruptSegment."""
        data = bytes(reader.take(batches * DELAYED_EXTENT.size))
        return cls.of(data, CancelledRows.read_parts(reader) if cancelled else CancelledRows())

    @classmethod
    def of(cls, packed: bytes, cancelled: CancelledRows) -> DelayedQueue:
        """The queue with these packed extents and cancelled rows, which it takes over. A million
        extents take some ten milliseconds. Raises CorruptSegment."""
        queue = cls()
        queue.cancelled = cancelled
        queue._blocks = [
            bytearray(packed[at : at + _BLOCK_BYTES]) for at in range(0, len(packed), _BLOCK_BYTES)
        ]
        extents = np.frombuffer(packed, EXTENT)
        dues, ordinals = extents["due_us"], extents["ordinal"]
        rise = (dues[1:] > dues[:-1]) | ((dues[1:] == dues[:-1]) & (ordinals[1:] > ordinals[:-1]))
        if not rise.all() or (len(dues) and dues[0] < 0):
            raise CorruptSegment("state holds delayed batches in another order")
        chosen = np.isin(ordinals, cancelled.ordinals())
        sizes = zip(ordinals[chosen].tolist(), extents["messages"][chosen].tolist(), strict=True)
        queue.batches = len(extents)
        queue.messages = int(extents["messages"].sum(dtype=np.int64))
        queue.messages -= cancelled.counted(dict(sizes))
        queue.bytes = int(extents["length"].sum(dtype=np.int64))
        return queue


class Delays:
    """All delayed batches of one broker group."""

    __slots__ = (
        "_heap",
        "batches",
        "bytes",
        "messages",
        "next_ordinal",
        "origins",
        "queues",
        "seconds",
    )

    def __init__(self) -> None:
        self.queues: dict[QueueKey, DelayedQueue] = {}
        self.origins = OriginTable()
        """The origins of queues that came here with delayed batches."""
        self.next_ordinal = 0
        self.batches = 0
        self.messages = 0
        self.bytes = 0
        self.seconds = DueSeconds()
        """How much of each topic is due in each second."""
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
        self.seconds.change(key.topic_id, second_of(due_us), messages, length)
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
        dues = tuple(
            (due_us, sum(self.left(key, each) for each in group))
            for due_us, group in groupby(found, lambda each: each.due_us)
        )
        messages = sum(count for _, count in dues)
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
        cancelled = self.queues[key].cancelled
        stretches = [cancelled.stretches(extent.ordinal, extent.messages) for extent in found]
        self._remove(key, found)
        append_time_us = queue.append_time_us(now_us)
        for extent, parts in zip(found, stretches, strict=True):
            stored = extent.entry, extent.position, extent.length
            for first_row, count in parts:
                queue.append(count, *stored, append_time_us, first_row=first_row)
        return DelayedReleased(
            queue_key=key,
            base_offset=record.base_offset,
            messages=messages,
            batches=len(found),
            released_us=now_us,
            dues=dues,
        )

    def cancel(
        self, record: control_pb2.CancelDelayed, index: int, now_us: int
    ) -> DelayedCancelled:
        """Takes one message out of a batch that is not due. Raises StateDiverged."""
        key = queue_key_of(record.queue)
        extent = self.to_cancel(record, now_us)
        if extent is None:
            raise StateDiverged(
                f"entry {index} of {now_us} cancels {record}, which is not there, or due"
            )
        queue = self.queues[key]
        first_us = queue.first_due_us
        gone = queue.cancel(extent, record.row)
        length = extent.length if gone else 0
        self._sum(-gone, -1, -length)
        self.seconds.change(key.topic_id, second_of(extent.due_us), -1, -length)
        if not queue.batches:
            del self.queues[key]
        elif queue.first_due_us != first_us:
            self._push(key, queue)
        self._prune()
        return DelayedCancelled(
            queue_key=key, ordinal=record.ordinal, row=record.row, arrival=record.arrival
        )

    def to_cancel(self, record: control_pb2.CancelDelayed, now_us: int) -> DelayedExtent | None:
        """The extent from which a row may be cancelled at log time `now_us`; None if it may not."""
        queue = self.queues.get(queue_key_of(record.queue))
        if queue is None or record.due_us <= now_us:
            return None
        extent = queue.find(DelayedPlace(record.due_us, record.ordinal))
        if extent is None or record.row >= extent.messages or record.entry != extent.entry:
            return None
        return None if queue.cancelled.holds(extent.ordinal, record.row) else extent

    def left(self, key: QueueKey, extent: DelayedExtent) -> int:
        """How many messages of an extent of a queue are not cancelled."""
        return self.queues[key].left(extent)

    def first(
        self, key: QueueKey, until_us: int, below_ordinal: int, batches_max: int
    ) -> list[DelayedExtent]:
        """The batches that a release with these bounds takes, in the order of their offsets."""
        queue = self.queues.get(key)
        return [] if queue is None else queue.first(until_us, below_ordinal, batches_max)

    def _remove(self, key: QueueKey, extents: list[DelayedExtent]) -> None:
        queue = self.queues[key]
        messages = length = 0
        for second, group in groupby(extents, lambda each: second_of(each.due_us)):
            part = list(group)
            left, size = sum(map(queue.left, part)), sum(each.length for each in part)
            self.seconds.change(key.topic_id, second, -left, -size)
            messages, length = messages + left, length + size
        queue.remove(extents)
        self._sum(-len(extents), -messages, -length)
        if queue.batches:
            self._push(key, queue)
        else:
            del self.queues[key]
        self._prune()

    def adopt(
        self, key: QueueKey, queue: DelayedQueue, origins: Origins, below_ordinal: int
    ) -> None:
        """Takes over what is delayed, if anything, of a queue that has moved here. `below_ordinal`
        is above all ordinals."""
        self.next_ordinal = max(self.next_ordinal, below_ordinal)
        if queue.batches:
            self.queues[key], self.origins.queues[key] = queue, origins
            self._sum(queue.batches, queue.messages, queue.bytes)
            self.seconds.change_many(key.topic_id, *queue.columns(), 1)
            self._push(key, queue)

    def remove_queue(self, key: QueueKey) -> None:
        """Removes a deleted queue, or one that has moved away, with its delayed batches."""
        queue = self.queues.pop(key, None)
        self.origins.queues.pop(key, None)
        if queue is not None:
            self._sum(-queue.batches, -queue.messages, -queue.bytes)
            self.seconds.change_many(key.topic_id, *queue.columns(), -1)
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
        """A text that says what of the queue is delayed; None if nothing is."""
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

    def add_live_bytes(self, bounds: I64, sums: I64) -> None:
        """Adds to `sums[k]` the lengths of delayed records in `[bounds[k], bounds[k + 1])`."""
        for queue in self.queues.values():
            queue.add_live_bytes(bounds, sums)

    # --- canonical bytes --------------------------------------------------------------------

    def parts(self, *, cancelled: bool, origins: bool) -> list[bytes]:
        """Canonical bytes: queues by rising number, each with its extents in order; `cancelled`
        adds the rows that are cancelled, and `origins` those of queues that have moved."""
        parts = [HEAD.pack(self.next_ordinal, len(self.queues))]
        for key in sorted(self.queues):
            queue = self.queues[key]
            parts.append(DELAYED_QUEUE.pack(*key, queue.batches))
            parts += queue.parts(cancelled=cancelled)
        return parts + (self.origins.parts() if origins else [])

    @classmethod
    def read_parts(cls, reader: Reader, *, cancelled: bool, origins: bool) -> Delays:
        """The inverse of `parts`. Raises CorruptSegment."""
        delays = cls()
        delays.next_ordinal, count = reader.unpack(HEAD)
        for _ in range(count):
            topic_id, queue_id, batches = reader.unpack(DELAYED_QUEUE)
            queue = DelayedQueue.read_parts(reader, batches, cancelled=cancelled)
            if not batches:
                raise CorruptSegment(f"state lists queue {queue_id} without a delayed batch")
            delays.queues[QueueKey(TopicId(topic_id), QueueId(queue_id))] = queue
            delays._sum(queue.batches, queue.messages, queue.bytes)
            delays.seconds.change_many(topic_id, *queue.columns(), 1)
        delays._heap = [(queue.first_due_us, key) for key, queue in delays.queues.items()]
        heapify(delays._heap)
        if origins:
            delays.origins = OriginTable.read_parts(reader)
        return delays


def _due(block: bytearray, at: int = 0) -> int:
    return int(_DUE.unpack_from(block, at * DELAYED_EXTENT.size)[0])


def _place(block: bytearray, at: int = 0) -> DelayedPlace:
    return DelayedPlace._make(_PLACE.unpack_from(block, at * DELAYED_EXTENT.size))
