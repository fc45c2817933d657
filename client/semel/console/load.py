"""Sends the blocks of an input to a topic and keeps account of their outcome.

How it works. Each block is sent with one bulk call, and its future joins a queue; completed futures
at the head of the queue are counted and dropped, so the producer's buffer bounds the memory. With a
named producer a message's position is its number in the input; a block that the topic already has
as a whole is counted and not sent at all.

Not here: cutting the input (`lines.py`), options and output (`produce.py`).
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from semel.protos.errors import TimedOut

if TYPE_CHECKING:
    from semel.client import Producer
    from semel.client.producer.futures import BulkFuture
    from semel.console.lines import Block


CONFLICTS_SHOWN: Final = 10
"""How many conflicts are named."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """Numbers of messages."""

    read: int = 0
    """Read from the input."""
    sent: int = 0
    """Passed to the producer and not skipped."""
    stored: int = 0
    """Newly stored by this load."""
    duplicates: int = 0
    """Sent, and recognised by a broker as already stored, by their sequence or their id."""
    skipped: int = 0
    """Known to be stored before this load, so not sent."""
    conflicts: int = 0
    """Sent, and not stored: the topic has another message with their id."""
    conflict_lines: list[int] = field(default_factory=list)
    """Lines of the first of them, counted from 1."""

    def on_conflicts(self, rows: Iterable[int], first: int) -> None:
        """Counts conflicts of a block whose first message is number `first`."""
        for row in rows:
            self.conflicts += 1
            if len(self.conflict_lines) < CONFLICTS_SHOWN:
                self.conflict_lines.append(first + row + 1)

    def as_dict(self) -> dict[str, int]:
        """The numbers by name, for JSON."""
        return {
            "read": self.read,
            "sent": self.sent,
            "stored": self.stored,
            "duplicates": self.duplicates,
            "skipped": self.skipped,
            "conflicts": self.conflicts,
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
        """Reads from the file, after a wait that keeps to the rate."""
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
        """`due_us` gives the due time of messages without one of their own; None is at once."""
        self._producer = producer
        self._due_us = due_us
        self._topic = topic
        self._named = named
        self._on_progress = on_progress
        self._pending: deque[tuple[int, BulkFuture]] = deque()
        """Number of the first message of each block on its way, and its future."""
        self._known = producer.last_sequence(topic) if named else -1
        self.tally = Tally()

    def run(self, blocks: Iterable[Block]) -> None:
        """Sends all blocks and returns when they are stored.

        Raises the error of the input or of the first failed message, after waiting for the
        messages sent before as long as they can be stored.
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
        future = self._producer.send_many(self._topic, block.values, **options)
        self._pending.append((block.first, future))

    def _settle(self, *, wait: bool) -> None:
        """Counts completed futures at the head of the queue; with `wait`, waits for all."""
        while self._pending:
            first, future = self._pending[0]
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
            self.tally.on_conflicts(summary.conflict_rows.tolist(), first)
            self.tally.sent += summary.messages - summary.skipped
        self._on_progress()
