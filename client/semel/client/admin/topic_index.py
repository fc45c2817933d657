"""All topics by name, kept up to date by what changed, for lists that are searched and paged.

How it works. The first question brings all topics that the caller may see; every later one names
the version that is known, and brings what changed since. Only the settings of the wanted page are
put together. Now and then all are asked for again, because a change of rights changes no topic.

Not here: offsets and sizes, which the masters know (`admin/calls.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from semel.client.admin.descriptions import Described, TopicSettings, TopicSummary
from semel.client.config import whole
from semel.client.transport.cluster import Cluster
from semel.protos.errors import InvalidRequest
from semel.protos.ids import GroupId
from semel.protos.v1 import controller_pb2

ALL_AGAIN_S: Final = 60.0
LIMIT_DEFAULT: Final = 50
LIMIT_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPage(Described):
    """A part of the topics whose names match, by name."""

    topics: list[TopicSummary]
    matched: int
    """Topics that match, on all pages."""
    scanned: int
    """Topics that were looked at: all that the caller may see."""


class TopicIndex:
    """The topics that one client may see. Lives on the I/O thread."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        self._topics: dict[str, Any] = {}
        self._names: list[str] = []
        """Sorted."""
        self._names_by_id: dict[int, str] = {}
        self.group_ids: list[GroupId] = []
        """Broker groups as of the last answer."""
        self._version = 0
        """Version of the routes that is known; 0: none is."""
        self._all_at_s = clock()

    async def page(self, search: str, start: int, limit: int) -> TopicPage:
        """Returns the matching topics from number `start` on, in the order of their names. Raises
        InvalidRequest."""
        if not isinstance(search, str):
            raise InvalidRequest(f"search must be a text, not {search!r}")
        whole("start", start, 0, 1 << 62)
        whole("limit", limit, 1, LIMIT_MAX)
        await self.refresh()
        wanted = search.casefold()
        found = (
            [name for name in self._names if wanted in name.casefold()] if wanted else self._names
        )
        return TopicPage(
            topics=[_summary(self._topics[name]) for name in found[start : start + limit]],
            matched=len(found),
            scanned=len(self._names),
        )

    def name_of(self, topic_id: int) -> str | None:
        """Returns the name of a topic as of the last answer; None for one that is not known."""
        return self._names_by_id.get(topic_id)

    async def refresh(self) -> None:
        """Brings it up to date."""
        now_s = self._clock()
        known = self._version if now_s - self._all_at_s <= ALL_AGAIN_S else 0
        request = controller_pb2.GetRoutesRequest(known_version=known)
        routes = await self._cluster.controller("GetRoutes", request)
        self._cluster.routes.on_routes(routes)
        self.on_routes(routes, now_s)

    def on_routes(self, routes: controller_pb2.Routes, now_s: float) -> None:
        """Takes in all topics, or what changed of them since a version. Changes since another one
        than is known by now are of no use: another call has brought newer ones."""
        if routes.changes_since and routes.changes_since != self._version:
            return
        if not routes.changes_since:
            self._topics = {}
            self._all_at_s = now_s
        self._version = routes.version
        self.group_ids = [GroupId(group.group_id) for group in routes.groups]
        for name in routes.removed_topics:
            self._topics.pop(name, None)
        for topic in routes.topics:
            self._topics[topic.name] = topic
        if routes.topics or routes.removed_topics or not routes.changes_since:
            self._names = sorted(self._topics)
            self._names_by_id = {topic.topic_id: name for name, topic in self._topics.items()}


def _summary(topic: Any) -> TopicSummary:
    return TopicSummary(
        name=topic.name,
        topic_id=topic.topic_id,
        queues=len(topic.queues),
        settings=TopicSettings.of(topic.settings),
        created_us=topic.created_us,
    )
