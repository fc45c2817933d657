"""DeleteRecords: partitions lose all that is below an offset, as retention would take it.

How it works. Of a partition whose queues were split, the ones before the offset are emptied, and
the one that has it is trimmed. The oldest goes first: what breaks off leaves no gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from semel.client.core.routing import QueueRoute
from semel.client.reading.offsets import list_offsets
from semel.client.transport.cluster import Cluster
from semel.gateway.answers import answer
from semel.gateway.dispatch import Handler, RequestContext
from semel.gateway.partitions import PartitionLine
from semel.gateway.refusals import error_code
from semel.gateway.topic_book import TopicBook
from semel.gateway.versions import ApiKey
from semel.protos.errors import OffsetOutOfRange, SemelError
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2

END: Final = -1
"""Stands for all that a partition has."""


class RecordDeletion:
    """The handler. Lives on the client's I/O thread."""

    def __init__(self, cluster: Cluster, topics: TopicBook) -> None:
        self._cluster = cluster
        self._topics = topics

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.DELETE_RECORDS: self.delete_records}

    async def delete_records(self, request: Any, context: RequestContext) -> Any:
        """Answers DeleteRecords, versions 0 to 2."""
        topics = []
        for topic in request.topics:
            wanted = [(each.partition_index, each.offset) for each in topic.partitions]
            results = await asyncio.gather(*(self._delete(topic.name, *each) for each in wanted))
            topics.append({"name": topic.name, "partitions": results})
        return answer(request, topics=topics)

    async def _delete(self, name: str, partition: int, offset: int) -> dict[str, Any]:
        code, start = ErrorCode.none, -1
        try:
            topic = await self._topics.newest(name)
            start = await self._trim(topic.partition(partition), offset)
        except SemelError as error:
            code = error_code(error)
        return {"partition_index": partition, "low_watermark": start, "error_code": code}

    async def _trim(self, line: PartitionLine, offset: int) -> int:
        """Returns where the partition begins by then. Raises SemelError."""
        found = await list_offsets(self._cluster, [line.open])
        end = line.shift + found[line.open.key.queue_id].log_end_offset
        if offset == END:
            offset = end
        if not 0 <= offset <= end:
            raise OffsetOutOfRange(f"offset {offset} is not in the partition, which ends at {end}")
        place, own = line.spot(offset)
        for number, queue in enumerate(line.queues[:place]):
            await self._trim_queue(queue, line.end(number))
        return line.starts[place] + await self._trim_queue(line.queues[place], own)

    async def _trim_queue(self, queue: QueueRoute, start: int) -> int:
        request = broker_pb2.TrimQueuesRequest()
        request.trims.add(queue=queue_ref(queue.key), log_start_offset=start)
        home = self._cluster.routes.home(queue)
        reply = await self._cluster.call_master(home, "TrimQueues", request)
        return int(reply.trims[0].log_start_offset)
