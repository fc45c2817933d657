"""The locks of a member of a consumer group: which queues it holds.

How it works. The controllers decide which queues a member *should* hold (`consumer/membership.py`);
the brokers decide which it *holds* (locks with fencing tokens). A member requests the locks that it
should hold, repeatedly while another member still has them. It releases a lock that it should not
hold once nothing delivered is uncommitted there, or a grace time is over. While the controllers are
down it continues with what it holds.

A lost lock is forgotten here, whether a renewal, a fetch or a commit, also one in the background,
reports the loss. Nothing else needs to be notified, because everything that was given out carries
its token (`reading/outstanding.py`).

Invariants
1. A held queue is one object as long as it is held. Another lock of the same queue gets another
   object.

Not here: where a held queue begins (`consumer/consumer.py`), progress (`consumer/commits.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from semel.client.consumer.config import ConsumerConfig
from semel.client.consumer.membership import Membership
from semel.client.core.routing import QueueRoute
from semel.client.reading.feed_queue import FeedQueue
from semel.client.reading.fetch import Feed
from semel.client.transport.cluster import Cluster
from semel.protos import compat
from semel.protos.errors import (
    InvalidRequest,
    ParentUnread,
    QueueLocked,
    QueueMoved,
    SemelError,
    StaleGeneration,
    Throttled,
    from_detail,
)
from semel.protos.ids import GroupId, QueueKey
from semel.protos.queue_refs import queue_key_of, queue_ref
from semel.protos.v1 import broker_pb2

logger = logging.getLogger(__name__)

LOCK_RETRY_MIN_S: Final = 0.05
LOCK_RETRY_MAX_S: Final = 1.0
LOCKED_RETRY_MAX_S: Final = 0.4
"""Waits while another member has the lock, short so that a hand-over takes no longer than
needed."""
RELEASE_GRACE_S: Final = 5.0
"""Seconds for which a queue that should go to another member is kept for outstanding commits."""


class Locks:
    """The locks of one member. Lives on the I/O thread."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        config: ConsumerConfig,
        feed: Feed,
        *,
        on_held: Callable[[FeedQueue, broker_pb2.LockGrant], None],
        on_gone: Callable[[FeedQueue], None],
    ) -> None:
        """`on_held` is called when a lock was granted, `on_gone` when it was lost or released."""
        self.membership: Membership
        """The member's identity; set before any request."""
        self.held: dict[QueueKey, FeedQueue] = {}
        self.changed = asyncio.Event()
        """Set when a lock may have to be acquired or released."""
        self._cluster = cluster
        self._group = group
        self._config = config
        self._feed = feed
        self._on_held = on_held
        self._on_gone = on_gone
        self._leaving: dict[QueueKey, float] = {}
        """Until when commits are awaited, by held queue that is not assigned any more."""
        self._retry_at: dict[QueueKey, float] = {}
        self._refusals: dict[QueueKey, int] = {}
        """Number of refusals in a row because another member has the lock or an ancestor is
        unread."""
        self._paused: set[QueueKey] = set()

    def find(self, key: QueueKey, token: int) -> FeedQueue | None:
        """Returns the queue if it is held under this token, else None."""
        queue = self.held.get(key)
        return queue if queue is not None and queue.token == token else None

    def holds(self, queue: FeedQueue) -> bool:
        """The lock of this object is still held."""
        return self.held.get(queue.key) is queue

    @property
    def _assigned(self) -> dict[QueueKey, tuple[str, QueueRoute]]:
        return self.membership.assigned

    # --- acquiring ------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Acquires queues that are assigned and not held, releases those held and not assigned."""
        while True:
            self.changed.clear()
            now = time.monotonic()
            await self._let_go(now)
            wanted = [
                key
                for key in self._assigned
                if key not in self.held and self._retry_at.get(key, 0.0) <= now
            ]
            if wanted:
                try:
                    await self._acquire(wanted)
                except SemelError as error:
                    logger.info("acquire failed group=%s error=%s", self._group, error.message)
                    for key in wanted:
                        self._retry_at[key] = time.monotonic() + LOCK_RETRY_MAX_S
            due = [at for key, at in self._retry_at.items() if key in self._assigned]
            if self._leaving:
                due.append(time.monotonic() + LOCK_RETRY_MIN_S)
            wait = max(0.01, min(due) - time.monotonic()) if due else None
            with contextlib.suppress(TimeoutError):
                async with compat.timeout(wait):
                    await self.changed.wait()

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
                group=self._group,
                member_id=self.membership.member_id,
                generation=self.membership.generation,
                queues=[queue_ref(key) for key in keys],
                lock_ms=self._config.lock_ms,
                session_ms=self._config.session_ms,
            ),
        )
        now = time.monotonic()
        for key, grant in zip(keys, reply.grants, strict=True):
            if grant.token:
                self._retry_at.pop(key, None)
                self._refusals.pop(key, None)
                self._hold(key, places[key][0], group_id, grant)
                continue
            error = from_detail(grant.error)
            wait = LOCK_RETRY_MAX_S
            if isinstance(error, QueueLocked | ParentUnread):
                # Each attempt is an entry in the group's log, and the other member may be slow.
                refusals = self._refusals[key] = self._refusals.get(key, 0) + 1
                wait = min(LOCK_RETRY_MIN_S * 2 ** min(refusals - 1, 8), LOCKED_RETRY_MAX_S)
                wait = min(max(error.retry_after_ms / 1000, wait), LOCK_RETRY_MAX_S)
            elif isinstance(error, QueueMoved):
                self._cluster.routes.on_moved(error)
                wait = LOCK_RETRY_MIN_S
            elif isinstance(error, Throttled):  # the queue is moving to another group
                wait = max(error.retry_after_ms / 1000, LOCK_RETRY_MIN_S)
            elif isinstance(error, StaleGeneration):
                self.membership.beat_now()
                wait = LOCK_RETRY_MIN_S * 4
            else:
                logger.info("lock refused group=%s queue=%s error=%s", self._group, key, error)
            self._retry_at[key] = now + wait

    def _hold(
        self, key: QueueKey, topic: str, group_id: GroupId, grant: broker_pb2.LockGrant
    ) -> None:
        queue = FeedQueue(topic, key, group_id, max(0, grant.committed_offset))
        queue.token = grant.token
        queue.high_watermark = grant.high_watermark
        queue.paused = key in self._paused
        self.held[key] = queue
        self._leaving.pop(key, None)
        self._on_held(queue, grant)

    # --- giving back ----------------------------------------------------------------------------

    async def _let_go(self, now: float) -> None:
        """Releases queues that are not assigned any more and have nothing uncommitted."""
        for key in [key for key in self._leaving if key in self._assigned]:
            # It was assigned again before it was released.
            del self._leaving[key]
            queue = self.held.get(key)
            if queue is not None:
                queue.fetch_again()
                queue.paused = key in self._paused
                self._feed.wake()
        ready: list[FeedQueue] = []
        for key, queue in self.held.items():
            if key in self._assigned:
                continue
            if key not in self._leaving:
                self._leaving[key] = now + RELEASE_GRACE_S
                queue.paused = True
                queue.fetch_again()
            if queue.delivered <= queue.done or now >= self._leaving[key]:
                ready.append(queue)
        if not ready:
            return
        for queue in ready:
            self.forget(queue)
        with contextlib.suppress(SemelError):
            await self.release(ready)
        self.membership.beat_now()

    def on_progress(self) -> None:
        """Progress was committed: queues that are leaving may be ready for release."""
        if self._leaving:
            self.changed.set()

    async def give_up(self, queue: FeedQueue) -> None:
        """Releases a lock, to acquire it again later."""
        self.forget(queue)
        self._retry_at[queue.key] = time.monotonic() + LOCK_RETRY_MAX_S
        with contextlib.suppress(SemelError):
            await self.release([queue])
        self.changed.set()

    async def release(self, queues: Iterable[FeedQueue]) -> None:
        """Releases locks. Raises SemelError; then the locks end with their session."""
        by_group: dict[GroupId, list[FeedQueue]] = {}
        for queue in queues:
            by_group.setdefault(queue.group_id, []).append(queue)
        await asyncio.gather(
            *(
                self._cluster.call_master(
                    group_id,
                    "ReleaseLocks",
                    broker_pb2.ReleaseLocksRequest(
                        group=self._group,
                        member_id=self.membership.member_id,
                        locks=[_lock_ref(queue) for queue in some],
                    ),
                )
                for group_id, some in by_group.items()
            )
        )

    # --- keeping and losing ---------------------------------------------------------------------

    async def renew(self) -> None:
        """Renews the locks until it is cancelled."""
        interval = max(0.1, self._config.session_ms / 3000)
        while True:
            await asyncio.sleep(interval)
            by_group: dict[GroupId, list[FeedQueue]] = {}
            for queue in self.held.values():
                by_group.setdefault(queue.group_id, []).append(queue)
            await asyncio.gather(
                *(self._renew_at(group_id, some) for group_id, some in by_group.items())
            )

    async def _renew_at(self, group_id: GroupId, queues: list[FeedQueue]) -> None:
        request = broker_pb2.RenewLocksRequest(
            group=self._group,
            member_id=self.membership.member_id,
            locks=[_lock_ref(q) for q in queues],
        )
        try:
            reply = await self._cluster.call_master(
                group_id, "RenewLocks", request, self._config.session_ms / 1000
            )
        except SemelError as error:
            logger.info("renew failed group=%s error=%s", self._group, error.message)
            await self._look_for(queues)
            return
        for lost in reply.lost:
            self.on_lost(queue_key_of(lost.queue), lost.token)

    async def _look_for(self, queues: list[FeedQueue]) -> None:
        """Fetches the routes: the queues' group does not answer, so they may have moved."""
        for topic in {queue.topic for queue in queues}:
            with contextlib.suppress(SemelError):
                await self._cluster.topic(topic, refresh=True)
        for queue in queues:
            place = self._assigned.get(queue.key)
            if place is not None and self._cluster.routes.home(place[1]) != queue.group_id:
                self.on_lost(queue.key, queue.token)

    def on_lost(self, key: QueueKey, token: int) -> None:
        """A broker reported that this member lost the lock with this token."""
        queue = self.find(key, token)
        if queue is None:
            return
        logger.info(
            "lock lost group=%s topic=%s queue=%s token=%s uncommitted=%s",
            self._group,
            queue.topic,
            key.queue_id,
            token,
            max(0, queue.delivered - queue.done),
        )
        self.forget(queue)
        self.changed.set()

    def forget(self, queue: FeedQueue) -> None:
        """Gives out nothing more under this lock."""
        if not self.holds(queue):
            return
        del self.held[queue.key]
        self._leaving.pop(queue.key, None)
        self._feed.remove(queue.key)
        self._on_gone(queue)

    def forget_all(self) -> None:
        """Drops every lock. Assigned queues are acquired again, under new tokens."""
        for queue in list(self.held.values()):
            self.forget(queue)
        self.changed.set()

    # --- places ---------------------------------------------------------------------------------

    def named(self, topic: str, number: int) -> FeedQueue:
        """Returns a held queue. Raises InvalidRequest."""
        for key, queue in self.held.items():
            if queue.topic == topic and key.queue_id == number:
                return queue
        raise InvalidRequest(f"queue {number} of topic {topic!r} is not held by this consumer")

    def pause(self, queue: FeedQueue, paused: bool) -> None:
        """Stops or starts fetching a queue, also across hand-overs. Buffered messages are
        dropped."""
        if paused:
            self._paused.add(queue.key)
            queue.paused = True
            queue.fetch_again()
            return
        self._paused.discard(queue.key)
        if queue.key not in self._leaving:
            queue.paused = False
            self._feed.wake()


def _lock_ref(queue: FeedQueue) -> broker_pb2.LockRef:
    return broker_pb2.LockRef(queue=queue_ref(queue.key), token=queue.token)
