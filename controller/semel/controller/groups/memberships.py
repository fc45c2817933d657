"""The consumer groups of a running controller: it stores and settles them and expires members.

How it works. Calls change a `ConsumerGroup` at once and then wait until it is *settled*: one caller
at a time plans, stores and adopts the next generation for all callers that wait. A task of its own
drops silent members and settles groups whose topics changed. Another one reads the clock every
`EXPIRY_MS`, whatever the first one waits for: if two readings lie further apart, this process stood
still in between, and every reading notices that before it is used.

A new group's generation starts at the store's revision, and each generation is one transaction. So
if a group is forgotten and made again under the same name, none of its generations comes twice:
locks and commits of the old group are refused as stale and never taken for new ones.

A group of Kafka's clients has no heartbeats of its own. Its one member, the gateway that
coordinates it, is looked for among the members of the group of gateways, and dropped with them.

Invariants
1. A reply carries a generation that is durable.
2. Time during which the controller's own loop stood still (it was paused) counts against no member.

Not here: the rules (`group.py`), exclusivity (the locks at the brokers).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable
from typing import Final

from semel.controller import records
from semel.controller.brokers.routes import RouteTable
from semel.controller.epoch import ControllerEpoch, unbroken
from semel.controller.groups.group import (
    NAME_CHARACTERS_MAX,
    SESSION_MS_DEFAULT,
    ConsumerGroup,
    Topics,
    Wish,
    check_name,
)
from semel.protos import compat
from semel.protos.errors import (
    InvalidRequest,
    SemelError,
    UnknownGroup,
    UnknownMember,
    UnknownTopic,
)
from semel.protos.groups import GATEWAY_GROUP, check_not_reserved
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.levels import KAFKA_LEVEL, lacking
from semel.protos.v1.controller_pb2 import (
    GroupInfo,
    GroupMembershipReply,
    HeartbeatGroupRequest,
    JoinGroupRequest,
)
from semel.protos.v1.metadata_pb2 import ConsumerGroupRecord, GroupKind

log = logging.getLogger(__name__)

EXPIRY_MS: Final = 200
"""Pause between two searches for silent members."""
LOOP_GAP_MS: Final = 300
"""A reading of the clock that is later than this means that this process stood still."""


class MembershipService:
    """All consumer groups. Both clocks give monotonic milliseconds.

    `clock` measures the silence of members, `loop_clock` shows whether this process stood still.
    """

    def __init__(
        self,
        epoch: ControllerEpoch,
        routes: RouteTable,
        *,
        clock: Callable[[], int],
        loop_clock: Callable[[], int],
        groups_max: Callable[[], int] = lambda: 100_000,
        members_max: Callable[[], int] = lambda: 10_000,
    ) -> None:
        self._epoch = epoch
        self._groups_max = groups_max
        self._members_max = members_max
        self._routes = routes
        self._clock = clock
        self._loop_clock = loop_clock
        self._read_ms = loop_clock()
        """When the clock was read last, by `loop_clock`."""
        self._groups: dict[str, ConsumerGroup] = {}
        self._settling: dict[str, asyncio.Lock] = {}
        self._wake = asyncio.Event()

    async def load(self) -> None:
        """Reads the stored groups; the topics must have been read before."""
        stored = await self._epoch.store.scan(records.CONSUMERS)
        self._read_ms = self._loop_clock()
        for key, entry in stored.items():
            record = records.load(ConsumerGroupRecord, key, entry)
            self._groups[record.group] = ConsumerGroup.restore(record, self._clock())

    async def run(self) -> None:
        """Drops silent members and settles groups, until cancelled."""
        async with compat.TaskGroup() as tasks:
            tasks.create_task(self._tick())
            tasks.create_task(self._look_again_and_again())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_MS / 1000)
            self._now_ms()

    async def _look_again_and_again(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with compat.timeout(EXPIRY_MS / 1000):
                    await self._wake.wait()
            self._wake.clear()
            await self._look_after_all()

    def on_topic_changed(self, name: str) -> None:
        """Takes in that the queues of a topic changed."""
        for group in self._groups.values():
            group.on_topic_changed(name)
        self._wake.set()

    async def join(self, request: JoinGroupRequest, owner: str = "") -> GroupMembershipReply:
        """Adds a member, or takes one back. A new group is the owner's. The reply to a gateway
        that comes too late to coordinate a group is about the one that does.

        Raises InvalidRequest, also for a gateway that clients reach otherwise than the others;
        UnknownTopic and GroupKindConflict; UnknownMember for a gateway that the group of gateways
        does not have; UnsupportedVersion while the metadata may hold none. A cancelled call may
        have added the member, which is dropped after its session.
        """
        check_name(request.group)
        self._check_kind(request)
        if request.member_id:
            check_name(request.member_id, "member id")
        wish = Wish(
            topics=tuple(dict.fromkeys(request.topics)),
            session_ms=request.session_ms or SESSION_MS_DEFAULT,
            client=request.client[:NAME_CHARACTERS_MAX],
            grace_ms=request.grace_ms,
            incarnation=request.incarnation,
            kind=request.kind,
            address=request.address,
            protocol=request.protocol,
        )
        if wish.grace_ms and not request.member_id:
            raise InvalidRequest("grace_ms is for a member that chooses its own member_id")
        for name in wish.topics:
            if self._routes.topic(name) is None:
                raise UnknownTopic(f"there is no topic {name!r}. Create it, or check the spelling")
        group = self._groups.get(request.group)
        self._require_room(request, group)
        if group is None:
            revision = await self._epoch.store.revision()
            group = self._groups.setdefault(
                request.group, ConsumerGroup(request.group, generation=revision, kind=request.kind)
            )
            group.owner = group.owner or owner
        group.check_kind(wish.kind)
        if request.kind == GroupKind.GROUP_KIND_GATEWAYS:
            self._expire(group, self._now_ms())
            group.check_protocol(request.member_id, request.protocol)
        if request.kind == GroupKind.GROUP_KIND_KAFKA:
            self._expire(group, self._now_ms())
            if group.coordinator not in ("", request.member_id):
                return group.reply(group.coordinator)
        member_id = request.member_id or f"member-{uuid.uuid4().hex}"
        group.join(member_id, wish, self._now_ms())
        log.info("member joins group=%s member=%s", group.name, member_id)
        await self._settle(group)
        return group.reply(member_id)

    def _check_kind(self, request: JoinGroupRequest) -> None:
        """Raises what forbids that the member joins a group of the kind and name that it says."""
        kind, active = request.kind, self._epoch.level
        if kind != GroupKind.GROUP_KIND_CONSUMERS and active < KAFKA_LEVEL:
            raise lacking(KAFKA_LEVEL, active, "the controllers' metadata")
        if kind == GroupKind.GROUP_KIND_GATEWAYS:
            if request.group != GATEWAY_GROUP:
                raise InvalidRequest(f"gateways join group {GATEWAY_GROUP!r}")
            return
        check_not_reserved(request.group)
        gateways = self._groups.get(GATEWAY_GROUP)
        if kind == GroupKind.GROUP_KIND_KAFKA and (
            gateways is None or not gateways.has(request.member_id)
        ):
            raise UnknownMember(
                f"{request.member_id!r} is no gateway of this cluster, or was silent for too long:"
                f" it must join group {GATEWAY_GROUP!r} first"
            )

    def _expire(self, group: ConsumerGroup, now_ms: int) -> None:
        """Drops members of a group that were silent for too long."""
        for member_id in group.expire(now_ms, self._groups.get(GATEWAY_GROUP)):
            log.info("member was silent for too long group=%s member=%s", group.name, member_id)

    def _require_room(self, request: JoinGroupRequest, group: ConsumerGroup | None) -> None:
        """Raises InvalidRequest if one more would be too many."""
        if group is None and len(self._groups) >= self._groups_max():
            raise InvalidRequest(
                f"there are {len(self._groups):,} consumer groups, as many as --groups-max of the"
                " controllers allows"
            )
        if (
            group is not None
            and group.member_count >= self._members_max()
            and not group.has(request.member_id)
        ):
            raise InvalidRequest(
                f"group {group.name!r} has {group.member_count:,} members, as many as"
                " --group-members-max of the controllers allows"
            )

    async def heartbeat(self, request: HeartbeatGroupRequest) -> GroupMembershipReply:
        """Notes that a member is alive; returns its assignment.

        Raises UnknownMember, MemberFenced.
        """
        group = self._groups.get(request.group)
        if group is None:
            raise UnknownMember(f"there is no group {request.group!r} any more; join again")
        group.heartbeat(request.member_id, self._now_ms(), request.incarnation)
        return group.reply(request.member_id)

    async def leave(self, group_name: str, member_id: str, incarnation: bytes = b"") -> None:
        """Removes a member; an unknown one has left before. Raises UnknownGroup."""
        group = self._find(group_name)
        if group.leave(member_id, incarnation):
            log.info("member leaves group=%s member=%s", group_name, member_id)
            await self._settle(group)

    async def list(self, group_name: str, *, counts_only: bool = False) -> list[GroupInfo]:
        """One group, or all of them by name. Raises UnknownGroup."""
        names = [group_name] if group_name else sorted(self._groups.keys() - {GATEWAY_GROUP})
        return [self._find(name).info(counts_only=counts_only) for name in names]

    def has(self, group_name: str) -> bool:
        """Whether there is a group of that name."""
        return group_name in self._groups

    def owned(self, owner: str) -> int:
        """How many groups somebody's members have begun."""
        return sum(group.owner == owner for group in self._groups.values())

    def counts(self) -> tuple[int, int]:
        """The number of groups, and of members in all of them."""
        groups = [group for name, group in self._groups.items() if name != GATEWAY_GROUP]
        return len(groups), sum(group.member_count for group in groups)

    async def forget(self, group_name: str) -> None:
        """Forgets a group. Raises UnknownGroup, and InvalidRequest while it has members, or if it
        is one of Semel's own."""
        check_not_reserved(group_name)
        await unbroken(self._forget(self._find(group_name)))

    async def _forget(self, group: ConsumerGroup) -> None:
        async with self._lock(group):
            if not group.empty:
                raise InvalidRequest(f"group {group.name!r} has members; stop them first")
            key = records.consumer_group_key(group.name)
            await self._epoch.transact(deletes=frozenset({key}))
            if group.empty and self._groups.get(group.name) is group:
                del self._groups[group.name]
                self._settling.pop(group.name, None)
            log.info("group is forgotten group=%s", group.name)

    async def _settle(self, group: ConsumerGroup) -> None:
        """Returns once all changes from before the call are stored and adopted."""
        wanted = group.changes
        while group.settled_changes < wanted:
            await unbroken(self._settle_once(group, wanted))

    async def _settle_once(self, group: ConsumerGroup, wanted: int) -> None:
        async with self._lock(group):
            if group.settled_changes >= wanted:
                return
            if self._groups.get(group.name) is not group:
                group.settled_changes = wanted  # forgotten meanwhile
                return
            plan = group.plan(self._topics(group))
            if plan is None:
                return
            key = records.consumer_group_key(group.name)
            await self._epoch.transact(puts={key: records.dump(group.record(plan))})
            group.adopt(plan)
            log.info(
                "group has a new assignment group=%s generation=%d members=%d",
                group.name,
                plan.generation,
                len(plan.wishes),
            )

    async def _look_after_all(self) -> None:
        now_ms = self._now_ms()
        # Gateways first: the groups that one coordinated end with it.
        groups = sorted(self._groups.values(), key=lambda group: group.name != GATEWAY_GROUP)
        for group in groups:
            self._expire(group, now_ms)
            if group.settled:
                continue
            try:
                await self._settle(group)
            except SemelError as error:
                log.warning("group cannot be settled group=%s reason=%s", group.name, error)

    def _now_ms(self) -> int:
        """Reads the clock of sessions, and forgives a standstill since the last reading."""
        # The order counts: nobody is dropped by a time from before a standstill, and one that
        # begins between the two readings is noticed by the second.
        now_ms = self._clock()
        read_ms, self._read_ms = self._read_ms, self._loop_clock()
        gap_ms = self._read_ms - read_ms - EXPIRY_MS
        if gap_ms > LOOP_GAP_MS:
            self._forgive(gap_ms)
        return now_ms

    def _forgive(self, gap_ms: int) -> None:
        log.warning("the controller stood still milliseconds=%d", gap_ms)
        for group in self._groups.values():
            group.forgive(gap_ms)

    def _topics(self, group: ConsumerGroup) -> Topics:
        found = {name: self._routes.topic(name) for name in group.topics()}
        return {
            name: [
                QueueKey(TopicId(topic.topic_id), QueueId(number))
                for number in sorted(each.queue_id for each in (*topic.sealed, *topic.queues))
            ]
            for name, topic in found.items()
            if topic is not None
        }

    def _find(self, group_name: str) -> ConsumerGroup:
        group = self._groups.get(group_name)
        if group is None:
            raise UnknownGroup(f"there is no consumer group {group_name!r}")
        return group

    def _lock(self, group: ConsumerGroup) -> asyncio.Lock:
        return self._settling.setdefault(group.name, asyncio.Lock())
