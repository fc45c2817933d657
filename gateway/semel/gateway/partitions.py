"""Which queues of a topic are which partition, also after queues were split. Pure.

How it works. A topic that was never split has its queues' numbers as partitions. When a queue is
split, its partition goes on in the child with the lowest number, the *heir*: the partition is then
a *line* of queues, one behind the other, of which the last is open. Its offsets go on as well: the
heir's offset 0 is the partition offset at which the parent ends. The other children are new
partitions, behind all that there are, by number.

    queues 0, 1; 1 is split into 2, 3; 2 into 4, 5       partition 0: queue 0
                                                         partition 1: queues 1, 2, 4
                                                         partition 2: queue 3
                                                         partition 3: queue 5

So a client sees of a split what it sees where partitions are added to a topic of Kafka: there are
more of them, and those of before are what they were.

Generations. A child has a copy of its parent's rows in the sequence table. In the heir they are
what a producer of the partition needs. In a new partition it begins with sequence 0, and a row says
that it is further. So the sequences of a new partition are above all of its parent: it is of the
next *generation*, which `kafka_numbers.py` makes a part of them.

Invariants
1. A partition's number, the queues of its line but for the last one's heir, their starts and its
   generation never change.
2. Numbers follow from queues alone, whose numbers are given in order and never twice. Of queues
   behind a number that is not known yet, nothing is said but who is whose heir.

Not here: where sealed queues end (`topic_book.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from semel.client.core.routing import QueueRoute, TopicRoute
from semel.protos.errors import UnknownQueue
from semel.protos.ids import QueueKey


class Lineage(NamedTuple):
    """The queues of one partition."""

    queues: tuple[QueueRoute, ...]
    """Each one but the last was split, and the next is its heir."""
    generation: int
    """How many of the splits that it descends from made a new partition of it."""


class Spot(NamedTuple):
    """A partition offset as a queue has it."""

    place: int
    """Index of the queue in the line."""
    offset: int
    """The queue's."""


@dataclass(frozen=True, slots=True)
class PartitionLine:
    """One partition: its queues, and where each begins."""

    number: int
    queues: tuple[QueueRoute, ...]
    starts: tuple[int, ...]
    """The partition offset of each queue's offset 0; they never fall."""
    generation: int = 0

    @property
    def open(self) -> QueueRoute:
        """The queue that producers write to."""
        return self.queues[-1]

    @property
    def shift(self) -> int:
        """The partition offset of the open queue's offset 0."""
        return self.starts[-1]

    def spot(self, offset: int) -> Spot:
        """Returns which queue has a partition offset. Where one ends, that is the next one."""
        place = max(0, bisect_right(self.starts, offset) - 1)
        return Spot(place, offset - self.starts[place])

    def end(self, place: int) -> int:
        """Returns where the queue ends that is at `place`, which was split; its own offset."""
        return self.starts[place + 1] - self.starts[place]


@dataclass(frozen=True, slots=True)
class PartitionedTopic:
    """A topic as Kafka's clients see it."""

    route: TopicRoute
    lines: Sequence[PartitionLine] | None = None
    """By partition; None for a topic that was never split."""

    @property
    def name(self) -> str:
        return self.route.name

    @property
    def count(self) -> int:
        """Number of partitions."""
        return len(self.route.queues if self.lines is None else self.lines)

    def partition(self, number: int) -> PartitionLine:
        """Returns a partition. Raises UnknownQueue."""
        if not 0 <= number < self.count:
            raise UnknownQueue(f"topic {self.name!r} has no partition {number}")
        if self.lines is None:
            return PartitionLine(number, (self.route.queues[number],), (0,))
        return self.lines[number]


def lineages_of(topic: TopicRoute) -> list[Lineage]:
    """Returns the queues of each partition, by partition."""
    if not topic.sealed:
        return [Lineage((queue,), 0) for queue in topic.queues]
    queues: dict[int, QueueRoute] = {queue.key.queue_id: queue for queue in topic.every}
    heirs: dict[int, int] = {}
    for number, queue in queues.items():  # by rising number: the first child is the heir
        if queue.parent is not None:
            heirs.setdefault(queue.parent, number)
    found: list[Lineage] = []
    generations: dict[int, int] = {}
    """By number of a queue that is in a line."""
    for number in range(len(queues)):
        first = queues.get(number)
        if first is None:
            break  # a split is not known yet, and what is behind it would have other numbers
        if number in generations:
            continue
        generation = 0 if first.parent is None else generations[first.parent] + 1
        line = [first]
        while (heir := heirs.get(line[-1].key.queue_id)) is not None:
            line.append(queues[heir])
        generations |= {queue.key.queue_id: generation for queue in line}
        found.append(Lineage(tuple(line), generation))
    return found


def sealed_of(topic: TopicRoute) -> list[QueueRoute]:
    """Returns the queues whose ends the lines of a topic need."""
    return [queue for lineage in lineages_of(topic) for queue in lineage.queues[:-1]]


def partitioned(topic: TopicRoute, ends: Mapping[QueueKey, int]) -> PartitionedTopic:
    """Returns a topic's partitions; `ends` has the ends of `sealed_of(topic)`."""
    if not topic.sealed:
        return PartitionedTopic(topic)
    lines = []
    for number, (queues, generation) in enumerate(lineages_of(topic)):
        starts = [0]
        for queue in queues[:-1]:
            starts.append(starts[-1] + ends[queue.key])
        lines.append(PartitionLine(number, queues, tuple(starts), generation))
    return PartitionedTopic(topic, lines)
