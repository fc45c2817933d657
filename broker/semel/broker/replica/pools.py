"""Threads that read and write beside the event loop: one pool for each kind of work.

How it works. Work of one pool waits for work of the same pool alone. So whatever clients and
operators ask for, the threads that apply entries, send them to slaves and repair damage are free,
and a verification does not keep a fetch waiting.

A thread that computes holds the interpreter's lock, and the event loop then waits for it. Long work
therefore takes a `Courtesy` along, which rests now and then while messages are being stored.

Not here: the log's own threads (`log/writer.py`, `log/keeper.py`), those of message ids
(`replica/message_ids.py`), of the object store (`tiers/place.py`), and of batches that are unpacked
(`node.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Self

SLICE_S: Final = 0.001
"""So long a thread computes before it rests."""
REST: Final = 3
"""The rest takes so many times as long."""
RECENT_S: Final = 0.1
"""Messages are being stored if something was appended within this time."""
_PREFIX: Final = "reader"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """The pools of one node."""

    group: Executor
    """What the group itself needs to go on: applying, sending entries, repairing, catching up."""
    clients: Executor
    """Stored messages that clients ask for."""
    background: Executor
    """Checkpoints, cleaning, compaction, scrubbing, moving messages to the object store."""
    copies: Executor
    """What other nodes copy from here: snapshots, queues that move."""
    scans: Executor
    """Verification."""

    @classmethod
    def opened(cls, end: Callable[..., object]) -> Self:
        """New pools. Each is given to `end`, together with how it is ended."""
        pools = {}
        for name, threads in THREADS.items():
            pools[name] = ThreadPoolExecutor(threads, thread_name_prefix=f"{_PREFIX}-{name}")
            end(pools[name].shutdown, wait=True, cancel_futures=True)
        return cls(**pools)

    @classmethod
    def of_one(cls, executor: Executor) -> Self:
        """All work in one pool."""
        return cls(**dict.fromkeys(THREADS, executor))


THREADS: Final = {"group": 2, "clients": 4, "background": 2, "copies": 2, "scans": 1}
"""How many threads each pool has."""


def start_threads(pools: Pools) -> None:
    """Starts all threads now. Otherwise they start under load, which looks like a leak."""
    for name, threads in THREADS.items():
        together = threading.Barrier(threads)
        for _ in range(threads):
            # The timeout lets the others go on if one is late.
            getattr(pools, name).submit(together.wait, 1.0)


class Courtesy:
    """The rests of one thread that computes for long. It lives on that thread."""

    def __init__(self, appended: Callable[[], int]) -> None:
        """`appended` returns a number that changes whenever something is appended to the log."""
        self._appended = appended
        self._known = appended()
        self._busy_until = 0.0
        self._since = time.thread_time()
        self._never = threading.Event()

    def maybe_rest(self) -> None:
        """BLOCKING. Rests three times as long as the thread has computed since its last rest, if
        that was a slice and messages are being stored."""
        worked = time.thread_time() - self._since
        if worked < SLICE_S:
            return
        now, appended = time.monotonic(), self._appended()
        if appended != self._known:
            self._known, self._busy_until = appended, now + RECENT_S
        if now < self._busy_until:
            self._never.wait(REST * worked)
        self._since = time.thread_time()
