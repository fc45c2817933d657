"""Calls from the controller to broker groups, and to controllers.

How it works. `apply` is one attempt: one round through the group's nodes, the supposed master first
(`protos/masters.py`). Trying again later is the caller's business. Each request carries the
controller epoch, and a broker that has heard of a newer epoch refuses it.

Not here: what to send (`topics/rules.py`), when to try again (`topics/topics.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from semel.protos.channels import Channels
from semel.protos.errors import SemelError
from semel.protos.levels import LEVEL_MAX, own_levels, untold_levels
from semel.protos.masters import MasterSearch
from semel.protos.security.credentials import Security
from semel.protos.v1.broker_pb2 import (
    ApplyQueuesRequest,
    CopyQueueReply,
    CopyQueueRequest,
    ListOffsetsReply,
    ListOffsetsRequest,
    PullQueueReply,
    PullQueueRequest,
    TransferMastershipRequest,
)
from semel.protos.v1.broker_pb2_grpc import BrokerStub, MembersStub, MovesStub
from semel.protos.v1.common_pb2 import Levels, QueueRef
from semel.protos.v1.control_pb2 import ControlRecord
from semel.protos.v1.controller_pb2 import ClusterStatusReply, ClusterStatusRequest
from semel.protos.v1.controller_pb2_grpc import ControllerStub


class BrokerCaller:
    """Channels to broker nodes. `addresses` gives a group's nodes, the supposed master first."""

    def __init__(
        self,
        *,
        cluster_id: str,
        epoch: int,
        addresses: Callable[[int], list[str]],
        timeout_s: float,
        level_max: int = LEVEL_MAX,
        security: Security | None = None,
    ) -> None:
        told = own_levels(level_max)
        self._cluster_id = cluster_id
        self._epoch = epoch
        self._addresses = addresses
        self._timeout_s = timeout_s
        self._channels = Channels(lambda: told, security=security)

    async def apply(self, group_id: int, batch: list[ControlRecord]) -> None:
        """Appends records to a group's log; returns once they are applied there.

        Raises the last node's SemelError when no node accepted them, never NotMaster.
        """
        request = ApplyQueuesRequest(
            records=batch, cluster_id=self._cluster_id, controller_epoch=self._epoch
        )
        await self._at_master(group_id, BrokerStub, "ApplyQueues", request)

    async def offsets(self, group_id: int, queues: Sequence[QueueRef]) -> ListOffsetsReply:
        """Start, end and delayed messages of queues of a group. Raises SemelError."""
        reply: ListOffsetsReply = await self._at_master(
            group_id,
            BrokerStub,
            "ListOffsets",
            ListOffsetsRequest(queues=queues),
        )
        return reply

    async def transfer(self, group_id: int, node_id: int) -> None:
        """Makes a group's master hand over to another node. Raises SemelError."""
        request = TransferMastershipRequest(
            cluster_id=self._cluster_id, group_id=group_id, node_id=node_id
        )
        await self._at_master(group_id, MembersStub, "TransferMastership", request)

    async def figures(self, group_id: int, queue: QueueRef) -> CopyQueueReply:
        """Start, end and size of a queue. Raises SemelError, also when it cannot be moved."""
        reply: CopyQueueReply = await self._at_master(
            group_id,
            MovesStub,
            "CopyQueue",
            CopyQueueRequest(queue=queue, figures_only=True),
        )
        return reply

    async def pull(
        self, group_id: int, source_id: int, request: PullQueueRequest
    ) -> PullQueueReply:
        """Makes a group's master fetch from another group for a while. Raises SemelError."""
        request.cluster_id, request.controller_epoch = self._cluster_id, self._epoch
        request.sources.extend(self._addresses(source_id))
        reply: PullQueueReply = await self._at_master(
            group_id,
            MovesStub,
            "PullQueue",
            request,
            extra_s=request.max_ms / 1000,
        )
        return reply

    async def controller_levels(self, address: str) -> Levels:
        """The feature levels of a controller, which may be this one. Raises SemelError."""
        request = ClusterStatusRequest(standby=True)
        reply: ClusterStatusReply = await self._channels.call(
            address, ControllerStub, "GetClusterStatus", request, self._timeout_s
        )
        return reply.levels if reply.HasField("levels") else untold_levels()

    async def _at_master(
        self,
        group_id: int,
        service: type[Any],
        method: str,
        request: Any,
        *,
        extra_s: float = 0.0,
    ) -> Any:
        search = MasterSearch(f"broker group {group_id}", self._addresses(group_id))
        while address := search.next():
            try:
                return await self._channels.call(
                    address, service, method, request, self._timeout_s + extra_s
                )
            except SemelError as error:
                search.on_error(error)
        raise search.error

    async def close(self) -> None:
        """Closes all channels."""
        await self._channels.close()
