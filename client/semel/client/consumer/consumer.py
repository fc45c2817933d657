"""The part of a consumer that lives on the I/O thread: its components, and calls to them.

How it works. `Membership` knows which queues the member should hold, `Locks` holds them, the `Feed`
fetches them, the `Puller` gives messages to the caller and enters them as outstanding, `Commits`
makes progress durable. This module prepares a queue that was just acquired (where to begin, which
copies of an earlier owner exist), and repairs reading that broke off.

Invariants
1. A message is delivered only from a queue whose lock was granted to this member and is not known
   to be lost, at or above the committed offset.
2. A message is committed under the token under which it was given out (`reading/outstanding.py`).
3. The next commit about messages given out under a lost lock reports the loss.

Not here: fetching (`reading/fetch.py`), where a queue begins (`consumer/start_offsets.py`), copies
(`dead_letters/retrying.py`), the API (`api/aio_reading.py`, `api/sql_transaction.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Final

from semel.client.consumer.commits import Commits, Settled
from semel.client.consumer.consumer_config import ConsumerConfig
from semel.client.consumer.locks import Locks
from semel.client.consumer.membership import Membership
from semel.client.consumer.sql_offsets import Progress, SqlOffsets
from semel.client.consumer.start_offsets import StoredOffsets, start_of
from semel.client.dead_letters.retrying import Retrying
from semel.client.message import Message
from semel.client.reading.feed_queue import FeedQueue, pass_lost
from semel.client.reading.fetch import Feed
from semel.client.reading.outstanding import Span
from semel.client.reading.pulling import Puller
from semel.client.transport.cluster import Cluster
from semel.client.transport.runtime import Runtime
from semel.protos import compat
from semel.protos.errors import (
    FencedError,
    InternalError,
    InvalidRequest,
    LockLost,
    MemberFenced,
    OffsetOutOfRange,
    OffsetsLost,
    QueueMoved,
    SemelError,
    Unavailable,
    UnknownQueue,
    UnknownTopic,
)
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2

logger = logging.getLogger(__name__)

RELEASE_TIMEOUT_S: Final = 2.0
REFUSED_PAUSE_S: Final = 1.0
"""Seconds after which a queue that a broker refused to read is fetched again. The caller gets the
error each time, until the queue can be read or the caller seeks elsewhere."""


class ConsumerCore:
    """One member of a consumer group. Lives on the I/O thread; `puller` belongs to the caller."""

    def __init__(
        self,
        cluster: Cluster,
        runtime: Runtime,
        group: str,
        topics: list[str],
        config: ConsumerConfig,
    ) -> None:
        self.group = group
        self.topics = topics
        self.config = config
        self.feed = Feed(
            self,
            cluster,
            fetch_bytes=config.fetch_bytes,
            prefetch_bytes=config.prefetch_bytes,
            call_soon=runtime.call_soon,
        )
        self.puller = Puller(self.feed)
        self.locks = Locks(
            cluster,
            group,
            config,
            self.feed,
            spawn=self._spawn,
            on_held=self._on_held,
            on_gone=self._on_gone,
        )
        self._cluster = cluster
        self._subscribed = list(topics)
        self._membership = self.locks.membership = Membership(
            cluster,
            group,
            self._subscribed,
            config,
            held=lambda: self.locks.held,
            on_assignment=self.locks.changed.set,
            on_fenced=self._on_fenced,
        )
        self._retrying = Retrying(cluster, runtime, group, config.retry)
        self._stored = (
            StoredOffsets(config.offset_store, group) if config.offset_store is not None else None
        )
        self.commits = Commits(cluster, group, self.locks, self._retrying, self._stored)
        self._fenced: MemberFenced | None = None
        self.lost_messages = 0
        """Messages that were lost before this member could read them."""
        self._tasks: list[asyncio.Task[Any]] = []

    # --- life -----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Joins the group. Raises UnknownTopic, Unavailable."""
        for topic in self.topics:
            await self._cluster.topic(topic)
        await self._retrying.open()
        self._subscribed[:] = dict.fromkeys([*self.topics, *self._retrying.topics])
        if self._stored is not None:
            self._stored.cluster_id = self._cluster.routes.cluster_id
        await self._membership.join()
        for coroutine, name in (
            (self._membership.run(), "beat"),
            (self.locks.keep(), "locks"),
        ):
            self._tasks.append(self._spawn(coroutine, f"semel-consumer-{name}"))

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[Any]:
        """Starts a task without which the consumer would stop: its failure is raised to the
        caller."""
        task = self._cluster.spawn(coroutine, name)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("consumer broken group=%s", self.group, exc_info=error)
            self.feed.fail(InternalError(f"client: {task.get_name()}: {error!r}"), final=True)

    async def close(self) -> None:
        """Releases the locks and leaves the group, as far as brokers and controllers answer in
        time."""
        for task in self._tasks:
            task.cancel()
        self.locks.end()
        self.feed.end()
        with contextlib.suppress(TimeoutError):
            async with compat.timeout(RELEASE_TIMEOUT_S):
                await self.commits.told()
                await self.locks.release_all()
        self.locks.abandon()
        self.feed.close()
        self._retrying.close()
        if self._fenced is None:
            await self._membership.leave()

    @property
    def member_id(self) -> str:
        """Identity within the group; empty before it has joined."""
        return self._membership.member_id

    def _on_fenced(self, error: MemberFenced) -> None:
        """Another process is this member now: its locks are newer than this one's."""
        self._fenced = error
        self.locks.abandon()
        for task in self._tasks:
            task.cancel()
        self.feed.fail(error, final=True)

    # --- queues come and go ---------------------------------------------------------------------

    def _on_held(self, queue: FeedQueue, grant: broker_pb2.LockGrant) -> None:
        """A lock was granted: fetching begins once the start offset is known."""
        self._spawn(self._begin(queue, grant), "semel-consumer-begin")

    def _on_gone(self, queue: FeedQueue) -> None:
        self._retrying.drop(queue)

    async def _begin(self, queue: FeedQueue, grant: broker_pb2.LockGrant) -> None:
        """Finds out where the queue begins, then fetches it."""
        try:
            await self._prepare(queue, grant)
        except SemelError as error:
            if not self.locks.holds(queue):
                return
            logger.info("queue does not begin group=%s error=%s", self.group, error.message)
            if not error.retriable and not isinstance(error, FencedError):
                self.feed.fail(error)
            self.locks.give_up(queue)
            return
        if self.locks.holds(queue):
            self.feed.add(queue)
        else:
            self._on_gone(queue)  # lost while it was prepared

    async def _prepare(self, queue: FeedQueue, grant: broker_pb2.LockGrant) -> None:
        """Sets the queue's offsets. Raises SemelError."""
        reset = self.config.auto_offset_reset
        offset = start_of(self.group, queue, grant.committed_offset, grant, reset)
        queue.begin_at(offset)
        if self._stored is not None:
            try:
                stored = await self._stored.claim(queue, offset, self.member_id)
            except Unavailable as error:
                self.feed.fail(error)  # only the caller can repair the database
                raise
            offset = start_of(self.group, queue, stored, grant, reset)
            if offset > stored:  # trimmed away: the row holds the offset that counts
                await self._stored.move(queue, stored, offset)
            queue.begin_at(offset)
            if offset < grant.committed_offset:
                await self._set_back(queue, offset)
                return
        begins_late = grant.committed_offset < 0 and reset == "latest"
        if begins_late or (self._stored is not None and offset > grant.committed_offset):
            # A start at the end must be durable: a member that takes the queue over before the
            # first commit would otherwise find a later end and skip the messages in between. And
            # the brokers may know less than the database until something new is committed.
            await self._store(queue, offset)
        queue.delay_ms = self._retrying.delay_ms_of(queue.topic)
        covered = await self._retrying.take_over(queue, offset, grant.metadata)
        if covered > offset:
            if self._stored is not None:
                await self._stored.move(queue, offset, covered)
            await self._store(queue, covered)
            self._retrying.on_committed(queue, covered)
            queue.begin_at(covered)

    async def _set_back(self, queue: FeedQueue, offset: int) -> None:
        """Handles brokers whose progress is ahead of the database: the group's offsets were reset.
        Lag depends on it, and whether the children of a split queue may be read yet. A reset ends
        the lock, so the queue is acquired anew. Raises SemelError."""
        logger.warning(
            "a reset has no effect on offsets in a database group=%s topic=%s queue=%s offset=%s",
            self.group,
            queue.topic,
            queue.key.queue_id,
            offset,
        )
        request = broker_pb2.ResetOffsetsRequest(group=self.group)
        request.offsets.add(queue=queue_ref(queue.key), offset=offset)
        await self._cluster.call_master(queue.group_id, "ResetOffsets", request)
        self.locks.on_lost(queue.key, queue.token)

    async def _store(self, queue: FeedQueue, offset: int) -> None:
        """Raises SemelError."""
        for error in (await self.commits.store({queue: offset})).values():
            raise error

    def on_queue_end(self, queue: FeedQueue) -> None:
        """A no-op: the broker grants the queue's children to the group once the group has committed
        this queue's end."""

    def on_queue_error(self, queue: FeedQueue, error: SemelError) -> None:
        """The broker refused a fetch."""
        match error:
            case LockLost() | QueueMoved():  # a move ends every lock of the queue
                self.locks.on_lost(queue.key, queue.token)
            case OffsetOutOfRange() if self.config.auto_offset_reset != "error":
                # Trimmed away, or sought beyond the end: continues at the nearest offset there is.
                logger.warning(
                    "offset out of range group=%s topic=%s queue=%s offset=%s begins=%s ends=%s",
                    self.group,
                    queue.topic,
                    queue.key.queue_id,
                    queue.offset,
                    error.log_start_offset,
                    error.log_end_offset,
                )
                queue.go_to(min(max(queue.offset, error.log_start_offset), error.log_end_offset))
                self.feed.wake()
            case OffsetsLost():
                logger.warning(
                    "messages are lost group=%s topic=%s queue=%s offset=%s goes_on=%s",
                    *(self.group, queue.topic, queue.key.queue_id),
                    *(queue.offset, error.next_offset),
                )
                self.lost_messages += error.next_offset - queue.offset
                self.feed.deliver([pass_lost(queue, error, told=False)])
                self.feed.wake()
            case UnknownQueue() | UnknownTopic():
                self.locks.forget(queue)
                self._membership.beat_now()
            case _:
                # The lock is kept, so that what was given out before can still be committed.
                self.feed.fail(error)
                self.feed.ask_later(queue, REFUSED_PAUSE_S)

    # --- asked from outside ---------------------------------------------------------------------

    async def commit(self, spans: Sequence[Span]) -> Settled:
        """Makes spans that were given out durable. Raises InvalidRequest, MemberFenced."""
        if self._stored is not None:
            raise InvalidRequest(
                "this consumer's offsets are in a database: with consumer.transaction(connection)"
            )
        self._check()
        return await self.commits.commit(spans)

    def settle(self, settled: Settled) -> None:
        """Removes the spans of a commit's result from the outstanding ones, in the caller's thread.

        Raises the result's error.
        """
        self.puller.outstanding.settle(settled.committed, settled.lost)
        if settled.problem is not None:
            raise settled.problem

    @property
    def store(self) -> SqlOffsets:
        """Returns the store of offsets in the user's database. Raises InvalidRequest without
        one."""
        if self._stored is None:
            raise InvalidRequest(
                "a transaction needs to know the database when a queue is acquired:"
                " consumer(…, offset_store=SqlOffsets(connect))"
            )
        return self._stored.store

    async def progress(self, spans: Sequence[Span]) -> list[Progress]:
        """Returns the progress for a transaction to store. Raises LockLost, MemberFenced, and
        whatever copying raises."""
        self._check()
        return await self.commits.progress(spans)

    async def give_back(self, back: Iterable[Span], *, in_doubt: bool) -> None:
        """A transaction was rolled back: its messages are given out again. If it may have
        committed, all queues are acquired, and their offsets read, again."""
        if in_doubt:
            self.locks.forget_all()
        for span in back:
            queue = self.locks.find(span.key, span.token)
            if queue is not None:
                self._go_to(queue, min(queue.delivered, span.start))
        self.feed.wake()

    def _go_to(self, queue: FeedQueue, offset: int) -> None:
        queue.go_to(offset)
        self._retrying.on_seek(queue, offset)

    def _check(self) -> None:
        if self._fenced is not None:
            raise self._fenced

    # --- places ---------------------------------------------------------------------------------

    async def assignment(self) -> list[tuple[str, int]]:
        """Queues held now, as (topic, queue)."""
        return sorted((queue.topic, key.queue_id) for key, queue in self.locks.held.items())

    async def position(self, topic: str, queue: int) -> int:
        return self.locks.named(topic, queue).delivered

    async def seek(self, topic: str, queue: int, offset: int) -> None:
        """Makes `offset` the next message delivered from the queue. The commit stays as it is."""
        if not isinstance(offset, int) or offset < 0:
            raise InvalidRequest(f"offset must be a whole number from 0, not {offset!r}")
        self._go_to(self.locks.named(topic, queue), offset)
        self.feed.wake()

    def note(self, message: Message, reason: str, *, rejected: bool) -> None:
        """Has the commit that covers the message copy it first. Any thread may call it.

        Raises InvalidRequest, LockLost.
        """
        self._check()
        if not isinstance(reason, str):
            raise InvalidRequest(f"reason must be text, not {reason!r}")
        self._retrying.note(message, reason, rejected=rejected)

    async def pause(self, topic: str, queue: int, paused: bool) -> None:
        """Stops or starts fetching a queue. The lock is kept; buffered messages are dropped."""
        self.locks.pause(self.locks.named(topic, queue), paused)
