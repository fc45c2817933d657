"""Resets of a consumer group's progress: first a plan that can be inspected, then the move.

How it works. A plan holds one row per queue: the group's offset now and after the reset. Carrying
it out sends exactly these offsets, each as an entry in the log of the queue's group. So the result
is what the plan showed, and the same plan carried out twice moves nothing the second time.

Deleting a group asks every broker group to forget it. A queue that moves meanwhile could take the
group's progress along, from a broker group that was not asked yet to one that was. So all are asked
again until nothing has moved between them twice in a row. Then there was a moment at which all had
forgotten the group.

A group with members is refused: a reset would interrupt their work. A member that joins between
that check and the move loses its lock like any other whose token is old, and continues at the new
offset: the race skips nothing and reads nothing twice.

Not here: places and their lookup (`reading/offsets.py`), what the console shows
(`console/group.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from semel.client.admin.descriptions import Described
from semel.client.core.routing import QueueRoute, TopicRoute
from semel.client.reading.offsets import Place, check_places, list_offsets, resolve_places
from semel.client.transport.cluster import Cluster
from semel.protos.errors import InvalidRequest, Unavailable, UnknownGroup, UnknownQueue
from semel.protos.ids import GroupId, QueueKey
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2, controller_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetReset(Described):
    """One queue of a plan."""

    topic: str
    queue: int
    committed_offset: int
    """The next offset that the group reads now; -1 if it never committed here."""
    new_offset: int
    """The next offset that it reads after the reset."""
    log_start_offset: int
    log_end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """A number of messages forward, or back if negative, from the group's offset."""

    messages: int

    def apply(self, committed: int, start: int, end: int) -> int:
        """Returns the new offset, kept within the queue."""
        return min(max(committed + self.messages, start), end)


Target = tuple[str, int | None]
"""A topic, and one of its queues or all of them."""


async def active_consumers(cluster: Cluster, group: str, states: Iterable[Any]) -> list[str]:
    """Returns the names of the group's members, and of members that hold one of its locks."""
    reply = await cluster.controller("ListGroups", controller_pb2.ListGroupsRequest())
    named = {
        member.member_id: f"{member.member_id} ({member.client})"
        for info in reply.groups
        if info.group == group
        for member in info.members
    }
    owners = {state.owner: state.owner for state in states if state.owner}
    return [{**owners, **named}[name] for name in sorted({**owners, **named})]


def refuse_active(group: str, active: Sequence[str]) -> None:
    """Raises InvalidRequest if the group has consumers."""
    if active:
        more = f" and {len(active) - 3} more" if len(active) > 3 else ""
        raise InvalidRequest(
            f"group {group!r} is active: {', '.join(active[:3])}{more}. Stop its consumers first;"
            " one that has died is forgotten after its session"
        )


async def plan_resets(
    cluster: Cluster,
    group: str,
    targets: Sequence[Target],
    to: Place | Shift,
    states: Sequence[Any],
    names: dict[int, str],
) -> list[OffsetReset]:
    """Returns the plan, by topic and queue. `states` are the group's, `names` those of the topics.

    Without targets it covers all topics on which the group has any state. A shift leaves out queues
    where the group never committed. Raises UnknownTopic, UnknownQueue, UnknownGroup,
    OffsetOutOfRange.
    """
    if not isinstance(to, Shift):
        check_places("to", to)
    committed = {
        (names[state.queue.topic_id], state.queue.queue_id): state.committed_offset
        for state in states
        if state.queue.topic_id in names
    }
    if not targets:
        targets = [(topic, None) for topic in sorted({topic for topic, _ in committed})]
        if not targets:
            raise UnknownGroup(f"group {group!r} has no progress anywhere; name a topic")
    plan: dict[tuple[str, int], OffsetReset] = {}
    for topic, queue in targets:
        route = await cluster.topic(topic, refresh=True)
        for reset in await _plan_topic(cluster, route, queue, to, committed):
            plan[topic, reset.queue] = reset
    return [plan[place] for place in sorted(plan)]


async def _plan_topic(
    cluster: Cluster,
    route: TopicRoute,
    queue: int | None,
    to: Place | Shift,
    committed: dict[tuple[str, int], int],
) -> list[OffsetReset]:
    queues = [each for each in route.every if queue is None or each.key.queue_id == queue]
    if not queues:
        raise UnknownQueue(f"topic {route.name!r} has no queue {queue}")
    known = await list_offsets(cluster, queues)
    if isinstance(to, Shift):
        offsets = {
            number: to.apply(at, found.log_start_offset, found.log_end_offset)
            for number, found in known.items()
            if (at := committed.get((route.name, number), -1)) >= 0
        }
    else:
        offsets = await resolve_places(cluster, route, queues, to)
    return [
        OffsetReset(
            topic=route.name,
            queue=number,
            committed_offset=committed.get((route.name, number), -1),
            new_offset=offset,
            log_start_offset=known[number].log_start_offset,
            log_end_offset=known[number].log_end_offset,
        )
        for number, offset in offsets.items()
    ]


async def carry_out(cluster: Cluster, group: str, plan: Sequence[OffsetReset]) -> None:
    """Moves the group. After an interruption some queues have moved; the same plan moves the
    rest."""
    requests: dict[GroupId, broker_pb2.ResetOffsetsRequest] = {}
    for reset in plan:
        owner = _owner(await cluster.topic(reset.topic), reset.queue)
        request = requests.setdefault(owner.group_id, broker_pb2.ResetOffsetsRequest(group=group))
        request.offsets.add(queue=queue_ref(owner.key), offset=reset.new_offset)
    await asyncio.gather(
        *(
            cluster.call_master(group_id, "ResetOffsets", request)
            for group_id, request in requests.items()
        )
    )


def _owner(route: TopicRoute, queue: int) -> QueueRoute:
    owner = route.find(queue)
    if owner is None:
        raise UnknownQueue(f"topic {route.name!r} has no queue {queue}")
    return owner


async def forget_progress(cluster: Cluster, group: str, queues: Collection[QueueKey] = ()) -> bool:
    """Deletes a group's progress on every queue, or on those alone that are named; returns False if
    there was none. Raises Unavailable when queues move all the time."""
    request = broker_pb2.DeleteGroupRequest(group=group, queues=map(queue_ref, sorted(queues)))
    give_up = time.monotonic() + cluster.config.request_timeout_ms / 1000
    before: dict[GroupId, bytes] | None = None
    known = False
    while True:
        routes = await cluster.controller("GetRoutes", controller_pb2.GetRoutesRequest())
        cluster.routes.on_routes(routes)
        asked = [GroupId(message.group_id) for message in routes.groups]
        replies = await asyncio.gather(
            *(cluster.call_master(number, "DeleteGroup", request) for number in asked)
        )
        found = {number: reply.moves_digest for number, reply in zip(asked, replies, strict=True)}
        # A broker of an older version reports neither.
        known |= any(reply.queues or not reply.moves_digest for reply in replies)
        if found == before or len(asked) == 1:
            return known
        if before is not None and time.monotonic() > give_up:
            raise Unavailable(
                f"queues move all the time, perhaps with progress of group {group!r}: it may still"
                " be known on some of them. Delete it again"
            )
        before = found


async def forget_in_topic(cluster: Cluster, group: str, topic: str) -> None:
    """Deletes a group's progress in one topic. Raises UnknownTopic, UnknownGroup, InvalidRequest
    while the group has members."""
    route = await cluster.topic(topic, refresh=True)
    refuse_active(group, await active_consumers(cluster, group, ()))
    if not await forget_progress(cluster, group, [queue.key for queue in route.every]):
        raise UnknownGroup(f"group {group!r} has no progress in topic {topic!r}")


async def forget_group(cluster: Cluster, group: str) -> None:
    """Deletes a group everywhere. Raises UnknownGroup, InvalidRequest while it has members."""
    unknown: UnknownGroup | None = None
    try:
        await cluster.controller("ForgetGroup", controller_pb2.ForgetGroupRequest(group=group))
    except UnknownGroup as error:  # it may have progress without ever having had a member
        unknown = error
    if not await forget_progress(cluster, group) and unknown is not None:
        raise unknown
