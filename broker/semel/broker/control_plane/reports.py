"""Reports this node to the controllers: its address, role, progress and load.

How it works. One task for each controller calls ReportNode regularly, and at once on a change of
role or members. The active controller answers with the version of its routes, and the node fetches
them if they are newer than its copy. The node needs no answer to serve: while it can reach no
controller it goes on, says so once, and tries again soon. A node whose settings name
some of the controllers learns of the others.

Not here: what the controllers do with a report (`controller/`), the copy
(`control_plane/route_cache.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio

from semel.broker.config import BrokerConfig
from semel.broker.control_plane.load import Counters, LoadMeter
from semel.broker.control_plane.route_cache import RoutesCopy
from semel.broker.identity import NodeIdentity
from semel.broker.replica.replica import Replica
from semel.broker.resources import disk_room
from semel.protos import compat
from semel.protos.errors import NotMaster
from semel.protos.levels import levels_metadata
from semel.protos.rpc import CHANNEL_OPTIONS, error_from_rpc
from semel.protos.security.credentials import channel
from semel.protos.security.wire_probe import why_closed
from semel.protos.v1 import common_pb2, controller_pb2, controller_pb2_grpc

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 2.0
_RETRY_S: Final = 0.2
"""Pause after a controller could not be reached: a controller that starts should know its nodes
at once."""
_FETCH_S: Final = 1.0
"""Shortest time between two fetches of the routes."""


class Registration:
    """Keeps all controllers informed; `run` ends only by cancellation."""

    def __init__(
        self,
        config: BrokerConfig,
        replica: Replica,
        address: str,
        stream_port: int,
        routes: RoutesCopy,
        counters: Callable[[], Counters],
        identity: NodeIdentity,
        on_rights: Callable[[], None] = lambda: None,
    ) -> None:
        """`stream_port` is where clients may ask for streams. `counters` gives the totals of what
        the node has done since its start. `on_rights` hears that there are rules or quotas to
        watch."""
        self._on_rights = on_rights
        self._config = config
        self._replica = replica
        self._address = address
        self._stream_port = stream_port
        self._routes = routes
        self._counters = counters
        self._identity = identity
        self._meter = LoadMeter()
        self._changed: dict[str, asyncio.Event] = {}
        """For each controller, by its address, the event that makes its task report at once."""
        self._fetched_s = -_FETCH_S

    def report_now(self) -> None:
        """Reports at once: something changed that clients wait for."""
        for event in self._changed.values():
            event.set()

    async def run(self) -> None:
        async with compat.TaskGroup() as tasks:
            for address in self._config.controllers:
                self._begin(tasks, address)

    def _begin(self, tasks: compat.TaskGroup, address: str) -> None:
        if address not in self._changed:
            self._changed[address] = asyncio.Event()
            tasks.create_task(self._report_to(tasks, address))

    def _learn(self, tasks: compat.TaskGroup) -> None:
        """Begins to report to controllers that this node's settings do not name.

        If they name as many as there are, the node keeps to that list: from here the controllers
        may be reached at other addresses.
        """
        if len(self._changed) < len(self._routes.controllers):
            for address in self._routes.controllers:
                self._begin(tasks, address)

    async def _report_to(self, tasks: compat.TaskGroup, address: str) -> None:
        changed = self._changed[address]
        reachable = True
        async with channel(address, CHANNEL_OPTIONS, self._config.security) as opened:
            stub = controller_pb2_grpc.ControllerStub(opened)
            while True:
                changed.clear()
                try:
                    answer = await stub.ReportNode(
                        self._report(),
                        timeout=_TIMEOUT_S,
                        metadata=levels_metadata(self._replica.levels()),
                    )
                    if not reachable:
                        logger.info("controller is back address=%s", address)
                    reachable = True
                    start, end = answer.producer_ids_start, answer.producer_ids_end
                    self._routes.on_ids(start, end, _time_s())
                    self._routes.on_ids_floor(answer.producer_ids_floor)
                    if answer.rights_version:
                        self._on_rights()
                    if self._routes.on_answer(address, answer.route_version, answer.controllers):
                        await self._fetch(stub)
                    self._learn(tasks)
                except grpc.aio.AioRpcError as error:
                    known = error_from_rpc(error)
                    if reachable and not isinstance(known, NotMaster):
                        tls = self._config.security is not None
                        why = await why_closed(known.message, address, tls=tls)
                        logger.warning(
                            "controller does not take reports address=%s error=%s", address, why
                        )
                    reachable = isinstance(known, NotMaster)
                pause_s = self._config.report_ms / 1000 if reachable else _RETRY_S
                with contextlib.suppress(TimeoutError):
                    async with compat.timeout(pause_s):
                        await changed.wait()

    async def _fetch(self, stub: Any) -> None:
        now_s = _time_s()
        if now_s - self._fetched_s >= _FETCH_S:
            self._fetched_s = now_s
            request = controller_pb2.GetRoutesRequest(known_version=self._routes.version)
            told = levels_metadata(self._replica.levels())
            self._routes.on_routes(await stub.GetRoutes(request, timeout=_TIMEOUT_S, metadata=told))

    def _load(self) -> controller_pb2.NodeLoad:
        rates = self._meter.sample(_time_s(), self._counters())
        free, total = disk_room(self._config.data)
        return controller_pb2.NodeLoad(
            produced_messages=rates.produced_messages,
            produced_bytes=rates.produced_bytes,
            fetched_messages=rates.fetched_messages,
            fetched_bytes=rates.fetched_bytes,
            disk_free_bytes=free,
            disk_total_bytes=total,
        )

    def _report(self) -> controller_pb2.ReportNodeRequest:
        replica, config = self._replica, self._config
        role = replica.role
        if role == "master" and not replica.is_master:
            role = "candidate"  # It is elected but cannot serve yet.
        return controller_pb2.ReportNodeRequest(
            cluster_id=config.cluster_id,
            group_id=config.group_id,
            node=common_pb2.NodeAddress(
                node_id=config.node_id,
                address=self._address,
                rack=config.rack,
                stream_port=self._stream_port,
            ),
            role=role,
            term=replica.term,
            master_id=replica.core.master_id or 0,
            commit_index=replica.core.commit_index,
            log_end_index=replica.log.last_index,
            queues=len(replica.state.queues),
            damaged=len(replica.log.damaged) + len(replica.log.damaged_records),
            lost=len(replica.lost_entries),
            disk_full=replica.disk_full,
            load=self._load(),
            founding_id=self._identity.founding,
            wants_producer_ids=self._routes.wants_ids(_time_s()),
            members=[
                common_pb2.NodeAddress(node_id=node, address=address)
                for node, address in sorted(replica.peers.addresses.items())
            ],
            levels=replica.levels(),
        )


def _time_s() -> float:
    """The event loop's clock."""
    return asyncio.get_running_loop().time()
