"""The progress of a group on a partition whose queues were split, from that on its queues. Pure.

How it works. A partition is a line of queues (`partitions.py`), and a group has progress on each.
The group is in the first queue that it has not read to its end. So a commit leaves the queues
before its own at their ends, and those behind it at 0. The steps of a commit are stored one after
the other:

    1. queues behind it that have progress go back to 0
    2. queues before it go to their ends
    3. its own queue gets the offset

Invariant: a commit that breaks off between two steps leaves the group at a place between the one
before and the one that was wanted; nothing in between is passed over.

Not here: locks (`group_locks.py`) and calls (`committed_offsets.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from semel.client.core.routing import QueueRoute
from semel.gateway.partitions import PartitionLine
from semel.protos.ids import QueueKey


class Progress(NamedTuple):
    """The committed progress on one queue, or one partition."""

    offset: int
    """The next offset to read; -1 for none."""
    metadata: bytes


Stores: TypeAlias = dict[QueueKey, tuple[QueueRoute, Progress]]
"""Progress that is to be stored, by queue."""
Known: TypeAlias = Mapping[QueueKey, int]
"""The committed offsets, as far as they are known."""
Step: TypeAlias = Callable[[PartitionLine, Progress, Known], Stores]


def behind(line: PartitionLine, wanted: Progress, known: Known) -> Stores:
    """Step 1."""
    place, _ = line.spot(wanted.offset)
    return {
        queue.key: (queue, Progress(0, b""))
        for queue in line.queues[place + 1 :]
        if known.get(queue.key, 1) > 0
    }


def before(line: PartitionLine, wanted: Progress, known: Known) -> Stores:
    """Step 2."""
    place, _ = line.spot(wanted.offset)
    return {
        queue.key: (queue, Progress(line.end(number), b""))
        for number, queue in enumerate(line.queues[:place])
        if known.get(queue.key, -1) != line.end(number)
    }


def own(line: PartitionLine, wanted: Progress, known: Known) -> Stores:
    """Step 3."""
    place, offset = line.spot(wanted.offset)
    queue = line.queues[place]
    return {queue.key: (queue, Progress(offset, wanted.metadata))}


STEPS: Final[tuple[Step, ...]] = (behind, before, own)


def joined(
    queues: Sequence[QueueRoute], found: Mapping[QueueKey, Progress], ends: Callable[[int], int]
) -> Progress:
    """Returns the progress on a partition. `ends(n)` is where its queue n ends, which was split; it
    is asked only of queues with progress."""
    start = 0
    for number, queue in enumerate(queues):
        offset, metadata = found.get(queue.key, Progress(-1, b""))
        if offset < 0:
            return Progress(start if number else -1, b"")
        if number == len(queues) - 1 or offset < ends(number):
            return Progress(start + offset, metadata)
        start += ends(number)
    raise AssertionError("a partition has a queue")
