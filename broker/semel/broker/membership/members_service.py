"""The gRPC service `Members`: changes of membership, mastership, founding and feature level.

Not here: making the changes (`membership/changes.py`, `membership/status.py`).
"""

from __future__ import annotations

from typing import Any, Protocol

from semel.broker.config import BrokerConfig
from semel.broker.identity import NodeIdentity
from semel.broker.membership.changes import MembershipChanges
from semel.broker.membership.status import MembershipStatus
from semel.broker.replica.replica import Replica
from semel.protos.errors import InvalidRequest
from semel.protos.ids import NodeId
from semel.protos.v1 import broker_pb2, broker_pb2_grpc, common_pb2


class _Addressed(Protocol):
    @property
    def cluster_id(self) -> str: ...

    @property
    def group_id(self) -> int: ...


def member_statuses(replica: Replica) -> list[broker_pb2.MemberStatus]:
    """All members, by the newest applied membership, or by the founding one."""
    members = replica.peers.members_of(replica.state.membership)
    return [
        broker_pb2.MemberStatus(
            node=common_pb2.NodeAddress(node_id=node, address=address),
            membership=(
                broker_pb2.MEMBERSHIP_STATUS_VOTER
                if node in members.voters
                else broker_pb2.MEMBERSHIP_STATUS_LEARNER
            ),
        )
        for node, address in sorted(members.addresses.items())
    ]


class MembersService(broker_pb2_grpc.MembersServicer):
    """Serves semel.protos.v1.Members on one replica."""

    def __init__(
        self,
        config: BrokerConfig,
        replica: Replica,
        changes: MembershipChanges,
        identity: NodeIdentity,
        status: MembershipStatus,
    ) -> None:
        self._config = config
        self._replica = replica
        self._changes = changes
        self._identity = identity
        self._status = status

    async def ChangeMember(  # noqa: N802
        self, request: broker_pb2.ChangeMemberRequest, context: object
    ) -> broker_pb2.ChangeMemberReply:
        self._check_group(request)
        node = NodeId(request.node.node_id)
        if node < 1:
            raise InvalidRequest("a change of membership names a node, 1 and up")
        match request.membership:
            case broker_pb2.MEMBERSHIP_STATUS_LEARNER:
                await self._changes.add_learner(node, request.node.address)
            case broker_pb2.MEMBERSHIP_STATUS_VOTER:
                await self._changes.promote(node)
            case broker_pb2.MEMBERSHIP_STATUS_REMOVED:
                await self._changes.remove(node, ignore_memory=request.ignore_memory)
            case _:
                raise InvalidRequest(
                    f"unknown membership status {request.membership} for node {node}"
                )
        return broker_pb2.ChangeMemberReply(
            members=member_statuses(self._replica),
            membership_index=self._replica.state.membership.index,
        )

    async def ReadmitNode(  # noqa: N802
        self, request: broker_pb2.ReadmitNodeRequest, context: Any
    ) -> broker_pb2.ReadmitNodeReply:
        self._identity.check_caller(request)
        self._identity.check_proof(context, request.node_id)
        index, term = await self._changes.readmit(NodeId(request.node_id))
        return broker_pb2.ReadmitNodeReply(index=index, term=term)

    async def TransferMastership(  # noqa: N802
        self, request: broker_pb2.TransferMastershipRequest, context: object
    ) -> broker_pb2.TransferMastershipReply:
        self._check_group(request)
        wanted = NodeId(request.node_id) if request.node_id else None
        master, term = await self._changes.transfer(wanted, ignore_memory=request.ignore_memory)
        return broker_pb2.TransferMastershipReply(master_id=master, term=term)

    async def DrainNode(  # noqa: N802
        self, request: broker_pb2.DrainNodeRequest, context: object
    ) -> broker_pb2.DrainNodeReply:
        self._check_group(request)
        was_master = await self._changes.drain(
            request.drain_ms, ignore_memory=request.ignore_memory
        )
        master = self._replica.core.master_id or 0
        return broker_pb2.DrainNodeReply(master_id=master, was_master=was_master)

    async def RestartNode(  # noqa: N802
        self, request: broker_pb2.RestartNodeRequest, context: object
    ) -> broker_pb2.RestartNodeReply:
        self._check_group(request)
        self._check_node(request)
        self._changes.restart()
        return broker_pb2.RestartNodeReply(started_us=self._replica.log_time.started_us)

    async def RefoundNode(  # noqa: N802
        self, request: broker_pb2.RefoundNodeRequest, context: object
    ) -> broker_pb2.RefoundNodeReply:
        self._check_group(request)
        self._check_node(request)
        self._status.refound(
            request.from_id,
            request.to_id,
            count=request.count,
            voters=frozenset(map(NodeId, request.voters)),
        )
        return broker_pb2.RefoundNodeReply(
            founding_id=self._identity.founding, non_counting=self._replica.non_counting
        )

    async def RaiseLevel(  # noqa: N802
        self, request: broker_pb2.RaiseLevelRequest, context: object
    ) -> broker_pb2.RaiseLevelReply:
        self._check_group(request)
        await self._replica.feature_levels.raise_to(request.level, dry_run=request.dry_run)
        return broker_pb2.RaiseLevelReply(level=self._replica.state.feature_level)

    def _check_node(
        self, request: broker_pb2.RefoundNodeRequest | broker_pb2.RestartNodeRequest
    ) -> None:
        if request.node_id != self._config.node_id:
            raise InvalidRequest(
                f"this is node {self._config.node_id}, the call is for node {request.node_id}"
            )

    def _check_group(self, request: _Addressed) -> None:
        config = self._config
        if (request.cluster_id, request.group_id) != (config.cluster_id, config.group_id):
            raise InvalidRequest(
                f"node {config.node_id} belongs to group {config.group_id} of cluster "
                f"{config.cluster_id}; the call is for group {request.group_id} of cluster "
                f"{request.cluster_id}"
            )
