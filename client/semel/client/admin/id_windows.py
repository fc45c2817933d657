"""How far a topic's dedup by id reaches, summed up over its broker groups.

Not here: the settings (`admin/topic_settings.py`), the description of the whole topic
(`admin/calls.py`).
"""

from __future__ import annotations

import asyncio

from semel.client.admin.descriptions import TopicDedup
from semel.client.admin.topic_settings import IdDedup
from semel.client.core.routing import TopicRoute
from semel.client.transport.cluster import Cluster
from semel.protos.v1 import broker_pb2


async def describe_dedup(
    cluster: Cluster, route: TopicRoute, settings: IdDedup | None
) -> TopicDedup | None:
    """Returns the figures of all groups; None for a topic that compares no ids.

    Raises SemelError.
    """
    if settings is None:
        return None
    request = broker_pb2.DescribeIdsRequest(topic_ids=[route.topic_id])
    replies: list[broker_pb2.DescribeIdsReply] = await asyncio.gather(
        *(
            cluster.call_master(group_id, "DescribeIds", request)
            for group_id in cluster.routes.by_home(route.queues)
        )
    )
    windows = [window for reply in replies for window in reply.windows]
    return TopicDedup(
        ids=sum(window.ids for window in windows),
        bytes=sum(window.bytes for window in windows),
        oldest_age_s=max((window.oldest_age_us for window in windows), default=0) / 1_000_000,
        hits=sum(window.hits for window in windows),
        conflicts=sum(window.conflicts for window in windows),
        lookups=sum(window.lookups for window in windows),
        evictions=sum(window.evictions for window in windows),
        window_bytes=settings.window_bytes,
        keep_ms=settings.keep_ms,
        on_conflict=settings.on_conflict,
    )
