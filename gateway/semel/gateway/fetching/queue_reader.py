"""One queue, as all of Kafka's consumers at this gateway read it.

How it works. Consumers that ask for the same place share one poll, and what it brings is kept for a
while: for the others, and for the consumer itself, which often asks for less than came. A consumer
that is behind has the next piece fetched while it takes the last one.

A queue that is split has an end. Whether it is, its broker tells with every answer; a client that
asks for more than there is may have heard of the split elsewhere, so the broker is asked before
that is refused.

Invariant: at most `POLLS_MAX` polls of a queue are open, no two of them from one offset. So a
consumer that asks again and again costs nothing but its request.

Not here: the polls (`queue_polls.py`), what is kept (`queue_runs.py`), requests (`fetch.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from semel.client.core.routing import QueueRoute
from semel.client.transport.fetch_streams import MAX_WAIT_MS
from semel.gateway.fetching.queue_polls import GroupPolls, PollResult
from semel.gateway.fetching.queue_runs import KafkaBatch, QueueRuns
from semel.protos.errors import OffsetOutOfRange, SemelError
from semel.protos.ids import QueueKey

POLLS_MAX: Final = 8
POLL_BYTES: Final = 1 << 20
"""Bytes of stored batches that one poll brings, or one batch."""


class QueueReader:
    """See the module's text. Lives on the client's I/O thread."""

    def __init__(
        self,
        key: QueueKey,
        polls_of: Callable[[QueueRoute], GroupPolls],
        on_held: Callable[[int], None],
        shift: int = 0,
    ) -> None:
        """`on_held` is told how many bytes more are kept, or with a negative number less. `shift`
        is the partition offset of the queue's offset 0; it is in the record batches alone."""
        self.key = key
        self.sealed_end = -1
        """Where the queue ends, if it is known to be split; else -1."""
        self.high_watermark = -1
        """One past the last committed offset, as last told; -1 if not known."""
        self.log_start_offset = -1
        self.used_at = time.monotonic()
        self._shift = shift
        self._runs = QueueRuns()
        self._polls_of = polls_of
        self._on_held = on_held
        self._polling: set[int] = set()
        """Offsets of the open polls."""
        self._errors: dict[int, SemelError] = {}
        """By offset, until somebody takes them."""
        self._waiters: set[asyncio.Event] = set()

    @property
    def held_bytes(self) -> int:
        """Bytes that are kept."""
        return self._runs.bytes

    def has(self, offset: int) -> bool:
        """Whether a batch with `offset` is here."""
        return bool(self._runs.find(offset, time.monotonic()))

    def forget(self, since: float) -> None:
        """Forgets what was not read after `since`."""
        before = self._runs.bytes
        self._runs.forget_unused(since)
        self._on_held(self._runs.bytes - before)

    @property
    def is_polling(self) -> bool:
        return bool(self._polling)

    def take(self, offset: int) -> Sequence[KafkaBatch]:
        """Returns the batches from `offset` on that are here. Raises SemelError if the poll from
        there was refused; it is asked again then."""
        self.used_at = now = time.monotonic()
        error = self._errors.pop(offset, None)
        if error is not None:
            raise error
        return self._runs.find(offset, now)

    def want(self, route: QueueRoute, offset: int) -> None:
        """Polls the queue from `offset`, unless that is under way."""
        if offset in self._polling or len(self._polling) >= POLLS_MAX:
            return
        self._polling.add(offset)

        def tell(result: PollResult) -> None:
            error = result.error
            if isinstance(error, OffsetOutOfRange) and offset > error.log_end_offset:
                self._ask_end(route, offset, error)
            else:
                self._on_result(offset, result)

        self._ask(route, offset, tell)

    def _ask_end(self, route: QueueRoute, offset: int, refusal: OffsetOutOfRange) -> None:
        """Asks whether the queue was split, before a poll from beyond its end is refused."""

        def tell(result: PollResult) -> None:
            if result.error is not None and result.error.retriable:
                refused = result
            else:
                refused = PollResult(error=None if result.sealed else refusal)
            if result.sealed:
                self.sealed_end = result.high_watermark
            self._on_result(offset, refused)

        self._ask(route, refusal.log_end_offset, tell, wait_ms=0)

    def _ask(
        self,
        route: QueueRoute,
        offset: int,
        tell: Callable[[PollResult], None],
        wait_ms: int = MAX_WAIT_MS,
    ) -> None:
        self._polls_of(route).ask(
            self.key, offset, tell, max_bytes=POLL_BYTES, shift=self._shift, wait_ms=wait_ms
        )

    def listen(self, waiter: asyncio.Event) -> None:
        """Sets `waiter` whenever a poll ends."""
        self._waiters.add(waiter)

    def unlisten(self, waiter: asyncio.Event) -> None:
        self._waiters.discard(waiter)

    def _on_result(self, offset: int, result: PollResult) -> None:
        self._polling.discard(offset)
        if result.error is not None:
            if self._waiters:
                self._errors[offset] = result.error
        elif result.high_watermark >= 0:
            if result.sealed:
                self.sealed_end = result.high_watermark
            self.high_watermark = max(self.high_watermark, result.high_watermark)
            self.log_start_offset = max(self.log_start_offset, result.log_start_offset)
            before = self._runs.bytes
            self._runs.add(result.batches, time.monotonic())
            self._on_held(self._runs.bytes - before)
        elif self.sealed_end < 0:
            self.high_watermark = max(self.high_watermark, offset)
        for waiter in self._waiters:
            waiter.set()
