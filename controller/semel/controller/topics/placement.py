"""The placement of a new topic: which broker group owns which queue.

How it works. Each queue in turn goes to the group with the least load so far, the lowest number
first among equals. So the queues of one topic are spread as evenly as the groups' loads allow, and
the same input always gives the same placement. `weigh` computes the loads. A group's load is the
number of its queues plus a share of the number of all queues, in proportion to the bytes that
producers write to the group.

Not here: moving queues that exist.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Final

from semel.protos.ids import GroupId

QUIET_BYTES: Final = 1 << 20
"""Bytes a second over all groups; below this the written bytes say nothing about load."""


def weigh(counts: Mapping[GroupId, int], written: Mapping[GroupId, int]) -> dict[GroupId, int]:
    """Each group's load, in queues, from its queue count and the bytes written to it a second."""
    total, total_bytes = sum(counts.values()), sum(written.get(group, 0) for group in counts)
    if total_bytes < QUIET_BYTES:
        return dict(counts)
    return {
        group: count + total * written.get(group, 0) // total_bytes
        for group, count in counts.items()
    }


def place(queues: int, loads: Mapping[GroupId, int]) -> list[GroupId]:
    """The group of each of `queues` new queues.

    `loads` has the load of every usable group, in queues; it must not be empty.
    """
    assert loads
    heap = [(count, group) for group, count in loads.items()]
    heapq.heapify(heap)
    placement = []
    for _ in range(queues):
        count, group = heap[0]
        placement.append(group)
        heapq.heapreplace(heap, (count + 1, group))
    return placement
