"""One controller: its parts, wired in the order in which they start and stop.

How it works. `async with ControllerNode(config) as node` opens the store, takes office, reads
everything, starts the server and then the drivers of unfinished topics. `node.failed()` returns
when it cannot go on. Leaving the block stops the server first (watches end, running calls get
`stop_ms`), then the drivers, then the store.

There is one controller for now, so it takes office at its start. With several, an elected one runs
everything between `Office.take` and the end of office; the others answer NotMaster.

Not here: flags, environment, signals (`__main__.py`).
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final

import grpc.aio

from semel.controller.brokers import BrokerCaller
from semel.controller.config import ControllerConfig, split_address
from semel.controller.memberships import MembershipService
from semel.controller.office import Office
from semel.controller.probe import Probe
from semel.controller.producers import ProducerService
from semel.controller.registry import BrokerRegistry
from semel.controller.routes import RouteTable
from semel.controller.server import Changes, ControllerService
from semel.controller.store import MetadataStore, SqliteStore
from semel.controller.topics import TopicService
from semel.protos.errors import InternalError, SemelError, Unavailable
from semel.protos.metrics import MetricsServer
from semel.protos.rpc import SERVER_OPTIONS, Authenticate, ServerInterceptor, client_interceptors
from semel.protos.v1.controller_pb2 import ControllerStatus
from semel.protos.v1.controller_pb2_grpc import add_ControllerServicer_to_server

log = logging.getLogger(__name__)

RECONCILE_S: Final = 5.0
"""How often unfinished topics without a driver are looked for; there should be none."""


def monotonic_ms() -> int:
    """The clock of sessions and reports."""
    return time.monotonic_ns() // 1_000_000


def wall_us() -> int:
    """The clock of what people read."""
    return time.time_ns() // 1_000


class ControllerNode:
    """A running controller. Tests give it a store, clocks, an authenticator."""

    def __init__(
        self,
        config: ControllerConfig,
        *,
        store: MetadataStore | None = None,
        clock: Callable[[], int] = monotonic_ms,
        loop_clock: Callable[[], int] = monotonic_ms,
        clock_us: Callable[[], int] = wall_us,
        authenticate: Authenticate | None = None,
    ) -> None:
        """A given `store` stays open when the node ends."""
        self.config = config
        self.address = ""
        """HOST:PORT under which it is reached, once it serves."""
        self.cluster_id = ""
        self.metrics_address = ""
        """HOST:PORT of `GET /metrics`, once it serves; empty when it was not asked for."""
        self._given_store = store
        self._clock = clock
        self._loop_clock = loop_clock
        self._clock_us = clock_us
        self._authenticate = authenticate
        self._failed: asyncio.Future[SemelError] | None = None
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> ControllerNode:
        """Raises DataDirectoryError, and Unavailable when the port cannot be had."""
        try:
            await self._start()
        except BaseException:
            await self._exits.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._exits.aclose()

    async def failed(self) -> SemelError:
        """Returns when the controller cannot go on, with the reason."""
        assert self._failed is not None
        return await asyncio.shield(self._failed)

    async def _start(self) -> None:
        exits, config = self._exits, self.config
        self._failed = asyncio.get_running_loop().create_future()
        _check_free(config.listen)
        store = self._given_store
        if store is None:
            store = await SqliteStore.open(config.data)
            exits.push_async_callback(store.close)
        office = await Office.take(store, now_us=self._clock_us(), cluster_id=config.cluster_id)
        self.cluster_id = office.cluster_id

        changes = Changes()
        routes = RouteTable(office.cluster_id, office.number, changes.notify)
        memberships = MembershipService(
            office, routes, clock=self._clock, loop_clock=self._loop_clock
        )
        registry = BrokerRegistry(
            office,
            routes,
            report_timeout_ms=config.node_timeout_ms,
            clock=self._clock,
            placed=lambda: topics.placed(),
            on_new_master=lambda group_id: topics.on_new_master(group_id),
        )
        brokers = BrokerCaller(
            cluster_id=office.cluster_id,
            addresses=registry.addresses,
            timeout_s=config.broker_call_timeout_ms / 1000,
            interceptors=client_interceptors(),
        )
        exits.push_async_callback(brokers.close)
        topics = TopicService(
            office,
            routes,
            registry,
            brokers,
            clock_us=self._clock_us,
            on_change=memberships.on_topic_changed,
        )
        await registry.load()
        await topics.load()
        await memberships.load()

        controllers: list[ControllerStatus] = []
        service = ControllerService(
            routes=routes,
            changes=changes,
            registry=registry,
            topics=topics,
            producers=ProducerService(office, clock_us=self._clock_us),
            memberships=memberships,
            controllers=controllers,
            request_timeout_s=config.request_timeout_ms / 1000,
            version=importlib.metadata.version("semel"),
        )
        exits.push_async_callback(topics.stop)
        running = asyncio.ensure_future(self._run(store, office, topics, memberships))
        exits.push_async_callback(_cancel, running)
        await self._serve(service)
        await self._serve_metrics(
            Probe(config.controller_id, office, routes, registry, topics, memberships)
        )
        exits.callback(changes.close)  # first of all: the watches end, then the server
        controllers.append(
            ControllerStatus(
                controller_id=config.controller_id, address=self.address, role="master"
            )
        )
        topics.start()
        log.info("controller serves address=%s cluster=%s", self.address, self.cluster_id)

    async def _serve(self, service: ControllerService) -> None:
        config = self.config
        host, port = split_address(config.listen)
        server = grpc.aio.server(
            interceptors=[ServerInterceptor(self._authenticate)], options=SERVER_OPTIONS
        )
        add_ControllerServicer_to_server(service, server)
        shown = f"[{host}]" if ":" in host else host
        try:
            port = server.add_insecure_port(f"{shown}:{port}")
        except RuntimeError as error:
            raise Unavailable(f"cannot listen on {config.listen}: {error}") from error
        self._exits.push_async_callback(_stop_server, server, config.stop_ms / 1000)
        await server.start()
        self.address = config.advertise or f"{shown}:{port}"
        if not config.loopback:
            log.warning(
                "EVERYBODY WHO REACHES %s MAY READ, WRITE AND DELETE EVERYTHING: callers are not "
                "asked who they are. Listen on 127.0.0.1, or keep strangers off by other means",
                config.listen,
            )

    async def _serve_metrics(self, probe: Probe) -> None:
        config = self.config
        if config.metrics_port is None:
            return
        host, _ = split_address(config.listen)
        metrics = MetricsServer(host, config.metrics_port, probe.page)
        try:
            await metrics.start()
        except OSError as error:
            raise Unavailable(str(error)) from error
        self._exits.push_async_callback(metrics.close)
        self.metrics_address = metrics.address

    async def _run(
        self,
        store: MetadataStore,
        office: Office,
        topics: TopicService,
        memberships: MembershipService,
    ) -> None:
        """What goes on all the time; ends only by cancellation or with the controller's end."""
        assert self._failed is not None
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(memberships.run())
                tasks.create_task(_reconcile(topics))
                tasks.create_task(_raise(office.wait_over()))
                tasks.create_task(_raise(store.wait_failed()))
        except Exception as error:
            leaf: BaseException = error
            while isinstance(leaf, BaseExceptionGroup):
                leaf = leaf.exceptions[0]
            if not isinstance(leaf, SemelError):
                log.exception("controller must end")
                leaf = InternalError(f"controller must end: {leaf!r}")
            self._failed.set_result(leaf)


async def _raise(error: Awaitable[SemelError]) -> None:
    raise await error


async def _reconcile(topics: TopicService) -> None:
    while True:
        await asyncio.sleep(RECONCILE_S)
        topics.start()


async def _stop_server(server: grpc.aio.Server, grace_s: float) -> None:
    """Ends the server, at the latest twice `grace_s` from now: the process is about to end."""
    try:
        async with asyncio.timeout(2 * grace_s):
            await server.stop(grace_s)
    except TimeoutError:
        log.warning("server did not stop in time")


async def _cancel(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _check_free(listen: str) -> None:
    """Raises Unavailable with the system's reason when the address cannot be had.

    gRPC tells only that it failed, and writes the reason to stderr.
    """
    host, port = split_address(listen)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise Unavailable(
            f"cannot listen on {listen}: {reason}. Choose another address with --listen"
        ) from error
