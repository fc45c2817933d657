"""Which broker group owns which queue of a new topic.

How it works. Each queue in turn goes to the group with the fewest queues so far, the lowest number
first among equals. So the queues of one topic are spread as evenly as the groups' loads allow, and
the same input always gives the same placement.

Not here: moving queues that exist.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from semel.protos.ids import GroupId


def place(queues: int, loads: Mapping[GroupId, int]) -> list[GroupId]:
    """The group of each of `queues` new queues; `loads` has every usable group's queue count.

    Asserts that there is a group.
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
