"""Waits in tests for the effects of other threads, tasks or processes, by looking again and
again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

from semel.protos import compat

T = TypeVar("T")

WITHIN_S = 60.0
"""Long, because no promise depends on it: a test must not fail because the machine is busy."""
LOOK_S = 0.01


def until(condition: Callable[[], T | None], within_s: float = WITHIN_S, what: str = "it") -> T:
    """Returns what `condition` returns as soon as that is true; fails with `what` otherwise."""
    deadline = time.monotonic() + within_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"waited {within_s:g} s in vain for {what}"
        time.sleep(LOOK_S)


@overload
async def until_async(
    condition: Callable[[], Awaitable[T | None]], within_s: float = ..., what: str = ...
) -> T: ...
@overload
async def until_async(
    condition: Callable[[], T | None], within_s: float = ..., what: str = ...
) -> T: ...
async def until_async(
    condition: Callable[[], Any], within_s: float = WITHIN_S, what: str = "it"
) -> Any:
    """`until` on the event loop; `condition` may have to be awaited."""
    try:
        async with compat.timeout(within_s):
            while True:
                asked = condition()
                found = await asked if isinstance(asked, Awaitable) else asked
                if found:
                    return found
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise AssertionError(f"waited {within_s:g} s in vain for {what}") from None
