"""A consumer's heart on the I/O thread: locks and progress.

How it works. The controllers say which queues a member *should* hold (`membership.py`); the brokers
say which it *holds* (locks with fencing tokens). The consumer asks for the locks it should hold,
again and again while another member still has them; it gives back those it should not, once
nothing is delivered and uncommitted there or a grace time is over. While the controllers are down
it goes on with what it holds.

Invariants
1. A message is delivered only from a queue whose lock was granted to this member and is not known
   to be lost, at or above the committed offset.
2. A commit carries the token under which its messages were fetched; the broker refuses stale ones.
3. What was delivered and not committed when a lock is lost is reported by the next commit.

Not here: fetching (`fetch.py`), where a queue begins (`beginnings.py`), copies (`retrying.py`), the
API (`sync_reading.py`, `aio_reading.py`, `transactions.py`). It is one file of more than 600 lines
because locks, commits and transactions are about the same few queues that are held.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any, Final

from semel.client.beginnings import StoredOffsets, start_of
from semel.client.cluster import Cluster
from semel.client.config import ConsumerConfig
from semel.client.core.routing import QueueRoute
from semel.client.feed_queue import FeedQueue
from semel.client.fetch import Feed
from semel.client.membership import Membership
from semel.client.message import Message
from semel.client.pulling import Puller
from semel.client.retrying import Retrying
from semel.client.runtime import Runtime
from semel.client.sql_offsets import Progress, SqlOffsets
from semel.protos.errors import (
    FencedError,
    InvalidRequest,
    LockLost,
    MemberFenced,
    OffsetOutOfRange,
    ParentUnread,
    QueueLocked,
    QueueMoved,
    SemelError,
    StaleGeneration,
    Throttled,
    Unavailable,
    UnknownQueue,
    UnknownTopic,
    from_detail,
)
from semel.protos.ids import GroupId, QueueId, QueueKey, TopicId
from semel.protos.queue_refs import queue_key_of, queue_ref
from semel.protos.v1 import broker_pb2

logger = logging.getLogger(__name__)

LOCK_RETRY_MIN_S: Final = 0.05
LOCK_RETRY_MAX_S: Final = 1.0
LOCKED_RETRY_MAX_S: Final = 0.4
"""While another member has the lock: a hand-over should take no longer than it must."""
RELEASE_GRACE_S: Final = 5.0
"""A queue that should go to another member is kept so long for the commit of what was delivered."""
RELEASE_TIMEOUT_S: Final = 2.0


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
        self._cluster = cluster
        self._subscribed = list(topics)
        self._membership = Membership(
            cluster,
            group,
            self._subscribed,
            config,
            held=lambda: self._held,
            on_assignment=lambda: self._changed.set(),
            on_fenced=self._on_fenced,
        )
        self._retrying = (
            Retrying(cluster, runtime, group, config.retry) if config.retry is not None else None
        )
        self._stored = (
            StoredOffsets(config.offset_store, group) if config.offset_store is not None else None
        )
        self._behind: dict[QueueKey, tuple[int, int]] = {}
        """Stored in the user's database, and the brokers are not told yet."""
        self._telling: asyncio.Task[None] | None = None
        self._fenced: MemberFenced | None = None
        self._held: dict[QueueKey, FeedQueue] = {}
        self._leaving: dict[QueueKey, float] = {}
        """Held, not assigned any more: until when their commits are waited for."""
        self._retry_at: dict[QueueKey, float] = {}
        self._refusals: dict[QueueKey, int] = {}
        """How often in a row another member still had the lock, or an ancestor was unread."""
        self._lost: dict[QueueKey, LockLost] = {}
        """Lost with something uncommitted; told by the next commit."""
        self._paused: set[QueueKey] = set()
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[Any]] = []

    # --- life -----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Joins the group. Raises UnknownTopic, Unavailable."""
        for topic in self.topics:
            await self._cluster.topic(topic)
        if self._retrying is not None:
            await self._retrying.open()
            self._subscribed[:] = dict.fromkeys([*self.topics, *self._retrying.topics])
        if self._stored is not None:
            self._stored.cluster_id = self._cluster.routes.cluster_id
        await self._membership.join()
        for coroutine, name in (
            (self._membership.run(), "beat"),
            (self._keep_locks(), "locks"),
            (self._renew(), "renew"),
        ):
            self._tasks.append(self._cluster.spawn(coroutine, f"semel-consumer-{name}"))

    async def close(self) -> None:
        """Gives back the locks and leaves the group, as far as they answer in time."""
        for task in self._tasks:
            task.cancel()
        self.feed.end()
        with contextlib.suppress(SemelError, TimeoutError):
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                if self._telling is not None:
                    await asyncio.wait([self._telling])
                await self._release(list(self._held.values()))
        self._held.clear()
        self.feed.close()
        if self._retrying is not None:
            self._retrying.close()
        if self._fenced is None:
            await self._membership.leave()

    @property
    def member_id(self) -> str:
        """Identity within the group; empty before it has joined."""
        return self._membership.member_id

    @property
    def _assigned(self) -> dict[QueueKey, tuple[str, QueueRoute]]:
        return self._membership.assigned

    def _on_fenced(self, error: MemberFenced) -> None:
        """Another process is this member now: its locks are newer than ours."""
        self._fenced = error
        for queue in list(self._held.values()):
            self._forget(queue)
        for task in self._tasks:
            task.cancel()
        self.feed.fail(error, final=True)

    # --- locks ----------------------------------------------------------------------------------

    async def _keep_locks(self) -> None:
        """Acquires what is assigned and not held, gives back what is held and not assigned."""
        while True:
            self._changed.clear()
            now = time.monotonic()
            await self._let_go(now)
            wanted = [
                key
                for key in self._assigned
                if key not in self._held and self._retry_at.get(key, 0.0) <= now
            ]
            if wanted:
                try:
                    await self._acquire(wanted)
                except SemelError as error:
                    logger.info("acquire failed group=%s error=%s", self.group, error.message)
                    for key in wanted:
                        self._retry_at[key] = time.monotonic() + LOCK_RETRY_MAX_S
            due = [at for key, at in self._retry_at.items() if key in self._assigned]
            if self._leaving:
                due.append(time.monotonic() + LOCK_RETRY_MIN_S)
            wait = max(0.01, min(due) - time.monotonic()) if due else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._changed.wait()

    async def _acquire(self, keys: list[QueueKey]) -> None:
        by_group = self._cluster.routes.by_home(self._assigned[key][1] for key in keys)
        results = await asyncio.gather(
            *(self._acquire_at(group_id, some) for group_id, some in by_group.items()),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _acquire_at(self, group_id: GroupId, keys: list[QueueKey]) -> None:
        places = {key: self._assigned[key] for key in keys}
        reply = await self._cluster.call_master(
            group_id,
            "AcquireLocks",
            broker_pb2.AcquireLocksRequest(
                group=self.group,
                member_id=self._membership.member_id,
                generation=self._membership.generation,
                queues=[queue_ref(key) for key in keys],
                lock_ms=self.config.lock_ms,
                session_ms=self.config.session_ms,
            ),
        )
        now = time.monotonic()
        for key, grant in zip(keys, reply.grants, strict=True):
            if grant.token:
                self._retry_at.pop(key, None)
                self._refusals.pop(key, None)
                self._hold(key, places[key], group_id, grant)
                continue
            error = from_detail(grant.error)
            wait = LOCK_RETRY_MAX_S
            if isinstance(error, QueueLocked | ParentUnread):
                # Each attempt is an entry of the group's log, and the other member may be slow.
                refusals = self._refusals[key] = self._refusals.get(key, 0) + 1
                wait = min(LOCK_RETRY_MIN_S * 2 ** min(refusals - 1, 8), LOCKED_RETRY_MAX_S)
                wait = min(max(error.retry_after_ms / 1000, wait), LOCK_RETRY_MAX_S)
            elif isinstance(error, QueueMoved):
                self._cluster.routes.on_moved(error)
                wait = LOCK_RETRY_MIN_S
            elif isinstance(error, Throttled):  # it is on its way to another group
                wait = max(error.retry_after_ms / 1000, LOCK_RETRY_MIN_S)
            elif isinstance(error, StaleGeneration):
                self._membership.beat_now()
                wait = LOCK_RETRY_MIN_S * 4
            else:
                logger.info("lock refused group=%s queue=%s error=%s", self.group, key, error)
            self._retry_at[key] = now + wait

    def _hold(
        self,
        key: QueueKey,
        place: tuple[str, QueueRoute],
        group_id: GroupId,
        grant: broker_pb2.LockGrant,
    ) -> None:
        """The lock is ours; messages come once it is known from where."""
        queue = FeedQueue(place[0], key, group_id, max(0, grant.committed_offset))
        queue.token = grant.token
        queue.high_watermark = grant.high_watermark
        queue.paused = key in self._paused
        self._held[key] = queue
        self._leaving.pop(key, None)
        self._cluster.spawn(self._begin(queue, grant), "semel-consumer-begin")

    async def _begin(self, queue: FeedQueue, grant: broker_pb2.LockGrant) -> None:
        """Finds out where the queue begins, then fetches it."""
        try:
            await self._prepare(queue, grant)
        except SemelError as error:
            if self._held.get(queue.key) is not queue:
                return
            logger.info("queue does not begin group=%s error=%s", self.group, error.message)
            self._forget(queue)
            self._retry_at[queue.key] = time.monotonic() + LOCK_RETRY_MAX_S
            if not error.retriable and not isinstance(error, FencedError):
                self.feed.fail(error)
            with contextlib.suppress(SemelError):
                await self._release([queue])
            self._changed.set()
            return
        if self._held.get(queue.key) is queue:
            self.feed.add(queue)
        elif self._retrying is not None:
            self._retrying.drop(queue)  # lost while it was prepared

    async def _prepare(self, queue: FeedQueue, grant: broker_pb2.LockGrant) -> None:
        """Sets the queue's offsets. Raises SemelError."""
        reset = self.config.auto_offset_reset
        offset = start_of(self.group, queue, grant.committed_offset, grant, reset)
        queue.begin_at(offset)
        if self._stored is not None:
            try:
                stored = await self._stored.claim(queue, offset, self.member_id)
            except Unavailable as error:
                self.feed.fail(error)  # nobody but the caller can mend the database
                raise
            offset = start_of(self.group, queue, stored, grant, reset)
            queue.begin_at(offset)
        begins_late = grant.committed_offset < 0 and reset == "latest"
        if begins_late or (self._stored is not None and offset > grant.committed_offset):
            # Where a group begins at the end must last: whoever takes the queue over before the
            # first commit would otherwise find a later end, and skip what came in between. And the
            # brokers may know less than the database, for as long as nothing new comes.
            if self._held.get(queue.key) is not queue:
                return
            await self._commit_at(queue.group_id, self._commit_request({queue.key: offset}))
        if self._retrying is not None:
            queue.delay_ms = self._retrying.delay_ms_of(queue.topic)
            covered = await self._retrying.take_over(queue, offset)
            if covered > offset and self._held.get(queue.key) is queue:
                if self._stored is not None:
                    await self._stored.move(queue, covered)
                await self._commit_at(queue.group_id, self._commit_request({queue.key: covered}))
                await self._retrying.on_committed(queue, covered)
                queue.begin_at(covered)

    async def _let_go(self, now: float) -> None:
        """Releases queues that are not assigned any more and have nothing uncommitted."""
        for key in [key for key in self._leaving if key in self._assigned]:
            # It came back before it was released.
            del self._leaving[key]
            queue = self._held.get(key)
            if queue is not None:
                queue.restart(queue.delivered)
                queue.paused = key in self._paused
                self.feed.wake()
        ready: list[FeedQueue] = []
        for key, queue in self._held.items():
            if key in self._assigned:
                continue
            if key not in self._leaving:
                self._leaving[key] = now + RELEASE_GRACE_S
                queue.paused = True
                queue.turn += 1
            if queue.delivered <= queue.done or now >= self._leaving[key]:
                ready.append(queue)
        if not ready:
            return
        for queue in ready:
            if queue.delivered > queue.done:
                self._lost[queue.key] = _lost_with(queue, "had to go to another member")
            self._forget(queue)
        with contextlib.suppress(SemelError):
            await self._release(ready)
        self._membership.beat_now()

    async def _release(self, queues: list[FeedQueue]) -> None:
        by_group: dict[GroupId, list[FeedQueue]] = {}
        for queue in queues:
            by_group.setdefault(queue.group_id, []).append(queue)
        await asyncio.gather(
            *(
                self._cluster.call_master(
                    group_id,
                    "ReleaseLocks",
                    broker_pb2.ReleaseLocksRequest(
                        group=self.group,
                        member_id=self._membership.member_id,
                        locks=[_lock_ref(queue) for queue in some],
                    ),
                )
                for group_id, some in by_group.items()
            )
        )

    async def _renew(self) -> None:
        interval = max(0.1, self.config.session_ms / 3000)
        while True:
            await asyncio.sleep(interval)
            by_group: dict[GroupId, list[FeedQueue]] = {}
            for queue in self._held.values():
                by_group.setdefault(queue.group_id, []).append(queue)
            await asyncio.gather(
                *(self._renew_at(group_id, some) for group_id, some in by_group.items())
            )

    async def _renew_at(self, group_id: GroupId, queues: list[FeedQueue]) -> None:
        request = broker_pb2.RenewLocksRequest(
            group=self.group,
            member_id=self._membership.member_id,
            locks=[_lock_ref(q) for q in queues],
        )
        try:
            reply = await self._cluster.call_master(
                group_id, "RenewLocks", request, self.config.session_ms / 1000
            )
        except SemelError as error:
            logger.info("renew failed group=%s error=%s", self.group, error.message)
            await self._look_for(queues)
            return
        for lost in reply.lost:
            key = queue_key_of(lost.queue)
            self._lose(key, lost.token, None)

    async def _look_for(self, queues: list[FeedQueue]) -> None:
        """Their group does not answer: perhaps they live elsewhere by now."""
        for topic in {queue.topic for queue in queues}:
            with contextlib.suppress(SemelError):
                await self._cluster.topic(topic, refresh=True)
        for queue in queues:
            place = self._assigned.get(queue.key)
            if place is not None and self._cluster.routes.home(place[1]) != queue.group_id:
                self._lose(queue.key, queue.token, None)

    def _lose(self, key: QueueKey, token: int, error: LockLost | None) -> None:
        """The lock is not ours any more."""
        queue = self._held.get(key)
        if queue is None or queue.token != token:
            return
        logger.info("lock lost group=%s topic=%s queue=%s", self.group, queue.topic, key.queue_id)
        if queue.delivered > queue.done:
            self._lost[key] = error or _lost_with(queue, "was lost")
        self._forget(queue)
        self._changed.set()

    def _forget(self, queue: FeedQueue) -> None:
        self._held.pop(queue.key, None)
        self._leaving.pop(queue.key, None)
        self.feed.remove(queue.key)
        if self._retrying is not None:
            self._retrying.drop(queue)

    def on_queue_end(self, queue: FeedQueue) -> None:
        """What comes after it is in its children, which the broker gives to the group once it has
        committed this queue's end."""

    def on_queue_error(self, queue: FeedQueue, error: SemelError) -> None:
        """The broker refuses a fetch."""
        match error:
            case LockLost() | QueueMoved():  # with a move every lock ends
                self._lose(queue.key, queue.token, None)
            case OffsetOutOfRange() if self.config.auto_offset_reset != "error":
                # Trimmed away, or sought beyond the end: the nearest offset that exists.
                logger.warning(
                    "offset out of range group=%s topic=%s queue=%s offset=%s begins=%s ends=%s",
                    self.group,
                    queue.topic,
                    queue.key.queue_id,
                    queue.offset,
                    error.log_start_offset,
                    error.log_end_offset,
                )
                queue.restart(min(max(queue.offset, error.log_start_offset), error.log_end_offset))
                self.feed.wake()
            case UnknownQueue() | UnknownTopic():
                self._forget(queue)
                self._membership.beat_now()
            case _:
                self.feed.fail(error)

    # --- asked from outside ---------------------------------------------------------------------

    async def commit(self, progress: dict[QueueKey, tuple[int, int]] | None) -> None:
        """Makes progress durable: (token, next offset) by queue; None: all that was delivered.

        Raises LockLost when some of it belongs to another owner by now; the rest is committed.
        """
        if self._stored is not None:
            raise InvalidRequest(
                "this consumer's offsets are in a database: with consumer.transaction(connection)"
            )
        await self._commit(progress)

    def _wanted(
        self, progress: dict[QueueKey, tuple[int, int]] | None
    ) -> tuple[list[tuple[FeedQueue, int]], SemelError | None]:
        """Queues that are held, with their next offset, and what is to be told of the others."""
        if self._fenced is not None:
            raise self._fenced
        problem: SemelError | None = None
        if progress is None:
            progress = {
                key: (queue.token, queue.delivered)
                for key, queue in self._held.items()
                if queue.delivered > queue.done or self._noted(queue)
            }
            for key in list(self._lost):
                problem = self._lost.pop(key)
        wanted: list[tuple[FeedQueue, int]] = []
        for key, (token, offset) in progress.items():
            held = self._held.get(key)
            if held is None or held.token != token:
                problem = self._lost.pop(key, None) or LockLost(
                    f"queue {key.queue_id} is not held by this consumer any more:"
                    f" offset {offset} is not committed"
                )
                continue
            wanted.append((held, offset))
        return wanted, problem

    async def _commit(self, progress: dict[QueueKey, tuple[int, int]] | None) -> None:
        wanted, problem = self._wanted(progress)
        if self._retrying is not None:
            wanted, failure = await self._publish(wanted, self._retrying)
            problem = failure or problem
            for queue, _ in wanted:
                if self._held.get(queue.key) is not queue:  # lost while its copies were made
                    problem = self._lost.pop(queue.key, None) or _lost_with(queue, "was lost")
            wanted = [(queue, to) for queue, to in wanted if self._held.get(queue.key) is queue]
        ready = {queue.key: offset for queue, offset in wanted if offset > queue.committed}
        by_group: dict[GroupId, dict[QueueKey, int]] = {}
        for key, offset in ready.items():
            by_group.setdefault(self._held[key].group_id, {})[key] = offset
        results = await asyncio.gather(
            *(
                self._commit_at(group_id, self._commit_request(some))
                for group_id, some in by_group.items()
            ),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, SemelError):
                problem = result
            elif isinstance(result, BaseException):
                raise result
        if self._retrying is not None:
            await asyncio.gather(
                *(
                    self._retrying.on_committed(queue, offset)
                    for queue, offset in wanted
                    if queue.committed >= offset
                )
            )
        if problem is not None:
            raise problem

    def _noted(self, queue: FeedQueue) -> bool:
        """Something given out, perhaps after a seek back, is to be retried or rejected."""
        return self._retrying is not None and self._retrying.notes_below(queue, queue.delivered)

    async def _publish(
        self, wanted: list[tuple[FeedQueue, int]], retrying: Retrying
    ) -> tuple[list[tuple[FeedQueue, int]], SemelError | None]:
        """Copies what is to be retried or rejected; what may be committed then, and a failure.

        A queue whose copies failed is given up, and acquired again: under a new token it is found
        out which of them are stored.
        """
        results = await asyncio.gather(
            *(retrying.publish(queue, offset) for queue, offset in wanted), return_exceptions=True
        )
        done: list[tuple[FeedQueue, int]] = []
        problem: SemelError | None = None
        for (queue, offset), result in zip(wanted, results, strict=True):
            if result is None:
                done.append((queue, retrying.covered(queue, offset)))
                continue
            if not isinstance(result, SemelError):
                raise result
            if isinstance(result, FencedError):
                result = _lost_with(queue, "was lost")
            problem = result
            self._lose(queue.key, queue.token, None)
            self._lost.pop(queue.key, None)
        return done, problem

    def _commit_request(self, offsets: dict[QueueKey, int]) -> broker_pb2.CommitRequest:
        request = broker_pb2.CommitRequest(group=self.group)
        for key, offset in offsets.items():
            request.commits.add(queue=queue_ref(key), token=self._held[key].token, offset=offset)
        return request

    async def _commit_at(self, group_id: GroupId, request: broker_pb2.CommitRequest) -> None:
        reply = await self._cluster.call_master(group_id, "Commit", request)
        problem: SemelError | None = None
        for commit, outcome in zip(request.commits, reply.outcomes, strict=True):
            key = queue_key_of(commit.queue)
            queue = self._held.get(key)
            if outcome.HasField("error"):
                problem = from_detail(outcome.error)
                if isinstance(problem, LockLost) and queue is not None:
                    queue.committed = queue.delivered
                    self._lose(key, commit.token, problem)
            elif queue is not None and queue.token == commit.token:
                queue.committed = max(queue.committed, commit.offset)
        if self._leaving:
            self._changed.set()
        if problem is not None:
            raise problem

    # --- for transactions in the user's database ------------------------------------------------

    @property
    def store(self) -> SqlOffsets:
        """Where the offsets are. Raises InvalidRequest."""
        if self._stored is None:
            raise InvalidRequest(
                "a transaction needs to know the database when a queue is acquired:"
                " consumer(…, offset_store=SqlOffsets(connect))"
            )
        return self._stored.store

    async def progress(self, message: Message | None) -> list[Progress]:
        """What a transaction is to store, its copies made. All or nothing: the results of what
        belongs to another owner must not be committed.

        Raises LockLost and whatever copying raises.
        """
        assert self._stored is not None
        wanted, problem = self._wanted(None if message is None else self.progress_of(message))
        if problem is not None:
            raise problem
        if self._retrying is not None:
            wanted, problem = await self._publish(wanted, self._retrying)
            if problem is not None:
                raise problem
        return [
            Progress(self._stored.place(queue), queue.token, offset)
            for queue, offset in wanted
            if offset > queue.done
        ]

    async def on_stored(self, progress: list[Progress]) -> None:
        """A transaction is committed; the brokers are told in the background."""
        for place, token, offset in progress:
            key = QueueKey(TopicId(place.topic_id), QueueId(place.queue_id))
            queue = self._held.get(key)
            if queue is not None and queue.token == token:
                queue.stored = max(queue.stored, offset)
                self._behind[key] = (token, offset)
        if self._leaving:
            self._changed.set()
        if self._behind and (self._telling is None or self._telling.done()):
            self._telling = self._cluster.spawn(self._tell(), "semel-consumer-tell")

    async def _tell(self) -> None:
        while self._behind:
            progress, self._behind = self._behind, {}
            try:
                await self._commit(progress)
            except SemelError as error:
                logger.info("brokers not told group=%s error=%s", self.group, error.message)

    async def rewind(self) -> None:
        """A transaction was rolled back: what was given out since the last one comes again."""
        for queue in self._held.values():
            if queue.delivered > queue.done:
                queue.restart(queue.done)
                if self._retrying is not None:
                    self._retrying.on_seek(queue, queue.done)
        self.feed.wake()

    async def give_up(self) -> None:
        """Nobody knows what is stored: all queues are acquired, and their offsets read, again."""
        for queue in list(self._held.values()):
            self._forget(queue)
        self._changed.set()

    # --- places ---------------------------------------------------------------------------------

    def progress_of(self, message: Message) -> dict[QueueKey, tuple[int, int]]:
        """What committing up to and including `message` means."""
        return {message.rows.queue: (message.rows.token, message.offset + 1)}

    async def assignment(self) -> list[tuple[str, int]]:
        """Queues held now, as (topic, queue)."""
        return sorted((queue.topic, key.queue_id) for key, queue in self._held.items())

    async def position(self, topic: str, queue: int) -> int:
        return self._find(topic, queue).delivered

    async def seek(self, topic: str, queue: int, offset: int) -> None:
        """The next message delivered from the queue is `offset`; the commit stays as it is."""
        if not isinstance(offset, int) or offset < 0:
            raise InvalidRequest(f"offset must be a whole number from 0, not {offset!r}")
        found = self._find(topic, queue)
        found.restart(offset)
        if self._retrying is not None:
            self._retrying.on_seek(found, offset)
        self.feed.wake()

    def note(self, message: Message, reason: str, *, rejected: bool) -> None:
        """The commit that covers the message copies it first; callable from any thread.

        Raises InvalidRequest, LockLost.
        """
        if self._fenced is not None:
            raise self._fenced
        if self._retrying is None:
            raise InvalidRequest("this consumer has no retry policy: consumer(…, retry=…)")
        if not isinstance(reason, str):
            raise InvalidRequest(f"reason must be text, not {reason!r}")
        self._retrying.note(message, reason, rejected=rejected)

    async def pause(self, topic: str, queue: int, paused: bool) -> None:
        """Stops or starts fetching a queue; the lock is kept, what is buffered is given back."""
        found = self._find(topic, queue)
        if paused:
            self._paused.add(found.key)
            found.paused = True
            found.restart(found.delivered)
            return
        self._paused.discard(found.key)
        if found.key not in self._leaving:
            found.paused = False
            self.feed.wake()

    def _find(self, topic: str, queue: int) -> FeedQueue:
        for key, held in self._held.items():
            if held.topic == topic and key.queue_id == queue:
                return held
        raise InvalidRequest(f"queue {queue} of topic {topic!r} is not held by this consumer")


def _lock_ref(queue: FeedQueue) -> broker_pb2.LockRef:
    return broker_pb2.LockRef(
        queue=queue_ref(queue.key),
        token=queue.token,
    )


def _lost_with(queue: FeedQueue, what: str) -> LockLost:
    return LockLost(
        f"the lock of queue {queue.key.queue_id} of topic {queue.topic!r} {what} with offsets"
        f" {queue.done} to {queue.delivered} uncommitted; they are delivered again"
    )
