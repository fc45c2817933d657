"""Which messages of topics in memory go when there is too much of them: the oldest.

How it works. A topic has a bound for all of its queues, of which this broker group takes the share
of its slots; the group has a bound of its own for all topics. What is beyond a bound goes, oldest
batch first by append time, whatever queue it is in, and a sixteenth of the bound more, so that
batches do not go one by one. Pure.

Not here: proposing it (`background/memory_bounds.py`), the bytes that are here (`bodies.py`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from semel.broker.state import SLOTS, Extent, QueueState
from semel.protos.ids import QueueKey

_SPARE: Final = 16
_LATE: Final = 4
_BATCHES_MIN: Final = 4


def share(memory_bytes: int, slots: int, batch_bytes_max: int) -> int:
    """The part of a topic's bound that a broker group with so many of its slots has; at least a few
    of the largest batches, so that they stay long enough to be read."""
    return max(memory_bytes * slots // SLOTS, _BATCHES_MIN * batch_bytes_max)


def is_crowded(held: int, bound: int) -> bool:
    """Producers have to wait, because trimming lags behind by a quarter of the bound."""
    return held > bound + bound // _LATE


def excess(held: int, bound: int) -> int:
    """How many bytes have to go; 0 while the bound holds."""
    return held - bound + bound // _SPARE if held > bound else 0


def oldest(queues: Iterable[QueueState], excess_bytes: int) -> Mapping[QueueKey, int]:
    """The new start of each queue that has to begin later for so many bytes to go.

    What is lost takes no memory and frees none. It walks over the batches that go, no others.
    """
    starts: dict[QueueKey, int] = {}
    heap: list[tuple[int, QueueKey, QueueState, Extent, Iterator[Extent]]] = []
    for queue in queues:
        extents = queue.extents.read(queue.extents.first, queue.log_end_offset)
        if (first := next(extents, None)) is not None:
            heap.append((first.append_time_us, queue.key, queue, first, extents))
    heapq.heapify(heap)
    while excess_bytes > 0 and heap:
        _, key, queue, extent, extents = heap[0]
        starts[key] = extent.base_offset + extent.count
        if queue.lost.end_at(max(extent.base_offset, queue.log_start_offset)) is None:
            excess_bytes -= extent.length
        if (following := next(extents, None)) is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (following.append_time_us, key, queue, following, extents))
    return starts
