"""Asks the cluster's controllers and masters about its state, for `semel up`.

How it works. One channel is kept open to each controller and master. All controllers are asked at
once, and the active controller answers. An answer that does not come in time counts as none;
nothing here raises because a node is down.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final

import grpc.aio

from semel.console.cluster_file import ClusterPlan
from semel.protos.security.credentials import Security, channel
from semel.protos.v1.broker_pb2 import NodeStatusReply, NodeStatusRequest
from semel.protos.v1.controller_pb2 import ClusterStatusReply, ClusterStatusRequest, GroupStatus

CALL_TIMEOUT_S: Final = 1.0
ALL_NODES_WAIT_S: Final = 3.0
"""How long `up` waits for the last nodes once all groups serve."""
_CHANNEL_OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),
)


class ClusterWatch:
    """`async with ClusterWatch(plan)`: asks for the state of the cluster."""

    def __init__(self, plan: ClusterPlan, security: Security | None = None) -> None:
        self._security = security
        self._plan = plan
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._served_since: float | None = None

    async def __aenter__(self) -> ClusterWatch:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for opened in self._channels.values():
            await opened.close()

    async def status(self) -> ClusterStatusReply | None:
        """The view of the active controller; None when there is none, or it does not answer."""
        asked = [
            asyncio.ensure_future(self._status_of(node.address)) for node in self._plan.controllers
        ]
        try:
            for answer in asyncio.as_completed(asked):
                if (status := await answer) is not None:
                    return status
            return None
        finally:
            for call in asked:
                call.cancel()

    async def _status_of(self, address: str) -> ClusterStatusReply | None:
        call = self._channel(address).unary_unary(
            "/semel.protos.v1.Controller/GetClusterStatus",
            request_serializer=ClusterStatusRequest.SerializeToString,
            response_deserializer=ClusterStatusReply.FromString,
        )
        try:
            return await call(ClusterStatusRequest(), timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return None

    async def not_serving(self) -> str:
        """The missing part of the cluster; empty once every group's master confirms its role.

        Waits up to `ALL_NODES_WAIT_S` for slaves that have not reported yet.
        """
        status = await self.status()
        if status is None:
            return "no controller is active"
        known = {group.group_id: group for group in status.groups}
        for number in self._plan.groups:
            group = known.get(number)
            if group is None or group.master_id == 0:
                return f"group {number} has no master"
            if not await self._confirms(group):
                return f"the master of group {number} does not answer"
        now = asyncio.get_running_loop().time()
        self._served_since = now if self._served_since is None else self._served_since
        alive = {("broker", n.node_id) for group in status.groups for n in group.nodes if n.alive}
        alive |= {("controller", c.controller_id) for c in status.controllers if c.alive}
        alive |= {("zookeeper", node.id) for node in self._plan.zookeepers}  # else none answers
        asleep = [node.name for node in self._plan.nodes if (node.kind, node.id) not in alive]
        if asleep and now - self._served_since < ALL_NODES_WAIT_S:
            return f"{', '.join(asleep)} did not report yet"
        return ""

    async def _confirms(self, group: GroupStatus) -> bool:
        """True when the master that the controller names confirms its role with a quorum."""
        for node in self._plan.members(group.group_id):
            if node.id == group.master_id:
                call = self._channel(node.address).unary_unary(
                    "/semel.protos.v1.Broker/GetNodeStatus",
                    request_serializer=NodeStatusRequest.SerializeToString,
                    response_deserializer=NodeStatusReply.FromString,
                )
                try:
                    reply = await call(NodeStatusRequest(confirmed=True), timeout=CALL_TIMEOUT_S)
                except grpc.aio.AioRpcError:
                    return False
                return reply.role == "master"
        return False

    def _channel(self, address: str) -> grpc.aio.Channel:
        opened = self._channels.get(address)
        if opened is None:
            opened = channel(address, _CHANNEL_OPTIONS, self._security)
            self._channels[address] = opened
        return opened
