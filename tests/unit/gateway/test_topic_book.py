"""Topics are found in the order of those who ask, whatever has to be looked up for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from semel.client.core.routing import RouteTable
from semel.gateway.topic_book import TopicBook
from semel.protos import compat
from semel.protos.errors import QueueSealed, Unavailable, UnknownTopic
from semel.protos.ids import GroupId, TopicId
from semel.protos.v1 import broker_pb2, control_pb2, controller_pb2

TOPIC = TopicId(7)
ENDS = {0: 100, 1: 40}


class Cluster:
    """Controllers and brokers that answer when they are told to."""

    def __init__(self, splits: int = 0) -> None:
        self.routes = RouteTable()
        self.splits = splits
        self.calls: list[str] = []
        self.away = False
        self.held: set[str] = set()
        """Calls that get no answer yet."""

    async def _wait(self, call: str) -> None:
        """The first call of a kind is answered after later ones, if that can be."""
        self.calls.append(call)
        turns = 0 if self.calls.count(call) > 1 else 20
        while call in self.held or turns:
            await asyncio.sleep(0)
            turns -= bool(turns) and call not in self.held

    def spawn(self, coroutine: Any, name: str) -> asyncio.Task[Any]:
        return asyncio.create_task(coroutine, name=name)

    def split(self) -> control_pb2.SplitQueue:
        """The one of queue 0 into 1 and 2, or of 1 into 3 and 4."""
        parent, children = ((0, (1, 2)), (1, (3, 4)))[self.splits - 1]
        record = control_pb2.SplitQueue()
        record.queue.topic_id, record.queue.queue_id = TOPIC, parent
        for number, child in enumerate(children):
            record.children.add(
                queue_id=child, slot_start=100 * number, slot_end=100 * (number + 1)
            )
        return record

    async def topic(self, name: str, *, refresh: bool = False) -> Any:
        await self._wait("topic")
        if self.away:
            raise Unavailable("no controller answers")
        if name != "orders":
            raise UnknownTopic(f"there is no topic {name!r}")
        message = controller_pb2.TopicRoute(name="orders", topic_id=TOPIC)
        parents = {1: 0, 2: 0, 3: 1, 4: 1}
        for number in range(1 + 2 * self.splits):
            queues = message.sealed if number < self.splits else message.queues
            route = queues.add(queue_id=number, group_id=1, slot_start=number, slot_end=number + 1)
            if number in parents:
                route.parent_id = parents[number]
        self.routes.on_routes(controller_pb2.Routes(version=1, topics=[message]))
        return self.routes.topic("orders")

    async def call_master(
        self, group_id: GroupId, method: str, request: Any, timeout_s: float | None = None
    ) -> Any:
        await self._wait(method)
        reply = broker_pb2.ListOffsetsReply()
        for queue in request.queues:
            reply.queues.add(queue=queue, high_watermark=ENDS[queue.queue_id])
        return reply


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def book(cluster: Cluster) -> TopicBook:
    return TopicBook(cluster)  # type: ignore[arg-type]


async def test_the_end_of_a_split_queue_is_asked_for_once(
    cluster: Cluster, book: TopicBook
) -> None:
    cluster.splits = 2
    topic = await book.find("orders")
    assert topic.partition(0).starts == (0, 100, 140)
    assert (await book.find("orders")) is topic
    await book.renewed("orders")
    assert cluster.calls.count("ListOffsets") == 1


async def test_a_partition_that_is_not_known_is_looked_up(
    cluster: Cluster, book: TopicBook
) -> None:
    assert (await book.find_with("orders", 0)).count == 1
    cluster.splits = 1
    assert (await book.find_with("orders", 0)).count == 1, "it asks nobody"
    assert (await book.find_with("orders", 1)).count == 2


async def test_those_who_wait_for_a_partition_go_on_in_their_order(
    cluster: Cluster, book: TopicBook
) -> None:
    """The second one comes when the routes are new already, and the end is still asked for."""
    await book.find("orders")
    cluster.splits = 1
    done: list[str] = []

    async def want(name: str, partition: int) -> None:
        await book.find_with("orders", partition)
        done.append(name)

    cluster.held = {"topic", "ListOffsets"}
    waiting = [asyncio.create_task(want("first", 1))]
    await until(lambda: "topic" in cluster.calls[1:])
    waiting.append(asyncio.create_task(want("of before", 0)))
    await until(lambda: bool(done))
    assert done == ["of before"], "who wants a known partition does not wait"
    cluster.held.remove("topic")
    await until(lambda: "ListOffsets" in cluster.calls)
    cluster.held.clear()
    waiting.append(asyncio.create_task(want("second", 1)))
    await asyncio.sleep(0)
    waiting.append(asyncio.create_task(want("third", 1)))
    await asyncio.gather(*waiting)
    assert done == ["of before", "first", "second", "third"]


async def test_a_split_that_a_broker_tells_of_is_known_at_once(
    cluster: Cluster, book: TopicBook
) -> None:
    assert (await book.find("orders")).count == 1
    cluster.splits, cluster.away = 1, True
    record = cluster.split().SerializeToString()
    book.on_sealed(TOPIC, QueueSealed("it was split", split_record=record))
    topic = await book.find("orders")
    assert topic.count == 2
    assert topic.partition(0).open.key.queue_id == 1
    assert topic.partition(0).shift == ENDS[0]


async def test_without_controllers_what_is_known_counts(cluster: Cluster, book: TopicBook) -> None:
    cluster.splits = 1
    topic = await book.find("orders")
    cluster.held.add("topic")
    assert (await book.renewed("orders")) is topic


async def test_an_unknown_topic_is_not_asked_for_again_and_again(
    cluster: Cluster, book: TopicBook
) -> None:
    for _ in range(3):
        with pytest.raises(UnknownTopic):
            await book.find("nothing")
    assert cluster.calls == ["topic"]


async def until(happens: Any) -> None:
    async with compat.timeout(10):
        while not happens():
            await asyncio.sleep(0)
