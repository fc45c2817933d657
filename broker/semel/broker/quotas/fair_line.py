"""A line of owners who share something: each gets the same amount of it while it wants it.

How it works. Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996). Each owner has a
virtual time at which it will have had what it got; `use` and `next` move it on by the cost. The
next turn goes to the waiting owner with the earliest one. An owner that comes back after a pause
begins at the present virtual time: nobody saves turns up. It also keeps what it has had too much
while it is here, so one whose turns are small, and who asks for the next one only when it has used
the last, gets as much as one whose turns are large and wait in a row.

A turn costs O(log of the owners that wait).

Invariants
1. While two owners wait without a pause, what they got differs by no more than two of the largest
   turns.
2. Turns of one owner come in the order in which it asked for them.
3. It remembers owners that are here (`enter`, `leave`) and nobody else.

Not here: who waits and how it is woken (`turns.py`).
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairLine(Generic[T]):
    """Turns of several owners, by name."""

    def __init__(self) -> None:
        self._here: dict[str, int] = {}
        """How many times each owner has entered."""
        self._had: dict[str, int] = {}
        """Virtual time at which each owner will have had what it got."""
        self._lines: dict[str, deque[tuple[int, T]]] = {}
        """Cost and who, of all that wait; no line is empty."""
        self._heap: list[tuple[int, int, str]] = []
        """Each owner with a line: its next virtual time, a number, its name."""
        self._now = 0
        """The virtual time: where the newest turn began."""
        self._number = 0

    def __bool__(self) -> bool:
        """Somebody waits."""
        return bool(self._lines)

    @property
    def owners(self) -> int:
        """How many are here."""
        return len(self._here)

    def enter(self, owner: str) -> None:
        """The owner may ask for turns."""
        self._here[owner] = self._here.get(owner, 0) + 1

    def leave(self, owner: str) -> None:
        """The opposite of one `enter`; what still waits keeps its place."""
        self._here[owner] -= 1
        if not self._here[owner]:
            del self._here[owner]
            if owner not in self._lines:
                self._had.pop(owner, None)

    def use(self, owner: str, cost: int) -> None:
        """The owner takes a turn at once: nobody waits."""
        self._now = max(self._now, self._had.get(owner, 0))
        self._had[owner] = self._now + cost

    def wait(self, owner: str, cost: int, who: T) -> None:
        """The owner wants a turn for `who`."""
        line = self._lines.get(owner)
        if line is None:
            line = self._lines[owner] = deque()
            self._push(owner)
        line.append((cost, who))

    def next(self) -> tuple[str, int, T]:
        """Owner, cost and who of the next turn, which is taken; somebody must wait."""
        begin, _, owner = heapq.heappop(self._heap)
        self._now = max(self._now, begin)
        line = self._lines[owner]
        cost, who = line.popleft()
        self._had[owner] = self._now + cost
        if line:
            self._push(owner)
        else:
            del self._lines[owner]
            if owner not in self._here:
                del self._had[owner]
        return owner, cost, who

    def give_back(self, owner: str, cost: int) -> None:
        """A turn that the owner took cost so much less."""
        if owner in self._had:
            self._had[owner] -= cost

    def _push(self, owner: str) -> None:
        self._number += 1
        begin = max(self._now, self._had.get(owner, 0))
        heapq.heappush(self._heap, (begin, self._number, owner))
