"""The gates of one server, one for each class of calls: who goes on, who waits, who is refused.

How it works. A call passes the gate of its class before its request is decoded. So many of a class
go on at once; the next ones wait in the order in which they came, and beyond `waiting_max` of them,
or `WAITING_BYTES_MAX` of their requests, a call is refused at once with `Throttled`.

Calls of paced classes begin a few at a time, because the loop that answers them also moves the
messages. One `Pacer` lets `BURST` of them begin in one turn of the loop, and so on in the next
turns until that has taken `SLICE_S` of CPU. Then none begins before the loop has idled for as long
as the slice took, or at the latest after `REST_MAX_S`. So a flood takes about half of what
producers and readers leave over. Lines are served in turn, one call each, so that a long one does
not hold up a short one. A call that comes while the loop does not rest, and nobody waits, begins at
once.

Invariants
1. `running` is at most the limit of the class, and a place is given back exactly once, also by a
   call that is cancelled while it waits.
2. A call that waits goes on in the order of its line, and never while another one of its class was
   refused a place that is free.
3. A gate that is full keeps no call of another class from going on.

Not here: the classes and their limits (`call_classes.py`), rates of principals.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from semel.protos.call_classes import LIMITS, ClassLimits, class_of
from semel.protos.errors import Throttled
from semel.protos.seldom import Seldom

logger = logging.getLogger(__name__)

WAITING_MAX: Final = 4_096
"""Calls of one class that wait; the default of a node's setting."""
WAITING_BYTES_MAX: Final = 32 << 20
"""Bytes of their requests, for each class."""
BURST: Final = 2
SLICE_S: Final = 0.001
REST_S: Final = 0.001
"""The shortest time for which uvloop and asyncio wait."""
REST_MAX_S: Final = 0.004
RETRY_AFTER_MS: Final = 100


class Pacer:
    """Decides when calls of paced classes begin."""

    def __init__(self) -> None:
        self._lines: deque[Gate] = deque()
        """Gates with calls that wait and have room, next one first; each once."""
        self._left = BURST
        """How many may begin before the loop turns."""
        self._turning: asyncio.Handle | None = None
        """What comes after this turn, or after the rest."""
        self._began_cpu_s = 0.0
        """CPU of the loop's thread when the slice began."""
        self._slice_s = 0.0
        """What the slice took."""
        self._rest_began_s = self._rest_began_cpu_s = 0.0

    def may_begin(self) -> bool:
        """Whether a call may begin now; it counts as begun."""
        if self._left == 0 or self._lines:
            return False
        self._begun()
        return True

    def enlist(self, gate: Gate) -> None:
        """`gate` has a call that waits and room for it."""
        if gate not in self._lines:
            self._lines.append(gate)
            self._serve()

    def _begun(self) -> None:
        self._left -= 1
        if self._turning is None:
            self._began_cpu_s = time.thread_time()
            self._turning = asyncio.get_running_loop().call_soon(self._on_turn)

    def _on_turn(self) -> None:
        """The loop has turned since some began: the slice goes on, or the loop rests."""
        self._slice_s = time.thread_time() - self._began_cpu_s
        loop = asyncio.get_running_loop()
        if self._slice_s < SLICE_S:
            if self._left == BURST:  # none has begun in this turn
                self._turning = None
                return
            self._left = BURST
            self._turning = loop.call_soon(self._on_turn)
            self._serve()
            return
        self._left = 0
        self._rest_began_s, self._rest_began_cpu_s = time.monotonic(), time.thread_time()
        self._turning = loop.call_later(REST_S, self._on_rest)

    def _on_rest(self) -> None:
        rested_s = time.monotonic() - self._rest_began_s
        idle_s = rested_s - (time.thread_time() - self._rest_began_cpu_s)
        if idle_s < self._slice_s and rested_s < REST_MAX_S:
            self._turning = asyncio.get_running_loop().call_later(REST_S, self._on_rest)
            return
        self._turning = None
        self._left = BURST
        self._serve()

    def _serve(self) -> None:
        while self._lines and self._left:
            gate = self._lines.popleft()
            if gate.has_next():
                gate.begin_next()
                self._begun()
            if gate.has_next():
                self._lines.append(gate)


class Gate:
    """The gate of one class of calls at one server. Lives on the event loop."""

    def __init__(self, limits: ClassLimits, waiting_max: int, pacer: Pacer | None) -> None:
        """`pacer` is None for calls that begin when they come."""
        self.limits = limits
        self.running = 0
        """Calls that go on."""
        self.refused = 0
        """Calls that were refused so far."""
        self._waiting_max = waiting_max if limits.waits else 0
        self._pacer = pacer
        self._line: deque[asyncio.Future[None]] = deque()
        """Those that wait, oldest first; some may have been cancelled."""
        self._waiting = 0
        self._waiting_bytes = 0
        self._log = Seldom(logger)

    @property
    def waiting(self) -> int:
        """Calls that wait."""
        return self._waiting

    async def enter(self, size: int = 0) -> None:
        """Returns when a call may go on, whose request has `size` bytes; `leave` gives its place
        back. Raises Throttled."""
        if (
            not self._waiting
            and self.running < self.limits.running_max
            and (self._pacer is None or self._pacer.may_begin())
        ):
            self.running += 1
            return
        if self._waiting >= self._waiting_max or (
            self._waiting_bytes + size > WAITING_BYTES_MAX and self._waiting
        ):
            raise self._refusal()
        place = asyncio.get_running_loop().create_future()
        self._line.append(place)
        self._waiting += 1
        self._waiting_bytes += size
        self._go_on()
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._waiting -= 1
                with suppress(ValueError):  # `has_next` has come by
                    self._line.remove(place)
            else:
                self.leave()  # it was let in when its caller went away
            raise
        finally:
            self._waiting_bytes -= size

    def leave(self) -> None:
        """Gives back the place of a call that has ended."""
        self.running -= 1
        if self._waiting:
            self._go_on()

    def has_next(self) -> bool:
        """Whether a call waits for which there is room."""
        line = self._line
        while line and line[0].done():
            line.popleft()
        return bool(line) and self.running < self.limits.running_max

    def begin_next(self) -> None:
        """Lets the oldest call go on, after `has_next`."""
        place = self._line.popleft()
        self._waiting -= 1
        self.running += 1
        place.set_result(None)

    def _go_on(self) -> None:
        if self._pacer is not None:
            if self.has_next():
                self._pacer.enlist(self)
            return
        while self.has_next():
            self.begin_next()

    def _refusal(self) -> Throttled:
        self.refused += 1
        name = self.limits.name
        text = (
            f"{self.running:,} calls of the class {name!r} are under way here and"
            f" {self._waiting:,} wait: come back later"
        )
        self._log.warning("calls refused class=%s running=%d", name, self.running)
        return Throttled(text, retry_after_ms=RETRY_AFTER_MS)


OPEN: Final = Gate(ClassLimits(name="any", running_max=1 << 62, paced=False, waits=False), 0, None)
"""The gate of a server that bounds nothing."""


class CallGates:
    """All gates of one server."""

    def __init__(
        self, waiting_max: int = WAITING_MAX, limits: Mapping[int, ClassLimits] = LIMITS
    ) -> None:
        pacer = Pacer()
        self._gates = {
            number: Gate(one, waiting_max, pacer if one.paced else None)
            for number, one in limits.items()
        }

    def of(self, method: str) -> Gate:
        """The gate of `/SERVICE/METHOD`. Raises UndeclaredClass."""
        return self._gates[class_of(method)]

    def __iter__(self) -> Iterator[Gate]:
        return iter(self._gates.values())
