"""An event loop whose clock jumps to the next timer when nothing is ready: no test waits.

A turn of the loop takes `TURN_S`, as it does on a real clock: what looks at a clock again and again
gets on.

Not here: loops of simulated clusters, whose processes share one (`tests/world/loop.py`).
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

TURN_S: Final = 1e-6


class _Jumping(selectors.SelectSelector):
    """Waits for nothing: what it would have waited has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen: a task waits for what nobody does")
        self.now += max(TURN_S, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; `time` is its clock, in seconds from 0."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_virtually(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result, at once however long it waits."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)
