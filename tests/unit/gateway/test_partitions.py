"""Partitions keep their numbers and offsets whatever is split, and nobody takes one for another."""

from __future__ import annotations

import random

import pytest

from semel.client.core.routing import TopicRoute, topic_route
from semel.gateway.partitions import (
    PartitionedTopic,
    lineages_of,
    partitioned,
    sealed_of,
)
from semel.protos.errors import UnknownQueue
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.slots import SLOT_COUNT, split_slots
from semel.protos.v1 import control_pb2, controller_pb2

TOPIC = TopicId(7)
Split = tuple[int, tuple[int, ...]]


def route_of(queues: int) -> TopicRoute:
    message = controller_pb2.TopicRoute(name="orders", topic_id=TOPIC)
    for number, (start, end) in enumerate(split_slots(queues)):
        message.queues.add(queue_id=number, group_id=1, slot_start=start, slot_end=end)
    return topic_route(message)


def after(route: TopicRoute, *splits: Split) -> TopicRoute:
    for parent, children in splits:
        queue = route.find(parent)
        assert queue is not None
        record = control_pb2.SplitQueue()
        record.queue.topic_id, record.queue.queue_id = TOPIC, parent
        width = queue.slot_end - queue.slot_start
        bounds = [queue.slot_start + width * n // len(children) for n in range(len(children) + 1)]
        for number, child in enumerate(children):
            record.children.add(
                queue_id=child, slot_start=bounds[number], slot_end=bounds[number + 1]
            )
        route = route.after_split(record)
    return route


def lines(route: TopicRoute) -> list[list[int]]:
    return [[queue.key.queue_id for queue in lineage.queues] for lineage in lineages_of(route)]


def test_without_a_split_partitions_are_the_queues() -> None:
    route = route_of(3)
    assert lines(route) == [[0], [1], [2]]
    topic = partitioned(route, {})
    assert topic.count == 3
    assert topic.partition(2).open.key.queue_id == 2
    for wrong in (-1, 3):
        with pytest.raises(UnknownQueue):
            topic.partition(wrong)


def test_a_partition_goes_on_in_the_first_child_and_the_others_are_new() -> None:
    route = after(route_of(2), (1, (2, 3)), (2, (4, 5)), (3, (6, 7, 8)))
    assert lines(route) == [[0], [1, 2, 4], [3, 6], [5], [7], [8]]
    assert [lineage.generation for lineage in lineages_of(route)] == [0, 0, 1, 1, 2, 2]
    assert [queue.key.queue_id for queue in sealed_of(route)] == [1, 2, 3]


def test_offsets_go_on_where_the_queue_before_ends() -> None:
    route = after(route_of(1), (0, (1, 2)), (1, (3, 4)))
    ends = {QueueKey(TOPIC, QueueId(0)): 10, QueueKey(TOPIC, QueueId(1)): 0}
    line = partitioned(route, ends).partition(0)
    assert line.starts == (0, 10, 10)
    assert line.spot(0) == (0, 0)
    assert line.spot(9) == (0, 9)
    assert line.spot(10) == (2, 0), "an empty queue has no offset"
    assert line.spot(99) == (2, 89)
    assert line.spot(-1) == (0, -1)
    assert (line.shift, line.open.key.queue_id) == (10, 3)
    assert (line.end(0), line.end(1)) == (10, 0)


def test_what_is_behind_a_split_that_is_not_known_has_no_number_yet() -> None:
    """A broker tells of the second of two splits first."""
    early = after(route_of(2), (1, (4, 5)))
    assert lines(early) == [[0], [1, 4]]
    assert lines(after(early, (0, (2, 3)))) == [[0, 2], [1, 4], [3], [5]]


def numbered(route: TopicRoute) -> dict[int, tuple[int, int, int]]:
    """The partition of each queue, its place in there, and its generation."""
    return {
        queue.key.queue_id: (number, place, lineage.generation)
        for number, lineage in enumerate(lineages_of(route))
        for place, queue in enumerate(lineage.queues)
    }


@pytest.mark.parametrize("seed", range(20))
def test_numbers_never_change_and_partitions_cover_the_open_queues(seed: int) -> None:
    rng = random.Random(seed)
    route = route_of(rng.randrange(1, 4))
    for _ in range(12):
        before = numbered(route)
        parent = rng.choice(route.queues)
        if parent.slot_end - parent.slot_start < 4:
            continue
        first = len(route.every)
        children = tuple(range(first, first + rng.randrange(2, 4)))
        route = after(route, (parent.key.queue_id, children))
        found = numbered(route)
        assert found.items() >= before.items()
        ends = [lineage.queues[-1] for lineage in lineages_of(route)]
        assert sorted(queue.key.queue_id for queue in ends) == [
            queue.key.queue_id for queue in route.queues
        ]
        assert sum(queue.slot_end - queue.slot_start for queue in ends) == SLOT_COUNT
        for child in children[1:]:
            assert found[child][2] == found[parent.key.queue_id][2] + 1


def test_partitions_by_position_would_be_caught() -> None:
    """Planted: partition n is the n-th open queue. Then a split moves those behind it."""
    before, split = route_of(3), after(route_of(3), (0, (3, 4)))
    by_position = [queue.key.queue_id for queue in split.queues]
    assert by_position[0] != before.queues[0].key.queue_id
    assert by_position[0] == before.queues[1].key.queue_id, "another one's offsets"
    assert lines(split)[1:3] == lines(before)[1:]


def test_a_topic_that_is_not_split_needs_no_lines() -> None:
    topic = PartitionedTopic(route_of(2))
    assert topic.partition(1).starts == (0,)
    assert topic.lines is None
