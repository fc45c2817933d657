"""All offsets that a group has committed, as brokers tell anybody who may see the group.

Not here: what its coordinator stores, and reads under its locks (`committed_offsets.py`).
"""

from __future__ import annotations

import asyncio

from semel.client.core.routing import topic_route
from semel.client.transport.cluster import Cluster
from semel.gateway.coordination.committed_offsets import Place
from semel.gateway.coordination.group_locks import CALL_S
from semel.gateway.coordination.line_progress import Progress, joined
from semel.gateway.partitions import lineages_of
from semel.protos.errors import SemelError, Throttled
from semel.protos.ids import GroupId
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import broker_pb2, controller_pb2


async def read_offsets(
    cluster: Cluster, group_id: str, *, stable: bool = False
) -> dict[Place, Progress | SemelError]:
    """Returns all that a group has committed, without being its coordinator. If it has to be
    `stable`, a place is Throttled while other progress is staged there. Raises SemelError."""
    routes = await cluster.controller("GetRoutes", controller_pb2.GetRoutesRequest())
    cluster.routes.on_routes(routes)
    request = broker_pb2.DescribeGroupOffsetsRequest(group=group_id)
    replies = await asyncio.gather(
        *(
            cluster.call_master(GroupId(message.group_id), "DescribeGroupOffsets", request, CALL_S)
            for message in routes.groups
        )
    )
    states = {queue_key_of(state.queue): state for reply in replies for state in reply.states}
    found = {key: Progress(state.committed_offset, state.metadata) for key, state in states.items()}
    result: dict[Place, Progress | SemelError] = {}
    for topic in map(topic_route, routes.topics):
        for number, lineage in enumerate(lineages_of(topic)):
            keys = [queue.key for queue in lineage.queues]
            ends = [states[key].high_watermark if key in states else -1 for key in keys]
            progress = joined(lineage.queues, found, ends.__getitem__)
            if stable and any(key in states and states[key].unsettled for key in keys):
                result[topic.name, number] = Throttled(
                    f"a transaction that has not ended commits progress of group {group_id!r}"
                )
            elif progress.offset >= 0:
                result[topic.name, number] = progress
    return result
