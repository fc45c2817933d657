"""The topics of the cluster, as handlers look them up. Lives on the client's I/O thread.

How it works. Routes come from the client. Where a queue was split, its partition goes on in a
child, at the offset where the queue ends (`partitions.py`). That end never changes, so it is asked
for once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Final

from semel.client.core.routing import QueueRoute, TopicRoute
from semel.client.reading.offsets import list_offsets
from semel.client.transport.cluster import Cluster
from semel.gateway.partitions import PartitionedTopic, partitioned, sealed_of
from semel.protos import compat
from semel.protos.errors import QueueSealed, UnknownTopic
from semel.protos.ids import QueueKey
from semel.protos.v1 import control_pb2

UNKNOWN_S: Final = 0.5
"""Seconds for which a topic that is unknown is not asked for again: clients ask often."""
UNKNOWN_MAX: Final = 10_000
ENDS_MAX: Final = 100_000
"""Ends of split queues that are remembered."""
CALLS_MAX: Final = 16
"""Topics that are looked up together: one request may name very many."""
STALE_S: Final = 2.0
"""Seconds for which a route counts as new."""
RENEWAL_S: Final = 1.0
"""Seconds that a renewal may take before the route of before is used."""


class _Turn:
    """A topic that is looked up, and how many wait for it."""

    __slots__ = ("from_partition", "lock", "waiters")

    def __init__(self, from_partition: int) -> None:
        self.from_partition = from_partition
        """Callers that want only partitions below it do not wait."""
        self.lock = asyncio.Lock()
        self.waiters = 0


@contextlib.asynccontextmanager
async def _turn(turns: dict[str, _Turn], name: str, from_partition: int = 0) -> AsyncIterator[None]:
    """Enters when all that came before have left."""
    turn = turns.get(name)
    if turn is None:
        turn = turns[name] = _Turn(from_partition)
    turn.waiters += 1
    try:
        async with turn.lock:
            yield
    finally:
        turn.waiters -= 1
        if not turn.waiters:
            turns.pop(name, None)


class SealedEnds:
    """Where queues end that were split."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ends: dict[QueueKey, int] = {}
        self._known: dict[int, PartitionedTopic] = {}
        """By topic id: the last one with split queues."""

    def find(self, route: TopicRoute) -> PartitionedTopic | None:
        """Returns a topic's partitions, or None if they have to be asked for."""
        if not route.sealed:
            return PartitionedTopic(route)
        known = self._known.get(route.topic_id)
        if known is not None and known.route is route:
            return known
        if any(queue.key not in self._ends for queue in sealed_of(route)):
            return None
        known = self._known[route.topic_id] = partitioned(route, self._ends)
        return known

    async def complete(self, route: TopicRoute) -> PartitionedTopic:
        """Returns a topic's partitions. Raises SemelError."""
        while (found := self.find(route)) is None:
            missing = [queue for queue in sealed_of(route) if queue.key not in self._ends]
            if len(self._ends) + len(missing) > ENDS_MAX:
                self._ends.clear()
                self._known.clear()
                missing = sealed_of(route)
            await self._ask(missing)
        return found

    async def _ask(self, queues: list[QueueRoute]) -> None:
        offsets = await list_offsets(self._cluster, queues)
        for queue in queues:
            self._ends[queue.key] = offsets[queue.key.queue_id].log_end_offset


class TopicBook:
    """See the module's text.

    `find` returns at once for a topic that is known, and callers that wait for one that is not, or
    for a partition that is not, are served in the order in which they came: batches of one
    connection stay in order.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ends = SealedEnds(cluster)
        self._calls = asyncio.Semaphore(CALLS_MAX)
        self._opening: dict[str, _Turn] = {}
        """Turns of those that wait for a topic."""
        self._growing: dict[str, _Turn] = {}
        """Turns of those that wait for a partition of one."""
        self._unknown: dict[str, float] = {}
        """Until when topics are taken for unknown."""
        self._seen: dict[str, float] = {}
        """When topics were looked up last."""
        self._renewals: dict[str, asyncio.Task[TopicRoute]] = {}

    async def find(self, name: str) -> PartitionedTopic:
        """Returns a topic. Raises UnknownTopic, and SemelError if nobody can tell."""
        if name not in self._opening:
            route = self._cluster.routes.topic(name)
            if route is not None and (known := self._ends.find(route)) is not None:
                return known
        async with _turn(self._opening, name):
            return await self._ends.complete(await self._look_up(name))

    async def find_with(self, name: str, partition: int) -> PartitionedTopic:
        """Returns a topic, the newest one that there is if this one lacks a partition: a client may
        have heard of it at another gateway. Raises as `find`."""
        topic = await self.find(name)
        waits = self._growing.get(name)
        if partition < (topic.count if waits is None else min(topic.count, waits.from_partition)):
            return topic
        async with _turn(self._growing, name, topic.count):
            return await self.newest(name)

    async def newest(self, name: str) -> PartitionedTopic:
        """Returns a topic as it was at most `STALE_S` ago, as far as somebody can tell. Raises
        UnknownTopic, and SemelError if nobody can tell."""
        known = self._cluster.routes.topic(name)
        if known is None or time.monotonic() - self._seen.get(name, -STALE_S) < STALE_S:
            return await self.find(name)
        return await self.renewed(name)

    async def renewed(self, name: str) -> PartitionedTopic:
        """Returns a topic as it is now, as far as somebody can tell. Raises as `newest`."""
        renewal = self._renew(name)
        try:
            async with compat.timeout(RENEWAL_S):
                return await self._ends.complete(await asyncio.shield(renewal))
        except TimeoutError:
            return await self.find(name)  # the controllers are away: what is known still counts

    async def is_split(self, key: QueueKey) -> bool:
        """Looks the topic of a queue up again, and returns whether the queue was split. Raises as
        `newest`, and UnknownTopic if the topic was deleted, also if it was made anew since."""
        for route in list(self._cluster.routes.topics()):
            if route.topic_id == key.topic_id:
                topic = await self.renewed(route.name)
                if topic.route.topic_id == key.topic_id:
                    return any(queue.key == key for queue in topic.route.sealed)
        raise UnknownTopic(f"the topic of queue {key.queue_id} was deleted")

    def renew(self, name: str) -> None:
        """Looks a topic up again: what was known of it is old."""
        self._renew(name)

    def on_sealed(self, topic_id: int, error: QueueSealed) -> None:
        """A broker has refused something because a queue was split."""
        self.on_split(topic_id, control_pb2.SplitQueue.FromString(error.split_record))

    def on_split(self, topic_id: int, split: control_pb2.SplitQueue) -> None:
        """A broker has told that a queue was split."""
        for route in list(self._cluster.routes.topics()):
            if route.topic_id == topic_id:
                self._cluster.routes.on_split(route.name, split)

    def _renew(self, name: str) -> asyncio.Task[TopicRoute]:
        renewal = self._renewals.get(name)
        if renewal is None:
            self._seen[name] = time.monotonic()
            renewal = self._cluster.spawn(
                self._cluster.topic(name, refresh=True), "semel-kafka-topic"
            )
            self._renewals[name] = renewal
            renewal.add_done_callback(lambda _: self._renewals.pop(name, None))
        return renewal

    async def every(self) -> list[TopicRoute]:
        """Returns the routes of all topics. Raises SemelError."""
        return await self._cluster.every_topic()

    async def _look_up(self, name: str) -> TopicRoute:
        """Raises UnknownTopic, and SemelError if nobody can tell."""
        if (known := self._cluster.routes.topic(name)) is not None:
            return known
        now = time.monotonic()
        if self._unknown.get(name, 0.0) > now:
            raise UnknownTopic(f"there is no topic {name!r}")
        try:
            async with self._calls:
                return await self._cluster.topic(name)
        except UnknownTopic:
            if len(self._unknown) >= UNKNOWN_MAX:
                self._unknown.clear()
            self._unknown[name] = now + UNKNOWN_S
            raise
