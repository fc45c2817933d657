"""Renews the locks of a member, at each broker group by itself.

How it works. One task for each broker group at which locks are held sends one request for all of
them, and reports those that are lost. All tasks begin in one rhythm, so that an idle program wakes
up seldom.

Invariants
1. At a broker group that answers in time the locks are renewed before two thirds of their session
   are over, whatever other broker groups do.

Not here: which locks are held, and what their loss means (`consumer/locks.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from semel.client.consumer.consumer_config import ConsumerConfig
from semel.client.consumer.group_tasks import GroupTasks, Spawn
from semel.client.consumer.membership import Membership
from semel.client.reading.feed_queue import FeedQueue
from semel.client.transport.cluster import Cluster
from semel.protos.errors import SemelError
from semel.protos.ids import GroupId, QueueKey
from semel.protos.queue_refs import queue_key_of, queue_ref
from semel.protos.v1 import broker_pb2

logger = logging.getLogger(__name__)


class Holder(Protocol):
    """What renewals need of the locks that are held."""

    membership: Membership

    def held_at(self, group_id: GroupId) -> list[FeedQueue]:
        """Returns the queues held at a broker group."""

    def look_for(self, group_id: GroupId, topics: Iterable[str]) -> None:
        """The broker group did not answer, so its queues may have moved."""

    def on_lost(self, key: QueueKey, token: int) -> None:
        """The lock with this token is lost."""


class LockRenewals:
    """The renewals of one member. Lives on the I/O thread."""

    def __init__(
        self, cluster: Cluster, group: str, config: ConsumerConfig, holder: Holder, *, spawn: Spawn
    ) -> None:
        """`spawn` starts a task whose failure ends the consumer."""
        self._cluster = cluster
        self._group = group
        self._config = config
        self._holder = holder
        self._tasks = GroupTasks(spawn, "semel-consumer-renew")
        self._began = time.monotonic()
        """The beginning of the rhythm in which locks are renewed."""

    def begin(self, now: float) -> None:
        """Lets the rhythm begin now."""
        self._began = now

    def ensure(self, group_id: GroupId) -> None:
        """Has the locks at a broker group renewed from now on."""
        if not self._tasks.running(group_id):
            self._tasks.start(group_id, self._renew(group_id))

    def cancel(self) -> None:
        """Ends all renewals."""
        self._tasks.cancel()

    async def _renew(self, group_id: GroupId) -> None:
        """Renews the locks held at a broker group: a third of a session after its last answer, and
        two thirds after the last call at the latest, if it has answered by then."""
        interval = max(0.1, self._config.session_ms / 3000)
        now = time.monotonic()
        at = now + interval - (now - self._began) % interval
        while True:
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            latest = at + 2 * interval
            queues = self._holder.held_at(group_id)
            if queues:
                await self.renew_at(group_id, queues)
            at = min(time.monotonic() + interval, latest)

    async def renew_at(self, group_id: GroupId, queues: Sequence[FeedQueue]) -> None:
        """Renews locks of one broker group, once."""
        request = broker_pb2.RenewLocksRequest(
            group=self._group,
            member_id=self._holder.membership.member_id,
            locks=[lock_ref(queue) for queue in queues],
        )
        try:
            reply = await self._cluster.call_master(
                group_id, "RenewLocks", request, self._config.session_ms / 1000
            )
        except SemelError as error:
            logger.info("renew failed group=%s error=%s", self._group, error.message)
            self._holder.look_for(group_id, [queue.topic for queue in queues])
            return
        for lost in reply.lost:
            self._holder.on_lost(queue_key_of(lost.queue), lost.token)


def lock_ref(queue: FeedQueue) -> broker_pb2.LockRef:
    """Returns the queue with its token, as requests name a lock."""
    return broker_pb2.LockRef(queue=queue_ref(queue.key), token=queue.token)
