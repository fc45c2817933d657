"""Calls from the controller to broker groups, and to controllers.

How it works. `apply` is one attempt: it asks the supposed master, follows the hints of nodes that
are not the master, and asks each node at most once. Trying again later is the caller's business. A
channel stays open when a call fails: closing it would cancel the other calls on it, and it connects
again by itself within half a second. Each request carries the controller epoch, and a broker that
has heard of a newer epoch refuses it.

Not here: what to send (`topics/rules.py`), when to try again (`topics/topics.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from semel.protos.errors import NotMaster, SemelError, TimedOut, Unavailable
from semel.protos.levels import LEVEL_MAX, levels_metadata, own_levels, untold_levels
from semel.protos.rpc import CHANNEL_OPTIONS, error_from_rpc
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
        interceptors: list[grpc.aio.ClientInterceptor],
        level_max: int = LEVEL_MAX,
    ) -> None:
        self._told = levels_metadata(own_levels(level_max))
        self._cluster_id = cluster_id
        self._epoch = epoch
        self._addresses = addresses
        self._timeout_s = timeout_s
        self._interceptors = interceptors
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def apply(self, group_id: int, batch: list[ControlRecord]) -> None:
        """Appends records to a group's log; returns once they are applied there.

        Raises the last node's SemelError when no node accepted them.
        """
        request = ApplyQueuesRequest(records=batch, cluster_id=self._cluster_id, office=self._epoch)
        await self._at_master(group_id, lambda channel: BrokerStub(channel).ApplyQueues, request)

    async def offsets(self, group_id: int, queues: Sequence[QueueRef]) -> ListOffsetsReply:
        """Start, end and delayed messages of queues of a group. Raises SemelError."""
        reply: ListOffsetsReply = await self._at_master(
            group_id,
            lambda channel: BrokerStub(channel).ListOffsets,
            ListOffsetsRequest(queues=queues),
        )
        return reply

    async def transfer(self, group_id: int, node_id: int) -> None:
        """Makes a group's master hand over to another node. Raises SemelError."""
        request = TransferMastershipRequest(
            cluster_id=self._cluster_id, group_id=group_id, node_id=node_id
        )
        await self._at_master(
            group_id, lambda channel: MembersStub(channel).TransferMastership, request
        )

    async def figures(self, group_id: int, queue: QueueRef) -> CopyQueueReply:
        """Start, end and size of a queue. Raises SemelError, also when it cannot be moved."""
        reply: CopyQueueReply = await self._at_master(
            group_id,
            lambda channel: MovesStub(channel).CopyQueue,
            CopyQueueRequest(queue=queue, figures_only=True),
        )
        return reply

    async def pull(
        self, group_id: int, source_id: int, request: PullQueueRequest
    ) -> PullQueueReply:
        """Makes a group's master fetch from another group for a while. Raises SemelError."""
        request.cluster_id, request.office = self._cluster_id, self._epoch
        request.sources.extend(self._addresses(source_id))
        reply: PullQueueReply = await self._at_master(
            group_id,
            lambda channel: MovesStub(channel).PullQueue,
            request,
            extra_s=request.max_ms / 1000,
        )
        return reply

    async def controller_levels(self, address: str) -> Levels:
        """The feature levels of a controller, which may be this one. Raises SemelError."""
        request = ClusterStatusRequest(standby=True)
        reply: ClusterStatusReply = await self._call(
            address, lambda channel: ControllerStub(channel).GetClusterStatus, request, 0.0
        )
        return reply.levels if reply.HasField("levels") else untold_levels()

    async def _at_master(
        self,
        group_id: int,
        method: Callable[[grpc.aio.Channel], Any],
        request: Any,
        *,
        extra_s: float = 0.0,
    ) -> Any:
        waiting = deque(self._addresses(group_id))
        asked: set[str] = set()
        failure: SemelError = Unavailable(f"no node of broker group {group_id} is known")
        while waiting:
            address = waiting.popleft()
            if address in asked:
                continue
            asked.add(address)
            try:
                return await self._call(address, method, request, extra_s)
            except NotMaster as error:
                failure = error
                if error.master_address:
                    waiting.appendleft(error.master_address)
            except (Unavailable, TimedOut) as error:
                failure = error
        raise failure

    async def close(self) -> None:
        """Closes all channels."""
        while self._channels:
            _, channel = self._channels.popitem()
            await channel.close()

    async def _call(
        self,
        address: str,
        method: Callable[[grpc.aio.Channel], Any],
        request: Any,
        extra_s: float,
    ) -> Any:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = grpc.aio.insecure_channel(
                address, options=CHANNEL_OPTIONS, interceptors=self._interceptors
            )
        try:
            return await method(channel)(
                request, timeout=self._timeout_s + extra_s, metadata=self._told
            )
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
