"""The synchronous `Reader` and `Consumer`: iterate, `poll` or `poll_arrow`.

How it works. Messages are taken from the feed and decoded in the calling thread; only when none is
there does it wait, and only commits and the like are handed to the I/O thread.

One object belongs to one thread at a time.

Generated from `api/aio_reading.py` by `tools/unasync.py`: change that module.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from semel.client.api.sql_transaction import SqlWork
from semel.client.consumer.consumer import ConsumerCore
from semel.client.message import Message
from semel.client.reading.fetch import Feed
from semel.client.reading.pulling import Puller, wait_ready
from semel.client.reading.reader import ReaderCore
from semel.client.reading.untraced import Untraced
from semel.client.session import Session

if TYPE_CHECKING:
    import pyarrow as pa
from semel.protos.errors import Closed, SemelError


class _Pulling(ABC):
    """The methods that readers and consumers share."""

    def __init__(self, session: Session, feed: Feed, puller: Puller, receiving: Untraced) -> None:
        self._session = session
        self._feed = feed
        self._puller = puller
        self._receiving = receiving
        self._closed = False

    def __iter__(self) -> Iterator[Message]:
        """Yields messages until the end, or until it is closed. Without an end it waits for
        more."""
        while not self._closed:
            self._give_back()
            yield from self._puller.drain()
            if self._closed or self._puller.finished:
                return
            wait_ready(self._feed, None)
            if not self._closed:
                self._session.check()

    @property
    def throttled_ms(self) -> int:
        """Milliseconds for which its fetches waited for a quota so far, all together."""
        return self._feed.throttled_ms

    def poll(self, max_messages: int = 500, timeout: float = 1.0) -> list[Message]:
        """Returns up to `max_messages`, as soon as there is one; none after `timeout` seconds."""
        self._check()
        with self._receiving.polling():
            found = self._puller.messages(max_messages)
            if not found and wait_ready(self._feed, timeout):
                found = self._puller.messages(max_messages)
        return found

    def poll_arrow(self, timeout: float = 1.0) -> pa.RecordBatch | None:
        """Returns the next messages as ARROW_SCHEMA, without decoding rows; None after `timeout`
        seconds. Raises InvalidRequest where pyarrow is not installed."""
        self._check()
        with self._receiving.polling():
            batch = self._puller.arrow()
            if batch is None and wait_ready(self._feed, timeout):
                batch = self._puller.arrow()
        return batch

    def processing(self, messages: Message | Iterable[Message]) -> AbstractContextManager[Any]:
        """The context of your work on a message, or on several: with the client's option `tracing`
        a span, which begins with it, is current in it and ends with it; else nothing.

        The span of one message is a child of the span with which it was sent, unless you have a
        span of your own already. It links to the spans with which its messages were sent.

            >>> with connect(bootstrap) as client:
            ...     client.admin.create_topic("jobs", queues=1)
            ...     with client.producer() as producer:
            ...         stored = producer.send("jobs", b"sweep")
            ...     with client.reader("jobs", end="latest") as reader:
            ...         for message in reader:
            ...             with reader.processing(message):
            ...                 message.value
            True
            b'sweep'
        """
        return self._receiving.processing(messages)

    @abstractmethod
    def close(self) -> None:
        """Ends it; an iteration under way stops."""

    def _check(self) -> None:
        self._session.check()
        if self._closed:
            raise Closed("it is closed")
        self._give_back()

    @abstractmethod
    def _give_back(self) -> None:
        """Has the feed begin again at the start of a transaction that failed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Reader(_Pulling):
    """Messages of a topic, without a group."""

    def __init__(
        self,
        session: Session,
        core: ReaderCore,
    ) -> None:
        super().__init__(session, core.feed, core.puller, session.receiving(core.puller))
        self._core = core
        session.join(self)

    @property
    def finished(self) -> bool:
        """Everything up to `end` was given out."""
        return self._puller.finished

    def _give_back(self) -> None:
        """A reader has no transactions."""

    def positions(self) -> dict[int, int]:
        """Returns the next offset to give out, by queue."""
        return self._core.positions()

    def close(self) -> None:
        """Ends it; an iteration under way stops."""
        if not self._closed:
            self._closed = True
            self._session.leave(self)
            self._feed.end()
            self._session.runtime.call_soon(self._core.close)

    async def shut(self) -> None:
        """For the client's own use."""
        self._closed = True
        self._core.close()


class Consumer(_Pulling):
    """A member of a consumer group: each message goes to one member, and again to another if it is
    not committed in time."""

    def __init__(self, session: Session, core: ConsumerCore) -> None:
        receiving = session.receiving(core.puller, core.group, lambda: core.member_id)
        super().__init__(session, core.feed, core.puller, receiving)
        self._core = core
        session.join(self)

    def _give_back(self) -> None:
        outstanding = self._puller.outstanding
        if outstanding.must_give_back:
            back = self._core.give_back(outstanding.back, in_doubt=outstanding.in_doubt)
            self._session.run(back)
            outstanding.on_given_back()

    @property
    def group(self) -> str:
        return self._core.group

    @property
    def member_id(self) -> str:
        """Identity within the group; empty before it has joined."""
        return self._core.member_id

    @property
    def lost_messages(self) -> int:
        """Messages of topics in memory that were lost before this member could read them: it goes
        on behind them, and says so in the program's log."""
        return self._core.lost_messages

    def commit(self, message: Message | None = None) -> None:
        """Makes progress durable: up to and including `message` in its queue, or everything that
        was given out so far. A committed message is never delivered to the group again.

        Raises LockLost when another member has some of the queues by now (the rest is committed).
        """
        self._check()
        outstanding = self._puller.outstanding
        spans = outstanding.spans() if message is None else outstanding.up_to(message)
        with self._receiving.settling(spans):
            self._core.settle(self._session.run(self._core.commit(spans)))

    def retry(self, message: Message, reason: str = "") -> None:
        """Has a message that could not be processed delivered again after the next step of the
        retry policy, or makes it a dead letter after the last one.

        It takes effect with the commit that covers the message, exactly once. A message that is not
        committed is delivered again at once, as ever. Raises InvalidRequest without a policy or
        with too much to retry in one commit, LockLost.
        """
        self._core.note(message, reason, rejected=False)

    def reject(self, message: Message, reason: str = "") -> None:
        """Makes a message that can never be processed a dead letter. Otherwise like `retry`."""
        self._core.note(message, reason, rejected=True)

    def transaction(self, connection: Any, message: Message | None = None) -> Transaction:
        """Results and progress in one transaction of your own database: `with
        consumer.transaction(connection): …` stores the offsets of everything that was given out so
        far, or up to and including `message`, with what the block has written, and commits. An
        exception rolls back, and what was given out since the last transaction is given out again.

        Needs the option `offset_store`. Raises InvalidRequest, LockLost (the transaction is rolled
        back then), whatever the database raises.
        """
        return Transaction(self._session, self._core, connection, message)

    def assignment(self) -> list[tuple[str, int]]:
        """Returns the queues held now, as (topic, queue)."""
        self._check()
        return self._session.run(self._core.assignment())

    def position(self, topic: str, queue: int) -> int:
        """Returns the next offset to give out."""
        self._check()
        return self._session.run(self._core.position(topic, queue))

    def seek(self, topic: str, queue: int, offset: int) -> None:
        """Continues at another offset of a queue that is held. The committed offset stays.

        What is given out again after a seek back is not committed before that, and a `retry` or
        `reject` of it is void.
        """
        self._check()
        carried_out = True  # perhaps also if this call is interrupted
        try:
            self._session.run(self._core.seek(topic, queue, offset))
        except SemelError:
            carried_out = False
            raise
        finally:
            if carried_out:
                self._puller.outstanding.on_seek(topic, queue, offset)

    def pause(self, topic: str, queue: int) -> None:
        """Stops fetching a queue, whose lock is kept."""
        self._check()
        self._session.run(self._core.pause(topic, queue, True))

    def resume(self, topic: str, queue: int) -> None:
        """Ends a pause."""
        self._check()
        self._session.run(self._core.pause(topic, queue, False))

    def close(self) -> None:
        """Releases the locks and leaves the group, without a commit."""
        if self._closed:
            return
        self._closed = True
        self._session.leave(self)
        self._feed.end()
        if self._session.closed:
            return
        timeout = self._session.config.close_timeout_ms / 1000
        with contextlib.suppress(SemelError):
            self._session.run(self._core.close(), timeout)

    async def shut(self) -> None:
        """For the client's own use."""
        self._closed = True
        await self._core.close()


class Transaction:
    """One transaction of a synchronous consumer; its context is the connection."""

    def __init__(
        self, session: Session, core: ConsumerCore, connection: Any, message: Message | None
    ) -> None:
        """Raises InvalidRequest."""
        self._session = session
        self._core = core
        self._work = SqlWork(core, connection, message)

    def __enter__(self) -> Any:
        return self._work.begin()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        work = self._work
        if kind is not None:
            work.roll_back()
            return
        try:
            spans = work.spans()
            progress = self._session.run(self._core.progress(spans))
        except BaseException:
            work.roll_back()
            raise
        work.commit(spans, progress)
        self._session.runtime.call_soon(self._core.commits.on_stored, progress)
