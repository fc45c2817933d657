"""Start, end and time lookups of a topic's queues, and the *places* that users may give.

A place is "earliest", "latest", an offset, a datetime (with a time zone), or a mapping from queue
number to any of these; queues that a mapping leaves out are not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

from semel.client.core.routing import QueueRoute, TopicRoute
from semel.client.transport.cluster import Cluster
from semel.protos.errors import InvalidRequest, OffsetOutOfRange, QueueMoved, from_detail
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2

MOVES_MAX: Final = 3
"""Number of times that a lookup follows a queue to another group before it raises QueueMoved."""

Place: TypeAlias = str | int | datetime
Places: TypeAlias = Place | Mapping[int, Place]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOffsets:
    """The offsets of one queue, as of a confirmed read."""

    queue: int
    log_start_offset: int
    """First offset that exists."""
    log_end_offset: int
    """One past the last committed offset."""
    time_offset: int
    """First offset at or after the time asked for."""
    bytes: int
    delayed_messages: int
    """Stored and not due yet: they have no offsets."""
    next_due_us: int
    """Due time of the first of them, in microseconds since 1970; 0 when there is none."""
    append_time_us: int
    """When the message at the offset asked for was appended; 0 if there is none, or if the broker
    is too old to tell."""
    gaps_to: int
    """Compaction may have left gaps in the offsets below this one, or messages are lost; 0: there
    are none."""
    local_start_offset: int
    """First offset that the brokers have; older ones are in the object store alone."""
    tier_end_offset: int
    """End of what is in the object store; 0: nothing is."""
    lost_messages: int = 0
    """Messages of a topic in memory that were lost so far."""


async def list_offsets(
    cluster: Cluster, queues: list[QueueRoute], time_us: int = 0, *, offset: int | None = None
) -> dict[int, QueueOffsets]:
    """Returns offsets by queue number, from the masters. Raises SemelError."""
    for _ in range(MOVES_MAX):
        try:
            return await _list_offsets(cluster, queues, time_us, offset)
        except QueueMoved as error:
            cluster.routes.on_moved(error)
    return await _list_offsets(cluster, queues, time_us, offset)


async def _list_offsets(
    cluster: Cluster, queues: list[QueueRoute], time_us: int, offset: int | None
) -> dict[int, QueueOffsets]:
    replies = await asyncio.gather(
        *(
            cluster.call_master(
                group_id,
                "ListOffsets",
                broker_pb2.ListOffsetsRequest(
                    queues=[queue_ref(key) for key in keys], time_us=time_us, offset=offset
                ),
            )
            for group_id, keys in cluster.routes.by_home(queues).items()
        )
    )
    found: dict[int, QueueOffsets] = {}
    for reply in replies:
        for offsets in reply.queues:
            if offsets.HasField("error"):
                raise from_detail(offsets.error)
            found[offsets.queue.queue_id] = QueueOffsets(
                queue=offsets.queue.queue_id,
                log_start_offset=offsets.log_start_offset,
                log_end_offset=offsets.high_watermark,
                time_offset=offsets.time_offset,
                bytes=offsets.bytes,
                delayed_messages=offsets.delayed_messages,
                next_due_us=offsets.next_due_us,
                append_time_us=offsets.append_time_us,
                gaps_to=offsets.gaps_to,
                local_start_offset=max(offsets.log_start_offset, offsets.local_start_offset),
                tier_end_offset=offsets.tier_end_offset,
                lost_messages=offsets.lost_messages,
            )
    return found


def check_places(name: str, places: object) -> None:
    """Raises InvalidRequest for anything that is not a place."""
    if isinstance(places, Mapping):
        for queue, place in places.items():
            if not isinstance(queue, int) or isinstance(place, Mapping):
                raise InvalidRequest(f"{name} maps queue numbers to places, not {queue!r}")
            check_places(name, place)
        return
    if isinstance(places, datetime):
        if places.tzinfo is None:
            raise InvalidRequest(f"{name}: give the datetime a time zone, e.g. datetime.UTC")
        return
    if isinstance(places, str) and places in ("earliest", "latest"):
        return
    if isinstance(places, int) and not isinstance(places, bool) and places >= 0:
        return
    raise InvalidRequest(
        f"{name} must be 'earliest', 'latest', an offset, a datetime or a mapping of queues to"
        f" these, not {places!r}"
    )


async def resolve_places(
    cluster: Cluster, topic: TopicRoute, queues: list[QueueRoute], places: Places
) -> dict[int, int]:
    """Returns the offsets of the places, by queue number.

    Raises OffsetOutOfRange for an offset outside its queue, and InvalidRequest for a queue that
    the mapping names and the topic lacks.
    """
    numbers = {queue.key.queue_id for queue in queues}
    wanted: dict[int, Place] = {}
    if isinstance(places, Mapping):
        for queue, place in places.items():
            if queue not in numbers:
                raise InvalidRequest(f"topic {topic.name!r} has no queue {queue} to read")
            wanted[queue] = place
    else:
        wanted = dict.fromkeys(numbers, places)
    times = {place for place in wanted.values() if isinstance(place, datetime)}
    lookups: dict[int, dict[int, QueueOffsets]] = {}
    for time_us in [0, *(_time_us(time) for time in times)]:
        lookups[time_us] = await list_offsets(cluster, queues, time_us)
    offsets: dict[int, int] = {}
    for queue, place in wanted.items():
        known = lookups[0][queue]
        if isinstance(place, datetime):
            offsets[queue] = lookups[_time_us(place)][queue].time_offset
        elif place == "earliest":
            offsets[queue] = known.log_start_offset
        elif place == "latest":
            offsets[queue] = known.log_end_offset
        else:
            assert isinstance(place, int)
            if not known.log_start_offset <= place <= known.log_end_offset:
                raise OffsetOutOfRange(
                    f"offset {place} is outside queue {queue} of topic {topic.name!r}, which has"
                    f" {known.log_start_offset} to {known.log_end_offset}",
                    log_start_offset=known.log_start_offset,
                    log_end_offset=known.log_end_offset,
                )
            offsets[queue] = place
    return offsets


def _time_us(time: datetime) -> int:
    return max(1, round(time.timestamp() * 1_000_000))
