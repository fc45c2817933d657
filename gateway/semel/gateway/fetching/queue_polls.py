"""Polls of queues at one broker group: one for each place of a queue that somebody reads.

How it works. A poll asks the group's master for one queue from one offset, and is answered as soon
as there is something, or empty after `MAX_WAIT_MS`. All polls share a seat on the client's fetch
stream to the master. When the stream ends, those that are open are asked again at the next master.

Invariants
1. Every poll is answered once: with a result, or an error.
2. A seat is held only while somebody polls, and `IDLE_S` longer.

Not here: who waits for what (`queue_reader.py`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from semel.client.core.retry import Backoff, BackoffPolicy
from semel.client.transport.cluster import Cluster
from semel.client.transport.fetch_streams import MAX_WAIT_MS, Seat
from semel.gateway.fetching.queue_runs import KafkaBatch
from semel.gateway.fetching.stored_batches import kafka_batch
from semel.gateway.records import RecordCodec
from semel.protos import compat
from semel.protos.errors import (
    InternalError,
    NotMaster,
    SemelError,
    from_detail,
)
from semel.protos.ids import GroupId, QueueKey
from semel.protos.v1 import broker_pb2, common_pb2

logger = logging.getLogger(__name__)

IDLE_S: Final = 30.0
POLL_POLICY: Final = BackoffPolicy(initial_ms=10, max_ms=300)
HELD_BYTES: Final = 8 << 20


class PollResult(NamedTuple):
    """The answer to a poll."""

    batches: Sequence[KafkaBatch] = ()
    high_watermark: int = -1
    """-1 if the answer is empty: then it is the offset asked for."""
    log_start_offset: int = -1
    sealed: bool = False
    """The queue was split: it ends at `high_watermark` for ever."""
    error: SemelError | None = None


class _Poll(NamedTuple):
    key: QueueKey
    offset: int
    shift: int
    max_bytes: int
    wait_ms: int
    tell: Callable[[PollResult], None]


class GroupPolls:
    """The polls at one broker group. Lives on the client's I/O thread."""

    def __init__(self, cluster: Cluster, group_id: GroupId, codec: RecordCodec) -> None:
        """`codec` compresses the record batches."""
        self.throttled_ms = 0
        """Milliseconds for which polls waited for a quota."""
        self._cluster = cluster
        self._group_id = group_id
        self._codec = codec
        self._seat: Seat | None = None
        self._unsent: list[_Poll] = []
        self._open: dict[int, _Poll] = {}
        """By the number of the request."""
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def ask(
        self,
        key: QueueKey,
        offset: int,
        tell: Callable[[PollResult], None],
        *,
        max_bytes: int,
        shift: int = 0,
        wait_ms: int = MAX_WAIT_MS,
    ) -> None:
        """Polls a queue; `tell` is called once with the result. What comes has partition offsets in
        it, `shift` higher than those of the queue."""
        poll = _Poll(key, offset, shift, max_bytes, wait_ms, tell)
        if self._seat is not None and self._seat.failure is None:
            self._send(self._seat, poll)
            return
        self._unsent.append(poll)
        if self._task is None:
            name = f"semel-kafka-fetch-{self._group_id}"
            self._task = self._cluster.spawn(self._run(), name)
        self._news.set()

    def _send(self, seat: Seat, poll: _Poll) -> None:
        number = seat.new_number()
        request = broker_pb2.FetchRequest(
            correlation_id=number, max_bytes=poll.max_bytes, max_wait_ms=poll.wait_ms
        )
        request.queues.add(
            queue=common_pb2.QueueRef(topic_id=poll.key.topic_id, queue_id=poll.key.queue_id),
            offset=poll.offset,
            max_bytes=poll.max_bytes,
        )
        self._open[number] = poll
        seat.ask(request, None)

    # --------------------------------------------------------------------------------- FetchLink

    def wake(self) -> None:
        self._news.set()

    def on_reply(self, header: broker_pb2.FetchReplyHeader, batches: Sequence[memoryview]) -> None:
        """Raises SemelError when another node has to be asked."""
        poll = self._open.pop(header.correlation_id, None)
        if poll is None:
            return
        self.throttled_ms += header.throttled_ms
        try:
            result = self._result(header, batches, poll.shift)
        except SemelError as error:
            if isinstance(error, NotMaster):
                self._unsent.append(poll)
                raise
            result = PollResult(error=error)
        poll.tell(result)

    def _result(
        self, header: broker_pb2.FetchReplyHeader, parts: Sequence[memoryview], shift: int
    ) -> PollResult:
        """Returns the result of an answer. Raises SemelError."""
        if header.HasField("error"):
            raise from_detail(header.error)
        if not header.results:
            return PollResult()
        (result,) = header.results
        if result.HasField("error"):
            raise from_detail(result.error)
        batches = [
            KafkaBatch(
                each.base_offset,
                each.base_offset + each.row_end - each.row_start,
                kafka_batch(
                    stored, each.base_offset, each.row_start, each.row_end, self._codec, shift
                ),
            )
            for each, stored in zip(result.batches, parts, strict=True)
        ]
        return PollResult(
            batches=batches,
            high_watermark=result.high_watermark,
            log_start_offset=result.log_start_offset,
            sealed=result.sealed,
        )

    # ------------------------------------------------------------------------------------ streams

    async def _run(self) -> None:
        backoff = Backoff(POLL_POLICY, random.random)
        loop = asyncio.get_running_loop()
        while True:
            while not self._unsent:
                self._news.clear()
                await self._news.wait()
            try:
                master = await self._cluster.master(self._group_id)
            except SemelError as error:
                self._fail(error)
                continue
            began = loop.time()
            try:
                await self._stay(master.address)
                continue
            except SemelError as error:
                failure = error
            except Exception as error:
                logger.exception("fetch stream failed group=%s", self._group_id)
                failure = InternalError(f"gateway: {error!r}")
            finally:
                self._unsent += self._open.values()
                self._open.clear()
            if failure.retriable or isinstance(failure, InternalError):
                self._cluster.on_master_error(self._group_id, master, failure)
            else:
                self._fail(failure)
            if loop.time() - began > 1.0:
                backoff.reset()
            await asyncio.sleep(backoff.next_ms() / 1000)

    async def _stay(self, address: str) -> None:
        """Asks a node until it fails, or nobody has asked for a while. Raises SemelError, and what
        `on_reply` raised."""
        seat = await self._cluster.fetches.join(
            address, self, answer_bytes=HELD_BYTES, held_bytes=HELD_BYTES
        )
        try:
            self._seat = seat
            polls, self._unsent = self._unsent, []
            for poll in polls:
                self._send(seat, poll)
            asked = seat.new_number()
            while True:
                self._news.clear()
                try:
                    async with compat.timeout(IDLE_S):
                        await self._news.wait()
                except TimeoutError:
                    number = seat.new_number()
                    if number == asked + 1 and not self._open:
                        return
                    asked = number
                if seat.failure is not None:
                    raise seat.failure
        finally:
            self._seat = None
            seat.leave()

    def _fail(self, error: SemelError) -> None:
        polls, self._unsent = self._unsent, []
        for poll in polls:
            poll.tell(PollResult(error=error))
