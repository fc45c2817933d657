"""Reports this node to the controllers: where it listens, what it is, how far it is.

How it works. One task a controller calls ReportNode regularly, and at once on a change of role. The
node needs no answer to serve: while no controller can be reached it goes on, and says so once.

Not here: what the controller makes of it (`controller/`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

import grpc
import grpc.aio

from semel.broker.config import BrokerConfig
from semel.broker.replica import Replica
from semel.protos.rpc import CHANNEL_OPTIONS, error_from_rpc
from semel.protos.v1 import common_pb2, controller_pb2, controller_pb2_grpc

logger = logging.getLogger(__name__)

_TIMEOUT_S = 2.0


class Registration:
    """Keeps all controllers informed; `run` ends only by cancellation."""

    def __init__(self, config: BrokerConfig, replica: Replica, address: str) -> None:
        self._config = config
        self._replica = replica
        self._address = address
        self._changed = [asyncio.Event() for _ in config.controllers]

    def report_now(self) -> None:
        """Something changed that clients wait for."""
        for event in self._changed:
            event.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for address, changed in zip(self._config.controllers, self._changed, strict=True):
                tasks.create_task(self._report_to(address, changed))

    async def _report_to(self, address: str, changed: asyncio.Event) -> None:
        reachable = True
        async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            stub = controller_pb2_grpc.ControllerStub(channel)
            while True:
                changed.clear()
                try:
                    await stub.ReportNode(self._report(), timeout=_TIMEOUT_S)
                    if not reachable:
                        logger.info("controller is back address=%s", address)
                    reachable = True
                except grpc.aio.AioRpcError as error:
                    if reachable:
                        logger.warning(
                            "controller does not take reports address=%s error=%s",
                            address,
                            error_from_rpc(error),
                        )
                    reachable = False
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._config.report_ms / 1000):
                        await changed.wait()

    def _report(self) -> controller_pb2.ReportNodeRequest:
        replica, config = self._replica, self._config
        role = replica.role
        if role == "master" and not replica.is_master:
            role = "candidate"  # elected, and not yet able to serve
        return controller_pb2.ReportNodeRequest(
            cluster_id=config.cluster_id,
            group_id=config.group_id,
            node=common_pb2.NodeAddress(
                node_id=config.node_id, address=self._address, rack=config.rack
            ),
            role=role,
            term=replica.term,
            master_id=replica.core.master_id or 0,
            commit_index=replica.core.commit_index,
            log_end_index=replica.log.last_index,
            queues=len(replica.state.queues),
            damaged=len(replica.log.damaged) + len(replica.log.damaged_records),
            lost=len(replica.lost_entries),
            disk_full=replica.log.disk_full,
            members=[
                common_pb2.NodeAddress(node_id=node, address=address)
                for node, address in sorted(replica.addresses().items())
            ],
        )
