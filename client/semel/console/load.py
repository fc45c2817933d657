"""Sends the blocks of an input to a topic, and knows at any time what has become of them.

How it works. Each block goes out with one bulk call; its future joins a line, and those at the head
of the line that are done are counted and dropped, so memory is bounded by the producer's buffer.
With a named producer a message's position is its number in the input; blocks that the topic has
already as a whole are counted and not sent at all.

Not here: cutting the input (`lines.py`), options and output (`produce.py`).
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from semel.protos.errors import TimedOut

if TYPE_CHECKING:
    from semel.client import Producer
    from semel.client.producer.futures import BulkFuture
    from semel.console.lines import Block


@dataclass(slots=True, kw_only=True)
class Tally:
    """Messages, counted."""

    read: int = 0
    """Taken from the input."""
    sent: int = 0
    """Handed to the producer and not skipped."""
    stored: int = 0
    """Newly stored by this load."""
    duplicates: int = 0
    """Sent, and recognised by a broker as stored already."""
    skipped: int = 0
    """Known to be stored before this load, so not sent."""

    def as_dict(self) -> dict[str, int]:
        """For JSON."""
        return {
            "read": self.read,
            "sent": self.sent,
            "stored": self.stored,
            "duplicates": self.duplicates,
            "skipped": self.skipped,
        }


class PacedReader:
    """A raw reader that returns no more than `rate` bytes a second."""

    def __init__(
        self,
        file: IO[bytes],
        rate: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._file = file
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._due = clock()

    def read(self, size: int) -> bytes:
        """Like the file's, but not too soon."""
        wait = self._due - self._clock()
        if wait > 0:
            self._sleep(wait)
        data = self._file.read(size) or b""
        self._due = max(self._due, self._clock() - 0.2) + len(data) / self._rate
        return data


class Load:
    """One load of one topic."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        *,
        named: bool,
        on_progress: Callable[[], None],
        due_us: Callable[[], int] | None = None,
    ) -> None:
        """`due_us` says when messages are due that have no time of their own; else at once."""
        self._producer = producer
        self._due_us = due_us
        self._topic = topic
        self._named = named
        self._on_progress = on_progress
        self._pending: deque[BulkFuture] = deque()
        self._known = producer.last_sequence(topic) if named else -1
        self.tally = Tally()

    def run(self, blocks: Iterable[Block]) -> None:
        """Sends everything and returns when everything is stored.

        Raises what the input or the first failed message raises; what was sent before is waited
        for first, as long as it can be stored.
        """
        try:
            for block in blocks:
                self._send(block)
                self._settle(wait=False)
        except Exception:
            self._settle(wait=True)
            raise
        self._settle(wait=True)
        self._producer.flush()

    def _send(self, block: Block) -> None:
        count = len(block.values)
        self.tally.read += count
        end = block.first + count
        if self._named and end - 1 <= self._known:
            self.tally.skipped += count
            return
        options: dict[str, Any] = {}
        if block.keys is not None:
            options["keys"] = block.keys
        if block.headers is not None:
            options["headers"] = block.headers
        if block.message_ids is not None:
            options["message_ids"] = block.message_ids
        due_us: Any = None if self._due_us is None else self._due_us()
        if block.deliver_at is not None:
            due_us = [due_us if each is None else each for each in block.deliver_at]
        if due_us is not None:
            options["deliver_at"] = due_us
        if self._named:
            options["positions"] = np.arange(block.first, end)
        self._pending.append(self._producer.send_many(self._topic, block.values, **options))

    def _settle(self, *, wait: bool) -> None:
        """Counts what is done at the head of the line; waits for all of it if asked to."""
        while self._pending:
            future = self._pending[0]
            if not future.done():
                self._on_progress()
                if not wait:
                    return
                with contextlib.suppress(TimedOut):
                    future.result(0.05)
                continue
            summary = future.result()
            self._pending.popleft()
            self.tally.stored += summary.stored
            self.tally.duplicates += summary.duplicates - summary.skipped
            self.tally.skipped += summary.skipped
            self.tally.sent += summary.messages - summary.skipped
        self._on_progress()
