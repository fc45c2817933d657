"""The cluster's rates, asked for once a second while somebody watches, for everybody who does.

How it works. The controllers know the load that every broker reports. One task asks them, keeps the
last ten minutes, and hands each answer to all followers. It ends when nobody has followed for
`IDLE_S`, so that a console that nobody looks at asks for nothing.

Invariant: a follower that takes nothing holds at most `WAITING_MAX` answers.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple

from semel.client.admin.descriptions import ClusterStatus
from semel.protos.errors import Closed, SemelError

EVERY_S: Final = 1.0
KEPT: Final = 600
IDLE_S: Final = 30.0
WAITING_MAX: Final = 8


class Point(NamedTuple):
    """All rates of one second; nodes that are away count nothing."""

    time_s: float
    produced_messages: int
    fetched_messages: int
    produced_bytes: int
    fetched_bytes: int


class Problem(NamedTuple):
    """An answer that did not come."""

    reason: str
    final: bool
    """It will never come again: the session is over."""


def point_of(status: ClusterStatus, time_s: float) -> Point:
    """Returns the sums over all nodes that are alive."""
    nodes = [node for group in status.groups for node in group.nodes if node.alive]
    return Point(
        time_s=time_s,
        produced_messages=sum(node.produced_messages for node in nodes),
        fetched_messages=sum(node.fetched_messages for node in nodes),
        produced_bytes=sum(node.produced_bytes for node in nodes),
        fetched_bytes=sum(node.fetched_bytes for node in nodes),
    )


class Rates:
    """The rates as one client sees them."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[ClusterStatus]],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._ask = ask
        self._spawn = spawn
        self._followers: set[asyncio.Queue[Point | Problem]] = set()
        self._asking: asyncio.Task[None] | None = None
        self.history: deque[Point] = deque(maxlen=KEPT)

    async def follow(self) -> AsyncGenerator[Point | Problem]:
        """Yields each answer from now on; ends behind a problem that is final."""
        queue: asyncio.Queue[Point | Problem] = asyncio.Queue(WAITING_MAX)
        self._followers.add(queue)
        if self._asking is None or self._asking.done():
            self._asking = self._spawn(self._run())
        try:
            while True:
                answer = await queue.get()
                yield answer
                if isinstance(answer, Problem) and answer.final:
                    return
        finally:
            self._followers.discard(queue)

    async def _run(self) -> None:
        followed_s = time.monotonic()
        while time.monotonic() - followed_s < IDLE_S:
            if self._followers:
                followed_s = time.monotonic()
            answer = await self._answer()
            if isinstance(answer, Point):
                self.history.append(answer)
            for queue in self._followers:
                if queue.full():
                    queue.get_nowait()
                queue.put_nowait(answer)
            if isinstance(answer, Problem) and answer.final:
                return
            await asyncio.sleep(EVERY_S)

    async def _answer(self) -> Point | Problem:
        try:
            return point_of(await self._ask(), time.time())
        except SemelError as error:
            return Problem(error.message or type(error).__name__, isinstance(error, Closed))
