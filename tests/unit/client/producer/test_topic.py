"""An opened topic: a lane is made when its queue is first written to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from semel.client.config import ProducerConfig
from semel.client.core.batching import Part
from semel.client.core.routing import QueueRoute
from semel.client.producer.lanes import Lane
from semel.client.producer.topic import ProducerTopic
from semel.protos.ids import GroupId, QueueId, QueueKey, TopicId
from tests.unit.client.chunks import topic as route_of

QUEUES = 10_000


class FakeLane:
    """Keeps what it is given."""

    def __init__(self, route: QueueRoute) -> None:
        self.route = route
        self.key = route.key
        self.parts: list[Part] = []
        self.link = SimpleNamespace(added=[], add=self._add)
        self.resume = 7

    def _add(self, lane: FakeLane) -> None:
        self.link.added.append(lane)

    def put(self, part: Part) -> None:
        self.parts.append(part)


class Made:
    """Lanes that were asked for."""

    def __init__(self) -> None:
        self.lanes: list[Any] = []
        """FakeLanes, which a topic takes for Lanes."""

    def __call__(self, route: QueueRoute) -> Lane:
        self.lanes.append(FakeLane(route))
        return cast(Lane, self.lanes[-1])


def key(queue: int) -> QueueKey:
    return QueueKey(TopicId(5), QueueId(queue))


def part(queue: int) -> Part:
    return Part(cast(Any, None), key(queue), 0, 1, 10)


def test_a_wide_topic_costs_what_is_written_to() -> None:
    made = Made()
    topic = ProducerTopic(route_of(QUEUES), [], ProducerConfig(), made)
    assert topic.lanes == made.lanes == []
    for queue in (9_999, 3, 9_999):
        topic.put(part(queue))
    first, second = made.lanes
    assert [lane.key for lane in made.lanes] == [key(9_999), key(3)]
    assert (len(first.parts), len(second.parts)) == (2, 1)
    assert first.link.added == [first]
    assert topic.lanes == [first, second]
    assert topic.find(key(3)) is cast(Any, second)
    assert topic.find(key(4)) is None
    assert topic.has(cast(Lane, first))
    assert not topic.has(cast(Lane, FakeLane(first.route)))


def test_no_lane_is_made_for_a_queue_of_another_topic() -> None:
    topic = ProducerTopic(route_of(4), [], ProducerConfig(), Made())
    with pytest.raises(AssertionError, match="is not of 't'"):
        topic.put(part(4))


def test_queues_without_a_lane_are_looked_for_where_they_are() -> None:
    made = Made()
    topic = ProducerTopic(route_of(3), [], ProducerConfig(), made)
    topic.put(part(0))
    topic.rehome(lambda queue: GroupId(9))
    topic.put(part(1))
    assert [lane.route.group_id for lane in made.lanes] == [1, 9]
    assert [queue.group_id for queue in topic.route.queues] == [1, 9, 9]


def test_with_source_positions_all_lanes_are_there_from_the_start() -> None:
    made = Made()
    route = route_of(3)
    lanes = [made(queue) for queue in route.queues]
    topic = ProducerTopic(route, lanes, ProducerConfig(source_positions=True), made)
    assert [lane.link.added for lane in made.lanes] == [[lane] for lane in made.lanes]
    assert topic.resume is not None
    assert topic.resume.tolist() == [7, 7, 7]
