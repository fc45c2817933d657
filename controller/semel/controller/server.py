"""The gRPC service `Controller`: requests in, replies out, one method a call.

How it works. Each method hands its request to the part that owns the matter. What a part raises
leaves through the interceptor of `semel.protos.rpc`. A watcher is woken by every change and sends
what is newest then, so that a slow one skips versions and never falls behind.

Not here: any decision.
"""

# ruff: noqa: N802  (gRPC names the methods)

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

import grpc.aio

from semel.controller.memberships import MembershipService
from semel.controller.producers import ProducerService
from semel.controller.registry import BrokerRegistry
from semel.controller.routes import RouteTable
from semel.controller.topics import TopicService
from semel.protos.v1 import controller_pb2 as pb
from semel.protos.v1.controller_pb2_grpc import ControllerServicer

DEADLINE_SHARE: Final = 0.9
"""Of a caller's time; the rest is for the answer's way back."""


class Changes:
    """Wakes everybody who waits for the next change."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.closed = False

    def notify(self) -> None:
        """Wakes all who wait now."""
        self._event.set()
        self._event = asyncio.Event()

    def close(self) -> None:
        """There will be no more changes."""
        self.closed = True
        self.notify()

    async def wait(self) -> None:
        """Returns after the next change; without one in between, so check first, then wait."""
        await self._event.wait()


class ControllerService(ControllerServicer):
    """The methods of controller.proto."""

    def __init__(
        self,
        *,
        routes: RouteTable,
        changes: Changes,
        registry: BrokerRegistry,
        topics: TopicService,
        producers: ProducerService,
        memberships: MembershipService,
        controllers: list[pb.ControllerStatus],
        request_timeout_s: float,
        version: str,
    ) -> None:
        self._routes = routes
        self._changes = changes
        self._registry = registry
        self._topics = topics
        self._producers = producers
        self._memberships = memberships
        self._controllers = controllers
        self._request_timeout_s = request_timeout_s
        self._version = version

    async def CreateTopic(
        self, request: pb.CreateTopicRequest, context: Any
    ) -> pb.CreateTopicReply:
        topic, created = await self._topics.create(request, self._patience_s(context))
        return pb.CreateTopicReply(topic=topic, created=created)

    async def AlterTopic(self, request: pb.AlterTopicRequest, context: Any) -> pb.AlterTopicReply:
        patience_s = self._patience_s(context)
        topic = await self._topics.alter(request.name, request.settings, patience_s)
        return pb.AlterTopicReply(topic=topic)

    async def DeleteTopic(
        self, request: pb.DeleteTopicRequest, context: Any
    ) -> pb.DeleteTopicReply:
        deleted = await self._topics.delete(
            request.name, if_exists=request.if_exists, timeout_s=self._patience_s(context)
        )
        return pb.DeleteTopicReply(deleted=deleted)

    async def GetRoutes(self, request: pb.GetRoutesRequest, context: Any) -> pb.Routes:
        return self._routes.snapshot(request.topics, groups_only=request.groups_only)

    async def WatchRoutes(
        self, request: pb.GetRoutesRequest, context: Any
    ) -> AsyncGenerator[pb.Routes]:
        sent = -1
        while not self._changes.closed:
            if sent == self._routes.version:
                await self._changes.wait()
                continue
            routes = self._routes.snapshot(
                request.topics, groups_only=request.groups_only, strict=False
            )
            sent = routes.version
            yield routes

    async def OpenProducer(
        self, request: pb.OpenProducerRequest, context: Any
    ) -> pb.OpenProducerReply:
        return await self._producers.open(request.name, request.open_id)

    async def ListProducers(
        self, request: pb.ListProducersRequest, context: Any
    ) -> pb.ListProducersReply:
        return pb.ListProducersReply(producers=await self._producers.list(request.name))

    async def JoinGroup(
        self, request: pb.JoinGroupRequest, context: Any
    ) -> pb.GroupMembershipReply:
        return await self._memberships.join(request)

    async def HeartbeatGroup(
        self, request: pb.HeartbeatGroupRequest, context: Any
    ) -> pb.GroupMembershipReply:
        return await self._memberships.heartbeat(request)

    async def LeaveGroup(self, request: pb.LeaveGroupRequest, context: Any) -> pb.LeaveGroupReply:
        await self._memberships.leave(request.group, request.member_id, request.incarnation)
        return pb.LeaveGroupReply()

    async def ListGroups(self, request: pb.ListGroupsRequest, context: Any) -> pb.ListGroupsReply:
        return pb.ListGroupsReply(groups=await self._memberships.list(request.group))

    async def ForgetGroup(
        self, request: pb.ForgetGroupRequest, context: Any
    ) -> pb.ForgetGroupReply:
        await self._memberships.forget(request.group)
        return pb.ForgetGroupReply()

    async def ReportNode(self, request: pb.ReportNodeRequest, context: Any) -> pb.ReportNodeReply:
        return await self._registry.on_report(request)

    async def GetClusterStatus(
        self, request: pb.ClusterStatusRequest, context: Any
    ) -> pb.ClusterStatusReply:
        return pb.ClusterStatusReply(
            cluster_id=self._routes.cluster_id,
            groups=self._registry.status(),
            controllers=self._controllers,
            topics=len(self._topics.names()),
            version=self._version,
            unfinished=self._topics.unfinished(),
        )

    def _patience_s(self, context: grpc.aio.ServicerContext[Any, Any]) -> float:
        """How long a call may wait for broker groups."""
        remaining = context.time_remaining()
        if remaining is None:
            return self._request_timeout_s
        return min(float(remaining) * DEADLINE_SHARE, self._request_timeout_s)
