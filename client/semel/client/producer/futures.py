"""Handles for messages that are on their way.

How it works. A handle is a chunk and a row: two references, no lock, no state of its own. It looks
the outcome of the message up in the chunk when it is asked. A waiting caller leaves a callable with
the chunk, which calls it when one of its parts is settled.

Invariants
1. A handle that is done stays done, with the same result.
2. A handle that nobody waits for costs nothing but itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from semel.client.core.batching import Chunk, Outcome, Part, Rows
from semel.client.message import RecordMetadata
from semel.client.transport.runtime import finish
from semel.protos.errors import TimedOut


def wait_settled(chunk: Chunk, done: Callable[[], bool], timeout: float | None) -> bool:
    """Blocks until `done()`, which is checked whenever a part of `chunk` is settled. Returns False
    if `timeout` seconds pass before."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while not done():
        event = threading.Event()
        chunk.waiters.append(event.set)
        try:
            # A part that was settled in between has called its waiters before ours was added.
            if done():
                return True
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and (left <= 0 or not event.wait(left)):
                return done()
            if left is None:
                event.wait()
        finally:
            _forget(chunk, event.set)
    return True


def _forget(chunk: Chunk, waiter: Callable[[], None]) -> None:
    """Removes a waiter that was not called: a caller may wait again and again."""
    with contextlib.suppress(ValueError):
        chunk.waiters.remove(waiter)


async def await_settled(chunk: Chunk, done: Callable[[], bool]) -> None:
    """Like `wait_settled`, on the running loop and without a limit."""
    loop = asyncio.get_running_loop()
    while not done():
        future: asyncio.Future[None] = loop.create_future()

        def wake(future: asyncio.Future[None] = future) -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(finish, future)

        chunk.waiters.append(wake)
        try:
            if done():
                return
            await future
        finally:
            _forget(chunk, wake)


class SendFuture:
    """The handle of one message. Block on `result()`, or `await` it on any event loop."""

    __slots__ = ("_chunk", "_row")

    def __init__(self, chunk: Chunk, row: int) -> None:
        self._chunk = chunk
        self._row = row

    def done(self) -> bool:
        """The message is stored, or failed."""
        return self._chunk.outcome_of(self._row) is not None

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Returns where the message was stored. Raises the message's error, or TimedOut if it is
        not settled after `timeout` seconds (it stays on its way)."""
        self._wait(timeout)
        return self._finished()

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Returns the message's error, or None when it is stored. Raises TimedOut like `result`."""
        self._wait(timeout)
        found = self._chunk.outcome_of(self._row)
        assert found is not None
        outcome, _, place = found
        error = outcome.error
        if outcome.dropped is not None and (index := outcome.dropped.find(place)) is not None:
            error = outcome.dropped.error(index, self._chunk.topic)
        if error is not None:
            self._chunk.told = True
        return error

    def add_done_callback(self, function: Callable[[SendFuture], object]) -> None:
        """Calls `function(self)` once the message is done: at once, or later on the I/O thread,
        where it must not block."""
        if self.done():
            function(self)
            return
        fired = threading.Lock()

        def once() -> None:
            if not self.done():
                self._chunk.waiters.append(once)
            elif fired.acquire(blocking=False):
                function(self)

        self._chunk.waiters.append(once)
        if self.done():
            once()

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self.done():
            yield from await_settled(self._chunk, self.done).__await__()
        return self._finished()

    def _wait(self, timeout: float | None) -> None:
        if not self.done() and not wait_settled(self._chunk, self.done, timeout):
            raise TimedOut(f"no acknowledgement within {timeout:g} s; the message is on its way")

    def _finished(self) -> RecordMetadata:
        found = self._chunk.outcome_of(self._row)
        assert found is not None
        outcome, part, place = found
        if outcome.error is not None:
            self._chunk.told = True
            raise outcome.error.with_traceback(None)
        assert part is not None
        offset, sequence, stored = outcome.base_offset, outcome.base_sequence, place
        if outcome.dropped is not None:
            index = outcome.dropped.find(place)
            if index is not None:
                return self._duplicate(outcome, part, place, index)
            stored -= outcome.dropped.before(place)
        place, stored = place - outcome.trimmed, stored - outcome.trimmed
        offset = offset + stored if offset >= 0 and place >= 0 else -1
        if part.positions is not None:
            sequence = int(part.positions[place + outcome.trimmed])
        else:
            sequence += place
        return RecordMetadata(
            self._chunk.topic,
            part.queue.queue_id,
            offset,
            sequence,
            outcome.duplicate or place < 0,
            outcome.append_time_us,
            due_in_second=outcome.due_in_second,
        )

    def _duplicate(self, outcome: Outcome, part: Part, place: int, index: int) -> RecordMetadata:
        """Returns the place of the first message with the id. Raises IdConflict."""
        topic, dropped = self._chunk.topic, outcome.dropped
        assert dropped is not None
        if (error := dropped.error(index, topic)) is not None:
            self._chunk.told = True
            raise error
        queue, offset, due_us = dropped.first(index)
        sequence = outcome.base_sequence + place - outcome.trimmed
        if part.positions is not None:
            sequence = int(part.positions[place])
        return RecordMetadata(topic, queue, offset, sequence, True, 0, due_us)

    def __repr__(self) -> str:
        state = "done" if self.done() else "pending"
        return f"<SendFuture {state} topic={self._chunk.topic!r}>"


new_future: Final[Callable[[type[SendFuture]], SendFuture]] = object.__new__
"""Makes an empty handle for `send`, which sets its fields: calling the class takes a third more."""


_NO_ROWS: Final[Rows] = np.empty(0, np.int64)


def _no_rows() -> Rows:
    return _NO_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkSummary:
    """The outcome of one `send_many`, in messages."""

    messages: int
    stored: int
    """Newly stored by this call."""
    duplicates: int
    """Stored by an earlier attempt, this process's or an earlier one's (`skipped` included), or
    not stored again because the topic has their ids."""
    skipped: int
    """Not sent at all: the queue had their positions when the producer was opened."""
    conflicts: int = 0
    """Not stored: the topic has another message with their id. No error is raised for them."""
    duplicate_rows: Rows = field(default_factory=_no_rows, compare=False)
    """Numbers in the call, rising from 0, of the messages that the topic has by their ids."""
    conflict_rows: Rows = field(default_factory=_no_rows, compare=False)
    """Numbers in the call of the conflicts, rising."""


class BulkFuture:
    """The handle of one `send_many`. Block on `result()`, or `await` it."""

    __slots__ = ("_numbers", "_ranges")

    def __init__(
        self,
        ranges: list[tuple[Chunk, int, int]],
        numbers: list[Rows | None] | None = None,
    ) -> None:
        """`numbers` has for each range the numbers of its rows in the call; None: they go on."""
        self._ranges = ranges
        self._numbers = numbers

    def done(self) -> bool:
        """Every message is stored, or failed."""
        return all(chunk.outcomes(start, end) is not None for chunk, start, end in self._ranges)

    def result(self, timeout: float | None = None) -> BulkSummary:
        """Returns the summary, which counts conflicts of message ids and names them. Raises the
        first other failure, or TimedOut like `SendFuture.result`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for chunk, start, end in self._ranges:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())

            def done(chunk: Chunk = chunk, start: int = start, end: int = end) -> bool:
                return chunk.outcomes(start, end) is not None

            if not done() and not wait_settled(chunk, done, left):
                raise TimedOut(f"not all acknowledged within {timeout:g} s; the rest is on its way")
        return self._finished()

    def __await__(self) -> Generator[Any, None, BulkSummary]:
        for chunk, start, end in self._ranges:

            def done(chunk: Chunk = chunk, start: int = start, end: int = end) -> bool:
                return chunk.outcomes(start, end) is not None

            if not done():
                yield from await_settled(chunk, done).__await__()
        return self._finished()

    def _finished(self) -> BulkSummary:
        messages = stored = duplicates = skipped = 0
        some_dropped = False
        for chunk, start, end in self._ranges:
            for count, outcome in chunk.outcomes(start, end) or ():
                some_dropped = some_dropped or outcome.dropped is not None
                if outcome.error is not None:
                    chunk.told = True
                    raise outcome.error.with_traceback(None)
                messages += count
                trimmed = min(outcome.trimmed, count)
                if outcome.duplicate:
                    duplicates += count
                    skipped += count if is_skipped(outcome) else 0
                else:
                    stored += count - trimmed
                    duplicates += trimmed
        if not some_dropped:
            return BulkSummary(
                messages=messages, stored=stored, duplicates=duplicates, skipped=skipped
            )
        dropped, refused = self._dropped()
        return BulkSummary(
            messages=messages,
            stored=stored - len(dropped) - len(refused),
            duplicates=duplicates + len(dropped),
            skipped=skipped,
            conflicts=len(refused),
            duplicate_rows=dropped,
            conflict_rows=refused,
        )

    def _dropped(self) -> tuple[Rows, Rows]:
        """Returns the numbers of messages that duplicate another one by id, or conflict with it."""
        found: tuple[list[Rows], list[Rows]] = ([], [])
        first = 0
        for at, (chunk, start, end) in enumerate(self._ranges):
            numbers = None if self._numbers is None else self._numbers[at]
            for rows, kept in zip(chunk.dropped(start, end), found, strict=True):
                kept.append(rows - start + first if numbers is None else numbers[rows - start])
            chunk.told = chunk.told or bool(len(found[1][-1]))
            first += end - start
        return np.sort(np.concatenate(found[0])), np.sort(np.concatenate(found[1]))


def is_skipped(outcome: Outcome) -> bool:
    """The rows were never sent."""
    return outcome.duplicate and outcome.base_sequence < 0
