"""A consumer's membership in its group: joining, heartbeats, assignments.

How it works. The member joins, then sends heartbeats as often as the controllers ask. Each answer
carries the newest assignment. A member that the controllers forgot (they restarted, or this process
was suspended) joins again under its id. Each process names itself by an *incarnation*: when another
process joins under the same id, this one ends.

Invariants
1. The generation never falls, and the assignment is the newest generation's.
2. After MemberFenced nothing is sent any more.

Not here: locks and progress (`consumer/consumer.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterable
from typing import Final

from semel.client.consumer.consumer_config import ConsumerConfig
from semel.client.core.routing import QueueRoute
from semel.client.transport.cluster import Cluster
from semel.protos import compat
from semel.protos.errors import MemberFenced, SemelError, StaleGeneration, UnknownMember
from semel.protos.ids import QueueKey
from semel.protos.queue_refs import queue_key_of, queue_ref
from semel.protos.v1 import controller_pb2

logger = logging.getLogger(__name__)

BEAT_TIMEOUT_S: Final = 2.0
LEAVE_TIMEOUT_S: Final = 2.0


class Membership:
    """One member of a consumer group, as the controllers know it. Lives on the I/O thread."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        topics: list[str],
        config: ConsumerConfig,
        *,
        held: Callable[[], Iterable[QueueKey]],
        on_assignment: Callable[[], None],
        on_fenced: Callable[[MemberFenced], None],
    ) -> None:
        """`held` returns the queues whose locks are held. `on_assignment` is called for a newer
        assignment."""
        self.member_id = config.member_id
        self.generation = 0
        self.assigned: dict[QueueKey, tuple[str, QueueRoute]] = {}
        """Topic and route of each queue that should be held."""
        self._cluster = cluster
        self._group = group
        self._topics = topics
        self._config = config
        self._incarnation = os.urandom(16)
        self._held = held
        self._on_assignment = on_assignment
        self._on_fenced = on_fenced
        self._beat_s = 1.0
        self._beat_now = asyncio.Event()

    def beat_now(self) -> None:
        """Sends the next heartbeat at once."""
        self._beat_now.set()

    async def join(self) -> None:
        """Joins the group, or joins it again. Raises SemelError."""
        name = self._config.client_name or f"{socket.gethostname()}:{os.getpid()}"
        reply = await self._cluster.controller(
            "JoinGroup",
            controller_pb2.JoinGroupRequest(
                group=self._group,
                member_id=self.member_id,
                topics=self._topics,
                session_ms=self._config.session_ms,
                client=name,
                grace_ms=self._config.grace_ms,
                incarnation=self._incarnation,
            ),
        )
        self.member_id = reply.member_id
        await self._on_reply(reply)

    async def leave(self) -> None:
        """Leaves the group, as far as the controllers answer in time. With a grace time it only
        stops its heartbeats, and its queues wait for a process that joins under its id."""
        if self._config.grace_ms:
            return
        with contextlib.suppress(SemelError, TimeoutError):
            async with compat.timeout(LEAVE_TIMEOUT_S):
                await self._cluster.controller(
                    "LeaveGroup",
                    controller_pb2.LeaveGroupRequest(
                        group=self._group,
                        member_id=self.member_id,
                        incarnation=self._incarnation,
                    ),
                    LEAVE_TIMEOUT_S,
                )

    async def run(self) -> None:
        """Sends heartbeats until it is cancelled or fenced."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with compat.timeout(self._beat_s):
                    await self._beat_now.wait()
            self._beat_now.clear()
            request = controller_pb2.HeartbeatGroupRequest(
                group=self._group,
                member_id=self.member_id,
                generation=self.generation,
                held=[queue_ref(key) for key in self._held()],
                incarnation=self._incarnation,
            )
            try:
                reply = await self._cluster.controller("HeartbeatGroup", request, BEAT_TIMEOUT_S)
                await self._on_reply(reply)
            except (UnknownMember, StaleGeneration):
                # The controllers forgot this member (a restart, or a suspension): it joins again
                # with the same id and the same queues.
                with contextlib.suppress(SemelError):
                    await self.join()
            except MemberFenced as error:
                logger.warning("member fenced group=%s member=%s", self._group, self.member_id)
                self._on_fenced(error)
                return
            except SemelError as error:
                logger.info("heartbeat failed group=%s error=%s", self._group, error.message)

    async def _on_reply(self, reply: controller_pb2.GroupMembershipReply) -> None:
        if reply.generation < self.generation:
            return
        self._beat_s = max(0.05, (reply.heartbeat_ms or 1_000) / 1000)
        keys = [queue_key_of(ref) for ref in reply.assignment]
        assigned = self._places(keys)
        if len(assigned) < len(keys):
            # A topic is newer than the routes here.
            for topic in self._topics:
                with contextlib.suppress(SemelError):
                    await self._cluster.topic(topic, refresh=True)
            assigned = self._places(keys)
        if reply.generation != self.generation or assigned.keys() != self.assigned.keys():
            logger.info(
                "assignment group=%s member=%s generation=%s queues=%s",
                self._group,
                self.member_id,
                reply.generation,
                len(assigned),
            )
        self.generation = reply.generation
        self.assigned = assigned
        self._on_assignment()

    def _places(self, keys: Iterable[QueueKey]) -> dict[QueueKey, tuple[str, QueueRoute]]:
        known = {
            queue.key: (topic.name, queue)
            for topic in self._cluster.routes.topics()
            for queue in topic.every
        }
        return {key: known[key] for key in keys if key in known}
