"""The history of delayed messages: what was released when, and how late.

How it works. The master of every broker group tells its newest rows, also those of queues that have
left it since. They are merged by the time of their release.

Not here: what is not released yet (`admin/delays.py`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime

from semel.client.admin.delays import check_limit, time_us
from semel.client.admin.descriptions import Described
from semel.client.transport.cluster import Cluster
from semel.protos.v1 import broker_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayRelease(Described):
    """Delayed messages of one queue that were released in one second or, in older rows, within the
    same minute, hour or day. Times are microseconds since the epoch, by the brokers' log."""

    topic: str
    queue: int
    due_us: int
    """When the first of them was due."""
    due_last_us: int
    """When the last of them was due."""
    released_us: int
    """When the first of them got its offset."""
    released_last_us: int
    """When the last of them did."""
    late_us: int
    """The most that one of them came after its time, microseconds."""
    late_min_us: int
    """The least."""
    offset: int
    """Offset of the one that was released first; the others may follow with gaps."""
    messages: int
    span_s: int
    """1: all were due in the same second. 60, 3,600 or 86,400: they were released within the same
    minute, hour or day."""


async def delay_history(
    cluster: Cluster, topic: str, since: datetime | int | None, limit: int
) -> list[DelayRelease]:
    """Returns the newest `limit` rows, the newest first. Raises UnknownTopic, InvalidRequest, and
    UnsupportedVersion for a broker group that keeps no history."""
    check_limit(limit)
    request = broker_pb2.ListReleasesRequest(since_us=time_us("since", since), rows_max=limit)
    request.topic_id = (await cluster.topic(topic, refresh=True)).topic_id
    replies = await asyncio.gather(
        *(
            cluster.call_master(group_id, "ListReleases", request)
            for group_id in sorted(cluster.routes.groups())
        )
    )
    found = [_described(topic, row) for reply in replies for row in reply.rows]
    found.sort(key=lambda row: (row.released_us, row.queue), reverse=True)
    return found[:limit]


def _described(topic: str, row: broker_pb2.ReleaseRow) -> DelayRelease:
    return DelayRelease(
        topic=topic,
        queue=row.queue_id,
        due_us=row.due_first_us,
        due_last_us=row.due_last_us,
        released_us=row.released_first_us,
        released_last_us=row.released_last_us,
        late_us=row.late_max_us,
        late_min_us=row.late_min_us,
        offset=row.base_offset,
        messages=row.messages,
        span_s=row.span_s,
    )
