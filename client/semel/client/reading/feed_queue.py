"""One queue of a feed, and the batches fetched from it.

How it works. An answer names stored batches and the rows of each that count. `cut` turns each into
a delivery, from the queue's position to its end, and moves the position on.

Invariants
1. Deliveries of one queue come in offset order without a gap: each begins where the one before
   ended, or where the caller sought to. Only offsets to be *skipped* are left out.

Not here: streams and the line of deliveries (`reading/fetch.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from semel.client.message import Rows
from semel.protos.errors import InternalError, OffsetsLost
from semel.protos.ids import GroupId, QueueKey
from semel.protos.v1 import broker_pb2


class FeedQueue:
    """One queue of a feed."""

    def __init__(self, topic: str, key: QueueKey, group_id: GroupId, offset: int) -> None:
        self.topic = topic
        self.key = key
        self.group_id = group_id
        self.offset = offset
        """Next offset to ask for."""
        self.delivered = offset
        """One past the last message that the caller was given. Written by the caller's thread, and
        by the I/O thread in calls for which the caller waits."""
        self.done = offset
        """The group's progress: the next offset that is durable, at the brokers or in the user's
        own database. Used by consumers."""
        self.tried = 0
        """The highest offset that a commit under this lock has asked for, whatever became of it."""
        self.end: int | None = None
        """Offset at which reading stops; None for no end."""
        self.token = 0
        self.turn = 0
        """Rises whenever the batches fetched before become void."""
        self.paused = False
        self.skip: set[int] = set()
        """Offsets that are not given out."""
        self.delay_ms = 0
        """Time between the append of a message and its delivery."""
        self.due: float | None = None
        """With a delay: when the next batch may be fetched; None before it was peeked at."""
        self.clock_us = 0
        """With a delay: lower bound of the brokers' clock minus the monotonic clock here."""
        self.asked = False
        """Part of a poll that is under way."""
        self.buffered = 0
        self.high_watermark = 0
        self.at_end = False
        """The queue was split, and everything that it will ever hold was fetched."""

    @property
    def finished(self) -> bool:
        """The caller was given everything up to the end."""
        return self.end is not None and self.delivered >= self.end

    @property
    def ended(self) -> bool:
        """Everything up to the end was fetched."""
        return self.end is not None and self.offset >= self.end

    @property
    def keeps_up(self) -> bool:
        """It has no end, and everything known of it is fetched, so a standing poll pays off. A
        queue with a delay never qualifies: each of its batches is asked for when it is due."""
        return self.end is None and self.delay_ms == 0 and self.offset >= self.high_watermark

    def begin_at(self, offset: int) -> None:
        """Sets the start, before anything is fetched: everything below `offset` is processed."""
        self.offset = self.delivered = self.done = offset

    def go_to(self, offset: int) -> None:
        """Makes `offset` the next message to give out. The caller waits for this call, or was given
        nothing since it made it."""
        self.delivered = offset
        self.fetch_from(offset)

    def fetch_again(self) -> None:
        """Drops the batches that were fetched and not given out. If the caller takes a message at
        this moment, it is fetched a second time, and the caller's thread leaves it out."""
        self.fetch_from(self.delivered)

    def fetch_from(self, offset: int) -> None:
        """Drops the batches that were fetched; the next delivery begins at `offset`."""
        self.turn += 1
        self.asked = self.at_end = False
        self.due = None
        self.offset = offset

    def room(self, share: int) -> int:
        """Returns the buffered bytes below which it is fetched, if each queue may have `share`."""
        return 1 if self.delay_ms else share

    def waits(self, now: float) -> bool:
        """Its next batch is not due."""
        return self.due is not None and now < self.due


class Delivery(NamedTuple):
    """A delivery: rows of one stored batch. Of a compacted batch the numbers of rows only say how
    many offsets it is about. Of lost messages there are no rows, only the offsets and the error."""

    queue: FeedQueue
    turn: int
    token: int
    stored: memoryview
    base_offset: int
    row_start: int
    row_end: int
    lost: OffsetsLost | None = None
    """Set if the messages are lost."""
    told: bool = False
    """The caller gets the error, and goes on behind what is lost with the next call."""

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.row_end - self.row_start

    def rows(self) -> Rows:
        """Checks the batch. Raises CorruptBatch."""
        return Rows(
            self.queue.topic,
            self.queue.key,
            self.stored,
            self.base_offset,
            self.row_start,
            self.row_end,
            self.token,
        )


def pass_lost(queue: FeedQueue, error: OffsetsLost, *, told: bool) -> Delivery:
    """Returns what stands for lost messages in the line, up to the queue's end, and moves the
    queue's offset behind them; it is fetched from there. Asserts that the error names an offset
    that lies further on."""
    start, end = queue.offset, error.next_offset
    assert start < end, f"offset {start} is lost, and the queue goes on at {end}"
    if queue.end is not None:
        end = min(end, queue.end)
    queue.offset, queue.asked = end, False
    stored = memoryview(b"")
    return Delivery(queue, queue.turn, queue.token, stored, start, 0, end - start, error, told)


def cut(
    deliveries: list[Delivery],
    queue: FeedQueue,
    turn: int,
    batch: broker_pb2.BatchRange,
    stored: memoryview,
) -> None:
    """Appends the rows of a batch to `deliveries`, from the queue's offset up to its end, and moves
    the offset on. Raises InternalError for a batch that begins behind the offset."""
    if queue.ended:
        return
    start, end = batch.row_start, batch.row_end
    base = batch.base_offset
    if base < queue.offset:
        skip = min(end - start, queue.offset - base)
        start, base = start + skip, base + skip
    if queue.end is not None:
        end = min(end, start + max(0, queue.end - base))
    if base > queue.offset:
        raise InternalError(
            f"queue {queue.key.queue_id} of {queue.topic!r}: offset {queue.offset} was asked"
            f" for, {base} came"
        )
    if start >= end:
        return
    queue.offset = base + end - start
    first = base - start
    for low, high in (
        _without(queue.skip, base, queue.offset) if queue.skip else [(base, end + first)]
    ):
        deliveries.append(
            Delivery(queue, turn, queue.token, stored, low, low - first, high - first)
        )


def _without(skip: set[int], start: int, end: int) -> list[tuple[int, int]]:
    """Returns offsets `[start, end)` without the skipped ones, as ranges."""
    ranges = []
    for offset in [*sorted(at for at in skip if start <= at < end), end]:
        if start < offset:
            ranges.append((start, offset))
        start = offset + 1
    return ranges
