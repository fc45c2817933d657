"""The caller's side of a feed: takes messages or Arrow batches in the caller's thread, or waits.

How it works. A `Puller` decodes the delivery at the head of the line, gives out its rows and enters
them as outstanding, in one step of the caller's thread. A wait leaves a callable with the feed,
which calls it from the I/O thread; blocking and awaiting differ in nothing else.

A batch that is damaged is not passed over: it goes back to the head of the line, and its queue is
fetched again from the caller's position, which may bring an undamaged copy. Where messages are
lost, the line has what stands for them.

The I/O thread may void the deliveries in line at any moment, also between two statements here. Rows
that were given out nevertheless are entered under the token with which they were fetched, so no
commit can overlook them. If the queue is then fetched again from the caller's earlier position, the
rows below the caller's present position are left out.

Not here: fetching (`reading/fetch.py`), what is done with the spans (`consumer/commits.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from semel.client.message import Message, Rows
from semel.client.reading.feed_queue import FeedQueue
from semel.client.reading.fetch import Feed
from semel.client.reading.outstanding import Outstanding
from semel.client.transport.runtime import finish
from semel.protos import compat
from semel.protos.arrow import INSTALLED, missing
from semel.protos.errors import SemelError

if TYPE_CHECKING:
    import pyarrow as pa
if INSTALLED:
    from semel.client.core.arrow_rows import joined

GATHER_BYTES: Final = 64 << 10
"""Bytes up to which `arrow` joins batches: tiny ones would cost a call each."""
WAIT_SLICE_S: Final = 1.0
"""Seconds after which a blocking wait is interrupted, so that Ctrl-C works everywhere."""


class Puller:
    """The caller's position in a feed."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._rows: Rows | None = None
        self._row = 0
        self._queue: FeedQueue | None = None
        self._turn = 0
        self._failure: SemelError | None = None
        """The error for the next call to raise, after everything that came before it was given
        out."""
        self.outstanding = Outstanding()
        self.on_given: Callable[[Rows, int, int], None] | None = None
        """Is told which rows are about to be given out, once a batch."""

    def _current(self) -> Rows | None:
        """The rows that are not given out yet, taken from the line when needed."""
        rows = self._rows
        if rows is not None and self._queue is not None:
            if self._row < rows.count and self._queue.turn == self._turn:
                return rows
            self._rows = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        while (delivery := self._feed.take()) is not None:
            queue = delivery.queue
            if queue.delivered - delivery.base_offset >= delivery.row_end - delivery.row_start:
                continue
            if delivery.lost is not None:
                start = max(queue.delivered, delivery.base_offset)
                place = queue.topic, queue.key, delivery.token
                self.outstanding.pass_lost(*place, start, delivery.end_offset)
                queue.delivered = delivery.end_offset
                if delivery.told:
                    raise delivery.lost
                continue
            try:
                rows = delivery.rows()
            except SemelError:
                self._feed.put_back(delivery)
                raise
            row = rows.rows_below(queue.delivered)
            if row == rows.count:  # compaction has removed all of them
                self.outstanding.pass_over(rows, max(queue.delivered, rows.base_offset))
                queue.delivered = rows.end_offset
                continue
            self._rows = rows
            self._row = row
            self._queue = queue
            self._turn = delivery.turn
            return rows
        return None

    def drain(self) -> Iterator[Message]:
        """Yields the messages that are here now. Each counts as given out when it is taken."""
        feed, outstanding = self._feed, self.outstanding
        while not (feed.ended or outstanding.must_give_back):
            rows = self._current()
            queue = self._queue
            if rows is None or queue is None:
                return
            turn, span = self._turn, outstanding.at(rows, self._row)
            if self.on_given is not None:
                self.on_given(rows, self._row, rows.count)
            for message in rows.messages(self._row):
                if queue.turn != turn or outstanding.must_give_back:
                    break
                # Entered before the yield: the caller may commit, or never resume the generator.
                self._row += 1
                queue.delivered = span.end = rows.position(self._row)
                yield message

    def messages(self, limit: int) -> list[Message]:
        """Returns up to `limit` messages that are here now."""
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
        """Returns the rest of one batch as Arrow, or several small ones joined; None when nothing
        is here. Raises InvalidRequest where Arrow is not installed."""
        if not INSTALLED:
            raise missing("poll_arrow")
        batches: list[pa.RecordBatch] = []
        size = 0
        while size < GATHER_BYTES and (rows := self._next(bool(batches))) is not None:
            try:
                batches.append(rows.arrow(self._row))
            except SemelError:
                if not batches:
                    raise
                break  # the next call meets it again
            size += rows.size
            self._advance(rows, rows.count)
        if len(batches) > 1:
            return joined(batches)
        return batches[0] if batches else None

    def _next(self, holding: bool) -> Rows | None:
        """Returns the current rows. If the call holds some already, an error waits for the next
        call: the rows count as given out, and the error would lose them."""
        try:
            return self._current()
        except SemelError as error:
            if not holding:
                raise
            self._failure = error
            return None

    def _advance(self, rows: Rows, row: int) -> None:
        """Enters rows up to `row` as given out, whatever has happened to their queue meanwhile."""
        assert self._queue is not None
        span = self.outstanding.at(rows, self._row)
        if self.on_given is not None:
            self.on_given(rows, self._row, row)
        self._row = row
        self._queue.delivered = span.end = rows.position(row)

    @property
    def finished(self) -> bool:
        """Everything up to the ends was given out."""
        return self._feed.finished


def wait_ready(feed: Feed, timeout: float | None) -> bool:
    """Blocks until `feed.ready`. Returns False if it is not ready after `timeout` seconds."""
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
