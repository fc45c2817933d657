"""Metadata, DescribeCluster and ListOffsets: which gateways and topics there are, who leads the
partitions, where they begin and end.

Gateways are the brokers that clients see. A partition has one replica there, its leader, whatever
the broker group has: how often a message is stored is no business of Kafka's clients. The leader of
a partition stays who it is when its queue is split.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from semel.client.core.routing import TopicRoute
from semel.client.reading.offsets import QueueOffsets, list_offsets
from semel.client.transport.cluster import Cluster
from semel.gateway.answers import answer
from semel.gateway.dispatch import GatewayPlace, Handler, RequestContext, Software
from semel.gateway.leaders import leader_of
from semel.gateway.partitions import PartitionedTopic, PartitionLine, lineages_of
from semel.gateway.refusals import error_code
from semel.gateway.topic_book import TopicBook
from semel.gateway.versions import ApiKey
from semel.protos.errors import InvalidRequest, SemelError, UnknownQueue, UnknownTopic

LATEST: Final = -1
EARLIEST: Final = -2
NONE: Final = -1
JAVA: Final = "apache-kafka-java"
BROKERS: Final = 1
"""Kind of endpoints that clients of topics ask for."""
_TIME_MS_MAX: Final = ((1 << 63) - 1) // 1000


class Catalog:
    """The handlers. They live on the client's I/O thread."""

    def __init__(self, cluster: Cluster, topics: TopicBook) -> None:
        self._cluster = cluster
        self._topics = topics

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.METADATA: self.metadata,
            ApiKey.DESCRIBE_CLUSTER: self.describe_cluster,
            ApiKey.LIST_OFFSETS: self.list_offsets,
        }

    # ----------------------------------------------------------------------------------- metadata

    async def metadata(self, request: Any, context: RequestContext) -> Any:
        """Answers Metadata, versions 0 to 8. Version 0 asks for all topics by naming none.

        A client that would not find a gateway again is told of those that are expected back, too,
        unless it asks for no topic. Then it wants to know who is there: Kafka's tools ask each of
        them for its groups, and fail if one does not answer."""
        gateways = await context.gateways.checked()
        named = request.topics
        wants_all = named is None or (context.version == 0 and not named)
        told = gateways
        if (wants_all or named) and _looks_at_bootstrap_once(context.software):
            told += context.gateways.missed
        if wants_all:
            topics = [_described(route, gateways) for route in await self._every()]
        else:
            names = list(dict.fromkeys(topic.name for topic in named))
            topics = await asyncio.gather(*(self._topic(name, gateways) for name in names))
        return answer(
            request,
            brokers=[
                {"node_id": each.node_id, "host": each.host, "port": each.port, "rack": None}
                for each in told
            ],
            cluster_id=self._cluster.routes.cluster_id,
            controller_id=gateways[0].node_id,
            topics=topics,
        )

    async def describe_cluster(self, request: Any, context: RequestContext) -> Any:
        """Answers DescribeCluster, versions 0 to 2. No gateway that is there is fenced."""
        if getattr(request, "endpoint_type", BROKERS) != BROKERS:
            return answer(
                request,
                error_code=ErrorCode.unsupported_endpoint_type,
                error_message="the gateways are brokers, and no controllers are shown",
                cluster_id=self._cluster.routes.cluster_id,
            )
        gateways = await context.gateways.checked()
        return answer(
            request,
            error_code=ErrorCode.none,
            cluster_id=self._cluster.routes.cluster_id,
            controller_id=gateways[0].node_id,
            brokers=[
                {
                    "broker_id": each.node_id,
                    "host": each.host,
                    "port": each.port,
                    "rack": None,
                    "is_fenced": False,
                }
                for each in gateways
            ],
        )

    async def _every(self) -> Sequence[TopicRoute]:
        try:
            return await self._topics.every()
        except SemelError:
            return list(self._cluster.routes.topics())

    async def _topic(self, name: str, gateways: Sequence[GatewayPlace]) -> dict[str, Any]:
        try:
            return _described((await self._topics.newest(name)).route, gateways)
        except SemelError as error:
            code = error_code(error)
            if not isinstance(error, UnknownTopic) and error.retriable:
                code = ErrorCode.leader_not_available
            return _refused_topic(name, code)

    # -------------------------------------------------------------------------------- list offsets

    async def list_offsets(self, request: Any, context: RequestContext) -> Any:
        """Answers ListOffsets, versions 1 to 5."""
        topics = await asyncio.gather(
            *(self._offsets_of(topic.name, topic.partitions) for topic in request.topics)
        )
        return answer(request, topics=topics)

    async def _offsets_of(self, name: str, partitions: Sequence[Any]) -> dict[str, Any]:
        try:
            topic = await self._topics.newest(name)
            try:
                found = await self._look_up(topic, partitions)
            except (UnknownTopic, UnknownQueue):
                # It was deleted, and may have been made anew, elsewhere.
                found = await self._look_up(await self._topics.renewed(name), partitions)
        except SemelError as error:
            refused = error_code(error)
            found = [_refused_partition(each.partition_index, refused) for each in partitions]
        return {"name": name, "partitions": found}

    async def _look_up(
        self, topic: PartitionedTopic, partitions: Sequence[Any]
    ) -> list[dict[str, Any]]:
        """Answers for partitions of a topic. Raises UnknownTopic or UnknownQueue if brokers do not
        know it."""
        by_time: dict[int, list[PartitionLine]] = {}
        answers: dict[int, dict[str, Any]] = {}
        for each in partitions:
            index = each.partition_index
            try:
                line = topic.partition(index)
                if not EARLIEST <= each.timestamp <= _TIME_MS_MAX:
                    raise InvalidRequest(f"there are no offsets of time {each.timestamp}")
            except SemelError as error:
                answers[index] = _refused_partition(index, error_code(error))
                continue
            time_ms = each.timestamp if each.timestamp >= 0 else LATEST
            by_time.setdefault(time_ms, []).append(line)
            answers[index] = {"partition_index": index, "timestamp": each.timestamp}
        await asyncio.gather(
            *(self._look_up_time(time_ms, some, answers) for time_ms, some in by_time.items())
        )
        return list(answers.values())

    async def _look_up_time(
        self, time_ms: int, lines: Sequence[PartitionLine], answers: dict[int, dict[str, Any]]
    ) -> None:
        """Completes the answers of partitions that ask for one time. Raises as `_look_up`."""
        time_us = max(1, time_ms * 1000) if time_ms >= 0 else 0
        queues = [queue for line in lines for queue in line.queues]
        try:
            found = await list_offsets(self._cluster, queues, time_us)
        except (UnknownTopic, UnknownQueue):
            raise
        except SemelError as error:
            for line in lines:
                answers[line.number] = _refused_partition(line.number, error_code(error))
            return
        for line in lines:
            wanted = answers[line.number]["timestamp"]
            offsets = [found[queue.key.queue_id] for queue in line.queues]
            answers[line.number] = _partition_offset(line, wanted, offsets)


def _partition_offset(
    line: PartitionLine, wanted: int, offsets: Sequence[QueueOffsets]
) -> dict[str, Any]:
    """Answers for a partition by its queues' offsets."""
    ended = zip(line.starts, offsets, strict=True)
    timestamp, offset = NONE, line.shift + offsets[-1].log_end_offset
    if wanted == EARLIEST:
        starts = [
            start + each.log_start_offset
            for start, each in ended
            if each.log_start_offset < each.log_end_offset
        ]
        offset = starts[0] if starts else offset
    elif wanted >= 0:
        later = [
            start + each.time_offset
            for start, each in ended
            if each.time_offset < each.log_end_offset
        ]
        timestamp, offset = (wanted, later[0]) if later else (NONE, NONE)
    return {
        "partition_index": line.number,
        "error_code": ErrorCode.none,
        "timestamp": timestamp,
        "offset": offset,
    }


def _refused_partition(index: int, code: ErrorCode) -> dict[str, Any]:
    return {"partition_index": index, "error_code": code, "timestamp": NONE, "offset": NONE}


def _looks_at_bootstrap_once(software: Software) -> bool:
    """Whether it is Kafka's own client for Java, before its version 4.0 (KIP-899, KIP-1102)."""
    major = software.version.partition(".")[0]
    return software.name == JAVA and not (major.isdecimal() and int(major) >= 4)


def _refused_topic(name: str, code: ErrorCode) -> dict[str, Any]:
    return {"error_code": code, "name": name, "is_internal": False, "partitions": ()}


def _described(topic: TopicRoute, gateways: Sequence[GatewayPlace]) -> dict[str, Any]:
    partitions = []
    for index, lineage in enumerate(lineages_of(topic)):
        leader = leader_of(lineage.queues[0].key, gateways).node_id
        partitions.append(
            {
                "error_code": ErrorCode.none,
                "partition_index": index,
                "leader_id": leader,
                "replica_nodes": (leader,),
                "isr_nodes": (leader,),
                "offline_replicas": (),
            }
        )
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "is_internal": False,
        "partitions": partitions,
    }
