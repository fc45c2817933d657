"""One queue of a feed, and what was fetched of it.

How it works. An answer names stored batches and which of their rows are meant; `cut` makes a
delivery of each, from where the queue is to where it ends, and moves the queue on.

Invariants
1. Deliveries of one queue come in offset order without a gap: each begins where the one before
   ended, or where the caller sought to, but for offsets to be *skipped*.

Not here: streams and the line of deliveries (`fetch.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from semel.client.message import Rows
from semel.protos.errors import InternalError
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
        """One past the last message the caller was given; written by the caller's thread, and by
        the I/O thread in what the caller asks for and waits for."""
        self.done = offset
        """Next offset that is durable, at the brokers or in the user's own database: where the
        group has its progress. Used by consumers."""
        self.end: int | None = None
        """Stop here."""
        self.token = 0
        self.turn = 0
        """Rises whenever what was fetched before is void."""
        self.paused = False
        self.skip: set[int] = set()
        """Offsets that are not given out."""
        self.delay_ms = 0
        """How long after its append a message is given out."""
        self.due: float | None = None
        """With a delay: when the next batch may be fetched; None while it was not looked at."""
        self.clock_us = 0
        """With a delay: so far at least is the brokers' clock ahead of the monotonic one here."""
        self.asked = False
        """Part of a poll that is under way."""
        self.buffered = 0
        self.high_watermark = 0
        self.at_end = False
        """The queue was split, and all it will ever hold was fetched."""

    @property
    def ended(self) -> bool:
        return self.end is not None and self.offset >= self.end

    @property
    def keeps_up(self) -> bool:
        """It has no known end, and all of it is fetched as far as that is known; then it is worth a
        request that stands. Not with a delay: each of its batches is asked for when it is due."""
        return self.end is None and self.delay_ms == 0 and self.offset >= self.high_watermark

    def begin_at(self, offset: int) -> None:
        """Before anything is fetched: everything below `offset` is done."""
        self.offset = self.delivered = self.done = offset

    def go_to(self, offset: int) -> None:
        """The next message that is given out is `offset`. The caller has asked for it and waits, or
        was given nothing since it did."""
        self.delivered = offset
        self.fetch_from(offset)

    def fetch_again(self) -> None:
        """Forgets what was fetched and not given out. The caller may be taking a message at this
        moment, which is fetched a second time then, and left out by the caller's thread."""
        self.fetch_from(self.delivered)

    def fetch_from(self, offset: int) -> None:
        """Forgets what was fetched; the next delivery begins at `offset`."""
        self.turn += 1
        self.asked = self.at_end = False
        self.due = None
        self.offset = offset

    def room(self, share: int) -> int:
        """While less than so much is buffered it is asked for, if each queue may have `share`."""
        return 1 if self.delay_ms else share

    def waits(self, now: float) -> bool:
        """Its next batch is not due."""
        return self.due is not None and now < self.due


class Delivery(NamedTuple):
    """Rows of one stored batch."""

    queue: FeedQueue
    turn: int
    token: int
    stored: memoryview
    base_offset: int
    row_start: int
    row_end: int

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


def cut(
    deliveries: list[Delivery],
    queue: FeedQueue,
    turn: int,
    batch: broker_pb2.BatchRange,
    stored: memoryview,
) -> None:
    """The rows of a batch that are wanted: not before the offset, not at or after the end."""
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
    """Offsets `[start, end)` without some of them, as ranges."""
    ranges = []
    for offset in [*sorted(at for at in skip if start <= at < end), end]:
        if start < offset:
            ranges.append((start, offset))
        start = offset + 1
    return ranges
