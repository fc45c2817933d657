"""What a caller's thread does with a feed: takes messages or Arrow batches, or waits for some.

How it works. A `Puller` decodes the delivery at the head of the line, gives out its rows and enters
them as outstanding, in one step of the caller's thread. Waiting is a callable left with the feed,
which calls it from the I/O thread; blocking and awaiting differ in nothing else.

The I/O thread may void what is in line at any moment, also between two lines here. What was given
out nevertheless is entered under the token it was fetched with, so that no commit can overlook it;
and when the queue is fetched again from where the caller was a moment ago, what lies below the
caller's place is left out.

Not here: fetching (`fetch.py`), what is done with the spans (`consumer/commits.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from semel.client.message import Message, Rows
from semel.client.reading.feed_queue import FeedQueue
from semel.client.reading.fetch import Feed
from semel.client.reading.outstanding import Outstanding
from semel.client.transport.runtime import finish
from semel.protos import compat
from semel.protos.errors import SemelError

GATHER_BYTES: Final = 64 << 10
"""`arrow` puts batches together until they are so large: tiny ones would cost a call each."""
WAIT_SLICE_S: Final = 1.0
"""Blocking waits come up for air this often, so that Ctrl-C is heard everywhere."""


class Puller:
    """The caller's place in a feed."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._rows: Rows | None = None
        self._row = 0
        self._queue: FeedQueue | None = None
        self._turn = 0
        self._failure: SemelError | None = None
        """Raised by the next call: what came before it is given out first."""
        self.outstanding = Outstanding()

    def _current(self) -> Rows | None:
        """Rows that are not given out yet, fetched from the line when needed."""
        rows = self._rows
        if rows is not None and self._queue is not None:
            if self._row < rows.count and self._queue.turn == self._turn:
                return rows
            self._rows = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        while (delivery := self._feed.take()) is not None:
            row = max(0, delivery.queue.delivered - delivery.base_offset)
            if row >= delivery.row_end - delivery.row_start:
                continue
            self._rows = rows = delivery.rows()
            self._row = row
            self._queue = delivery.queue
            self._turn = delivery.turn
            return rows
        return None

    def drain(self) -> Iterator[Message]:
        """The messages that are here now. Each counts as given out when it is taken."""
        feed, outstanding = self._feed, self.outstanding
        while not (feed.ended or outstanding.must_give_back):
            rows = self._current()
            queue = self._queue
            if rows is None or queue is None:
                return
            turn, span = self._turn, outstanding.at(rows, self._row)
            for message in rows.messages(self._row):
                if queue.turn != turn or outstanding.must_give_back:
                    break
                # Before the yield: the caller may commit, or never come back.
                self._row += 1
                queue.delivered = span.end = rows.base_offset + self._row
                yield message

    def messages(self, limit: int) -> list[Message]:
        """Up to `limit` messages that are here now."""
        found: list[Message] = []
        while len(found) < limit:
            rows = self._next(bool(found))
            if rows is None:
                break
            end = min(rows.count, self._row + limit - len(found))
            found += rows.messages(self._row, end)
            self._advance(rows, end)
        return found

    def arrow(self) -> pa.RecordBatch | None:
        """The rest of one batch as Arrow, or several small ones together; None when nothing is
        here."""
        batches: list[pa.RecordBatch] = []
        size = 0
        while size < GATHER_BYTES and (rows := self._next(bool(batches))) is not None:
            batches.append(rows.arrow(self._row))
            size += rows.size
            self._advance(rows, rows.count)
        if len(batches) > 1:
            return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        return batches[0] if batches else None

    def _next(self, holding: bool) -> Rows | None:
        """The current rows. While the call holds some already, a failure waits for the next one:
        they count as given out, and would be lost with it."""
        try:
            return self._current()
        except SemelError as error:
            if not holding:
                raise
            self._failure = error
            return None

    def _advance(self, rows: Rows, row: int) -> None:
        """Rows up to `row` are given out, whatever has happened to their queue meanwhile."""
        assert self._queue is not None
        span = self.outstanding.at(rows, self._row)
        self._row = row
        self._queue.delivered = span.end = rows.base_offset + row

    @property
    def finished(self) -> bool:
        """Everything up to the ends was given out."""
        rows = self._rows
        return (rows is None or self._row >= rows.count) and self._feed.finished


def wait_ready(feed: Feed, timeout: float | None) -> bool:
    """Blocks until `feed.ready`; False when it is not after `timeout` seconds."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while not feed.ready:
        event = threading.Event()
        feed.add_waiter(event.set)
        try:
            while not feed.ready:
                left = WAIT_SLICE_S if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    return False
                if event.wait(min(left, WAIT_SLICE_S)):
                    break
        finally:
            feed.remove_waiter(event.set)
    return True


async def await_ready(feed: Feed, timeout: float | None) -> bool:
    """Like `wait_ready`, on the running loop."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(TimeoutError):
        async with compat.timeout(timeout):
            while not feed.ready:
                future: asyncio.Future[None] = loop.create_future()

                def wake(future: asyncio.Future[None] = future) -> None:
                    with contextlib.suppress(RuntimeError):
                        loop.call_soon_threadsafe(finish, future)

                feed.add_waiter(wake)
                try:
                    if not feed.ready:
                        await future
                finally:
                    feed.remove_waiter(wake)
    return feed.ready
