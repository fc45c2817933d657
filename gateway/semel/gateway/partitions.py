"""Which queue of a topic is which partition. Pure.

A partition is an open queue: partition 0 is the one with the lowest number, and so on, so that a
topic that was never split has its queues' numbers as partitions. Kafka's clients choose a partition
by the key, with a hash of their own, and expect that it stays what it is.

A topic with a queue that was split has no such numbers any more: a partition would end, and those
behind it would change places, so that committed offsets of one queue were taken for another one's.
It is refused by name until what its partitions are is decided.
"""

from __future__ import annotations

from semel.client.core.routing import QueueRoute, TopicRoute
from semel.protos.errors import InvalidRequest, UnknownQueue


def partitions_of(topic: TopicRoute) -> tuple[QueueRoute, ...]:
    """Returns the queues by partition. Raises InvalidRequest for a topic with a split queue."""
    if topic.sealed:
        raise InvalidRequest(
            f"topic {topic.name!r} has a queue that was split; Kafka's clients cannot use it"
        )
    return topic.queues


def partition_of(topic: TopicRoute, partition: int) -> QueueRoute:
    """Returns the queue of one partition. Raises InvalidRequest, UnknownQueue."""
    queues = partitions_of(topic)
    if not 0 <= partition < len(queues):
        raise UnknownQueue(f"topic {topic.name!r} has no partition {partition}")
    return queues[partition]
