"""One broker node: opens its data, wires the replica to gRPC, starts and stops everything.

How it works. Opening reads the disk: identity, log, hard state, newest checkpoint. Then the server
listens, links to the peers open, and the replica ticks. A node whose data directory is new first
asks controllers and peers whether the group has a history: if it has, nobody may count this node
until it has caught up (`membership/status.py`). Links to the peers follow the members that the log
names.

Order of stopping: a master hands mastership over, background work ends and waiting requests get an
error, the server stops, streams end, the log syncs and closes.

Not here: what happens while running (`replica/driver.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from semel.broker.background.compaction_passes import QueueCompaction
from semel.broker.background.delayed_parting import DelayedParting
from semel.broker.background.delayed_release import DelayedRelease
from semel.broker.background.maintenance import maintain
from semel.broker.background.memory_bodies import MemoryBodies
from semel.broker.background.memory_bounds import MemoryBounds
from semel.broker.background.tier_garbage import TierGarbage
from semel.broker.background.tiering import Tiering
from semel.broker.background.transaction_work import TransactionWork
from semel.broker.config import CHANGEABLE, BrokerConfig
from semel.broker.control_plane.group_calls import GroupCalls
from semel.broker.control_plane.producer_owners import open_owners
from semel.broker.control_plane.reports import Registration
from semel.broker.control_plane.rights_copy import open_access, rights_copy
from semel.broker.control_plane.route_cache import RoutesCopy
from semel.broker.dedup.id_store import IdStore
from semel.broker.dedup.rocks_store import RocksIdStore
from semel.broker.identity import NodeIdentity
from semel.broker.log import FileLayer, HardStateFile, Log, OsFiles
from semel.broker.membership.asking import ask_members
from semel.broker.membership.changes import MembershipChanges
from semel.broker.membership.members_service import MembersService
from semel.broker.membership.status import MembershipStatus
from semel.broker.probe import Probe
from semel.broker.quotas.broker_quotas import BrokerQuotas
from semel.broker.raft import Role
from semel.broker.readiness import why_not_ready
from semel.broker.repair.quarantine import move_away, quarantine
from semel.broker.repair.repair import Repair
from semel.broker.repair.scrub import Scrub
from semel.broker.replica.driver import TICK_MS
from semel.broker.replica.fatal import end_process
from semel.broker.replica.member_book import Members
from semel.broker.replica.newest_state import newest_state
from semel.broker.replica.pools import Pools
from semel.broker.replica.replica import Replica
from semel.broker.replication.receiver import PeerPort
from semel.broker.replication.sender import PeerLink
from semel.broker.server.broker_service import SERVICES, BrokerService
from semel.broker.server.delay_calls import DelayCalls
from semel.broker.server.direct import DirectStreams
from semel.broker.server.fetch import FetchHandler
from semel.broker.server.group_offsets import GroupOffsetCalls
from semel.broker.server.id_calls import IdCalls
from semel.broker.server.id_window_calls import IdWindowCalls
from semel.broker.server.lock_calls import LockCalls
from semel.broker.server.mirrors_service import MirrorsService
from semel.broker.server.moves_service import MovesService
from semel.broker.server.node_status import NodeStatusCall
from semel.broker.server.parting_calls import PartingCalls
from semel.broker.server.produce import ProduceHandler
from semel.broker.server.producer_calls import ProducerCalls
from semel.broker.server.queue_calls import QueueCalls
from semel.broker.server.restores_service import RestoresService
from semel.broker.server.routes import routes_handler
from semel.broker.server.stream_handlers import direct_handlers, stream_handlers
from semel.broker.server.transactions_service import TransactionsService
from semel.broker.snapshots.checkpoints import Checkpoints
from semel.broker.snapshots.id_pull import IdPull
from semel.broker.snapshots.install import CatchUp
from semel.broker.snapshots.snapshot_service import SnapshotService
from semel.broker.state import State
from semel.broker.tiers.cold_reads import ColdReads
from semel.broker.tiers.place import TierPlace
from semel.protos import compat
from semel.protos.addresses import Address
from semel.protos.call_gates import CallGates
from semel.protos.common_probe import CommonProbe
from semel.protos.connection_limits import ConnectionLimits, Connections
from semel.protos.errors import CorruptSegment, SemelError, Unavailable
from semel.protos.grpc_port import GrpcPortWatch, bind, server_options
from semel.protos.health import serve_health
from semel.protos.ids import NodeId
from semel.protos.listening import cannot_listen
from semel.protos.live_settings import serve_settings
from semel.protos.metrics import MetricsServer
from semel.protos.rpc import ServerInterceptor
from semel.protos.security.audit_service import serve_audit
from semel.protos.security.call_quotas import CallQuotas
from semel.protos.security.credentials import Contexts
from semel.protos.security.networks import Networks
from semel.protos.v1 import (
    broker_pb2_grpc,
    mirrors_pb2_grpc,
    raft_pb2_grpc,
    restores_pb2_grpc,
    transactions_pb2_grpc,
)

logger = logging.getLogger(__name__)

_UNPACKERS = 2
"""Threads that unpack compressed batches, to see whether readers can."""
_HAND_OVER_S = 1.0
_STOP_GRACE_S = 0.5


class BrokerNode:
    """`async with BrokerNode(config) as node: await node.failed()`.

    Raises DataDirectoryError, CorruptSegment, DiskFull, Unavailable (port in use) or OSError if it
    cannot start; then nothing of it keeps running.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        files: FileLayer | None = None,
        open_id_store: Callable[[], IdStore] | None = None,
    ) -> None:
        """All of the node's data goes through `files`, by default the operating system's, but for
        the index of message ids, which by default is in RocksDB."""
        self.config = config
        self.address = config.listen
        self.metrics_address = ""
        """HOST:PORT of `GET /metrics` once it serves; empty if it was not asked for."""
        self._files = files or OsFiles()
        self._open_id_store = open_id_store or partial(RocksIdStore, config.data / "ids")
        self._stack = contextlib.AsyncExitStack()
        self._tasks: set[asyncio.Task[None]] = set()
        self._links: dict[NodeId, tuple[str, asyncio.Task[None]]] = {}
        self._fatal: asyncio.Future[str] | None = None
        self._tls = None if config.security is None else Contexts(config.security.files)
        self._plaintext_within = Networks.parse(config.replication_plaintext_within)
        if self._plaintext_within:
            logger.warning(
                "REPLICATES IN PLAINTEXT WITHIN %s: whoever listens there reads all messages",
                ", ".join(config.replication_plaintext_within),
            )
        self.identity = NodeIdentity(config, self._files)
        self._log_lost = False
        """The directory names a founding but has no log."""

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        # With the default of 5 ms, a thread that returns from fdatasync would wait that long.
        sys.setswitchinterval(0.0005)
        self._fatal = loop.create_future()
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        gc.collect()
        gc.freeze()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._hand_over()
        except (Exception, asyncio.CancelledError):
            # The caller is cancelled, or the replica has failed. (No `finally`: a coroutine that is
            # thrown away cannot await anything.)
            await self._stack.aclose()
            raise
        await self._stack.aclose()

    async def failed(self) -> str:
        """Returns why this process must end, if it ever must."""
        assert self._fatal is not None
        return await self._fatal

    def _on_fatal(self, reason: str) -> None:
        """Any thread: ends the process. After a failed write nothing in memory can be trusted."""
        end_process(reason)

    async def _open(self) -> None:
        config = self.config
        loop = asyncio.get_running_loop()
        pools = Pools.opened(self._stack.callback)
        self.readers = pools.group
        limits = ConnectionLimits(
            per_address_max=config.connections_per_address_max, in_all_max=config.connections_max
        )
        self.gates = CallGates(config.calls_waiting_max)
        self.grpc_port = GrpcPortWatch(limits)
        self._stack.callback(self.grpc_port.close)
        self._stream_connections = Connections(limits, "streams")
        self._tier = (
            TierPlace(config.tier, config.cluster_id, awaits_restore=config.tier_restore)
            if config.tier
            else None
        )
        if self._tier is not None:
            await self._tier.open()
        self._files.make_directory(config.data)
        log = await loop.run_in_executor(self.readers, self._open_log)
        self._stack.push_async_callback(loop.run_in_executor, None, log.close)
        state, logged = await loop.run_in_executor(
            self.readers, newest_state, log, config.level_max
        )
        founding, joins = await self._founding(state, logged)
        known = next(reversed(logged.values()), Members.of_state(state.membership) or founding)
        alone = set(known.addresses) == {config.node_id}
        if alone and (torn := log.cut_torn()) is not None:
            logger.warning("torn write at the log's end cut, never acknowledged index=%d", torn)
        hard_state = self._open_hard_state(alone=alone)
        self.replica = Replica(
            config,
            log=log,
            hard_state=hard_state,
            state=state,
            founding=founding,
            logged_members=logged,
            readers=self.readers,
            pools=pools,
            on_fatal=self._on_fatal,
            open_id_store=self._open_id_store,
        )
        replica = self.replica
        self._stack.push_async_callback(loop.run_in_executor, None, replica.ids.close)
        await loop.run_in_executor(self.readers, replica.ids.follow)
        self._start(replica.ids.run())
        status = self._status = MembershipStatus(
            config, replica, self._files, self.identity, hard_state
        )
        log_lost = self._log_lost
        if await loop.run_in_executor(
            self.readers, lambda: status.begin(log_lost=log_lost, joins=joins)
        ):
            replica.core.set_non_counting(True)
        status.on_refounded = self._on_refounded
        self.checkpoints = Checkpoints(replica)
        self.scrub = Scrub(replica, self.checkpoints, self.identity.check_disk)
        self.changes = MembershipChanges(config, replica)
        self.compaction = QueueCompaction(replica)
        rate = config.catch_up_bytes_per_second
        self.memory = MemoryBodies(replica, self.identity.caller, bytes_per_second=rate)
        self.memory_bounds = MemoryBounds(replica)
        self.parting = DelayedParting(replica)
        await self._serve()
        self._stack.push_async_callback(self._cancel_tasks)
        self._start(status.run())
        self.registration = Registration(
            config,
            replica,
            config.advertise or self.address,
            self._direct.port,
            self._routes,
            self._probe.counters,
            self.identity,
            self._rights.begin,
        )
        self.replica.on_role_changed = self.registration.report_now
        self.replica.feature_levels.on_raised = self._on_level_raised
        replica.peers.on_changed = self._on_members_changed
        self._follow_members()
        self._start(self.registration.run())
        self._start(maintain(self.replica, self.checkpoints, self.changes))
        self._start(self._transactions.run())
        self._start(DelayedRelease(self.replica).run())
        self._start(self.parting.run())
        self._start(self.compaction.run())
        self._start(IdPull(self.replica, self.identity.caller, bytes_per_second=rate).run())
        self._start(self.memory.run())
        self._start(self.memory_bounds.run())
        self._start(Repair(self.replica, self.catch_up.rebuild, self.identity).run())
        self._start(self.scrub.run())
        if self._tier is not None:
            self._start(self._tier.run())
            self._start(Tiering(replica, self._tier).run())
            self._start(TierGarbage(replica, self._tier).run())
        self._start(self._tick())
        await self._serve_metrics()

    def _open_log(self) -> Log:
        """Opens the log. One beyond repair goes to quarantine if there are peers to copy from."""
        config, directory = self.config, self.config.data / "log"
        self.identity.open()
        self._log_lost = bool(self.identity.founding) and not _has_log(self._files, config.data)
        try:
            return Log.open(directory, config.log, files=self._files)
        except CorruptSegment as error:
            if len(config.members) == 1 and not config.join:
                raise
            quarantine(self._files, config.data, directory.name, error)
            return Log.open(directory, config.log, files=self._files)

    def _open_hard_state(self, *, alone: bool) -> HardStateFile:
        """Opens term and vote. Beyond repair, they go to quarantine, and nobody counts the node."""
        config, path = self.config, self.config.data / "hard_state"
        hard_state = HardStateFile(path, self._files)
        try:
            hard_state.load()
        except CorruptSegment as error:
            # A node that is alone votes for nobody else, and its log tells which terms it had.
            (move_away if alone else quarantine)(self._files, config.data, path.name, error)
        return hard_state

    async def _founding(self, state: State, logged: Mapping[int, Members]) -> tuple[Members, str]:
        """The members before any were logged, and the founding that a node joins.

        A node that joins asks for both until its own log names the members.
        """
        config = self.config
        if not config.join:
            return Members(voters=config.members), ""
        known = Members.of_state(state.membership) or next(iter(logged.values()), None)
        return await ask_members(config) if known is None else (known, "")

    async def _serve(self) -> None:
        """Starts the gRPC server. Raises Unavailable when a port is in use."""
        replica, config = self.replica, self.config
        self._routes = RoutesCopy()
        self.catch_up = CatchUp(
            replica,
            self.checkpoints,
            self.identity,
            bytes_per_second=config.catch_up_bytes_per_second,
            start_task=self._keep,
        )
        replica.driver.on_snapshot_offer = self.catch_up.on_offer
        unpackers = ThreadPoolExecutor(_UNPACKERS, thread_name_prefix="unpacker")
        self._stack.callback(unpackers.shutdown, wait=True, cancel_futures=True)
        guard = self.identity.guard
        access = await open_access(config, guard, replica, self._routes, self._stack)
        enforcer = None if access is None else access.enforcer
        quotas = BrokerQuotas(replica, asyncio.get_running_loop().time)
        self._rights = await rights_copy(
            config, replica, self._routes, access, quotas.meters, self._files
        )
        self._start(self._rights.run())
        owners = open_owners(config, replica, self._routes, access, self._stack)
        self._produce = produce = ProduceHandler(replica, unpackers, enforcer, quotas)
        replica.mastership.on_lost = produce.on_mastership_lost
        peer_port = PeerPort(
            replica.driver,
            self.identity,
            lambda node: node in replica.peers.reachable,
            levels=replica.levels,
            level_needed=lambda: replica.feature_levels.needed,
            tls=self._tls,
            plaintext_within=self._plaintext_within,
        )
        checks = CallQuotas(quotas.meters, None if access is None else access.checks)
        admit = self.grpc_port.noting(guard.admit)
        interceptor = ServerInterceptor(replica.levels(), admit, checks, self.gates)
        server = grpc.aio.server(
            interceptors=[interceptor],
            options=server_options(self.grpc_port.connections.limits),
        )
        cold = None
        if self._tier is not None:
            cold = ColdReads(
                self._tier,
                cache_bytes=config.tier_cache_bytes,
                timeout_s=config.tier_read_ms / 1000,
            )
            self._stack.push_async_callback(cold.close)
        fetch = FetchHandler(replica, cold, enforcer, quotas)
        moves = MovesService(config, replica, self._routes)
        mirrors = MirrorsService(config, replica, moves)
        self._probe = Probe(
            config,
            replica,
            self.checkpoints,
            self.scrub,
            produce,
            fetch,
            mirrors,
            self.compaction,
            self.memory,
            self.memory_bounds,
            self.parting,
            self._tier,
            access,
            CommonProbe(self.gates, self.grpc_port, self._stream_connections, config.security),
            quotas,
        )
        self._direct = direct = DirectStreams(
            direct_handlers(produce, fetch),
            replica.levels,
            tls=self._tls,
            connections=self._stream_connections,
            left_s=guard.left_s,
            place=(config.cluster_id, config.group_id, config.node_id),
            answering=interceptor.answering,
        )
        raft_pb2_grpc.add_RaftPeerServicer_to_server(peer_port, server)
        raft_pb2_grpc.add_SnapshotsServicer_to_server(
            SnapshotService(replica, self.checkpoints, self.identity), server
        )
        server.add_generic_rpc_handlers((stream_handlers(produce, fetch, direct),))
        broker_pb2_grpc.add_MembersServicer_to_server(
            MembersService(config, replica, self.changes, self.identity, self._status), server
        )
        broker_pb2_grpc.add_MovesServicer_to_server(moves, server)
        mirrors_pb2_grpc.add_MirrorsServicer_to_server(mirrors, server)
        restores_pb2_grpc.add_RestoresServicer_to_server(
            RestoresService(config, replica, self._tier), server
        )
        broker_pb2_grpc.add_BrokerServicer_to_server(
            BrokerService(
                producers=ProducerCalls(replica, owners, quotas.producers),
                locks=LockCalls(replica),
                groups=GroupOffsetCalls(replica),
                queues=QueueCalls(config, replica, self._routes, cold, self._tier),
                delays=DelayCalls(replica),
                parting=PartingCalls(replica, self.identity.caller),
                ids=IdCalls(replica, cold),
                id_windows=IdWindowCalls(replica),
                status=NodeStatusCall(
                    config,
                    replica,
                    self.checkpoints,
                    self.scrub,
                    self.identity,
                    self._tier,
                    self.parting,
                ),
            ),
            server,
        )
        calls = GroupCalls(self._routes, replica.levels, config.security)
        self._stack.push_async_callback(calls.close)
        self._transactions = TransactionWork(config, replica, calls)
        transactions_pb2_grpc.add_TransactionsServicer_to_server(
            TransactionsService(config, replica, self._transactions, calls), server
        )
        server.add_generic_rpc_handlers((routes_handler(self._routes),))
        serve_settings(server, config, CHANGEABLE, lambda: config.cluster_id)
        self._start(serve_health(server, partial(why_not_ready, replica), SERVICES)())
        serve_audit(server, config.audit_log, lambda: config.cluster_id)
        listen = bind(server, config.listen, config.security)
        self.address = str(listen)
        for opened, number, whom in (
            (peer_port, config.peer_port, "peer"),
            (direct, config.stream_port, "stream"),
        ):
            try:
                await opened.serve(listen.host, number)
            except OSError as error:
                raise cannot_listen(listen.with_port(number), error, f"--{whom}-port") from error
            self._stack.push_async_callback(opened.close)
        await server.start()
        self._stack.push_async_callback(server.stop, _STOP_GRACE_S)

    async def _serve_metrics(self) -> None:
        config = self.config
        if config.metrics_port is None:
            return
        where = Address.parse(config.listen).host, config.metrics_port
        shown = self._probe.page, partial(why_not_ready, self.replica)
        metrics = MetricsServer(*where, *shown, tls=self._tls, cluster=config.cluster_id)
        await metrics.start()
        self.metrics_address = metrics.address
        self._stack.push_async_callback(metrics.close)

    def _on_refounded(self) -> None:
        """Ends all links: no message of the old founding reaches a peer any more."""
        for peer, (_, task) in list(self._links.items()):
            del self._links[peer]
            del self.replica.peers.links[peer]
            task.cancel()
        self._follow_members()
        self.registration.report_now()

    def _on_level_raised(self) -> None:
        self._produce.on_level_raised()
        self.registration.report_now()

    def _on_members_changed(self) -> None:
        self._follow_members()
        self.registration.report_now()

    def _follow_members(self) -> None:
        """Keeps a link to every other member, at its present address."""
        replica = self.replica
        wanted = {
            peer: address
            for peer in replica.peers.reachable
            if peer != self.config.node_id and (address := replica.peers.address_of(peer))
        }
        for peer, (address, task) in list(self._links.items()):
            if wanted.get(peer) != address:
                del self._links[peer]
                del replica.peers.links[peer]
                task.cancel()
        for peer, address in wanted.items():
            if peer not in self._links:
                self._start_link(peer, address)

    def _start_link(self, peer: NodeId, address: str) -> None:
        link = PeerLink(
            peer_id=peer,
            address=address,
            identity=self.identity,
            log=self.replica.log,
            readers=self.readers,
            on_broken=self.replica.driver.on_stream_broken,
            on_unreachable=self.replica.driver.on_peer_unreachable,
            route=self.config.peer_streams_at.get(peer, ""),
            levels=self.replica.levels,
            level_needed=lambda: self.replica.feature_levels.needed,
            bodies=self.replica.bodies,
            tls=self._tls,
            plaintext_within=self._plaintext_within,
        )
        self.replica.peers.links[peer] = link
        self._links[peer] = address, self._start(link.run())

    async def _tick(self) -> None:
        while True:
            self.replica.driver.on_tick()
            await asyncio.sleep(TICK_MS / 1000)

    async def _hand_over(self) -> None:
        """A master that stops hands mastership to the slave that is furthest, if there is one."""
        if self.replica.core.role is not Role.MASTER:
            return
        try:
            async with compat.timeout(_HAND_OVER_S):
                await self.changes.transfer(None, ignore_memory=True)
        except (SemelError, TimeoutError) as error:
            logger.info("mastership not handed over: %s", error or "nobody took it in time")

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._keep(task)
        return task

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical("task failed", exc_info=error)
            self._on_fatal(f"node {self.config.node_id} halts: {type(error).__name__}: {error}")

    async def _cancel_tasks(self) -> None:
        self.replica.stop(lambda: Unavailable("the node is stopping; ask another one"))
        tasks = list(self._tasks)
        for task in tasks:
            task.remove_done_callback(self._on_task_done)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _has_log(files: FileLayer, data: Path) -> bool:
    """BLOCKING. The directory of the log exists, whatever it holds."""
    return any(files.names(data / "log"))
