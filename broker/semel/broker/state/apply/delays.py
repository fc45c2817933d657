"""Delayed batches: they are stored, and have no offsets until they are due.

How it works. When a delayed batch is applied, or a staged one is published, it becomes a *delayed
extent* of its queue. A RELEASE record takes the first extents and appends them to the queue by
reference: their offsets begin where the queue ends. Every node takes the same ones, because they
are ordered by due time, then by *ordinal*, a rising number that the broker group gives each extent
when it is added. The master names how many to take, and below which ordinal. So extents that are
added between its decision and the apply do not change what is released. A CANCEL record takes one
message out of a batch that is not due yet: its row is noted, and the release leaves it out.

Queues are in a heap by their first due time, so that a search for due batches costs nothing for
queues that have none.

Invariants
1. The extents of a queue rise strictly by (due_us, ordinal); in one queue an ordinal is used only
   once. A queue that moves keeps its ordinals, and the other group goes on above them.
2. `bytes`, `messages` and `batches` are the sums over all extents; cancelled messages do not count.
   Each extent is live for cleaning, kept files and snapshots.
3. A queue has an entry here if and only if it has delayed batches.
4. A queue with delayed batches is not split below level 9, and not moved below level 8 (checked at
   admission and at apply). Nothing of a queue that a move has sealed is released or cancelled.
   Nothing of a queue that was split is released: its batches go to its children (`parted.py`).
5. Heap and `sealed` follow from the queues.
6. `seconds` is changed with every batch and message that comes or goes, see `due_seconds.py`.
7. Nothing is cancelled that is due at the time of the entry, and nothing is released before. So a
   release in flight never takes a batch from which an entry behind it cancels.

Format. docs/formats/state.md.

Not here: the order within a queue (`delayed_queue.py`), how much is due in which second
(`due_seconds.py`), whether a batch may be delayed and what a release takes
(`state/admission/delay_admission.py`), when a release is proposed
(`semel.broker.background.delayed_release`), offsets (`queues.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from heapq import heapify, heappop, heappush
from itertools import groupby
from typing import Final

from semel.broker.state.apply.codec import Part, Reader
from semel.broker.state.apply.delayed_extent import LIVE_FIELDS, DelayedExtent, DelayedPlace, Rows
from semel.broker.state.apply.delayed_queue import DelayedQueue
from semel.broker.state.apply.due_seconds import DueSeconds, second_of
from semel.broker.state.apply.extents import I64
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
_HEAP_SLACK: Final = 1_024


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
        "sealed",
        "seconds",
    )

    def __init__(self) -> None:
        self.queues: dict[QueueKey, DelayedQueue] = {}
        self.origins = OriginTable()
        """The origins of queues that got delayed batches by a move or a split."""
        self.sealed: set[QueueKey] = set()
        """The queues that were split and still have delayed batches."""
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
        extent = DelayedExtent(due_us, self.next_ordinal, entry, position, length, messages)
        self.next_ordinal += 1
        self._put(key, extent, DelayedQueue.add)

    def insert(self, key: QueueKey, extent: DelayedExtent) -> None:
        """Adds a batch under an ordinal that no batch of its queue has."""
        self._put(key, extent, DelayedQueue.insert)

    def _put(
        self,
        key: QueueKey,
        extent: DelayedExtent,
        put: Callable[[DelayedQueue, DelayedExtent], None],
    ) -> None:
        queue = self.queues.get(key)
        first_us = None if queue is None else queue.first_due_us
        if queue is None:
            queue = self.queues[key] = DelayedQueue()
        put(queue, extent)
        self._sum(1, extent.messages, extent.length)
        second = second_of(extent.due_us)
        self.seconds.change(key.topic_id, second, extent.messages, extent.length)
        if first_us is None or extent.due_us < first_us:
            self._push(key, queue)

    def release(
        self,
        record: control_pb2.ReleaseDelayed,
        queue: QueueState | None,
        index: int,
        now_us: int,
        before: DelayedPlace | None = None,
    ) -> DelayedReleased:
        """Appends the batches that the record names to the queue. Those from `before` on come after
        what its parent still holds. Raises StateDiverged."""
        key = queue_key_of(record.queue)
        found = self.first(key, record.until_us, record.below_ordinal, record.batches, before)
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
        self.remove(key, found)
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
            self._end(key)
        elif queue.first_due_us != first_us:
            self._push(key, queue)
        self._prune()
        return DelayedCancelled(
            queue_key=key, ordinal=record.ordinal, row=record.row, arrival=record.arrival
        )

    def leave_out(self, key: QueueKey, extent: DelayedExtent, rows: Sequence[int]) -> None:
        """Cancels rows of a batch that was just inserted, fewer than it has."""
        queue = self.queues[key]
        for row in rows:
            queue.cancelled.add(extent.ordinal, row)
        queue.messages -= len(rows)
        self._sum(0, -len(rows), 0)
        self.seconds.change(key.topic_id, second_of(extent.due_us), -len(rows), 0)

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
        self,
        key: QueueKey,
        until_us: int,
        below_ordinal: int,
        batches_max: int,
        before: DelayedPlace | None = None,
    ) -> list[DelayedExtent]:
        """The batches that a release with these bounds takes, in the order of their offsets."""
        queue = self.queues.get(key)
        return [] if queue is None else queue.first(until_us, below_ordinal, batches_max, before)

    def remove(self, key: QueueKey, extents: list[DelayedExtent]) -> None:
        """Takes out the first extents of a queue, of those below some ordinal."""
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
            self._end(key)
        self._prune()

    def _end(self, key: QueueKey) -> None:
        """The queue has no delayed batches any more."""
        del self.queues[key]
        self.sealed.discard(key)

    def adopt(
        self, key: QueueKey, queue: DelayedQueue, origins: Origins, below_ordinal: int
    ) -> None:
        """Takes over what is delayed, if anything, of a queue that has moved here. `below_ordinal`
        is above all ordinals."""
        self.next_ordinal = max(self.next_ordinal, below_ordinal)
        if queue.batches:
            self.queues[key], self.origins.queues[key] = queue, origins
            self._sum(queue.batches, queue.messages, queue.bytes)
            self._sum_seconds(key.topic_id, queue, 1)
            self._push(key, queue)

    def remove_queue(self, key: QueueKey) -> None:
        """Removes a deleted queue, or one that has moved away, with its delayed batches."""
        queue = self.queues.pop(key, None)
        self.sealed.discard(key)
        self.origins.queues.pop(key, None)
        if queue is not None:
            self._sum(-queue.batches, -queue.messages, -queue.bytes)
            self._sum_seconds(key.topic_id, queue, -1)
            self._prune()

    def _sum(self, batches: int, messages: int, length: int) -> None:
        self.batches += batches
        self.messages += messages
        self.bytes += length

    def _sum_seconds(self, topic_id: int, queue: DelayedQueue, sign: int) -> None:
        """Adds a whole queue to the seconds of its topic, or takes it away."""
        for columns in queue.columns():
            self.seconds.change_many(topic_id, *columns, sign)

    def _push(self, key: QueueKey, queue: DelayedQueue) -> None:
        heappush(self._heap, (queue.first_due_us, key))
        if len(self._heap) > 2 * len(self.queues) + _HEAP_SLACK:
            self._heap = [(each.first_due_us, name) for name, each in self.queues.items()]
            heapify(self._heap)

    def seal(self, key: QueueKey) -> None:
        """The queue was split."""
        if key in self.queues:
            self.sealed.add(key)

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
        for rows in self.in_entries(lo_index, hi_index):
            yield from rows[LIVE_FIELDS].tolist()

    def in_entries(self, lo_index: int, hi_index: int) -> Iterator[Rows]:
        """The extents of delayed batches in entries `[lo_index, hi_index)`."""
        for key in sorted(self.queues):
            yield from self.queues[key].in_entries(lo_index, hi_index)

    def add_live_bytes(self, bounds: I64, sums: I64) -> None:
        """Adds to `sums[k]` the lengths of delayed records in `[bounds[k], bounds[k + 1])`."""
        for queue in self.queues.values():
            queue.add_live_bytes(bounds, sums)

    # --- canonical bytes --------------------------------------------------------------------

    def parts(self, *, cancelled: bool, origins: bool) -> list[Part]:
        """Canonical bytes: queues by rising number, each with its extents in order; `cancelled`
        adds the rows that are cancelled, and `origins` those of queues that have moved."""
        parts: list[Part] = [HEAD.pack(self.next_ordinal, len(self.queues))]
        for key in sorted(self.queues):
            queue = self.queues[key]
            parts.append(DELAYED_QUEUE.pack(*key, queue.batches))
            parts += queue.parts(cancelled=cancelled)
        return [*parts, *(self.origins.parts() if origins else [])]

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
            delays._sum_seconds(topic_id, queue, 1)
        delays._heap = [(queue.first_due_us, key) for key, queue in delays.queues.items()]
        heapify(delays._heap)
        if origins:
            delays.origins = OriginTable.read_parts(reader)
        return delays
