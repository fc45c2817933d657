"""The owner of a log, which alone changes what the log holds: an event loop, once it is attached.

How it works. Threads that clean the log, or replace it by a snapshot, prepare everything and have
the owner make the change itself (`run`). So the owner reads the log's index without a lock, and
within one turn of its loop nothing goes away that it has just seen there.

Not here: what is changed (`log/log.py`, `log/cleaner.py`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable


class Owner:
    """Any thread may call `run`; without a loop, that thread is the owner."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(self, work: Callable[[], None]) -> None:
        """BLOCKING. Runs `work` on the owner's loop, which must go on running; returns once it is
        done. Raises what `work` raises."""
        loop = self._loop
        if loop is None or _is_running(loop):
            work()
            return
        done = threading.Event()
        errors: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)
            finally:
                done.set()

        loop.call_soon_threadsafe(run)
        done.wait()
        if errors:
            raise errors[0]


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this thread runs the loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
