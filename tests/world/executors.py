"""Executors of one thread: what they are given is done in its order, one piece after the other.

How it works. Other executors of the product have several threads, and `loop.py` gives each piece of
work a simulated thread of its own. An executor of one thread is also a promise about order, so it
is simulated as such: a simulated thread does what waits, and ends when nothing does.

Not here: simulated threads (`threads.py`), who finds this in place of `ThreadPoolExecutor`
(`hosting.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.world.threads import Threads


class OneThread:
    """`concurrent.futures.ThreadPoolExecutor` with one worker, as far as it is used."""

    def __init__(self, threads: Threads, workers: int, *, thread_name_prefix: str) -> None:
        assert workers == 1, "several threads need no order: leave such an executor as it is"
        self._threads = threads
        self._name = thread_name_prefix
        self._waiting: deque[Callable[[], object]] = deque()
        self._busy = False
        self._idle = threads.Condition()

    def begin(self, work: Callable[[], object]) -> None:
        """Has the thread do `work` after all that it was given before; `work` raises nothing."""
        self._waiting.append(work)
        if not self._busy:
            self._busy = True
            self._threads.spawn(self._run, self._name)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> None:
        """The same for a function whose result and errors nobody looks at."""

        def work() -> None:
            with suppress(Exception):
                function(*arguments)

        self.begin(work)

    def _run(self) -> None:
        while self._waiting:
            self._waiting.popleft()()
        self._busy = False
        with self._idle:
            self._idle.notify_all()

    def shutdown(self, *, wait: bool) -> None:
        """Returns once all is done. In a thread."""
        assert wait
        with self._idle:
            while self._busy:
                self._idle.wait()
