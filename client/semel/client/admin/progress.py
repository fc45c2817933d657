"""The progress of a reader that keeps its own offsets, shown under a group's name with its lag.

How it works. For each queue one call acquires the lock, commits the offset under its token, and
releases the lock. A lock that another member holds is left alone. The children of a split queue
come after their parent: the brokers grant no lock on a queue whose parent is unread.

Invariants
1. A group that consumers have joined, now or ever, is refused: its progress is theirs.
2. Progress is moved only under a lock that no other member holds, so it is taken from none.

Not here: moving a group of consumers (`admin/resets.py`).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

from semel.client.core.routing import QueueRoute
from semel.client.transport.cluster import Cluster
from semel.protos.errors import InvalidRequest, SemelError, UnknownQueue, from_detail
from semel.protos.ids import GroupId
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2, controller_pb2

SESSION_MS: Final = 10_000
"""Time in milliseconds after which a lock that a publisher left behind ends."""


async def publish_progress(
    cluster: Cluster, group: str, offsets: Mapping[tuple[str, int], int]
) -> list[tuple[str, int]]:
    """Stores next offsets by (topic, queue); returns the queues that another member holds.

    Raises InvalidRequest when consumers have joined the group, UnknownTopic, UnknownQueue.
    """
    await _refuse_consumers(cluster, group)
    member_id = f"progress-{socket.gethostname()}-{os.getpid()}"
    left: list[tuple[str, int]] = []
    for some in await _by_depth(cluster, offsets):
        at: dict[GroupId, list[tuple[tuple[str, int], QueueRoute]]] = {}
        for place, queue in some:
            at.setdefault(queue.group_id, []).append((place, queue))
        refused = await asyncio.gather(
            *(
                _publish_at(cluster, group_id, group, member_id, places, offsets)
                for group_id, places in at.items()
            )
        )
        left += [place for places in refused for place in places]
    return sorted(left)


async def _refuse_consumers(cluster: Cluster, group: str) -> None:
    reply = await cluster.controller("ListGroups", controller_pb2.ListGroupsRequest())
    if any(info.group == group for info in reply.groups):
        raise InvalidRequest(
            f"group {group!r} belongs to consumers, and its progress is theirs; choose a name that"
            " no consumer has used, or delete the group first"
        )


async def _by_depth(
    cluster: Cluster, offsets: Mapping[tuple[str, int], int]
) -> list[list[tuple[tuple[str, int], QueueRoute]]]:
    """Returns the queues in lists; a queue's parent is in an earlier list."""
    layers: dict[int, list[tuple[tuple[str, int], QueueRoute]]] = {}
    for topic in sorted({topic for topic, _ in offsets}):
        route = await cluster.topic(topic)
        wanted = [queue for name, queue in offsets if name == topic]
        if any(route.find(queue) is None for queue in wanted):
            route = await cluster.topic(topic, refresh=True)
        every = {int(queue.key.queue_id): queue for queue in route.every}
        for number in sorted(wanted):
            if number not in every:
                raise UnknownQueue(f"topic {topic!r} has no queue {number}")
            depth, parent = 0, every[number].parent
            while parent is not None and parent in every:
                depth, parent = depth + 1, every[parent].parent
            layers.setdefault(depth, []).append(((topic, number), every[number]))
    return [layers[depth] for depth in sorted(layers)]


async def _publish_at(
    cluster: Cluster,
    group_id: GroupId,
    group: str,
    member_id: str,
    places: Sequence[tuple[tuple[str, int], QueueRoute]],
    offsets: Mapping[tuple[str, int], int],
) -> list[tuple[str, int]]:
    """Stores the offsets of one broker group's queues; returns the queues that are locked."""
    acquired = await cluster.call_master(
        group_id,
        "AcquireLocks",
        broker_pb2.AcquireLocksRequest(
            group=group,
            member_id=member_id,
            queues=[queue_ref(queue.key) for _, queue in places],
            lock_ms=SESSION_MS,
            session_ms=SESSION_MS,
        ),
    )
    commit = broker_pb2.CommitRequest(group=group)
    reset = broker_pb2.ResetOffsetsRequest(group=group)
    release = broker_pb2.ReleaseLocksRequest(group=group, member_id=member_id)
    left = []
    for (place, queue), grant in zip(places, acquired.grants, strict=True):
        if not grant.token:
            left.append(place)
            continue
        ref, offset = queue_ref(queue.key), offsets[place]
        if grant.committed_offset > offset:  # the reader has begun again at a lower offset
            reset.offsets.add(queue=ref, offset=offset)
        else:
            commit.commits.add(queue=ref, token=grant.token, offset=offset)
        release.locks.add(queue=ref, token=grant.token)
    try:
        await _store(cluster, group_id, commit, reset)
    finally:
        if release.locks:
            await cluster.call_master(group_id, "ReleaseLocks", release)
    return left


async def _store(cluster: Cluster, group_id: GroupId, commit: Any, reset: Any) -> None:
    if commit.commits:
        reply = await cluster.call_master(group_id, "Commit", commit)
        errors: list[SemelError] = [
            from_detail(outcome.error) for outcome in reply.outcomes if outcome.HasField("error")
        ]
        if errors:
            raise errors[0]
    if reset.offsets:
        await cluster.call_master(group_id, "ResetOffsets", reset)
