"""One controller: its store, its server and its succession, wired in the order of start and stop.

How it works. `async with ControllerNode(config) as node` opens the store, starts the server and
enters the group; the server runs all the time, whether this controller is active or a standby. The
store's hints about the mastership decide that (`active/succession.py`). `node.failed()` returns
when the controller cannot go on. Leaving the block ends watches, stops the server (running calls
get `stop_ms`), ends the active controller, then closes the store.

Not here: what the active controller does (`active/active_controller.py`), flags, environment,
signals (`__main__.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any

import grpc.aio

from semel.controller.active.active_controller import ActiveController, Clocks
from semel.controller.active.succession import Succession
from semel.controller.config import CHANGEABLE, EMBEDDED, ControllerConfig
from semel.controller.opening import open_store
from semel.controller.probe import LoginCounts, Probe
from semel.controller.server import ControllerService, Restart
from semel.controller.store import ControllerAddress, MetadataStore
from semel.protos import compat, listening
from semel.protos.addresses import Address
from semel.protos.call_gates import CallGates
from semel.protos.common_probe import CommonProbe
from semel.protos.connection_limits import ConnectionLimits
from semel.protos.errors import InternalError, InvalidRequest, SemelError, Unavailable
from semel.protos.grpc_port import GrpcPortWatch, bind, server_options
from semel.protos.levels import own_levels
from semel.protos.live_settings import serve_settings
from semel.protos.metrics import MetricsServer
from semel.protos.rpc import ServerInterceptor
from semel.protos.security.access import AccessControl
from semel.protos.security.audit import AuditLog
from semel.protos.security.audit_service import serve_audit
from semel.protos.security.call_quotas import CallQuotas
from semel.protos.security.credentials import Contexts
from semel.protos.security.guard import Guard
from semel.protos.security.meters import Meters
from semel.protos.security.rules import Kind
from semel.protos.v1.controller_pb2_grpc import add_ControllerServicer_to_server
from semel.protos.v1.metadata_pb2 import RightsRecord

log = logging.getLogger(__name__)


def monotonic_ms() -> int:
    """The clock of sessions and reports."""
    return time.monotonic_ns() // 1_000_000


def wall_us() -> int:
    """The wall clock, for people."""
    return time.time_ns() // 1_000


class ControllerNode:
    """A running controller. Tests pass a store and clocks."""

    def __init__(
        self,
        config: ControllerConfig,
        *,
        store: MetadataStore | None = None,
        clock: Callable[[], int] = monotonic_ms,
        loop_clock: Callable[[], int] = monotonic_ms,
        clock_us: Callable[[], int] = wall_us,
    ) -> None:
        """A given `store` stays open when the node ends."""
        self.config = config
        self.address = ""
        """HOST:PORT under which it is reached, once it serves."""
        self.port = 0
        """The port on which it listens, once it serves."""
        self.metrics_address = ""
        """HOST:PORT of `GET /metrics`, once it serves; empty when no metrics port is set."""
        self._given_store = store
        self._clocks = Clocks(sessions_ms=clock, loop_ms=loop_clock, wall_us=clock_us)
        self._succession: Succession | None = None
        self.login_address = ""
        """HOST:PORT on which clients log in, once it serves; empty when they cannot."""
        self._access: AccessControl | None = None
        self._audit: AuditLog | None = None
        self._logins: LoginCounts | None = None
        self._meters: Meters | None = None
        self._failed: asyncio.Future[SemelError] | None = None
        self.restart_asked = asyncio.Event()
        """Set once the process is to end and to start its program anew."""
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> ControllerNode:
        """Raises DataDirectoryError, and Unavailable when the port cannot be bound."""
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

    @property
    def cluster_id(self) -> str:
        """The id of the cluster; "" as long as neither the flags nor the store have named it."""
        return self._succession.cluster_id if self._succession is not None else ""

    @property
    def is_active(self) -> bool:
        """Whether it is the active controller now."""
        return self._succession is not None and self._succession.is_active

    async def _start(self) -> None:
        exits, config = self._exits, self.config
        self._failed = asyncio.get_running_loop().create_future()
        listening.check_free(config.listen, "--listen")  # before the store is opened
        store = self._given_store
        if store is None:
            store = await open_store(config)
            exits.push_async_callback(store.close)
        succession = self._succession = Succession(
            store,
            lambda: self._begin(store),
            cluster_id=config.cluster_id,
            level_max=config.level_max,
        )
        guard = Guard(config.security)
        gates = CallGates(config.calls_waiting_max)
        self.grpc_port = GrpcPortWatch(
            ConnectionLimits(
                per_address_max=config.connections_per_address_max,
                in_all_max=config.connections_max,
            )
        )
        exits.callback(self.grpc_port.close)
        await self._open_audit()
        access = self._open_access(succession, guard)
        meters = self._meters = Meters(asyncio.get_running_loop().time)
        service = ControllerService(
            succession,
            request_timeout_s=config.request_timeout_ms / 1000,
            level_max=config.level_max,
            watches_max=lambda: config.watches_max,
            guard=guard,
            access=access,
            audit=self.audit,
            meters=meters,
            started_us=self._clocks.wall_us(),
            restart=Restart(config.controller_id, self.restart_asked.set),
        )
        server = grpc.aio.server(
            interceptors=[
                ServerInterceptor(
                    own_levels(config.level_max),
                    self.grpc_port.noting(guard.admit),
                    CallQuotas(meters, None if access is None else access.checks),
                    gates,
                )
            ],
            options=server_options(self.grpc_port.connections.limits),
        )
        add_ControllerServicer_to_server(service, server)
        serve_settings(
            server, config, CHANGEABLE, lambda: succession.cluster_id, service.check_administrator
        )
        serve_audit(
            server, config.audit_log, lambda: succession.cluster_id, service.check_administrator
        )
        store.attach(server)
        listen = bind(server, config.listen, config.security)
        self.port, self.address = listen.port, config.advertise or str(listen)
        running: list[asyncio.Future[None]] = []
        exits.push_async_callback(_cancel, running)
        exits.push_async_callback(_stop_server, server, config.stop_ms / 1000)
        watching: list[asyncio.Future[None]] = []
        exits.push_async_callback(_cancel, watching)  # watches end first, then the server
        health = self._health(server)
        await server.start()
        await self._serve_metrics(
            succession, CommonProbe(gates, self.grpc_port, security=config.security)
        )
        exits.callback(succession.close_watches)  # the watches end first, then the server
        await store.start(
            ControllerAddress(controller_id=config.controller_id, address=self.address)
        )
        watching += [asyncio.ensure_future(run()) for run in health]
        running.append(asyncio.ensure_future(self._run(store, succession)))
        await self._decided(succession)
        await self._serve_logins(succession)
        log.info("controller serves address=%s active=%s", self.address, succession.is_active)

    async def _begin(self, store: MetadataStore) -> ActiveController:
        assert self._succession is not None
        controllers = self._succession.controllers
        return await ActiveController.begin(
            store, self.config, self._clocks, controllers, self._take_rights
        )

    def _take_rights(self, record: RightsRecord) -> None:
        """From now on these rules and quotas decide."""
        assert self._meters is not None
        if self._access is not None:
            self._access.take(record)
        self._meters.take(record)

    async def _open_audit(self) -> None:
        """Raises Unavailable."""
        if self.config.audit_log is None:
            return
        try:
            self._audit = await asyncio.to_thread(AuditLog, self.config.audit_log, time.time)
        except OSError as error:
            raise Unavailable(f"cannot open the audit log: {error}") from error
        self._exits.push_async_callback(asyncio.to_thread, self._audit.close)

    def audit(self, event: Mapping[str, str | int | bool]) -> None:
        """Writes a line into the audit log, if there is one."""
        if self._audit is not None:
            self._audit.write(event)

    def _open_access(self, succession: Succession, guard: Guard) -> AccessControl | None:
        """The check of rules, if there is to be one."""
        config = self.config
        if config.authorization:
            self._access = AccessControl(
                config.cluster_id, guard, _Names(), self._audit, lambda: succession.is_active
            )
        return self._access

    async def _serve_logins(self, succession: Succession) -> None:
        """Opens the port for logins, if there is to be one. Raises InvalidRequest for its files."""
        if not self.config.login_listen:
            return
        try:
            from semel.controller.login.login_port import LoginPort
            from semel.controller.login.scram_logins import ScramFacts
        except ImportError as error:
            raise InvalidRequest(
                f"logins need {error.name}, which is not installed: pip install 'semel[security]'"
            ) from None

        async def hash_of(user: str) -> str | None:
            return await succession.active().users.hash_of(user)

        async def scram_of(user: str, mechanism: str) -> ScramFacts:
            secret, verifier = await succession.active().users.scram_of(user, mechanism)
            return ScramFacts(secret=secret, verifier=verifier)

        port = await asyncio.to_thread(LoginPort, self.config, hash_of, scram_of, self.audit)
        self._exits.push_async_callback(port.close)
        await port.serve()
        self._logins = port.service
        self.login_address = port.address

    async def _serve_metrics(self, succession: Succession, common: CommonProbe) -> None:
        config = self.config
        if config.metrics_port is None:
            return
        host = Address.parse(config.listen).host
        probe = Probe(
            config.controller_id,
            succession.active_or_none,
            self._access,
            self._audit,
            lambda: self._logins,
            common,
        )
        metrics = MetricsServer(
            host,
            config.metrics_port,
            probe.page,
            self._why_not_ready,
            tls=None if config.security is None else Contexts(config.security.files),
            cluster=config.cluster_id,
        )
        await metrics.start()
        self._exits.push_async_callback(metrics.close)
        self.metrics_address = metrics.address

    def _health(self, server: grpc.aio.Server) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """Adds gRPC's health service to the server; what is returned must run meanwhile."""
        try:
            from semel.protos.health import serve_health
        except ImportError:
            log.info("there is no health service of gRPC: it needs semel[broker]")
            return []
        names = ["Audit", "Controller", "Settings"]
        if self._given_store is None and self.config.metadata_kind == EMBEDDED:
            names.append("MetadataGroup")
        services = [f"semel.protos.v1.{name}" for name in names]
        return [serve_health(server, self._why_not_ready, services)]

    def _why_not_ready(self) -> str:
        """A sentence that says what is missing; empty if the controller is ready."""
        decided = self._succession is not None and self._succession.decided.is_set()
        return "" if decided else "no active controller is known yet"

    async def _decided(self, succession: Succession) -> None:
        """Waits for the store's first hint. Raises the error that ends the controller before
        that."""
        assert self._failed is not None
        decided = asyncio.ensure_future(succession.decided.wait())
        waiting: set[asyncio.Future[Any]] = {decided, self._failed}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        decided.cancel()
        if self._failed.done():
            raise self._failed.result()

    async def _run(self, store: MetadataStore, succession: Succession) -> None:
        """Runs all background tasks; ends by cancellation, or with an error that ends the
        controller."""
        assert self._failed is not None
        try:
            async with compat.TaskGroup() as tasks:
                tasks.create_task(succession.run())
                tasks.create_task(_raise(store.wait_failed()))
        except Exception as error:
            leaf: BaseException = error
            while isinstance(leaf, BaseExceptionGroup):
                leaf = leaf.exceptions[0]
            if not isinstance(leaf, SemelError):
                log.exception("controller must end")
                leaf = InternalError(f"controller must end: {leaf!r}")
            self._failed.set_result(leaf)


class _Names:
    """No message to a controller names a resource by a number."""

    def name_of(self, kind: Kind, number: int) -> str | None:
        return None


async def _raise(error: Awaitable[SemelError]) -> None:
    raise await error


async def _stop_server(server: grpc.aio.Server, grace_s: float) -> None:
    """Ends the server, at the latest after twice `grace_s`: the process is about to end."""
    try:
        async with compat.timeout(2 * grace_s):
            await server.stop(grace_s)
    except TimeoutError:
        log.warning("server did not stop in time")


async def _cancel(tasks: list[asyncio.Future[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
