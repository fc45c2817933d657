"""Calls that must return in time, whatever the library below them does.

How it works. `pyarrow.fs` has time limits for S3 alone, and none at all for a network mount that
hangs. So each call runs on another thread, for which the caller waits so long and no longer. A call
that hangs keeps its thread; when `HUNG_MAX` of them hang, further calls fail as well, so a dead
store costs a bounded number of threads. They are daemons: a process ends without them.

Not here: which limits (`StoreLimits` in `store.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeVar

from semel.tier.daemon_threads import DaemonThreads
from semel.tier.errors import TierUnavailable

HUNG_MAX: Final = 32

T = TypeVar("T")


class Deadlines:
    """The calls to one store that are under way."""

    def __init__(self) -> None:
        self._places = threading.BoundedSemaphore(HUNG_MAX)
        self._threads = DaemonThreads("semel-tier")

    def run(self, what: str, seconds: float, call: Callable[[], T]) -> T:
        """Returns what `call` returns, and raises what it raises.

        Raises TierUnavailable after `seconds`; the call may still take effect later.
        """
        if not self._places.acquire(timeout=seconds):
            raise TierUnavailable(f"{what}: {HUNG_MAX} calls hang already; the store is not usable")
        found: list[T] = []
        failed: list[BaseException] = []
        done = threading.Event()

        def work() -> None:
            try:
                found.append(call())
            except BaseException as error:
                failed.append(error)
            finally:
                self._places.release()
                done.set()

        self._threads.run(work)
        if not done.wait(seconds):
            raise TierUnavailable(f"{what}: no answer within {seconds:g} s; the store is too slow")
        if failed:
            raise failed[0]
        return found[0]
