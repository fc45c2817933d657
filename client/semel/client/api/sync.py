"""The synchronous API: `Client`, `Producer`.

How it works. Every object is a thin front: it hands coroutines to the I/O thread and blocks for
the result. Sending and receiving messages do not wait for that thread: messages go through the
producer's intake and come out of the feed's line.

All objects may be shared between threads, except that one reader or consumer belongs to one thread
at a time. After a fork, objects of the parent raise Closed in the child.

Generated from `api/aio.py` by `tools/unasync.py`: change that module.
"""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any, Final, Self

from semel.client.api.sync_admin import Admin
from semel.client.api.sync_reading import Consumer, Reader
from semel.client.api.sync_table import Table
from semel.client.api.sync_transactions import ProducerTransaction, Transactions
from semel.client.api.transaction_work import TransactionWork
from semel.client.config import ReaderConfig, build
from semel.client.consumer.consumer import ConsumerCore
from semel.client.consumer.consumer_config import ConsumerConfig
from semel.client.core.batching import Chunk
from semel.client.core.dues import AT_ONCE, After, When
from semel.client.core.fields import Headers
from semel.client.producer.futures import BulkFuture, SendFuture, new_future
from semel.client.producer.producer import ProducerCore
from semel.client.producer.rare_fields import rare_fields
from semel.client.producer.topic import ProducerStats
from semel.client.reading.offsets import Places
from semel.client.reading.reader import ReaderCore
from semel.client.session import Session, consumer_arguments
from semel.client.transactions.staging import TTL_MS_DEFAULT
from semel.protos.errors import Closed, SemelError, TimedOut

_BLOCKS: Final = True
"""Whether sending may block the caller while the buffer is full."""


class Client:
    """A connection to a cluster. Use it as a context manager, or call `close`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.admin = Admin(session)
        """Administrative calls: topics, groups, producers, the cluster."""
        self.transactions = Transactions(session)
        """Transactions with many writers."""

    @property
    def throttled_ms(self) -> int:
        """Milliseconds for which its calls waited so far because a node told them to come back,
        for a quota or another limit. Producers and readers tell theirs themselves."""
        return round(self._session.cluster.throttled_ms)

    def producer(self, name: str | None = None, **options: Any) -> Producer:
        """A producer; options are the fields of `ProducerConfig`.

        With a name it has a durable identity: a new incarnation of the same name ends older ones
        and continues their sequences. It makes no call to the cluster before the first message.
        """
        core = self._session.new_producer(name, options, blocking=_BLOCKS)
        return Producer(self._session, core)

    def reader(
        self,
        topic: str,
        *,
        queues: list[int] | None = None,
        start: Places = "earliest",
        end: Places | None = None,
        **options: Any,
    ) -> Reader:
        """Reads a topic without a consumer group.

        `start` and `end` are "earliest", "latest", an offset, a datetime or a mapping from queue
        to these. With an `end` the reader stops there; "latest" is the present end. Other options
        are the fields of `ReaderConfig`. Raises UnknownTopic, OffsetOutOfRange.
        """
        self._session.check()
        core = ReaderCore(
            self._session.cluster, self._session.runtime, build(ReaderConfig, options)
        )
        try:
            self._session.run(core.open(topic, queues, start, end))
        except BaseException:
            self._session.runtime.call_soon(core.close)
            raise
        return Reader(self._session, core)

    def table(self, topic: str, **options: Any) -> Table:
        """A topic as a mapping from keys to their newest values, which follows it: made for
        compacted topics. Entering it reads what is stored; options are the fields of
        `ReaderConfig`. See docs/client.md#a-topic-as-a-table.
        """
        return Table(self._session, topic, self.reader(topic, **options))

    def consumer(self, group: str, topics: list[str] | str, **options: Any) -> Consumer:
        """Joins a consumer group; options are the fields of `ConsumerConfig`.

        Raises UnknownTopic, InvalidRequest, Unavailable.
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
        self._session.run(core.open())
        return Consumer(self._session, core)

    def close(self) -> None:
        """Flushes producers, leaves groups and disconnects, within `close_timeout_ms`.

        Raises the first error of a message of which no caller has learned.
        """
        session = self._session
        if session.closed:
            return
        failures: list[SemelError] = []
        timeout = session.config.close_timeout_ms / 1000 + 3
        with contextlib.suppress(TimedOut, Closed):
            failures = session.run(session.close(), timeout)
        if failures:
            raise failures[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            with contextlib.suppress(SemelError):
                self.close()


class Producer:
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
        value: bytes | str | None,
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
        """Puts one message on its way; the future resolves to its RecordMetadata.

        Messages of one key go to one queue. Without a key they go, a batch at a time, wherever
        there is room; `queue` names one. `position` is the caller's own rising number
        (`source_positions=True`). A `value` of None needs a key and says that the key has no value
        any more. Raises UnknownTopic, MessageTooLarge, InvalidRequest, BufferFull, ProducerFenced,
        Closed.

        Blocks while the buffer is full, and for the topic's route before its first message.

        `deliver_at` (a datetime with a time zone, or microseconds since 1970) or `deliver_after`
        (a timedelta, or seconds) hold the message back: it is stored as safely as any, and readers
        get it when it is due, rounded up to a whole second. Until then it has no offset: its
        RecordMetadata has offset -1. `message_id`, up to 1,024 bytes, travels with the message.

        A topic with dedup by id (`create_topic(dedup=IdDedup(...))`) stores each id once, as long
        as its window reaches: the RecordMetadata of a further message says `duplicate`, and names
        the place of the first. The future raises IdConflict if that has another content.

            >>> with connect(bootstrap) as client, client.producer() as producer:
            ...     client.admin.create_topic("alarms", queues=1)
            ...     sent = producer.send("alarms", b"tea", deliver_after=0.5, message_id="tea-1")
            ...     sent.result().offset
            ...     with client.reader("alarms") as reader:
            ...         found = reader.poll(timeout=10)
            ...     [(message.offset, message.value, message.message_id) for message in found]
            True
            -1
            [(0, b'tea', b'tea-1')]
        """
        if self._session.closed:
            self._session.check()
        due_us = AT_ONCE
        if (
            deliver_at is not None
            or deliver_after is not None
            or (message_id is not None and type(message_id) is not bytes)
        ):  # plain ids pay for no call: a loop of send() has a microsecond for each message
            due_us, message_id = rare_fields(deliver_at, deliver_after, message_id)
        chunk, row = self._append(
            topic, value, key, headers, timestamp_us, queue, position, _BLOCKS, due_us, message_id
        )
        future = new_future(SendFuture)
        future._chunk = chunk
        future._row = row
        return future

    def send_many(
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
        """Puts many messages on their way: lists, or Arrow arrays, of one length.

        It makes no object per message, so it is the fastest way to load data. The future resolves
        to a BulkSummary, which counts duplicates and conflicts by message id and has their row
        numbers. Raises like `send`, but MessageTooLarge and InvalidRequest before anything
        is sent.

        `deliver_at` is one time for all, or a column: Arrow timestamps with a time zone, whole
        microseconds, or a list, where null is at once. Messages of one due time are sent together,
        so those of one key keep their order among themselves; with `positions` all stay as they
        stand. `message_ids` is a column where null is none.

        Blocks while the buffer is full.
        """
        self._session.check()
        intake = self._core.intake
        opened, pieces = intake.bulk_pieces(
            topic, values, keys, headers, timestamps_us, positions, deliver_at, message_ids
        )
        ranges: list[tuple[Chunk, int, int]] = []
        try:
            for piece in pieces:
                ranges.append(intake.append_piece(opened, piece, queue, _BLOCKS))
        except BaseException as error:
            intake.on_bulk_given_up(pieces[len(ranges) :], error)
            raise
        return BulkFuture(ranges, [piece.rows for piece in pieces])

    def transaction(
        self,
        transaction_id: str,
        *,
        epoch: int | None = None,
        query_id: str = "",
        ttl_ms: int = TTL_MS_DEFAULT,
    ) -> ProducerTransaction:
        """Messages that become visible together, or never, also over many topics.

        A second program under the same id ends the first one's transaction. Epochs count up by
        themselves. A caller may give an `epoch`; `committed` tells if it is committed already.
        `query_id` keeps other queries from using the id. See docs/transactions.md.

            >>> with connect(bootstrap) as client, client.producer() as producer:
            ...     client.admin.create_topic("ledger", queues=2)
            ...     with producer.transaction("booking") as t:
            ...         t.send("ledger", b"100 from anna")
            ...         t.send("ledger", b"100 to ben")
            ...     t.committed
            True
            True
        """
        self._session.check()
        work = TransactionWork(
            self._session,
            self._core.config,
            transaction_id,
            query_id,
            epoch,
            blocking=_BLOCKS,
            ttl_ms=ttl_ms,
        )
        return ProducerTransaction(self._session, work)

    def flush(self, timeout: float | None = None) -> None:
        """Blocks until everything sent before is stored.

        Raises the first error since the last flush that no future has reported, or TimedOut after
        `timeout` seconds.
        """
        self._session.run(self._core.flush(), timeout, "not all stored")

    def last_sequence(self, topic: str) -> int:
        """Returns the caller's durable position: the lowest of `last_sequences`; -1 for none."""
        by_queue = self.last_sequences(topic)
        return min(by_queue.values(), default=-1)

    def last_sequences(self, topic: str) -> dict[int, int]:
        """Returns the last stored sequence by queue, -1 for none (named producers only). A message
        at or below it in its queue is skipped when it is sent again with its position."""
        return self._session.run(self._core.last_sequences(topic))

    @property
    def stats(self) -> ProducerStats:
        """The counts so far."""
        return self._core.snapshot_stats()

    def close(self, timeout: float | None = None) -> None:
        """Flushes for up to `timeout` seconds (`close_timeout_ms`), then ends. Raises like flush.
        Messages that are not stored by then fail with Closed, and their fate is unknown."""
        if self._closed or self._session.closed:
            return
        self._closed = True
        self._session.leave(self)
        self._core.intake.shut()
        if timeout is None:
            timeout = self._session.config.close_timeout_ms / 1000
        try:
            self.flush(timeout)
        finally:
            self._session.runtime.call_soon(self._core.close)

    async def shut(self) -> None:
        """For the client's own use: ends when no caller is left to get an error."""
        self._closed = True
        self._core.intake.shut()
        try:
            await self._core.flush()
        finally:
            self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            with contextlib.suppress(SemelError):
                self.close()
