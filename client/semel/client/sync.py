"""The synchronous API: `connect`, `Client`, `Producer`, `Reader`, `Admin`.

How it works. Every object is a thin front: it hands coroutines to the I/O thread and blocks for
the result. Sending and receiving messages do not wait for that thread: messages go through the
producer's door and come out of the feed's line.

All objects may be shared between threads, except that one reader or consumer belongs to one thread
at a time. After a fork, objects of the parent raise Closed in the child.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from semel.client.config import ReaderConfig, build
from semel.client.fetch import Puller, wait_ready
from semel.client.futures import BulkFuture, SendFuture
from semel.client.intake import Headers
from semel.client.message import Message
from semel.client.model import (
    ClusterStatus,
    GroupDescription,
    ProduceOutcome,
    ProducerDescription,
    ProducerSummary,
    TopicDescription,
    TopicSettings,
    TopicSummary,
    VerifyResult,
)
from semel.client.offsets import Places
from semel.client.producer import ProducerCore, ProducerStats
from semel.client.reader import ReaderCore
from semel.client.session import Session
from semel.client.verify import Verification, VerifyProgress
from semel.protos.errors import Closed, InvalidRequest, SemelError, TimedOut


def connect(bootstrap: str | None = None, **options: Any) -> Client:
    """Connects to a cluster through its controllers.

    `bootstrap` is "HOST:PORT[,HOST:PORT]"; None takes SEMEL_BOOTSTRAP, or 127.0.0.1:7070. Options
    are the fields of `ClientConfig`. Raises Unavailable when no controller answers in time,
    InvalidRequest for an unknown option.

        >>> with connect(bootstrap) as client:
        ...     client.admin.create_topic("greetings", queues=2)
        ...     with client.producer() as producer:
        ...         stored = producer.send("greetings", b"hello").result()
        ...     with client.reader("greetings", end="latest") as reader:
        ...         [message.value for message in reader]
        True
        [b'hello']
    """
    session = Session(bootstrap, options)
    session.run(session.open(), None)
    return Client(session)


class Client:
    """A connection to a cluster. Use it as a context manager, or call `close`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.admin = Admin(session)
        """Topics, groups, producers, the cluster."""

    def producer(self, name: str | None = None, **options: Any) -> Producer:
        """A producer; options are the fields of `ProducerConfig`.

        With a name it has a durable identity: a new incarnation of the same name ends older ones
        and continues their sequences. Nothing is asked of the cluster before the first message.
        """
        return Producer(self._session, self._session.new_producer(name, options, blocking=True))

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
        to these. With an `end` the reader stops there; "latest" is what is stored now. Other
        options are the fields of `ReaderConfig`. Raises UnknownTopic, OffsetOutOfRange.
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

    def close(self) -> None:
        """Flushes producers, leaves groups and disconnects, within `close_timeout_ms`.

        Raises the first failure of a message that nobody was told about.
        """
        session = self._session
        if session.closed:
            return
        with contextlib.suppress(TimedOut, Closed):
            session.run(session.close(), session.config.close_timeout_ms / 1000 + 3)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        value: bytes | str,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        timestamp_us: int | None = None,
        queue: int | None = None,
        position: int | None = None,
    ) -> SendFuture:
        """Puts one message on its way; the future resolves to its RecordMetadata.

        Messages of one key go to one queue. Without a key they go, a batch at a time, wherever
        there is room; `queue` names one. `position` is the caller's own rising number
        (`source_positions=True`). Blocks while the buffer is full, and for the topic's route
        before its first message. Raises UnknownTopic, MessageTooLarge, InvalidRequest,
        BufferFull, ProducerFenced, Closed.
        """
        if self._session.closed:
            self._session.check()
        chunk, row = self._append(topic, value, key, headers, timestamp_us, queue, position, True)
        return SendFuture(chunk, row)

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
    ) -> BulkFuture:
        """Puts many messages on their way: lists, or Arrow arrays, of one length.

        Nothing is made per message, so this is the way to load much. The future resolves to a
        BulkSummary. Raises like `send`; MessageTooLarge and InvalidRequest before anything is sent.
        """
        self._session.check()
        intake = self._core.intake
        door, pieces = intake.bulk_pieces(topic, values, keys, headers, timestamps_us, positions)
        return BulkFuture([intake.append_piece(door, piece, queue, True) for piece in pieces])

    def flush(self, timeout: float | None = None) -> None:
        """Blocks until everything sent before is stored.

        Raises the first failure since the last flush, or TimedOut after `timeout` seconds.
        """
        self._session.run(self._core.flush(), timeout)

    def last_sequence(self, topic: str) -> int:
        """The caller's position that is durable: the lowest of `last_sequences`; -1 for none."""
        return min(self.last_sequences(topic).values(), default=-1)

    def last_sequences(self, topic: str) -> dict[int, int]:
        """Last stored sequence by queue, -1 for none (named producers only). What is at or below
        it in its queue is skipped when it is sent again with its position."""
        return self._session.run(self._core.last_sequences(topic))

    @property
    def stats(self) -> ProducerStats:
        """Counts so far."""
        return self._core.snapshot_stats()

    def close(self, timeout: float | None = None) -> None:
        """Flushes for up to `timeout` seconds (`close_timeout_ms`), then ends. Raises like flush;
        what is not stored then fails with Closed, its fate unknown."""
        if self._closed or self._session.closed:
            return
        self._closed = True
        self._session.leave(self)
        if timeout is None:
            timeout = self._session.config.close_timeout_ms / 1000
        try:
            self._session.run(self._core.flush(), timeout)
        finally:
            with contextlib.suppress(Closed):
                self._session.runtime.call_soon(self._core.close)

    async def shut(self) -> None:
        """For the client's own use: ends without a caller to tell."""
        self._closed = True
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


class Reader:
    """Messages of a topic, without a group: iterate, `poll` or `poll_arrow`."""

    def __init__(self, session: Session, core: ReaderCore) -> None:
        self._session = session
        self._core = core
        self._puller: Puller = core.puller
        self._closed = False
        session.join(self)

    def __iter__(self) -> Iterator[Message]:
        """Messages until the end, or until closed; without an `end` it waits for more."""
        while not self._closed:
            yield from self._puller.drain()
            if self._closed or self._puller.finished:
                return
            wait_ready(self._core.feed, None)
            self._session.check()

    def poll(self, max_messages: int = 500, timeout: float = 1.0) -> list[Message]:
        """Up to `max_messages`, as soon as there is one; empty after `timeout` seconds, or at the
        end. Raises OffsetOutOfRange when the queue was trimmed behind the reader."""
        self._check()
        found = self._puller.messages(max_messages)
        if not found and wait_ready(self._core.feed, timeout):
            found = self._puller.messages(max_messages)
        return found

    def poll_arrow(self, timeout: float = 1.0) -> pa.RecordBatch | None:
        """The next messages of one queue as ARROW_SCHEMA, without a row being touched; None after
        `timeout` seconds, or at the end."""
        self._check()
        batch = self._puller.arrow()
        if batch is None and wait_ready(self._core.feed, timeout):
            batch = self._puller.arrow()
        return batch

    @property
    def finished(self) -> bool:
        """Everything up to `end` was given out."""
        return self._puller.finished

    def positions(self) -> dict[int, int]:
        """Next offset that will be given out, by queue."""
        return self._core.positions()

    def _check(self) -> None:
        self._session.check()
        if self._closed:
            raise Closed("the reader is closed")

    def close(self) -> None:
        """Ends it; an iteration under way stops."""
        if not self._closed:
            self._closed = True
            self._session.leave(self)
            self._core.feed.end()
            self._session.runtime.call_soon(self._core.close)

    async def shut(self) -> None:
        """For the client's own use."""
        self._closed = True
        self._core.feed.end()
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Admin:
    """Administrative calls; each blocks until it is done."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def create_topic(
        self,
        name: str,
        queues: int = 4,
        *,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        message_bytes_max: int | None = None,
        batch_bytes_max: int | None = None,
        if_not_exists: bool = False,
        groups: list[int] | None = None,
    ) -> bool:
        """Creates a topic and returns once it can be written; False when it existed already.

        None takes the default. Raises TopicExists, InvalidRequest.
        """
        settings = {
            "retention_ms": retention_ms,
            "retention_bytes": retention_bytes,
            "message_bytes_max": message_bytes_max,
            "batch_bytes_max": batch_bytes_max,
        }
        _check_count("queues", queues)
        return self._session.run(
            self._session.admin.create_topic(name, queues, settings, if_not_exists, groups)
        )

    def alter_topic(
        self,
        name: str,
        *,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        message_bytes_max: int | None = None,
        batch_bytes_max: int | None = None,
    ) -> TopicSettings:
        """Changes the settings that are given. Raises UnknownTopic, InvalidRequest."""
        settings = {
            "retention_ms": retention_ms,
            "retention_bytes": retention_bytes,
            "message_bytes_max": message_bytes_max,
            "batch_bytes_max": batch_bytes_max,
        }
        return self._session.run(self._session.admin.alter_topic(name, settings))

    def delete_topic(self, name: str, *, if_exists: bool = False) -> bool:
        """Deletes a topic and its data, for good. False when there was none."""
        return self._session.run(self._session.admin.delete_topic(name, if_exists))

    def list_topics(self) -> list[TopicSummary]:
        """All topics, by name."""
        return self._session.run(self._session.admin.list_topics())

    def describe_topic(self, name: str) -> TopicDescription:
        """A topic with its queues and their offsets. Raises UnknownTopic."""
        return self._session.run(self._session.admin.describe_topic(name))

    def list_groups(self) -> list[str]:
        """Names of all consumer groups."""
        return self._session.run(self._session.admin.list_groups())

    def describe_group(self, group: str) -> GroupDescription:
        """Members, progress and lag of a consumer group. Raises UnknownGroup."""
        return self._session.run(self._session.admin.describe_group(group))

    def reset_offsets(self, group: str, topic: str, to: Places) -> dict[int, int]:
        """Moves a group's progress and fences its running consumers; new offsets by queue."""
        return self._session.run(self._session.admin.reset_offsets(group, topic, to))

    def delete_group(self, group: str) -> None:
        """Forgets a group without members. Raises UnknownGroup."""
        self._session.run(self._session.admin.delete_group(group))

    def cluster_status(self) -> ClusterStatus:
        """Broker groups, nodes and controllers."""
        return self._session.run(self._session.admin.cluster_status())

    def list_producers(self) -> list[ProducerSummary]:
        """Named producers, by name."""
        return self._session.run(self._session.admin.list_producers())

    def describe_producer(self, name: str) -> ProducerDescription:
        """A named producer and its rows in the sequence tables. Raises UnknownProducer."""
        return self._session.run(self._session.admin.describe_producer(name))

    def produce_outcome(self, name: str, topic: str, queue: int, sequence: int) -> ProduceOutcome:
        """The fate of one sequence of a named producer."""
        return self._session.run(self._session.admin.produce_outcome(name, topic, queue, sequence))

    def verify(
        self,
        topic: str,
        *,
        timeout: float = 600.0,
        on_progress: Callable[[VerifyProgress], object] | None = None,
    ) -> VerifyResult:
        """Lets every node recompute the topic from its own log and compares.

        `on_progress` is called in this thread. Raises UnknownTopic, Unavailable.
        """
        news: list[VerifyProgress] = []
        changed = threading.Event()

        def note(progress: VerifyProgress) -> None:
            news.append(progress)
            changed.set()

        self._session.check()
        run = Verification(self._session.cluster, note).run(topic, timeout)
        future = self._session.runtime.submit(run)
        future.add_done_callback(lambda _: changed.set())
        give_up = time.monotonic() + timeout + 10
        try:
            while not future.done() and time.monotonic() < give_up:
                changed.wait(1.0)
                changed.clear()
                while news and on_progress is not None:
                    on_progress(news.pop(0))
            return future.result(0)
        except TimeoutError:
            raise TimedOut(f"not verified within {timeout:g} s") from None
        finally:
            future.cancel()


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidRequest(f"{name} must be a whole number from 1, not {value!r}")


__all__ = ["Admin", "Client", "Mapping", "Producer", "Reader", "connect"]
