"""A reader without a group, whose queue cannot be read on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from semel.client.config import ReaderConfig, build
from semel.client.core.routing import QueueRoute
from semel.client.reading.reader import ReaderCore
from semel.protos.errors import CorruptSegment, OffsetOutOfRange, SemelError, UnknownTopic
from semel.protos.ids import GroupId, QueueKey
from semel.protos.v1 import broker_pb2
from tests.unit.client.reading.feeds import KEY, Nowhere


class OneTopic(Nowhere):
    """A cluster with one topic of one queue, until it is deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted = False
        self.tasks: list[asyncio.Task[Any]] = []

    async def topic(self, name: str, *, refresh: bool = False) -> Any:
        if self.deleted:
            raise UnknownTopic("it was deleted")
        queue = QueueRoute(key=KEY, group_id=GroupId(1), slot_start=0, slot_end=65_536)
        return SimpleNamespace(
            name=name, topic_id=KEY.topic_id, every=(queue,), find=lambda number: queue
        )

    def by_home(self, queues: Any) -> dict[GroupId, list[QueueKey]]:
        return {GroupId(1): [queue.key for queue in queues]}

    async def call_master(self, group_id: GroupId, method: str, request: Any) -> Any:
        reply = broker_pb2.ListOffsetsReply()
        for queue in request.queues:
            reply.queues.add(queue=queue, high_watermark=100)
        return reply

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> Any:
        if name == "semel-reader-split":
            self.tasks.append(asyncio.ensure_future(coroutine))
        else:
            coroutine.close()


async def opened(cluster: OneTopic, end: Any = None) -> ReaderCore:
    runtime: Any = SimpleNamespace(call_soon=lambda function: None)
    reader = ReaderCore(cluster, runtime, build(ReaderConfig, {}))  # type: ignore[arg-type]
    await reader.open("orders", None, 0, end)
    return reader


@pytest.mark.parametrize(
    "error", [OffsetOutOfRange("trimmed"), CorruptSegment("damaged"), UnknownTopic("deleted")]
)
async def test_a_queue_that_cannot_be_read_on_ends_the_reader(error: SemelError) -> None:
    """After a single error the queue would be left out silently, or its end waited for for ever."""
    reader = await opened(OneTopic(), end=100)
    (queue,) = reader.feed.queues.values()
    queue.asked = True  # as `_on_reply` leaves it
    reader.on_queue_error(queue, error)
    for _ in range(2):
        assert reader.feed.ready
        with pytest.raises(type(error)):
            reader.puller.messages(1)


async def test_a_topic_that_is_deleted_after_a_split_ends_the_reader() -> None:
    cluster = OneTopic()
    reader = await opened(cluster)
    (queue,) = reader.feed.queues.values()
    cluster.deleted = True
    reader.on_queue_end(queue)
    await asyncio.gather(*cluster.tasks)
    for _ in range(2):
        with pytest.raises(UnknownTopic):
            reader.puller.messages(1)
