"""Long administrative calls that report their progress to the caller's own thread or loop.

How it works. The work runs on the I/O thread and reports its progress (*news*) there. `run_telling`
blocks and calls `on_news` in the calling thread; `await_telling` calls it on the caller's loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from semel.client.session import Session
from semel.protos.errors import TimedOut

_News = TypeVar("_News")
_Result = TypeVar("_Result")
GRACE_S: Final = 10.0
"""How much longer than the work's own time limit `run_telling` waits for its result."""


def run_telling(
    session: Session,
    start: Callable[[Callable[[_News], object]], Coroutine[Any, Any, _Result]],
    on_news: Callable[[_News], object] | None,
    timeout: float,
    late: str,
) -> _Result:
    """Blocks for the result of `start(note)`. Raises TimedOut with the text `late`, Closed."""
    news: list[_News] = []
    changed = threading.Event()

    def note(each: _News) -> None:
        news.append(each)
        changed.set()

    session.check()
    future = session.runtime.submit(start(note))
    future.add_done_callback(lambda _: changed.set())
    give_up = time.monotonic() + timeout + GRACE_S
    try:
        while True:
            # Read before the news, so that all news from before the end is passed on first.
            done = future.done()
            while news and on_news is not None:
                on_news(news.pop(0))
            if done or time.monotonic() >= give_up:
                return future.result(0)
            changed.wait(1.0)
            changed.clear()
    except TimeoutError:
        raise TimedOut(late) from None
    finally:
        future.cancel()


async def await_telling(
    session: Session,
    start: Callable[[Callable[[_News], object]], Coroutine[Any, Any, _Result]],
    on_news: Callable[[_News], object] | None,
) -> _Result:
    """Awaits the result of `start(note)`. Raises Closed."""
    loop = asyncio.get_running_loop()

    def note(each: _News) -> None:
        if on_news is not None:
            loop.call_soon_threadsafe(on_news, each)

    return await session.await_run(start(note))
