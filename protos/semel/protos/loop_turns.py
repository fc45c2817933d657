"""Long steps of many connections: a few in each turn of the event loop.

How it works. What takes half a millisecond of CPU for each connection, such as a step of a TLS
handshake, must not be done for hundreds of them in one turn of the loop: all else would wait, a
master's heartbeats as well, and the master would lose its office. `begin` says whether there is
room in this turn. Whoever is told that there is none comes into the line by `enlist`, and is called
in one of the next turns. Between two turns the loop serves everything else.

Invariants
1. At most `steps_max` steps are begun in one turn.
2. Who stands in line is called in the order of coming, and nobody begins before them.

Not here: calls of gRPC (`call_gates.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class LoopTurns:
    """The steps of one loop."""

    def __init__(self, steps_max: int) -> None:
        """`steps_max` is how many are begun in one turn."""
        assert steps_max > 0
        self._steps_max = steps_max
        self._begun = 0
        """In this turn."""
        self._line: deque[Callable[[], None]] = deque()
        self._turning = False
        """`_on_turn` is going to be called."""

    @property
    def waiting(self) -> int:
        """How many stand in line."""
        return len(self._line)

    def begin(self) -> bool:
        """Whether a step may be done at once; it counts as begun."""
        if self._line or self._begun >= self._steps_max:
            return False
        self._begun += 1
        self._turn()
        return True

    def enlist(self, step: Callable[[], None]) -> None:
        """Has `step` called in one of the next turns."""
        self._line.append(step)
        self._turn()

    def _turn(self) -> None:
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._on_turn)

    def _on_turn(self) -> None:
        self._turning = False
        self._begun = 0
        while self._line and self._begun < self._steps_max:
            self._begun += 1
            self._turn()  # first: a step may fail
            self._line.popleft()()
