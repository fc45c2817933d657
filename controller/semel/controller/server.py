"""The gRPC service `Controller`: requests in, replies out, one method a call.

How it works. Each method hands its request to the part that owns the matter. Errors of the parts
leave through the interceptor of `semel.protos.rpc`. Every change wakes the watchers, which send the
newest routes then, so that a slow watcher skips versions and never falls behind.

Invariants
1. Only the active controller answers, and the end of its epoch ends the call (`is_active`). There
   are three exceptions: every controller tells which controllers there are (`GetClusterStatus`) and
   can be restarted (`RestartController`), and a watch ends with the changes that it waits for
   (`WatchRoutes`).

Not here: any decision.
"""

# ruff: noqa: N802  (gRPC names the methods)

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar, cast

import grpc.aio

from semel.controller.active.active_controller import ActiveController
from semel.controller.brokers.registry import BrokerRegistry
from semel.controller.brokers.routes import RouteTable
from semel.controller.groups.memberships import MembershipService
from semel.controller.producers import ProducerService
from semel.controller.topics.topics import TopicService
from semel.controller.users import Stored, new_stored
from semel.protos import compat
from semel.protos.errors import InvalidRequest, NotMaster, PermissionDenied, Throttled
from semel.protos.levels import own_levels, program_version
from semel.protos.security.access import AccessControl, certified
from semel.protos.security.credentials import clients_ca_expires_s
from semel.protos.security.enforcement import CALLER, Caller
from semel.protos.security.guard import Guard
from semel.protos.security.identity import BROKER
from semel.protos.security.meters import Meters
from semel.protos.security.quotas import NOBODY, QuotaKind, quota_changes, quotas_of
from semel.protos.security.rights_record import changes_of, check_right
from semel.protos.v1 import controller_pb2 as pb
from semel.protos.v1.controller_pb2_grpc import ControllerServicer
from semel.protos.v1.metadata_pb2 import RightsRecord

WATCH_AGAIN_MS: Final = 60_000
"""After so long a client that found no room for its watch may ask again."""
_VERBS: Final = {
    pb.USER_CHANGE_ADD: "add",
    pb.USER_CHANGE_PASSWORD: "change password of",
    pb.USER_CHANGE_REMOVE: "remove",
}
DEADLINE_SHARE: Final = 0.9
"""Share of the caller's time that a call may use; the rest is for the answer's way back."""


M = TypeVar("M", bound="Callable[..., Awaitable[Any]]")


def _principal() -> str:
    """`user:NAME` of the running call's caller; empty if nobody proved who they are."""
    caller = CALLER.get()
    return "" if caller is None else caller.principal


class ControllerRole(Protocol):
    """Tells whether this controller is the active one; `Succession` does."""

    cluster_id: str

    def active(self) -> ActiveController:
        """The active controller. Raises NotMaster while this controller is a standby."""
        ...

    async def controllers(self) -> list[pb.ControllerStatus]:
        """All controllers of the group."""
        ...


@dataclass(frozen=True, slots=True)
class Restart:
    """How this controller's process starts its program anew."""

    controller_id: int
    begin: Callable[[], None]


def is_active(method: M) -> M:
    """Marks a method that only the active controller answers; the end of its epoch ends the
    call."""

    @functools.wraps(method)
    async def answer(self: ControllerService, request: Any, context: Any) -> Any:
        with self.role.active().call():
            return await method(self, request, context)

    return cast("M", answer)


class ControllerService(ControllerServicer):
    """The methods of controller.proto."""

    def __init__(
        self,
        role: ControllerRole,
        *,
        request_timeout_s: float,
        level_max: int,
        watches_max: Callable[[], int],
        guard: Guard | None = None,
        access: AccessControl | None = None,
        audit: Callable[[Mapping[str, str | int | bool]], None] = lambda event: None,
        meters: Meters | None = None,
        started_us: int = 0,
        restart: Restart | None = None,
    ) -> None:
        """`guard` checks that reports are from the nodes that they name; None for no TLS. `access`
        decides by the rules; None if none are checked. `audit` writes into the audit log. `meters`
        knows the quotas. `started_us` is when this controller was started. Without `restart` it
        cannot be restarted by a call."""
        self.role = role
        self._audit = audit
        self._access = access
        self._meters = meters
        self._guard = guard or Guard(None)
        self._hashing = asyncio.Semaphore(1)
        """The hash of one password at a time is made: it takes tens of megabytes."""
        self.watches = 0
        """How many clients watch the routes now."""
        self._watches_max = watches_max
        self._request_timeout_s = request_timeout_s
        self._level_max = level_max
        self._started_us = started_us
        self._restart = restart

    # The parts of the active controller; each raises NotMaster while this one is a standby.

    @property
    def _routes(self) -> RouteTable:
        return self.role.active().routes

    @property
    def _registry(self) -> BrokerRegistry:
        return self.role.active().registry

    @property
    def _topics(self) -> TopicService:
        return self.role.active().topics

    @property
    def _producers(self) -> ProducerService:
        return self.role.active().producers

    @property
    def _memberships(self) -> MembershipService:
        return self.role.active().memberships

    @is_active
    async def CreateTopic(
        self, request: pb.CreateTopicRequest, context: Any
    ) -> pb.CreateTopicReply:
        topics = self._topics.table
        if not topics.has(request.name):
            self._check_quota(QuotaKind.TOPICS, topics.owned)
        owner = _principal()
        topic, created = await self._topics.create(request, self._patience_s(context), owner)
        return pb.CreateTopicReply(topic=topic, created=created)

    @is_active
    async def AlterTopic(self, request: pb.AlterTopicRequest, context: Any) -> pb.AlterTopicReply:
        patience_s = self._patience_s(context)
        settings = request.settings if request.HasField("settings") else None
        topic = await self._topics.alter(request.name, settings, request.queues, patience_s)
        return pb.AlterTopicReply(topic=topic)

    @is_active
    async def SplitQueue(self, request: pb.SplitQueueRequest, context: Any) -> pb.AlterTopicReply:
        topic = await self._topics.split(
            request.name, request.queue_id, request.children, self._patience_s(context)
        )
        return pb.AlterTopicReply(topic=topic)

    @is_active
    async def MoveQueue(self, request: pb.MoveQueueRequest, context: Any) -> pb.MoveStatus:
        moves = self.role.active().moves
        if request.cancel:
            return await moves.cancel(request.name, request.queue_id)
        return await moves.move(request.name, request.queue_id, request.group_id)

    @is_active
    async def ListMoves(self, request: pb.ListMovesRequest, context: Any) -> pb.ListMovesReply:
        return pb.ListMovesReply(moves=self.role.active().moves.statuses(request.name))

    @is_active
    async def DeleteTopic(
        self, request: pb.DeleteTopicRequest, context: Any
    ) -> pb.DeleteTopicReply:
        deleted = await self._topics.delete(
            request.name, if_exists=request.if_exists, timeout_s=self._patience_s(context)
        )
        return pb.DeleteTopicReply(deleted=deleted)

    @is_active
    async def GetRoutes(self, request: pb.GetRoutesRequest, context: Any) -> pb.Routes:
        if request.known_version and not request.topics and not request.groups_only:
            return self._routes.changes(request.known_version)
        return self._routes.snapshot(request.topics, groups_only=request.groups_only)

    async def WatchRoutes(
        self, request: pb.GetRoutesRequest, context: Any
    ) -> AsyncGenerator[pb.Routes]:
        active, seen = self.role.active(), 0
        topics, groups_only = set(request.topics), request.groups_only
        if self.watches >= self._watches_max():
            raise Throttled(
                f"{self.watches} clients watch the routes here: watch a broker's copy of them",
                retry_after_ms=WATCH_AGAIN_MS,
            )
        self.watches += 1
        try:
            while not active.changes.closed:
                if not active.routes.concerns(seen, topics, groups_only=groups_only):
                    seen = active.routes.version
                    await active.changes.wait()
                    continue
                routes = active.routes.snapshot(
                    request.topics, groups_only=groups_only, strict=False
                )
                seen, routes.watches = routes.version, self.watches
                yield routes
        finally:
            self.watches -= 1
        if active.changes.reason is not None:
            raise active.changes.reason

    @is_active
    async def OpenProducer(
        self, request: pb.OpenProducerRequest, context: Any
    ) -> pb.OpenProducerReply:
        return await self._producers.open(request.name, request.open_id)

    @is_active
    async def ListProducers(
        self, request: pb.ListProducersRequest, context: Any
    ) -> pb.ListProducersReply:
        return pb.ListProducersReply(producers=await self._producers.list(request.name))

    @is_active
    async def FindProducerOwner(
        self, request: pb.FindProducerOwnerRequest, context: Any
    ) -> pb.FindProducerOwnerReply:
        return await self._producers.owner(request.producer_id)

    @is_active
    async def JoinGroup(
        self, request: pb.JoinGroupRequest, context: Any
    ) -> pb.GroupMembershipReply:
        if not self._memberships.has(request.group):
            self._check_quota(QuotaKind.GROUPS, self._memberships.owned)
        return await self._memberships.join(request, _principal())

    @is_active
    async def HeartbeatGroup(
        self, request: pb.HeartbeatGroupRequest, context: Any
    ) -> pb.GroupMembershipReply:
        return await self._memberships.heartbeat(request)

    @is_active
    async def LeaveGroup(self, request: pb.LeaveGroupRequest, context: Any) -> pb.LeaveGroupReply:
        await self._memberships.leave(request.group, request.member_id, request.incarnation)
        return pb.LeaveGroupReply()

    @is_active
    async def ListGroups(self, request: pb.ListGroupsRequest, context: Any) -> pb.ListGroupsReply:
        groups = await self._memberships.list(request.group, counts_only=request.counts_only)
        return pb.ListGroupsReply(groups=groups)

    @is_active
    async def ForgetGroup(
        self, request: pb.ForgetGroupRequest, context: Any
    ) -> pb.ForgetGroupReply:
        await self._memberships.forget(request.group)
        return pb.ForgetGroupReply()

    @is_active
    async def ReportNode(self, request: pb.ReportNodeRequest, context: Any) -> pb.ReportNodeReply:
        self._guard.check_node(context, BROKER, request.node.node_id)
        reply = await self._registry.on_report(request)
        if request.wants_producer_ids:
            lent = await self._producers.lend_ids()
            reply.producer_ids_start, reply.producer_ids_end = lent
        active = self.role.active()
        floors = active.restores.producer_ids_floor, active.mirrors.producer_ids_floor
        reply.producer_ids_floor = max(floors)
        reply.rights_version = self.role.active().rights.record.version
        return reply

    @is_active
    async def FoundGroup(self, request: pb.FoundGroupRequest, context: Any) -> pb.FoundGroupReply:
        return await self._registry.foundings.on_request(request)

    async def GetClusterStatus(
        self, request: pb.ClusterStatusRequest, context: Any
    ) -> pb.ClusterStatusReply:
        controllers = await self.role.controllers()
        try:
            active = self.role.active()
        except NotMaster:
            if not request.standby:
                raise
            return pb.ClusterStatusReply(
                cluster_id=self.role.cluster_id,
                controllers=controllers,
                version=program_version(),
                runtime=compat.runtime(),
                levels=own_levels(self._level_max),
                started_us=self._started_us,
                clients_ca_expires_s=clients_ca_expires_s(self._guard.security),
            )
        return pb.ClusterStatusReply(
            cluster_id=active.routes.cluster_id,
            groups=active.registry.status(),
            controllers=controllers,
            topics=len(active.topics.names()),
            version=program_version(),
            runtime=compat.runtime(),
            levels=own_levels(self._level_max, max(1, active.epoch.level)),
            started_us=self._started_us,
            clients_ca_expires_s=clients_ca_expires_s(self._guard.security),
            unfinished=[*active.topics.unfinished(), *active.moves.unfinished()],
        )

    @is_active
    async def RaiseMetadataLevel(
        self, request: pb.RaiseMetadataLevelRequest, context: Any
    ) -> pb.RaiseMetadataLevelReply:
        level = await self.role.active().raise_level(request.level, dry_run=request.dry_run)
        return pb.RaiseMetadataLevelReply(level=level)

    async def RestartController(
        self, request: pb.RestartControllerRequest, context: Any
    ) -> pb.RestartControllerReply:
        restart = self._restart
        if restart is None:
            raise InvalidRequest("this controller is part of another program, which runs it")
        own = (self.role.cluster_id, restart.controller_id)
        if (request.cluster_id, request.controller_id) != own:
            raise InvalidRequest(
                f"this is controller {restart.controller_id} of cluster {self.role.cluster_id}, the"
                f" call is for controller {request.controller_id} of cluster {request.cluster_id}"
            )
        self.check_administrator(context)
        restart.begin()
        return pb.RestartControllerReply(started_us=self._started_us)

    def check_administrator(self, context: Any) -> None:
        """Raises PermissionDenied on a standby with rules, which it does not know, for a caller who
        is no administrator. The active controller has checked the rules before."""
        try:
            self.role.active()
        except NotMaster:
            if self._access is not None and not self._certified(context).administrator:
                raise PermissionDenied(
                    "this controller is a standby and knows no rules: only an administrator's"
                    " certificate may do this"
                ) from None

    @is_active
    async def RestoreCluster(
        self, request: pb.RestoreClusterRequest, context: Any
    ) -> pb.RestoreClusterReply:
        return await self.role.active().restores.step(request)

    @is_active
    async def MirrorTopics(
        self, request: pb.MirrorTopicsRequest, context: Any
    ) -> pb.MirrorTopicsReply:
        return await self.role.active().mirrors.step(request)

    @is_active
    async def ChangeRights(
        self, request: pb.ChangeRightsRequest, context: Any
    ) -> pb.ChangeRightsReply:
        _, caller = self._checked()
        changed = await self.role.active().rights.change(request)
        for line in changes_of(request):
            self._note(caller, "ChangeRights", line, changed=changed)
        return pb.ChangeRightsReply(changed=changed)

    @is_active
    async def ListRights(self, request: pb.ListRightsRequest, context: Any) -> pb.ListRightsReply:
        self._checked()
        return pb.ListRightsReply(rights=self.role.active().rights.record)

    @is_active
    async def CheckRight(self, request: pb.CheckRightRequest, context: Any) -> pb.CheckRightReply:
        access, _ = self._checked()
        return check_right(access.enforcer.book, request)

    @is_active
    async def ChangeUser(self, request: pb.ChangeUserRequest, context: Any) -> pb.ChangeUserReply:
        caller = self._certified(context)
        stored, scram = Stored(), request.scram if request.HasField("scram") else None
        if request.change != pb.USER_CHANGE_REMOVE:
            try:
                from semel.protos.security.passwords import check_new
            except ImportError as error:
                raise InvalidRequest(
                    f"passwords need {error.name} at the controllers: pip install 'semel[security]'"
                ) from None

            check_new(request.password)
            async with self._hashing:
                # Whether the user has had SCRAM is known only once the change is decided.
                stored = await asyncio.to_thread(
                    new_stored, request.password, scram=scram is not False
                )
        users = self.role.active().users
        done = await users.change(request.user, request.change, stored, scram=scram)
        verb = _VERBS.get(request.change, "?")
        how = " for SCRAM too" if done.scram else ""
        self._note(caller, "ChangeUser", f"{verb} user:{request.user}{how}", changed=done.changed)
        return pb.ChangeUserReply(changed=done.changed, scram=done.scram)

    @is_active
    async def ListUsers(self, request: pb.ListUsersRequest, context: Any) -> pb.ListUsersReply:
        self._certified(context)
        return pb.ListUsersReply(users=await self.role.active().users.list())

    @is_active
    async def WhoAmI(self, request: pb.WhoAmIRequest, context: Any) -> pb.WhoAmIReply:
        caller, access = self._certified(context), self._access
        return pb.WhoAmIReply(
            principal=caller.principal,
            groups=[] if access is None else access.enforcer.book.groups_of(caller.principal),
            administrator=caller.administrator,
            scopes=map(str, caller.scopes or ()),
            narrowed=caller.scopes is not None,
            expires_us=int((caller.expires_s or 0) * 1_000_000),
            login=caller.login,
            unchecked=access is None,
            level=self.role.active().epoch.level,
        )

    @is_active
    async def ChangeQuotas(
        self, request: pb.ChangeQuotasRequest, context: Any
    ) -> pb.ChangeQuotasReply:
        changed = await self.role.active().rights.change_quotas(request)
        caller = CALLER.get()
        if caller is not None:
            for line in quota_changes(request):
                self._note(caller, "ChangeQuotas", line, changed=changed)
        return pb.ChangeQuotasReply(changed=changed)

    @is_active
    async def ListQuotas(self, request: pb.ListQuotasRequest, context: Any) -> pb.ListQuotasReply:
        record = self.role.active().rights.record
        return pb.ListQuotasReply(quotas=quotas_of(record, request.of))

    async def WatchRights(
        self, request: pb.WatchRightsRequest, context: Any
    ) -> AsyncGenerator[RightsRecord]:
        async for record in self.role.active().rights.watch():
            yield record

    def _note(self, caller: Caller, method: str, change: str, *, changed: bool) -> None:
        self._audit(
            {
                "who": caller.principal,
                "from": caller.address,
                "method": f"/semel.protos.v1.Controller/{method}",
                "change": change,
                "result": "changed" if changed else "unchanged",
            }
        )

    def _certified(self, context: Any) -> Caller:
        """The caller. Raises InvalidRequest without TLS."""
        peer = self._guard.admitted()
        if peer is None:
            raise InvalidRequest(
                "nobody is known in this cluster: start its nodes with TLS (--tls-dir)"
            )
        return certified(peer, str(context.peer()))

    def _check_quota(self, kind: QuotaKind, count_of: Callable[[str], int]) -> None:
        """Raises InvalidRequest if the caller may not have one more. Calls that are under way at
        once may go beyond by their number."""
        caller = CALLER.get()
        if self._meters is None or (caller and (caller.node or caller.administrator)):
            return
        reached = self._meters.reached(_principal(), kind, count_of)
        if reached is not None:
            limit, count = reached
            whose = "there are" if limit.owner == NOBODY else f"{limit.owner} has"
            raise InvalidRequest(
                f"{whose} {count:,} {kind.value}, as many as the quota of {limit.subject} allows:"
                " delete some, or ask an administrator for a higher one (`semel quota set"
                f" {limit.subject} {kind.value}=N`)"
            )

    def _checked(self) -> tuple[AccessControl, Caller]:
        """The check of rules, and the caller. Raises InvalidRequest without one."""
        caller = CALLER.get()
        if self._access is None or caller is None:
            raise InvalidRequest(
                "no rules are checked in this cluster: start its nodes with --authorization"
            )
        return self._access, caller

    def _patience_s(self, context: grpc.aio.ServicerContext[Any, Any]) -> float:
        """How many seconds a call may wait for broker groups."""
        remaining = context.time_remaining()
        if remaining is None:
            return self._request_timeout_s
        return min(float(remaining) * DEADLINE_SHARE, self._request_timeout_s)
