"""Which groups this gateway coordinates, and where the coordinators of the others are.

How it works. A Kafka group is a Semel group of that kind, whose one member is its coordinator. A
gateway *claims* a group when a request about it arrives: the controllers make it the member unless
another gateway is, and the generation of that membership is the one under which it locks the
group's queues. Whoever only asks for the coordinator claims nothing.

A role ends when the group is idle (the gateway leaves the Semel group, so that its offsets can be
reset and the group be deleted), when the gateway hears from a broker that it was deposed, and with
all others when the controllers have taken the gateway for dead.

Invariants
1. One call of this gateway about a group's membership is under way at a time.
2. A role is of the membership under which it was claimed; with that, it ends.

Not here: members of the Kafka group (`groups/`), the answers to clients (`group_service.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Final

from semel.gateway.coordination.callers import Caller
from semel.gateway.coordination.committed_offsets import CommittedOffsets
from semel.gateway.coordination.gateway_membership import GatewayMembership, place_of
from semel.gateway.coordination.group_locks import GroupLocks
from semel.gateway.coordination.refused import Refused
from semel.gateway.dispatch import GatewayPlace
from semel.gateway.groups.results import GroupError
from semel.protos.errors import (
    GroupKindConflict,
    InvalidRequest,
    PermissionDenied,
    SemelError,
    UnknownGroup,
)
from semel.protos.v1 import controller_pb2
from semel.protos.v1.metadata_pb2 import GroupKind

logger = logging.getLogger(__name__)

CALL_S: Final = 5.0


class Role:
    """This gateway coordinates one group."""

    def __init__(self, group_id: str, offsets: CommittedOffsets, caller: Caller) -> None:
        self.group_id = group_id
        self.caller = caller
        """The one who was served last: the role uses those rights for what nobody asks for."""
        self._offsets = offsets
        self.used_s = time.monotonic()
        """When it was asked for last."""
        self.renewed_s = self.used_s
        """When its locks were renewed last."""

    def offsets(self, caller: Caller) -> CommittedOffsets:
        """The offsets, as the caller may store and see them."""
        return self._offsets.acting(caller.session.cluster, caller.topics)


class Roles:
    """See the module's text. Lives on the gateway's event loop."""

    def __init__(
        self, own: Caller, membership: GatewayMembership, on_ended: Callable[[Role], None]
    ) -> None:
        """`own` is the gateway itself. `on_ended` is called when it coordinates a group no more."""
        self.held: dict[str, Role] = {}
        self._own = own
        self._membership = membership
        self._on_ended = on_ended
        self._calls: dict[str, asyncio.Task[Any]] = {}
        """The call about a group's membership that is under way."""

    async def claim(self, group_id: str, caller: Caller) -> Role:
        """Returns the role of this gateway, which it takes if nobody has it. The caller may be a
        member of the group. Raises Refused."""
        while True:
            role = self.held.get(group_id)
            if role is not None:
                role.used_s, role.caller = time.monotonic(), caller
                return role
            call = self._calls.get(group_id)
            if call is None:
                call = self._begin(group_id, self._claim(group_id, caller))
            result = await asyncio.shield(call)
            if isinstance(result, GroupError):
                raise Refused(result)

    async def find(self, group_id: str, caller: Caller) -> GatewayPlace:
        """Returns where the group is coordinated: at whoever does, else at this gateway, which will
        be its coordinator as soon as it is asked. Raises Refused."""
        if group_id in self.held:
            await caller.check_describe(group_id)
            return self._membership.own
        info = await self.look_up(group_id, caller)
        # Whoever asks about a group of another kind hears what is wrong when it joins.
        for member in info.members if info is not None and is_kafka(info) else ():
            place = place_of(member.address)
            if not await self._membership.is_gone(member.member_id, place):
                return place
        return self._membership.own

    async def look_up(self, group_id: str, caller: Caller) -> controller_pb2.GroupInfo | None:
        """Returns what the controllers tell the caller of a group of any kind; None if there is
        none. Raises Refused."""
        if (call := self._calls.get(group_id)) is not None:
            await asyncio.shield(call)  # a member that is just leaving is none for who asks now
        try:
            (info,) = await self._list(group_id, caller)
        except UnknownGroup:
            return None
        except SemelError as error:
            raise Refused(group_error(error)) from error
        return info

    def is_elsewhere(self, info: controller_pb2.GroupInfo) -> bool:
        """Whether another gateway coordinates the group."""
        return any(member.member_id != self._membership.member_id for member in info.members)

    async def names(self, caller: Caller) -> list[str]:
        """Returns the names of all Kafka groups that the caller may see. Raises SemelError."""
        infos = await self._list("", caller)
        return [info.group for info in infos if is_kafka(info)]

    async def give_up(self, role: Role) -> None:
        """Leaves the group, for any gateway to claim."""
        if self.held.get(role.group_id) is not role:
            return
        self._end(role)
        assert role.group_id not in self._calls, "a claim beside a role"
        await asyncio.shield(self._begin(role.group_id, self._leave(role)))

    def deposed(self, role: Role) -> None:
        """Another gateway has become the coordinator."""
        if self.held.get(role.group_id) is role:
            logger.warning("deposed group=%s", role.group_id)
            self._end(role)

    def drop_all(self) -> None:
        """The gateway was taken for dead: it coordinates nothing any more."""
        for role in list(self.held.values()):
            self._end(role)

    def _end(self, role: Role) -> None:
        del self.held[role.group_id]
        self._on_ended(role)

    def _begin(self, group_id: str, call: Any) -> asyncio.Task[Any]:
        async def alone() -> Any:
            try:
                return await call
            finally:
                # At once: who finds a call that has ended would wait for it without ever waiting.
                del self._calls[group_id]

        task = asyncio.get_running_loop().create_task(alone(), name=f"semel-kafka-role-{group_id}")
        self._calls[group_id] = task
        return task

    async def _claim(self, group_id: str, caller: Caller) -> GroupError | None:
        """Returns why the gateway does not coordinate the group; None if it does."""
        membership = self._membership
        member_id = membership.member_id
        request = controller_pb2.JoinGroupRequest(
            group=group_id,
            member_id=member_id,
            client=f"Kafka gateway {membership.address}",
            kind=GroupKind.GROUP_KIND_KAFKA,
            address=membership.address,
        )
        session = caller.session
        try:
            reply = await session.await_run(
                session.cluster.controller("JoinGroup", request, CALL_S)
            )
        except SemelError as error:
            logger.info("claim failed group=%s error=%s", group_id, error.message)
            return group_error(error)
        if reply.member_id != member_id:
            if not await membership.is_gone(reply.member_id, place_of(reply.address)):
                return GroupError.NOT_COORDINATOR
            return GroupError.COORDINATOR_NOT_AVAILABLE  # the client asks again at once
        if member_id != membership.member_id:
            return GroupError.NOT_COORDINATOR
        locks = GroupLocks(session.cluster, group_id, reply.generation)
        offsets = CommittedOffsets(session.cluster, caller.topics, locks)
        self.held[group_id] = Role(group_id, offsets, caller)
        logger.info("coordinates group=%s generation=%d", group_id, reply.generation)
        return None

    async def _leave(self, role: Role) -> None:
        request = controller_pb2.LeaveGroupRequest(
            group=role.group_id, member_id=self._membership.member_id
        )
        # Who was served last may have left, or lost the right; the gateway itself may have none.
        for caller in dict.fromkeys((role.caller, self._own)):
            session = caller.session
            try:
                await session.await_run(role.offsets(caller).locks.release())
                await session.await_run(session.cluster.controller("LeaveGroup", request, CALL_S))
            except SemelError as error:
                logger.info("leave failed group=%s error=%s", role.group_id, error.message)
            else:
                return

    async def _list(self, group_id: str, caller: Caller) -> list[controller_pb2.GroupInfo]:
        session = caller.session
        request = controller_pb2.ListGroupsRequest(group=group_id)
        reply = await session.await_run(session.cluster.controller("ListGroups", request, CALL_S))
        return list(reply.groups)


def is_kafka(info: controller_pb2.GroupInfo) -> bool:
    """Whether a group is one of Kafka's clients."""
    return info.kind == GroupKind.GROUP_KIND_KAFKA


def group_error(error: SemelError) -> GroupError:
    """What a client hears of a refusal by the cluster."""
    match error:
        case GroupKindConflict():
            return GroupError.INCONSISTENT_GROUP_PROTOCOL
        case PermissionDenied():
            return GroupError.GROUP_AUTHORIZATION_FAILED
        case InvalidRequest():
            return GroupError.INVALID_GROUP_ID
        case _:  # also when the gateway was taken for dead: its next heartbeat joins again
            return GroupError.COORDINATOR_NOT_AVAILABLE
