"""Turns of streams, by principal: a saturated node serves all of them alike.

How it works. While the streams of one principal alone are open, everybody goes on at once. With
several, a stream asks for a turn before each message that it works on. In one turn of the event
loop as many are granted as take `GRANTED_BYTES`, and none while what was granted before fills the
node (`load`); the others wait in a fair line (`fair_line.py`). So what cannot be done yet waits in
the streams, which are not read meanwhile, and not in a queue that is served in order of arrival.

Invariants
1. At most one message of each stream waits, so the memory is bounded by the streams.
2. Whoever is cancelled while it waits takes no turn.

Not here: how much a principal may use if there is room (`write_pace.py`, `read_pace.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from semel.broker.quotas.fair_line import FairLine

GRANTED_BYTES: Final = 128 << 10
"""The bytes that are granted in one turn of the event loop. A larger message uses up those of
several turns, in which streams with smaller ones come back into the line. With more, these would
have one message a turn of the loop, however small, and the others all that is left of it."""
LOAD_MAX: Final = 8 << 20
"""With less on its way, disk and network would rest; with more, whoever is next waits longer."""
_LOOK_S: Final = 0.001
"""While the node is full, it is looked at so often."""


class Turns:
    """The turns of one kind of stream at one node."""

    def __init__(self, load: Callable[[], int] = lambda: 0) -> None:
        """`load` is how many bytes that were granted are not done yet."""
        self._load = load
        self._line: FairLine[asyncio.Future[None]] = FairLine()
        self._left = GRANTED_BYTES
        """Bytes that may still be granted in this turn of the loop; may be below zero."""
        self._scheduled = False

        self.contended = False
        """Streams of several principals are open, or wait."""

    def enter(self, owner: str) -> None:
        """A stream of a principal is open."""
        self._line.enter(owner)
        self._look()

    def leave(self, owner: str) -> None:
        """It has ended."""
        self._line.leave(owner)
        self._look()

    def _look(self) -> None:
        self.contended = self._line.owners > 1 or bool(self._line)

    def ask(self, owner: str, cost: int) -> asyncio.Future[None] | None:
        """Asks for a turn of `cost` bytes: done when it has come; None if it has. Cancel it, and
        the turn goes to another one."""
        if not self.contended:
            return None
        if not self._line and self._left > 0 and self._load() < LOAD_MAX:
            self._line.use(owner, cost)
            self._left -= cost
            self._schedule()
            return None
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.wait(owner, cost, turn)
        self._schedule()
        return turn

    def give_back(self, owner: str, cost: int) -> None:
        """A turn cost so much less than was asked for."""
        self._line.give_back(owner, cost)
        self._left += cost

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._grant)

    def _grant(self) -> None:
        self._scheduled = False
        self._left = min(self._left + GRANTED_BYTES, GRANTED_BYTES)
        while self._line and self._left > 0:
            if self._load() >= LOAD_MAX:
                self._scheduled = True
                asyncio.get_running_loop().call_later(_LOOK_S, self._grant)
                return
            owner, cost, turn = self._line.next()
            if turn.done():
                self._line.give_back(owner, cost)
                continue
            self._left -= cost
            turn.set_result(None)
        if self._line or self._left < GRANTED_BYTES:
            self._schedule()
        self._look()
