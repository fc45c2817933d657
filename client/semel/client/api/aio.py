"""The asyncio API: `AsyncClient`, `AsyncProducer`.

How it works. It is the synchronous API's core on the same I/O thread; the caller's loop only ever
awaits. Encoding, compression and gRPC never run on it. Objects may be used from any loop.

A cancelled call may have taken effect: a message that was sent stays on its way.
"""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any, Self

from semel.client.api.aio_admin import AsyncAdmin
from semel.client.api.aio_reading import AsyncConsumer, AsyncReader
from semel.client.api.aio_transactions import AsyncProducerTransaction, AsyncTransactions
from semel.client.api.transaction_work import TransactionWork
from semel.client.config import ReaderConfig, build
from semel.client.consumer.config import ConsumerConfig
from semel.client.consumer.consumer import ConsumerCore
from semel.client.core.dues import After, When
from semel.client.core.fields import Headers
from semel.client.producer.futures import BulkFuture, SendFuture, new_future
from semel.client.producer.intake import extra_of
from semel.client.producer.producer import ProducerCore
from semel.client.producer.topic import ProducerStats
from semel.client.reading.offsets import Places
from semel.client.reading.reader import ReaderCore
from semel.client.session import Session, consumer_arguments
from semel.client.transactions.staging import TTL_MS_DEFAULT
from semel.protos.errors import Closed, SemelError, TimedOut


class AsyncClient:
    """A connection to a cluster. Use it as an async context manager, or await `close`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.admin = AsyncAdmin(session)
        """Topics, groups, producers, the cluster."""
        self.transactions = AsyncTransactions(session)
        """Transactions with many writers."""

    def producer(self, name: str | None = None, **options: Any) -> AsyncProducer:
        """A producer; options are the fields of `ProducerConfig`. See `Client.producer`."""
        core = self._session.new_producer(name, options, blocking=False)
        return AsyncProducer(self._session, core)

    def reader(
        self,
        topic: str,
        *,
        queues: list[int] | None = None,
        start: Places = "earliest",
        end: Places | None = None,
        **options: Any,
    ) -> AsyncReader:
        """Reads a topic without a consumer group; connects when it is entered or first used.

        See `Client.reader`.
        """
        self._session.check()
        core = ReaderCore(
            self._session.cluster, self._session.runtime, build(ReaderConfig, options)
        )
        return AsyncReader(self._session, core, lambda: core.open(topic, queues, start, end))

    def consumer(self, group: str, topics: list[str] | str, **options: Any) -> AsyncConsumer:
        """A member of a consumer group; joins when it is entered or first used.

        See `Client.consumer`.
        """
        self._session.check()
        names = consumer_arguments(group, topics)
        core = ConsumerCore(
            self._session.cluster,
            self._session.runtime,
            group,
            names,
            build(ConsumerConfig, options),
        )
        return AsyncConsumer(self._session, core)

    async def close(self) -> None:
        """Flushes producers, leaves groups and disconnects, within `close_timeout_ms`.

        Raises the first failure of a message that nobody was told about.
        """
        session = self._session
        if session.closed:
            return
        failures: list[SemelError] = []
        timeout = session.config.close_timeout_ms / 1000 + 3
        with contextlib.suppress(TimedOut, Closed):
            failures = await session.await_run(session.close(), timeout)
        if failures:
            raise failures[0]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            await self.close()
        else:
            with contextlib.suppress(SemelError):
                await self.close()


class AsyncProducer:
    """Sends messages; each is stored exactly once, in the order sent within its queue."""

    def __init__(self, session: Session, core: ProducerCore) -> None:
        self._session = session
        self._core = core
        self._append = core.intake.append
        self._closed = False
        session.join(self)

    def send(
        self,
        topic: str,
        value: bytes | str,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        timestamp_us: int | None = None,
        queue: int | None = None,
        position: int | None = None,
        deliver_at: When | None = None,
        deliver_after: After | None = None,
        message_id: bytes | str | None = None,
    ) -> SendFuture:
        """Puts one message on its way; await the future for its RecordMetadata.

        Never blocks and takes the message even when the buffer is full: `await drain()` now and
        then to be slowed down to the cluster's pace (with `buffer_full="raise"` it raises
        BufferFull instead). Otherwise like `Producer.send`; UnknownTopic comes with the future.
        """
        if self._session.closed:
            self._session.check()
        extra = None
        if deliver_at is not None or deliver_after is not None or message_id is not None:
            extra = extra_of(deliver_at, deliver_after, message_id)
        chunk, row = self._append(
            topic, value, key, headers, timestamp_us, queue, position, False, extra
        )
        future = new_future(SendFuture)
        future._chunk = chunk
        future._row = row
        return future

    async def send_many(
        self,
        topic: str,
        values: Any,
        *,
        keys: Any = None,
        headers: Any = None,
        timestamps_us: Any = None,
        positions: Any = None,
        queue: int | None = None,
        deliver_at: Any = None,
        message_ids: Any = None,
    ) -> BulkFuture:
        """Puts many messages on their way, awaiting room in the buffer; see `Producer.send_many`.

        Cancelled in between, a part of them is on its way.
        """
        self._session.check()
        await self.open(topic)
        intake = self._core.intake
        door, pieces = intake.bulk_pieces(
            topic, values, keys, headers, timestamps_us, positions, deliver_at, message_ids
        )
        ranges = []
        for piece in pieces:
            await self.drain()
            ranges.append(intake.append_piece(door, piece, queue, False))
        return BulkFuture(ranges)

    def transaction(
        self,
        transaction_id: str,
        *,
        epoch: int | None = None,
        query_id: str = "",
        ttl_ms: int = TTL_MS_DEFAULT,
    ) -> AsyncProducerTransaction:
        """Messages that become visible together, or never; see `Producer.transaction`."""
        self._session.check()
        work = TransactionWork(
            self._session,
            self._core.config,
            transaction_id,
            query_id,
            epoch,
            blocking=False,
            ttl_ms=ttl_ms,
        )
        return AsyncProducerTransaction(self._session, work)

    async def open(self, topic: str) -> None:
        """Fetches the topic's route (and fences its queues, for a named producer) ahead of the
        first message. Raises UnknownTopic."""
        await self._session.await_run(self._core.opened(topic))

    async def drain(self) -> None:
        """Returns when the buffer has room."""
        if self._core.config.buffer_full == "block" and not self._core.intake.has_room():
            await self._session.await_run(self._core.wait_room())

    async def flush(self, timeout: float | None = None) -> None:
        """Returns when everything sent before is stored. Raises like `Producer.flush`."""
        await self._session.await_run(self._core.flush(), timeout, "not all stored")

    async def last_sequence(self, topic: str) -> int:
        """See `Producer.last_sequence`."""
        return min((await self.last_sequences(topic)).values(), default=-1)

    async def last_sequences(self, topic: str) -> dict[int, int]:
        """See `Producer.last_sequences`."""
        return await self._session.await_run(self._core.last_sequences(topic))

    @property
    def stats(self) -> ProducerStats:
        """Counts so far."""
        return self._core.snapshot_stats()

    async def close(self, timeout: float | None = None) -> None:
        """Flushes for up to `timeout` s (`close_timeout_ms`), then ends. Raises like flush."""
        if self._closed or self._session.closed:
            return
        self._closed = True
        self._session.leave(self)
        self._core.intake.shut()
        if timeout is None:
            timeout = self._session.config.close_timeout_ms / 1000
        try:
            await self.flush(timeout)
        finally:
            self._session.runtime.call_soon(self._core.close)

    async def shut(self) -> None:
        """For the client's own use: ends without a caller to tell."""
        self._closed = True
        self._core.intake.shut()
        try:
            await self._core.flush()
        finally:
            self._core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            await self.close()
        else:
            with contextlib.suppress(SemelError):
                await self.close()
