"""The locks of a member of a consumer group: which queues it holds.

How it works. The controllers decide which queues a member *should* hold (`consumer/membership.py`);
the brokers decide which it *holds* (locks with fencing tokens). A member requests the locks that it
should hold, repeatedly while another member still has them. It releases a lock that it should not
hold once nothing delivered is uncommitted there, or a grace time is over. While the controllers are
down it continues with what it holds.

`keep` only decides what is due. The calls are tasks, at most one of a kind for each broker group
(`consumer/group_tasks.py`): releases and then acquisitions; renewals (`consumer/lock_renewals.py`);
fetches of routes after a group did not answer. So a group without a master keeps no lock of another
group from being renewed, handed over or acquired.

A lost lock is forgotten here, whether a renewal, a fetch or a commit, also one in the background,
reports the loss. Nothing else needs to be notified, because everything that was given out carries
its token (`reading/outstanding.py`).

Invariants
1. A held queue is one object as long as it is held. Another lock of the same queue gets another
   object.
2. A queue is in one acquisition at a time, and is released at a broker group before it is acquired
   there again.

Not here: when a lock is renewed (`consumer/lock_renewals.py`), when a refused lock is asked for
again (`consumer/lock_retries.py`), where a held queue begins (`consumer/consumer.py`), progress
(`consumer/commits.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from semel.client.consumer.consumer_config import ConsumerConfig
from semel.client.consumer.group_tasks import GroupTasks, Spawn
from semel.client.consumer.lock_renewals import LockRenewals, lock_ref
from semel.client.consumer.lock_retries import LockRetries
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
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2

logger = logging.getLogger(__name__)

LEAVING_CHECK_S: Final = 0.05
"""Seconds between looks at queues that are kept for outstanding commits."""


class Locks:
    """The locks of one member. Lives on the I/O thread."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        config: ConsumerConfig,
        feed: Feed,
        *,
        spawn: Spawn,
        on_held: Callable[[FeedQueue, broker_pb2.LockGrant], None],
        on_gone: Callable[[FeedQueue], None],
    ) -> None:
        """`on_held` is called when a lock was granted, `on_gone` when it was lost or released.
        `spawn` starts a task whose failure ends the consumer."""
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
        self._retries = LockRetries()
        self._paused: set[QueueKey] = set()
        self._going_back: dict[GroupId, list[FeedQueue]] = {}
        """Queues that are not held any more, and whose locks are still to be released."""
        self._asked_for: set[QueueKey] = set()
        """Queues in an acquisition that is under way."""
        self._ended = False
        self._hand_overs = GroupTasks(spawn, "semel-consumer-hand-over")
        """Releases, then acquisitions."""
        self._renewals = LockRenewals(cluster, group, config, self, spawn=spawn)
        self._searches = GroupTasks(spawn, "semel-consumer-search")

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
        self._renewals.begin(time.monotonic())
        while True:
            self.changed.clear()
            with contextlib.suppress(TimeoutError):
                async with compat.timeout(self.turn(time.monotonic())):
                    await self.changed.wait()

    def turn(self, now: float) -> float | None:
        """Begins the releases and acquisitions that are due, at each broker group that is done with
        those before. Returns the seconds until others may be due; None if only `changed` tells."""
        self._let_go(now)
        self.acquire(now)
        # A queue whose time has come is asked for, or waits for its group: that sets `changed`.
        due = [at for key in self._missing() if (at := self._retries.at(key)) > now]
        if self._leaving:
            due.append(now + LEAVING_CHECK_S)
        return max(0.01, min(due) - now) if due else None

    def _missing(self) -> list[QueueKey]:
        """Returns the queues that are assigned, and neither held nor asked for."""
        return [
            key for key in self._assigned if key not in self.held and key not in self._asked_for
        ]

    def acquire(self, now: float) -> None:
        """Begins the acquisitions that are due, and the releases that come before them."""
        wanted = self._cluster.routes.by_home(
            self._assigned[key][1] for key in self._missing() if self._retries.at(key) <= now
        )
        for group_id in dict.fromkeys([*self._going_back, *wanted]):
            if not self._hand_overs.running(group_id):
                back = self._going_back.pop(group_id, [])
                topics = {key: self._assigned[key][0] for key in wanted.get(group_id, ())}
                self._asked_for.update(topics)
                self._hand_overs.start(group_id, self._hand_over(group_id, back, topics))

    async def _hand_over(
        self, group_id: GroupId, back: Sequence[FeedQueue], topics: Mapping[QueueKey, str]
    ) -> None:
        """Releases locks at a broker group, then acquires others; `topics` are theirs."""
        try:
            if back:
                await self._release_at(group_id, back)
                self.membership.beat_now()
            if topics and not self._ended:
                await self._acquire_at(group_id, topics)
        finally:
            self._asked_for.difference_update(topics)
            self.changed.set()

    async def _acquire_at(self, group_id: GroupId, topics: Mapping[QueueKey, str]) -> None:
        request = broker_pb2.AcquireLocksRequest(
            group=self._group,
            member_id=self.membership.member_id,
            generation=self.membership.generation,
            queues=[queue_ref(key) for key in topics],
            lock_ms=self._config.lock_ms,
            session_ms=self._config.session_ms,
        )
        try:
            reply = await self._cluster.call_master(group_id, "AcquireLocks", request)
        except SemelError as error:
            logger.info("acquire failed group=%s error=%s", self._group, error.message)
            self._retries.put_off(topics, time.monotonic())
            self.look_for(group_id, topics.values())
            return
        now = time.monotonic()
        for (key, topic), grant in zip(topics.items(), reply.grants, strict=True):
            if grant.token:
                self._retries.on_granted(key)
                self._hold(key, topic, group_id, grant)
            else:
                refusal = from_detail(grant.error)
                self._retries.on_refused(key, refusal, now)
                self._on_refused(key, refusal)

    def _on_refused(self, key: QueueKey, error: SemelError) -> None:
        if isinstance(error, QueueMoved):
            self._cluster.routes.on_moved(error)
        elif isinstance(error, StaleGeneration):
            self.membership.beat_now()
        elif not isinstance(error, QueueLocked | ParentUnread | Throttled):
            logger.info("lock refused group=%s queue=%s error=%s", self._group, key, error)

    def _hold(
        self, key: QueueKey, topic: str, group_id: GroupId, grant: broker_pb2.LockGrant
    ) -> None:
        queue = FeedQueue(topic, key, group_id, max(0, grant.committed_offset))
        queue.token = grant.token
        queue.high_watermark = grant.high_watermark
        queue.paused = key in self._paused
        self.held[key] = queue
        self._leaving.pop(key, None)
        if self._ended:
            return  # it is held to be released
        self._renewals.ensure(group_id)
        self._on_held(queue, grant)

    # --- giving back ----------------------------------------------------------------------------

    def held_at(self, group_id: GroupId) -> list[FeedQueue]:
        """Returns the queues held at a broker group."""
        return [queue for queue in self.held.values() if queue.group_id == group_id]

    def _let_go(self, now: float) -> None:
        """Gives up queues that are not assigned any more and have nothing uncommitted."""
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
                self._leaving[key] = now + self._config.hand_over_ms / 1000
                queue.paused = True
                queue.fetch_again()
            if queue.delivered <= queue.done or now >= self._leaving[key]:
                ready.append(queue)
        for queue in ready:
            self._give_back(queue)

    def _give_back(self, queue: FeedQueue) -> None:
        """Gives out nothing more under this lock, and has it released in the group's turn."""
        self.forget(queue)
        self._going_back.setdefault(queue.group_id, []).append(queue)

    def on_progress(self) -> None:
        """Progress was committed: queues that are leaving may be ready for release."""
        if self._leaving:
            self.changed.set()

    def give_up(self, queue: FeedQueue) -> None:
        """Releases a lock, to acquire it again later."""
        self._give_back(queue)
        self._retries.put_off([queue.key], time.monotonic())
        self.changed.set()

    async def _release_at(self, group_id: GroupId, queues: Iterable[FeedQueue]) -> None:
        """Releases locks of one broker group. If it does not answer, they end with their
        session."""
        request = broker_pb2.ReleaseLocksRequest(
            group=self._group,
            member_id=self.membership.member_id,
            locks=[lock_ref(queue) for queue in queues],
        )
        try:
            await self._cluster.call_master(group_id, "ReleaseLocks", request)
        except SemelError as error:
            logger.info("release failed group=%s error=%s", self._group, error.message)

    def end(self) -> None:
        """Begins nothing more. Locks that calls under way are granted are held until they are
        released, and not read."""
        self._ended = True
        self._renewals.cancel()
        self._searches.cancel()

    async def release_all(self) -> None:
        """Releases every lock, after `end`; first awaits the calls that are about to be granted
        some. No broker group waits for another one."""
        groups = {queue.group_id for queue in self.held.values()}
        groups |= {*self._going_back, *self._hand_overs.groups()}
        await asyncio.gather(*(self._release_all_at(group_id) for group_id in groups))

    async def _release_all_at(self, group_id: GroupId) -> None:
        await self._hand_overs.ended(group_id)
        for queue in self.held_at(group_id):
            self._give_back(queue)
        queues = self._going_back.pop(group_id, [])
        if queues:
            await self._release_at(group_id, queues)

    def abandon(self) -> None:
        """Drops every lock, and cancels the calls under way: what they are granted ends with its
        session."""
        self.end()
        self._hand_overs.cancel()
        self._going_back.clear()
        self.forget_all()

    # --- losing -----------------------------------------------------------------------------------

    def look_for(self, group_id: GroupId, topics: Iterable[str]) -> None:
        """Has the routes fetched: a broker group did not answer, so its queues may have moved."""
        if not self._ended and not self._searches.running(group_id):
            search = self._search(dict.fromkeys(topics), self.held_at(group_id))
            self._searches.start(group_id, search)

    async def _search(self, topics: Iterable[str], queues: Iterable[FeedQueue]) -> None:
        for topic in topics:
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
