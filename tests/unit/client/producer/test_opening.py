"""What a producer opens at first: topics, and queues by their fences, in two broker groups."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from semel.client.config import ProducerConfig, build
from semel.client.core.batching import Chunk, Part
from semel.client.core.routing import QueueRoute, TopicRoute, topic_route
from semel.client.producer.intake import Intake
from semel.client.producer.producer import ProducerCore
from semel.protos.errors import Closed, UnknownTopic
from semel.protos.ids import GroupId, QueueKey
from semel.protos.v1 import broker_pb2, controller_pb2


class Wire:
    """The stream to one group; it notes whose lanes it has."""

    searching = False
    in_flight_bytes = 0
    lost_s = 0.0
    last_error = None

    def __init__(self, group_id: GroupId) -> None:
        self.group_id = group_id
        self.links: list[Any] = []

    def attach(self, link: Any) -> None:
        self.links.append(link)

    def detach(self, link: Any) -> None:
        if link in self.links:
            self.links.remove(link)

    def forget(self, lane: Any) -> None:
        pass

    def on_ready(self, lane: Any) -> None:
        pass


class TwoGroups:
    """A topic whose queues 0 and 1 live in broker groups 1 and 2. Of these a test can silence
    some."""

    def __init__(self) -> None:
        self.routes = self.wires = self
        self.answers = {GroupId(1): asyncio.Event(), GroupId(2): asyncio.Event()}
        for answer in self.answers.values():
            answer.set()
        self.route_known = asyncio.Event()
        self.route_known.set()
        self.tasks: list[asyncio.Task[Any]] = []
        message = controller_pb2.TopicRoute(name="t", topic_id=7)
        for number in range(2):
            first = number * 32_768
            message.queues.add(
                queue_id=number, group_id=number + 1, slot_start=first, slot_end=first + 32_768
            )
        self._topic = topic_route(message)
        self._wires = {group_id: Wire(group_id) for group_id in self.answers}
        self.sessions: list[int] = []
        """The sessions of the fences that were asked for."""

    @property
    def links(self) -> list[Any]:
        return [link for wire in self._wires.values() for link in wire.links]

    def to(self, group_id: GroupId) -> Any:
        return self._wires[group_id]

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        self.tasks.append(asyncio.create_task(coroutine, name=name))
        return self.tasks[-1]

    async def topic(self, name: str, *, refresh: bool = False) -> TopicRoute:
        await self.route_known.wait()
        return self._topic

    def on_topic_gone(self, name: str, topic_id: int) -> None:
        """Nothing is remembered of topics."""

    def home(self, queue: QueueRoute) -> GroupId:
        return queue.group_id

    def by_home(self, queues: list[QueueRoute]) -> dict[GroupId, list[QueueKey]]:
        found: dict[GroupId, list[QueueKey]] = {}
        for queue in queues:
            found.setdefault(queue.group_id, []).append(queue.key)
        return found

    async def controller(self, method: str, request: Any) -> controller_pb2.OpenProducerReply:
        return controller_pb2.OpenProducerReply(producer_id=5, epoch=1)

    async def call_master(
        self, group_id: GroupId, method: str, request: Any, timeout_s: float
    ) -> broker_pb2.FenceProducerReply:
        self.sessions.append(request.session)
        await self.answers[group_id].wait()
        reply = broker_pb2.FenceProducerReply()
        for _ in request.queues:
            reply.rows.add(last_sequence=-1)
        return reply


def producer(cluster: Any, name: str = "") -> ProducerCore:
    config = build(ProducerConfig, {})
    intake = Intake(config, wake=lambda: None, open_topic=None)
    return ProducerCore(cluster, name, config, intake)


async def settled() -> None:
    """Lets everything run until it waits for an event."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_group_without_a_master_does_not_hold_up_the_first_fences_of_another() -> None:
    """Its messages would wait, and fail, for the whole delivery timeout."""
    cluster = TwoGroups()
    core = producer(cluster)
    topic = await core.open_topic("t")
    cluster.answers[GroupId(2)].clear()
    lanes = [topic.lane(queue.key) for queue in topic.route.queues]
    for lane in lanes:
        lane.put(Part(Chunk("t", 0, 0.0), lane.key, 0, 1, 10))
        core._fence_later(lane)
    await settled()
    assert [lane.window is not None for lane in lanes] == [True, False]
    assert [lane.fencing for lane in lanes] == [False, True]
    cluster.answers[GroupId(2)].set()
    await settled()
    assert [lane.window is not None for lane in lanes] == [True, True]


@pytest.mark.parametrize("waits_for", ["the route", "a fence"])
async def test_a_producer_that_is_closed_while_a_topic_opens_leaves_no_lanes_behind(
    waits_for: str,
) -> None:
    """The wire would keep them, and what they refer to, as long as the client lives."""
    cluster = TwoGroups()
    core = producer(cluster, "loader")
    wait = cluster.route_known if waits_for == "the route" else cluster.answers[GroupId(2)]
    wait.clear()
    opening = asyncio.create_task(core.open_topic("t"))
    await settled()
    core.close()
    wait.set()
    with pytest.raises(Closed):
        await opening
    assert cluster.links == []
    assert core._topics == {}


async def test_a_topic_that_is_known_again_is_fenced_with_a_higher_session() -> None:
    """A user may be forbidden to see a topic for a moment. What was in flight then may be stored
    later: under the same session, the next message would be taken for it and be lost."""
    cluster = TwoGroups()
    core = producer(cluster)
    for session in (1, 2):
        topic = await core.open_topic("t")
        lane = topic.lane(topic.route.queues[0].key)
        core._fence_later(lane)
        await settled()
        assert lane.window is not None
        assert lane.window.session == session
        core._fail_lane(lane, UnknownTopic("there is no topic 't'"))
        assert core._topics == {}
    assert cluster.sessions == [1, 2]
