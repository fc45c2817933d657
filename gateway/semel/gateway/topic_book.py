"""The topics of the cluster, as handlers look them up. Lives on the client's I/O thread."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from semel.client.core.routing import TopicRoute
from semel.client.transport.cluster import Cluster
from semel.protos import compat
from semel.protos.errors import UnknownTopic

UNKNOWN_S: Final = 0.5
"""Seconds for which a topic that is unknown is not asked for again: clients ask often."""
UNKNOWN_MAX: Final = 10_000
CALLS_MAX: Final = 16
"""Topics that are looked up together: one request may name very many."""
STALE_S: Final = 2.0
"""Seconds for which a route counts as new."""
RENEWAL_S: Final = 1.0
"""Seconds that a renewal may take before the route of before is used."""


class _Opening:
    """A topic that is looked up, and how many wait for it."""

    __slots__ = ("lock", "waiters")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.waiters = 0


class TopicBook:
    """See the module's text.

    `find` returns at once for a topic that is known, and callers that wait for one that is not are
    served in the order in which they came: batches of one connection stay in order.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._calls = asyncio.Semaphore(CALLS_MAX)
        self._opening: dict[str, _Opening] = {}
        self._unknown: dict[str, float] = {}
        """Until when topics are taken for unknown."""
        self._seen: dict[str, float] = {}
        """When topics were looked up last."""
        self._renewals: dict[str, asyncio.Task[TopicRoute]] = {}

    async def find(self, name: str) -> TopicRoute:
        """Returns a topic's route. Raises UnknownTopic, and SemelError if nobody can tell."""
        opening = self._opening.get(name)
        if opening is None:
            if (known := self._cluster.routes.topic(name)) is not None:
                return known
            opening = self._opening[name] = _Opening()
        opening.waiters += 1
        try:
            async with opening.lock:
                return await self._look_up(name)
        finally:
            opening.waiters -= 1
            if not opening.waiters:
                self._opening.pop(name, None)

    async def newest(self, name: str) -> TopicRoute:
        """Returns a topic's route, which is at most `STALE_S` old as far as somebody can tell.
        Raises UnknownTopic, and SemelError if nobody can tell."""
        now = time.monotonic()
        known = self._cluster.routes.topic(name)
        if known is None or now - self._seen.get(name, -STALE_S) < STALE_S:
            return await self.find(name)
        if name not in self._renewals:
            self._seen[name] = now
            task = self._cluster.spawn(self._cluster.topic(name, refresh=True), "semel-kafka-topic")
            self._renewals[name] = task
            task.add_done_callback(lambda _: self._renewals.pop(name, None))
        try:
            async with compat.timeout(RENEWAL_S):
                return await asyncio.shield(self._renewals[name])
        except TimeoutError:
            return known  # the controllers are away: what is known still counts

    async def every(self) -> list[TopicRoute]:
        """Returns the routes of all topics. Raises SemelError."""
        return await self._cluster.every_topic()

    async def _look_up(self, name: str) -> TopicRoute:
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
