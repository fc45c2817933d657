"""A copy of the controllers' routes, and producer ids on loan, for clients without a controller.

How it works. Each answer to a report names the version of the routes that the controller has. Of a
newer version the node fetches what changed, at most once a second; it fetches all if the controller
does not know what changed. The copy is in memory. Clients get topics out of it, and are never told
that a topic does not exist: the copy may be older than the topic.

Clients may also watch the groups of the copy, where the controllers have no room for more of them.

Controllers also lend the node ids, which it gives to anonymous producers. From time to time it gets
new ones, because queues that have forgotten producers with higher ids may refuse an old one.

The upper half of the version is the controller epoch. So the copy also knows the newest epoch, and
refuses what a controller of an older one still sends, delayed on its way or by a pause.

Invariants
1. The copy's version never falls.
2. A request that is refused for its old epoch is never applied later; one of a newer epoch is never
   refused.
3. An id that was lent is given once; a restart loses those that are left.

Not here: fetching (`control_plane/reports.py`), serving (`server/routes.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from semel.protos.errors import NotMaster, Throttled, Unavailable
from semel.protos.v1.controller_pb2 import (
    GetRoutesRequest,
    OpenProducerReply,
    OpenProducerRequest,
    Routes,
    TopicRoute,
)

EPOCH_SHIFT: Final = 32
IDS_FRESH_S: Final = 3_600.0
"""Ids that were lent longer ago are replaced by new ones."""
FIRST_EPOCH: Final = 1
WATCHES_MAX: Final = 10_000
"""How many clients may watch one node's copy."""
PUSHES_A_SECOND: Final = 2_000
"""The node tells so many watches of a change in a second: it has other work, too."""
WATCH_AGAIN_MS: Final = 60_000
"""After so long a client that found no room for its watch may ask again."""


class RoutesCopy:
    """The newest routes that a controller gave, and ids that one has lent."""

    def __init__(self) -> None:
        self._routes = Routes()
        """The newest routes, without topics."""
        self._topics: dict[str, TopicRoute] = {}
        self._names: dict[int, str] = {}
        """Names of topics by their ids."""
        self._controllers: tuple[str, ...] = ()
        self._active = ""
        self._epoch = 0
        self._ids = range(0)
        self._lent_s = 0.0
        self._watches = 0
        self._changed = asyncio.Event()
        """Set, and replaced, when groups or controllers change."""

    @property
    def version(self) -> int:
        """Version of the copy; 0 without one."""
        return int(self._routes.version)

    @property
    def controllers(self) -> tuple[str, ...]:
        """HOST:PORT of every controller, as the active controller named them."""
        return self._controllers

    def topic_name(self, topic_id: int) -> str | None:
        """The name of a topic; None if the copy has none with this id."""
        return self._names.get(topic_id)

    def on_answer(self, address: str, version: int, controllers: Sequence[str]) -> bool:
        """The controller at `address` answered a report; True if its routes are newer."""
        self.on_epoch(version >> EPOCH_SHIFT)
        if version >> EPOCH_SHIFT == self._epoch:
            self._active = address
            self._controllers = tuple(controllers)
        return version > self.version

    def on_routes(self, routes: Routes) -> None:
        """All routes of a controller arrived, or what changed of them since the copy's version."""
        if routes.version <= self.version or routes.changes_since not in (0, self.version):
            return  # of a controller that was asked before another one
        if not routes.changes_since:
            self._topics = {}
        for topic in routes.topics:
            self._topics[topic.name] = topic
        for name in routes.removed_topics:
            self._topics.pop(name, None)
        self._names = {topic.topic_id: name for name, topic in self._topics.items()}
        known = self._routes
        self._routes = Routes(
            version=routes.version,
            cluster_id=routes.cluster_id,
            groups=routes.groups,
            controllers=routes.controllers,
        )
        if known.groups != routes.groups or known.controllers != routes.controllers:
            self._changed.set()
            self._changed = asyncio.Event()

    def on_epoch(self, number: int) -> None:
        """Notes that a controller of that epoch has sent something."""
        self._epoch = max(self._epoch, number)

    def wants_ids(self, now_s: float) -> bool:
        """No id is left, or the ids are old."""
        return not self._ids or now_s - self._lent_s > IDS_FRESH_S

    def on_ids(self, start: int, end: int, now_s: float) -> None:
        """Takes the ids [start, end), which a controller lent at the monotonic time `now_s`."""
        if start < end:
            self._ids, self._lent_s = range(start, end), now_s

    def on_ids_floor(self, floor: int) -> None:
        """Forgets lent ids below `floor`: those of a cluster that is restored here count as given
        out."""
        if self._ids and self._ids.start < floor:
            self._ids = range(0)

    def open_anonymous(self, request: OpenProducerRequest) -> OpenProducerReply:
        """Gives an id to a producer without a name.

        Raises NotMaster for a producer with a name, and when no id is left.
        """
        if request.name or not self._ids:
            raise self.not_master("a broker opens producers without a name, while it has ids")
        producer_id, self._ids = self._ids[0], self._ids[1:]
        return OpenProducerReply(producer_id=producer_id, epoch=FIRST_EPOCH, lent=True)

    def check_epoch(self, number: int) -> None:
        """Raises Unavailable if a newer controller epoch is known; 0: the caller names none."""
        if 0 < number < self._epoch:
            raise Unavailable(
                f"controller epoch {number} is over, this is {self._epoch}: the request comes from "
                "a controller that was replaced"
            )
        self.on_epoch(number)

    def answer(self, request: GetRoutesRequest) -> Routes:
        """Groups and topics. Raises NotMaster without a copy, or if a topic is not in it."""
        topics = self._topics
        names = request.topics or sorted(topics)
        if not self.version or any(name not in topics for name in names):
            raise self.not_master("this broker's copy of the routes does not tell")
        return Routes(
            version=self._routes.version,
            cluster_id=self._routes.cluster_id,
            groups=self._routes.groups,
            topics=() if request.groups_only else [topics[name] for name in names],
            controllers=self._routes.controllers,
            copied=True,
        )

    async def watch(self) -> AsyncGenerator[Routes]:
        """The groups, now and after each change of them.

        Raises NotMaster without a copy, Throttled if too many watch already.
        """
        groups = GetRoutesRequest(groups_only=True)
        if self._watches >= WATCHES_MAX:
            raise Throttled(
                f"{self._watches} clients watch this broker's copy of the routes: watch another's",
                retry_after_ms=WATCH_AGAIN_MS,
            )
        place = self._watches
        self._watches += 1
        try:
            while True:
                changed = self._changed
                yield self.answer(groups)
                await changed.wait()
                if place >= PUSHES_A_SECOND // 10:
                    await asyncio.sleep(place / PUSHES_A_SECOND)
        finally:
            self._watches -= 1

    def nodes_of(self, group_id: int) -> tuple[str, ...]:
        """HOST:PORT of a broker group's nodes, the master that the copy names in front; empty if
        unknown."""
        for group in self._routes.groups:
            if group.group_id == group_id:
                nodes = sorted(group.nodes, key=lambda node: node.node_id != group.master_id)
                return tuple(node.address for node in nodes)
        return ()

    def not_master(self, why: str) -> NotMaster:
        """The error that names the active controller."""
        return NotMaster(f"{why}; ask a controller", master_address=self._active)
