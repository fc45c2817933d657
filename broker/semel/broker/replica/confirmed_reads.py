"""Reads that a quorum confirms, many to a round of heartbeats.

How it works. A master that was replaced without knowing it would answer from an old state. So a
call that is to answer "this is the end" or "this is not stored" waits for one round: the core notes
its commit index, a quorum answers heartbeats that were sent after that, and the state is applied up
to there. All calls that come while a round is under way wait for the next one, which serves them
together.

Not here: the round itself (`raft/read_index.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from semel.broker.raft import ReadState
from semel.protos.errors import SemelError

_Waiters = list[asyncio.Future[None]]


class ConfirmedReads:
    """The calls that wait for a round; `start_round(context)` asks the core for one."""

    def __init__(self, start_round: Callable[[int], None]) -> None:
        self._start_round = start_round
        self._next: _Waiters = []
        self._rounds: dict[int, _Waiters] = {}
        self._confirmed: list[tuple[int, _Waiters]] = []
        self._context = 0

    async def wait(self) -> None:
        """Returns once everything that was committed before this call is applied."""
        await self.ask()

    def ask(self) -> asyncio.Future[None]:
        """The same as a future."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._next.append(future)
        if not self._rounds:
            self._begin()
        return future

    def _begin(self) -> None:
        if self._next:
            self._context += 1
            self._rounds[self._context], self._next = self._next, []
            self._start_round(self._context)

    def on_rounds(
        self, reads: Sequence[ReadState], failed: Sequence[int], error: Callable[[], SemelError]
    ) -> None:
        """Rounds have ended: `reads` were confirmed up to an index, `failed` were not."""
        for read in reads:
            self._confirmed.append((read.index, self._rounds.pop(read.context, [])))
        for context in failed:
            _fail(self._rounds.pop(context, []), error)
        if not self._rounds:
            asyncio.get_running_loop().call_soon(self._begin)

    def on_applied(self, index: int) -> None:
        """The state is applied up to `index`."""
        while self._confirmed and self._confirmed[0][0] <= index:
            for future in self._confirmed.pop(0)[1]:
                if not future.done():
                    future.set_result(None)

    def fail(self, error: Callable[[], SemelError]) -> None:
        """Mastership is lost: every waiting call raises `error`."""
        waiting = list(self._next)
        for futures in self._rounds.values():
            waiting += futures
        for _, futures in self._confirmed:
            waiting += futures
        self._next, self._rounds, self._confirmed = [], {}, []
        _fail(waiting, error)


def _fail(futures: _Waiters, error: Callable[[], SemelError]) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error())
