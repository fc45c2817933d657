"""All that Kafka's clients ask about groups, answered: the pure coordinator, on a cluster.

How it works. A request first makes this gateway the group's coordinator, if nobody is; otherwise it
is refused, and the client looks for the coordinator. The pure group judges. A JoinGroup or
SyncGroup waits here under its ticket until the group answers. Two clocks tick: one for the groups'
timers, and one that renews locks and gives up groups that nobody is in.

If this process stood still, its members could not be heard; their sessions are extended by that
time.

Invariants
1. An offset is acknowledged after it is stored under this coordinator's lock.
2. Members that wait are answered, or told that the coordinator is another one, before the service
   ends.

Not here: Kafka's messages (`handlers/`), the rules (`groups/`), who coordinates (`roles.py`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Final, TypeVar

from semel.client import AsyncClient
from semel.client.session import Session
from semel.gateway.coordination.callers import BEAT_S, FRESH_S, Caller
from semel.gateway.coordination.committed_offsets import Place
from semel.gateway.coordination.gateway_membership import GatewayMembership
from semel.gateway.coordination.group_locks import Deposed
from semel.gateway.coordination.line_progress import Progress
from semel.gateway.coordination.offset_reads import read_offsets
from semel.gateway.coordination.refused import Refused
from semel.gateway.coordination.roles import Role, Roles, group_error, is_kafka
from semel.gateway.coordination.staged_in import StagedIn
from semel.gateway.dispatch import GatewayPlace
from semel.gateway.groups.group_table import GroupTable, taken
from semel.gateway.groups.kafka_group import KafkaGroup
from semel.gateway.groups.results import (
    GroupDescription,
    GroupError,
    GroupLimits,
    GroupState,
    Join,
    JoinResult,
    Leaver,
    Reply,
    Sync,
    SyncResult,
    Ticket,
)
from semel.gateway.groups.subscriptions import CONSUMERS, subscribed_topics
from semel.protos import compat
from semel.protos.addresses import Address
from semel.protos.errors import PermissionDenied, SemelError, UnknownGroup

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")
TICK_S: Final = 0.05
STALL_S: Final = 0.5
"""A tick that comes so much late shows that this process stood still."""
RENEW_S: Final = 10.0
CALLS_MAX: Final = 32
"""Groups whose locks are renewed, or that are given up, at a time."""
LOOK_S: Final = 1.0
IDLE_S: Final = 3.0
"""A group that nobody is in, and nobody asked for in so long, is given up."""
GROUP_NAME_MAX: Final = 249


class GroupService:
    """See the module's text. Lives on the gateway's event loop: `async with GroupService(…)`."""

    def __init__(
        self,
        client: AsyncClient,
        advertised: Address,
        limits: GroupLimits | None = None,
        *,
        protocol: str = "",
    ) -> None:
        """`protocol` is how clients reach the gateway, in Kafka's words."""
        session: Session = client._session
        self.membership = GatewayMembership(
            session, advertised, protocol=protocol, on_dropped=self._on_dropped
        )
        self._own = Caller(client, checks=False)
        self._table = GroupTable(limits or GroupLimits(), lambda: uuid.uuid4().hex)
        self._roles = Roles(self._own, self.membership, self._on_ended)
        self._tickets = itertools.count(1)
        self._waiting: dict[Ticket, asyncio.Future[Any]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._drained = False

    @property
    def groups(self) -> GroupTable:
        """The groups that this gateway coordinates."""
        return self._table

    async def __aenter__(self) -> GroupService:
        """Raises SemelError, for example Unavailable and UnsupportedVersion."""
        await self.membership.start()
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self.membership.run(), name="semel-kafka-membership"),
            loop.create_task(self._tick(), name="semel-kafka-groups"),
            loop.create_task(self._look_after_roles(), name="semel-kafka-roles"),
        ]
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.drain()

    async def drain(self) -> None:
        """Coordinates nothing any more: all that wait are told, and other gateways may take over at
        once. To be called before the port closes, which waits for requests under way."""
        if self._drained:
            return
        self._drained = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._roles.drop_all()
        await self.membership.leave()

    # --- members ----------------------------------------------------------------------------------

    async def find(self, group_id: str, caller: Caller | None = None) -> GatewayPlace:
        """Returns where the group's coordinator is. Raises Refused."""
        _check_name(group_id)
        self._check_serving()
        return await self._roles.find(group_id, caller or self._own)

    async def join(self, group_id: str, join: Join, caller: Caller | None = None) -> JoinResult:
        """Answers a JoinGroup, perhaps much later."""
        try:
            _, group = await self._coordinated(group_id, caller)
        except Refused as refused:
            return JoinResult(error=refused.error, member_id=join.member_id)
        ticket, future = self._ticket()
        group.join(join, ticket, _now_ms())
        result: JoinResult = await self._answer(group, ticket, future)
        return result

    async def sync(self, group_id: str, sync: Sync, caller: Caller | None = None) -> SyncResult:
        """Answers a SyncGroup, perhaps later."""
        try:
            _, group = await self._coordinated(group_id, caller)
        except Refused as refused:
            return SyncResult(error=refused.error)
        ticket, future = self._ticket()
        group.sync(sync, ticket, _now_ms())
        result: SyncResult = await self._answer(group, ticket, future)
        return result

    async def heartbeat(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        caller: Caller | None = None,
    ) -> GroupError:
        """Answers a Heartbeat."""
        try:
            _, group = await self._coordinated(group_id, caller, BEAT_S)
        except Refused as refused:
            return refused.error
        return group.heartbeat(member_id, instance_id, generation, _now_ms())

    async def leave(
        self, group_id: str, leavers: Iterable[Leaver], caller: Caller | None = None
    ) -> list[GroupError]:
        """Answers a LeaveGroup, for each member that it names. Raises Refused."""
        _, group = await self._coordinated(group_id, caller)
        errors = [group.leave(leaver, _now_ms()) for leaver in leavers]
        self._deliver(taken(group))
        return errors

    # --- offsets ----------------------------------------------------------------------------------

    async def commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        wanted: Mapping[Place, Progress],
        caller: Caller | None = None,
    ) -> dict[Place, SemelError]:
        """Stores offsets. Returns the errors of those that are not, or perhaps not, stored. Raises
        Refused."""
        caller = caller or self._own
        role, group = await self._coordinated(group_id, caller)
        error = group.check_commit(member_id, instance_id, generation, _now_ms())
        if error is not GroupError.NONE:
            raise Refused(error)
        return await self._with(role, caller, role.offsets(caller).commit(wanted))

    async def stage_commit(
        self,
        group_id: str,
        member: tuple[str, str | None, int] | None,
        wanted: Mapping[Place, Progress],
        transaction: StagedIn,
        caller: Caller | None = None,
    ) -> dict[Place, SemelError]:
        """Stages offsets with a transaction. `member` is id, instance and generation of whoever
        commits, if it says so. Returns the errors of those that are not, or perhaps not, staged.
        Raises Refused."""
        caller = caller or self._own
        role, group = await self._coordinated(group_id, caller)
        if member is not None:
            error = group.check_commit(*member, _now_ms())
            if error is not GroupError.NONE:
                raise Refused(error)

        def may_stage() -> bool:
            return member is None or group.judge_commit(*member) is GroupError.NONE

        staged_in = transaction._replace(may_stage=may_stage)
        return await self._with(role, caller, role.offsets(caller).stage(wanted, staged_in))

    async def fetch(
        self,
        group_id: str,
        wanted: Iterable[Place] | None,
        caller: Caller | None = None,
        *,
        stable: bool = False,
    ) -> dict[Place, Progress | SemelError]:
        """Returns what is committed at these places, or wherever something is. Where a transaction
        that has not ended may change it, it is Throttled if it has to be `stable`, or is about to
        change. Raises Refused."""
        _check_name(group_id)
        caller = caller or self._own
        role, group = self._roles.held.get(group_id), self._table.find(group_id)
        if role is None:
            info = await self._roles.look_up(group_id, caller)
            if info is not None and not is_kafka(info):
                raise Refused(GroupError.INCONSISTENT_GROUP_PROTOCOL)
            if info is not None and self._roles.is_elsewhere(info):
                raise Refused(GroupError.NOT_COORDINATOR)
        elif (
            group is not None
            and group.members
            and wanted is not None
            and await caller.may_be_member(group_id)
        ):
            role.used_s = time.monotonic()
            return await self._with(role, caller, role.offsets(caller).fetch(wanted, group.era))
        # Nobody who is in the group is about to read by what is answered.
        session = caller.session
        try:
            stored = await session.await_run(read_offsets(session.cluster, group_id, stable=stable))
        except SemelError as error:
            raise Refused(group_error(error)) from error
        places = stored if wanted is None else wanted
        return {place: stored.get(place, Progress(-1, b"")) for place in places}

    async def _with(
        self, role: Role, caller: Caller, call: Coroutine[Any, Any, _Result]
    ) -> _Result:
        try:
            return await caller.session.await_run(call)
        except Deposed as deposed:
            self._roles.deposed(role)
            raise Refused(GroupError.NOT_COORDINATOR) from deposed

    # --- for people -------------------------------------------------------------------------------

    async def describe(self, group_id: str, caller: Caller | None = None) -> GroupDescription:
        """Describes a group. Raises Refused."""
        _check_name(group_id)
        caller = caller or self._own
        group = self._table.find(group_id)
        if group is not None:
            await caller.check_describe(group_id)
            return group.describe()
        info = await self._roles.look_up(group_id, caller)
        if info is None or not is_kafka(info):
            return GroupDescription(state=GroupState.DEAD)
        if self._roles.is_elsewhere(info):
            raise Refused(GroupError.NOT_COORDINATOR)
        return GroupDescription(state=GroupState.EMPTY)

    async def names(self, caller: Caller | None = None) -> list[tuple[str, str]]:
        """Returns name and protocol type of all Kafka groups of the cluster that the caller may
        see; the type is empty if the group is not coordinated here. Raises Refused."""
        try:
            names = await self._roles.names(caller or self._own)
        except SemelError as error:
            raise Refused(GroupError.COORDINATOR_NOT_AVAILABLE) from error
        groups = {name: self._table.find(name) for name in names}
        return [
            (name, group.protocol_type if group is not None else "")
            for name, group in groups.items()
        ]

    async def delete(self, group_id: str, caller: Caller | None = None) -> GroupError:
        """Deletes a group that nobody is in, with its offsets."""
        caller = caller or self._own
        try:
            _check_name(group_id)
            await caller.check_describe(group_id)
            group, role = self._table.find(group_id), self._roles.held.get(group_id)
            if group is not None and (group.members or group.pending):
                return GroupError.NON_EMPTY_GROUP
            if role is not None:
                await self._roles.give_up(role)
            info = await self._roles.look_up(group_id, caller)
        except Refused as refused:
            return refused.error
        if info is None or not is_kafka(info):
            return GroupError.GROUP_ID_NOT_FOUND
        if info.members:
            return GroupError.NOT_COORDINATOR
        session = caller.session
        try:
            await session.await_run(session.admin.delete_group(group_id))
        except UnknownGroup:
            return GroupError.GROUP_ID_NOT_FOUND
        except SemelError as error:
            logger.info("delete failed group=%s error=%s", group_id, error.message)
            return group_error(error)
        return GroupError.NONE

    async def forget_offsets(
        self, group_id: str, places: Iterable[Place], caller: Caller | None = None
    ) -> dict[Place, GroupError | SemelError]:
        """Forgets what a group has committed of partitions that none of its members subscribes to.
        Returns the errors of those of which it is not forgotten. Raises Refused."""
        caller = caller or self._own
        _check_name(group_id)
        await caller.check_describe(group_id)
        info = await self._roles.look_up(group_id, caller)
        if info is None or not is_kafka(info):
            raise Refused(GroupError.GROUP_ID_NOT_FOUND)
        role, group = await self._coordinated(group_id, caller)
        wanted = list(places)
        failed: dict[Place, GroupError | SemelError] = {}
        if group.members:
            if group.protocol_type != CONSUMERS:
                raise Refused(GroupError.NON_EMPTY_GROUP)
            topics = subscribed_topics(group.members.values())
            failed = {
                place: GroupError.GROUP_SUBSCRIBED_TO_TOPIC
                for place in wanted
                if topics is None or place[0] in topics
            }
        left = [place for place in wanted if place not in failed]
        session = caller.session
        try:
            failed |= await session.await_run(role.offsets(caller).forget(left))
        except PermissionDenied as error:
            raise Refused(group_error(error)) from error
        except SemelError as error:
            failed |= dict.fromkeys(left, error)
        return failed

    # --- the coordinator --------------------------------------------------------------------------

    async def _coordinated(
        self, group_id: str, caller: Caller | None, age_s: float = FRESH_S
    ) -> tuple[Role, KafkaGroup]:
        """Returns a group that this gateway coordinates, to a caller that may be a member, as it
        was heard at most `age_s` ago. Raises Refused."""
        caller = caller or self._own
        _check_name(group_id)
        self._check_serving()
        await caller.check_member(group_id, age_s)
        if self._table.is_full and self._table.find(group_id) is None:
            raise Refused(GroupError.COORDINATOR_NOT_AVAILABLE)
        role = await self._roles.claim(group_id, caller)
        return role, self._table.find(group_id) or self._table.begin(group_id)

    def _check_serving(self) -> None:
        if self._drained:
            raise Refused(GroupError.COORDINATOR_NOT_AVAILABLE)

    def _ticket(self) -> tuple[Ticket, asyncio.Future[Any]]:
        ticket = Ticket(next(self._tickets))
        future = self._waiting[ticket] = asyncio.get_running_loop().create_future()
        return ticket, future

    async def _answer(self, group: KafkaGroup, ticket: Ticket, future: asyncio.Future[Any]) -> Any:
        """Returns what the group answers. If the client goes away meanwhile, the member stays: it
        joins again, or its session ends."""
        self._deliver(taken(group))
        try:
            return await future
        finally:
            self._waiting.pop(ticket, None)

    def _deliver(self, replies: Iterable[Reply]) -> None:
        for reply in replies:
            future = self._waiting.get(reply.ticket)
            if future is not None and not future.done():
                future.set_result(reply.result)

    def _on_ended(self, role: Role) -> None:
        self._deliver(self._table.end(role.group_id, GroupError.NOT_COORDINATOR))

    def _on_dropped(self) -> None:
        self._roles.drop_all()

    async def _tick(self) -> None:
        before = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            late = now - before - TICK_S
            before = now
            if late > STALL_S:
                logger.warning("the gateway stood still milliseconds=%d", late * 1000)
                self._table.forgive(round(late * 1000))
            self._deliver(self._table.on_time(_now_ms()))

    async def _look_after_roles(self) -> None:
        room = asyncio.Semaphore(CALLS_MAX)
        while True:
            await asyncio.sleep(LOOK_S)
            async with compat.TaskGroup() as tasks:
                for role in list(self._roles.held.values()):
                    tasks.create_task(self._look_after(role, room))

    async def _look_after(self, role: Role, room: asyncio.Semaphore) -> None:
        """Gives a group up that nobody is in, and renews the locks of the others."""
        async with room:
            now = time.monotonic()
            group = self._table.find(role.group_id)
            if (group is None or group.is_left) and now - role.used_s >= IDLE_S:
                await self._roles.give_up(role)
            elif now - role.renewed_s >= RENEW_S:
                role.renewed_s = now
                await self._renew(role)

    async def _renew(self, role: Role) -> None:
        caller = self._own if role.caller.is_gone else role.caller
        try:
            await caller.session.await_run(role.offsets(caller).locks.renew())
        except Deposed:
            self._roles.deposed(role)
        except SemelError as error:
            logger.info("renew failed group=%s error=%s", role.group_id, error.message)


def _check_name(group_id: str) -> None:
    """Raises Refused for a name that no group may have."""
    if not 1 <= len(group_id) <= GROUP_NAME_MAX or not group_id.isprintable():
        raise Refused(GroupError.INVALID_GROUP_ID)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
