"""What this controller is told about the mastership, and the lease that ends it.

How it works. After its ticks the thread of the consensus says who is master and, on the master
itself, until when its *lease* runs (`ConsensusNode.lease_end`). The lease is kept here, on the
event loop, because the thread stands still while a disk hangs: the other controllers elect another
master then, and this one must not go on answering as the active controller.

Invariants
1. `mine` is published only while a lease runs, and withdrawn when the lease ends, whatever the
   thread does.
2. Every change is delivered to every subscriber in order and none are combined: a mastership that
   was lost and regained is two changes, also when both happened within one tick.
3. After `resign`, a mastership of the same term is never published again.

Not here: when a lease is renewed (`consensus.py`), refusing the writes of an old master
(`epoch.py`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable
from typing import Final

from semel.controller.store.base import ControllerAddress, Mastership
from semel.controller.store.embedded.member import Happened

log = logging.getLogger(__name__)

_NOBODY: Final = Mastership(master=None, mine=False)


class Hints:
    """The mastership as one controller should see it. Belongs to the event loop."""

    def __init__(self, me: int, address: Callable[[int], ControllerAddress]) -> None:
        """`address` gives the address of a controller of the group."""
        self._me = me
        self._address = address
        self._master: int | None = None
        self._current = _NOBODY
        self._led_term = 0
        """Term of the mastership that is published as `mine`; 0 for none."""
        self._resigned_term = 0
        self._lease_end: asyncio.TimerHandle | None = None
        self._subscribers: set[asyncio.Queue[Mastership | None]] = set()
        self._closed = False

    async def follow(self) -> AsyncGenerator[Mastership]:
        """Yields the mastership at once and each change; ends with `close`.

        The queue behind it is unbounded: a change costs an election or a lease.
        """
        if self._closed:
            return
        queue: asyncio.Queue[Mastership | None] = asyncio.Queue()
        queue.put_nowait(self._current)
        self._subscribers.add(queue)
        try:
            while (mastership := await queue.get()) is not None:
                yield mastership
        finally:
            self._subscribers.discard(queue)

    def on_tick(self, happened: Happened) -> None:
        """Takes in what the thread says, in order."""
        if happened.master != self._master:
            self._master = happened.master
            log.info("store's master is controller=%s", self._master)
        if happened.led_term not in (0, self._resigned_term):
            self._on_lease(happened.led_term, happened.lease_end)
            return
        self._end_lease()
        if happened.master is None or happened.led_term:
            self._publish(_NOBODY)
        else:
            self._publish(Mastership(master=self._address(happened.master), mine=False))

    def resign(self) -> None:
        """Withdraws the present mastership for good."""
        self._resigned_term = self._led_term or self._resigned_term
        self._end_lease()

    def close(self) -> None:
        """Tells every subscriber that there will be no more changes."""
        self._closed = True
        if self._lease_end is not None:
            self._lease_end.cancel()
        for queue in self._subscribers:
            queue.put_nowait(None)

    def _on_lease(self, term: int, end: float) -> None:
        if self._led_term != term:
            self._end_lease()  # another term: somebody else may have been master in between
        loop = asyncio.get_running_loop()
        if end <= loop.time():
            self._end_lease()
            return
        if self._lease_end is not None:
            self._lease_end.cancel()
            self._lease_end = None
        if end < math.inf:
            self._lease_end = loop.call_at(end, self._on_lease_end)
        self._led_term = term
        self._publish(Mastership(master=self._address(self._me), mine=True))

    def _on_lease_end(self) -> None:
        log.warning(
            "mastership is over: no majority has answered this controller's consensus in time, or "
            "its disk hangs"
        )
        self._end_lease()

    def _end_lease(self) -> None:
        if self._lease_end is not None:
            self._lease_end.cancel()
            self._lease_end = None
        if self._led_term:
            self._led_term = 0
            self._publish(_NOBODY)

    def _publish(self, mastership: Mastership) -> None:
        if mastership != self._current and not self._closed:
            self._current = mastership
            for queue in self._subscribers:
                queue.put_nowait(mastership)
