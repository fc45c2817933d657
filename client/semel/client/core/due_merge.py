"""Several queues' delayed messages in one order, by due time.

How it works. Every queue gives its messages in pages, each in order. The merge says which queue's
next page decides what comes next, so a queue whose messages are due late is not asked before its
turn, and a caller that has enough has asked for little more than it got.

Invariants
1. `_heads` has one entry for each queue that may give anything: the due time of its first row that
   is here, or else a time before which no row of its next page is due.
2. Rows come by (due time, queue, order within the queue).

Not here: asking (`admin/delays.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Generic, Protocol, TypeVar


class Due(Protocol):
    """A row that is due at a time."""

    @property
    def due_us(self) -> int: ...


_Row = TypeVar("_Row", bound=Due)


class DueMerge(Generic[_Row]):
    """Merges the pages of queues, by number."""

    def __init__(self, first_due_us: Mapping[int, int]) -> None:
        """`first_due_us` has for each queue a time before which none of its rows is due."""
        self._heads = [(due_us, queue) for queue, due_us in first_due_us.items()]
        heapify(self._heads)
        self._rows: dict[int, deque[_Row]] = {queue: deque() for queue in first_due_us}
        self._more = set(first_due_us)
        """The queues that have another page."""

    @property
    def wanted(self) -> int | None:
        """The queue whose next page decides what comes next; None if no page is needed for
        that."""
        if not self._heads:
            return None
        queue = self._heads[0][1]
        return None if self._rows[queue] else queue

    def on_page(self, rows: Sequence[_Row], *, more: bool) -> None:
        """Adds the next page of the queue that is wanted. An empty page is its last one."""
        queue = self.wanted
        assert queue is not None
        self._rows[queue].extend(rows)
        if not (more and rows):
            self._more.discard(queue)
        if rows:
            heapreplace(self._heads, (rows[0].due_us, queue))
        else:
            heappop(self._heads)

    def take(self) -> _Row | None:
        """Returns the next row; None when there is none left. No page may be wanted."""
        assert self.wanted is None
        if not self._heads:
            return None
        _, queue = self._heads[0]
        rows = self._rows[queue]
        row = rows.popleft()
        if rows:
            heapreplace(self._heads, (rows[0].due_us, queue))
        elif queue not in self._more:
            heappop(self._heads)
        return row
