"""A client's view of the cluster: its routes, its controllers, and each group's current master.

How it works. The client fetches the route of a topic at its first use and keeps it. A watch on the
controllers reports changes of masters. When a group's master fails, the client searches for the
next one (`master_search.py`). A broker's own answer with a higher term overrules a controller's.
While all controllers are down the client continues with what it knows. A client that starts
meanwhile takes the routes from a file on this machine, or from a broker whose address it was given.

Invariants
1. At most one search per group is under way, and all callers that need the master share it.
2. `call_master` only carries requests that may be repeated.

Not here: which controller to ask (`transport/controllers.py`), whom to ask for a master
(`transport/master_search.py`), what routes mean (`core/routing.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from semel.client.config import ClientConfig
from semel.client.core.retry import Backoff, BackoffPolicy
from semel.client.core.routing import Master, RouteTable, TopicRoute
from semel.client.transport.connection import BROKER, Connections
from semel.client.transport.controllers import Controllers
from semel.client.transport.fetch_streams import FetchStreams
from semel.client.transport.master_search import MasterSearch
from semel.client.transport.produce_stream import Wires
from semel.client.transport.routes_file import RoutesKeeper, find
from semel.client.transport.streams import Streams
from semel.protos import compat
from semel.protos.errors import (
    NotMaster,
    QueueMoved,
    SemelError,
    Throttled,
    TimedOut,
    Unavailable,
    UnknownGroup,
    UnknownTopic,
)
from semel.protos.ids import GroupId, TopicId
from semel.protos.security.credentials import Contexts
from semel.protos.v1 import controller_pb2

logger = logging.getLogger(__name__)

ATTEMPT_S: Final = 1.0
"""Time limit in seconds for the first attempt of a call; it doubles with each further attempt. When
it passes, the client takes the node for hung and asks the group's other nodes."""
KEPT_PATIENCE_S: Final = 1.0
"""Seconds for which the client asks controllers before it uses the routes of the file."""
CALL_POLICY: Final = BackoffPolicy(initial_ms=20, max_ms=300)


class Cluster:
    """One client's view of the cluster. Lives on the I/O thread."""

    def __init__(
        self, bootstrap: tuple[str, ...], config: ClientConfig, routes_directory: Path | None
    ) -> None:
        """`routes_directory` holds the file of routes for later clients; None keeps no file."""
        self.config = config
        self.routes = RouteTable()
        self.connections = Connections(config.level_max, config.security)
        self.streams = Streams(
            self.connections,
            direct=config.direct_streams,
            patience_s=2 * config.silence_ms / 1000,
            tls=None if config.security is None else Contexts(config.security.files),
            tls_name="" if config.security is None else config.security.tls_name(),
            place_of=self.routes.stream_place,
            watches=lambda: self.routes.watches,
        )
        self.controllers = Controllers(bootstrap, self.connections, self._brokers)
        self.wires = Wires(self)
        self.fetches = FetchStreams(self)
        self._bootstrap = bootstrap
        self._routes_directory = routes_directory
        self._keeper = RoutesKeeper(routes_directory)
        self.throttled_ms = 0.0
        """Milliseconds for which calls have waited because a node told them to come back."""
        self._guessed = False
        """All routes so far are from the file."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._searches: dict[GroupId, asyncio.Task[Master]] = {}
        self._search = MasterSearch(self)

    async def start(self) -> None:
        """Fetches the broker groups from a controller, or else from the file.

        Raises Unavailable when no controller answers in time and the file knows nothing.
        """
        request = controller_pb2.GetRoutesRequest(groups_only=True)
        timeout_s = self.config.connect_timeout_ms / 1000
        kept = None
        if self._routes_directory is not None:
            kept = await asyncio.to_thread(find, self._routes_directory, self._bootstrap)
        try:
            patience_s = timeout_s if kept is None else min(timeout_s, KEPT_PATIENCE_S)
            self._on_routes(await self.controller("GetRoutes", request, patience_s))
        except (Unavailable, TimedOut) as error:
            if kept is None:
                raise
            logger.warning("no controller answers, using the routes of before: %s", error)
            self._on_routes(kept)
            self._guessed = True
        self.spawn(self._watch(), "semel-watch-routes")
        self.spawn(self._keeper.run(), "semel-keep-routes")

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Starts a task that ends at the latest with the client."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # A waiting caller gets the error; a bug in a task that nobody awaits must be logged.
            level = logging.DEBUG if isinstance(error, SemelError) else logging.ERROR
            logger.log(level, "client task failed name=%s", task.get_name(), exc_info=error)

    async def close(self) -> None:
        """Cancels what is under way and closes the connections."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        await self._keeper.flush()
        with contextlib.suppress(TimeoutError):
            async with compat.timeout(1.0):
                await self.connections.close()

    # --- controllers ----------------------------------------------------------------------------

    async def controller(self, method: str, request: Any, timeout_s: float | None = None) -> Any:
        """Calls the active controller. Raises SemelError."""
        timeout_s = timeout_s or self.config.request_timeout_ms / 1000
        return await self.controllers.call(method, request, timeout_s, self.on_throttled)

    def on_throttled(self, wait_ms: float) -> None:
        """A call waits because a node told it to come back."""
        self.throttled_ms += wait_ms

    def _brokers(self) -> list[str]:
        """Returns HOST:PORT of all known brokers."""
        groups = self.routes.groups()
        return [address for group in groups for address in self.routes.replicas(group)]

    def _on_routes(self, routes: controller_pb2.Routes) -> None:
        if self._guessed:
            self._guessed = False
            if routes.cluster_id != self.routes.cluster_id:
                logger.warning("the file's routes were another cluster's: they are forgotten")
                self.routes.forget()
        self.routes.on_routes(routes)
        self._keeper.on_routes(routes)
        self._search.on_news()
        if routes.controllers:
            self.controllers.learn(routes.controllers)

    async def _watch(self) -> None:
        """Keeps masters and members up to date for as long as the client lives."""
        request = controller_pb2.GetRoutesRequest(groups_only=True)
        await self.controllers.watch(request, self._on_routes)

    async def topic(self, name: str, *, refresh: bool = False) -> TopicRoute:
        """Returns the route of a topic; with `refresh` the newest one that anybody tells. Raises
        UnknownTopic, and Unavailable or TimedOut if the route was never fetched and no controller
        answers."""
        known = self.routes.topic(name)
        if known is not None and not refresh:
            return known
        request = controller_pb2.GetRoutesRequest(topics=[name])
        try:
            self._on_routes(await self.controller("GetRoutes", request))
        except UnknownTopic:
            self.on_topic_gone(name, None if known is None else known.topic_id)
            raise
        except (Unavailable, TimedOut):
            if known is None:
                raise
        found = self.routes.topic(name)
        if found is None:
            raise UnknownTopic(f"there is no topic {name!r}")
        return found

    async def every_topic(self) -> list[TopicRoute]:
        """Fetches the routes of all topics that this client may see. Raises SemelError."""
        routes = await self.controller("GetRoutes", controller_pb2.GetRoutesRequest())
        self._on_routes(routes)
        found = (self.routes.topic(topic.name) for topic in routes.topics)
        return [topic for topic in found if topic is not None]

    def on_topic_gone(self, name: str, topic_id: TopicId | None) -> None:
        """The topic does not exist any more, as a broker or a controller reported. `topic_id` is
        that of the one that is gone, if it was known: another may have its name by now."""
        if topic_id is not None:
            self.routes.on_topic_gone(name, topic_id)
        self._keeper.on_topic_gone(name)

    @property
    def is_one_of_many(self) -> bool:
        """Whether so many clients use the cluster that none may do at once what all do."""
        return self._search.is_one_of_many()

    # --- brokers --------------------------------------------------------------------------------

    async def master(self, group_id: GroupId) -> Master:
        """Returns the group's master; waits until there is one. Raises UnknownGroup when the
        controllers do not know the group, and UnsupportedVersion when this client cannot speak to
        any node of it."""
        known = self.routes.master(group_id)
        if known is not None:
            return known
        search = self._searches.get(group_id)
        if search is None or search.done():
            search = self.spawn(self._search.find(group_id), f"semel-search-{group_id}")
            self._searches[group_id] = search
        return await asyncio.shield(search)

    async def look_up(self, group_id: GroupId) -> None:
        """Fetches the groups for one that is not in the routes: a queue may have moved to a group
        that is new. Raises UnknownGroup if the controllers do not know it either."""
        request = controller_pb2.GetRoutesRequest(groups_only=True)
        try:
            routes = await self.controller("GetRoutes", request)
        except SemelError as error:
            if not error.retriable:
                raise
            logger.info("group not found group=%s error=%s", group_id, error.message)
            return
        self._on_routes(routes)
        # A broker's copy may be older than the group.
        if not self.routes.replicas(group_id) and not routes.copied:
            raise UnknownGroup(f"no broker group {group_id} in the routes")

    def on_master_error(self, group_id: GroupId, master: Master, error: SemelError) -> None:
        """Handles the error of a call or stream to `master`: takes its hint, or searches again. One
        that has no time for a client is still the master."""
        if isinstance(error, Throttled):
            return
        if isinstance(error, NotMaster) and error.master_address:
            known = self.routes.master(group_id)
            stale = error.master_address == master.address and error.term <= master.term
            if not stale and (known is None or known == master):
                if error.term == master.term:
                    self.routes.on_master_failed(group_id, master)
                if self.routes.on_hint(group_id, error.master_address, error.term, error.master_id):
                    return
        self.routes.on_master_failed(group_id, master)

    async def call_master(
        self,
        group_id: GroupId,
        method: str,
        request: Any,
        timeout_s: float | None = None,
        *,
        service: type[Any] = BROKER,
    ) -> Any:
        """Calls the group's master, repeatedly until it answers. Raises SemelError."""
        timeout_s = timeout_s or self.config.request_timeout_ms / 1000
        deadline = time.monotonic() + timeout_s
        backoff = Backoff(CALL_POLICY, random.random)
        last: SemelError | None = None
        attempt_s = ATTEMPT_S
        while True:
            try:
                async with compat.timeout_at(self._loop_time(deadline)):
                    master = await self.master(group_id)
            except TimeoutError:
                reason = f": {last.message}" if last is not None else ""
                raise Unavailable(
                    f"broker group {group_id} has no master for {timeout_s:g} s{reason}"
                ) from None
            left = min(attempt_s, max(0.001, deadline - time.monotonic()))
            attempt_s *= 2
            try:
                return await self.connections.call(master.address, service, method, request, left)
            except (NotMaster, Unavailable, TimedOut) as error:
                last = error
                self.on_master_error(group_id, master, error)
                wait = backoff.next_ms() / 1000
            except QueueMoved as error:
                self.routes.on_moved(error)
                raise
            except Throttled as error:
                if not error.retriable:
                    raise
                last = error
                wait = max(error.retry_after_ms, backoff.next_ms()) / 1000
                self.on_throttled(wait * 1000)
            if time.monotonic() + wait >= deadline:
                raise last
            await asyncio.sleep(wait)

    def _loop_time(self, deadline: float) -> float:
        return asyncio.get_running_loop().time() + max(0.0, deadline - time.monotonic())

    async def call_node(self, address: str, method: str, request: Any, timeout_s: float) -> Any:
        """Calls one broker node, once. Raises SemelError."""
        return await self.connections.call(address, BROKER, method, request, timeout_s)
