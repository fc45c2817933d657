"""Threads for calls that may hang: kept for the next call, and no reason to keep a process alive.

How it works. A call goes to a thread that has nothing to do, or to a new one if there is none. So
calls never wait for each other, and one that hangs holds its own thread. To begin a thread stops
whoever begins it until the new one has run, which takes long while others compute; to hand a call
over does not.

Not here: how many calls may be under way (`deadlines.py`, and callers of their own).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeAlias

Call: TypeAlias = Callable[[], None]


class DaemonThreads:
    """Threads of one name. Any thread may use it."""

    def __init__(self, name: str, *, idle_max: int = 8) -> None:
        """At most `idle_max` threads without work stay."""
        self._name = name
        self._idle_max = idle_max
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[Call]] = []
        self._busy = 0

    @property
    def busy(self) -> int:
        """Number of calls that have not returned."""
        return self._busy

    def run(self, call: Call) -> None:
        """Begins a call, which must not raise, and returns at once."""
        with self._lock:
            self._busy += 1
            idle = self._idle.pop() if self._idle else None
        if idle is not None:
            idle.put(call)
        else:
            threading.Thread(target=self._work, args=(call,), name=self._name, daemon=True).start()

    def _work(self, call: Call) -> None:
        calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        while True:
            call()
            del call  # and what it holds
            with self._lock:
                self._busy -= 1
                if len(self._idle) >= self._idle_max:
                    return
                self._idle.append(calls)
            call = calls.get()
