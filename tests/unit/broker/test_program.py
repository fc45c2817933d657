"""What the broker's program sets up before it serves."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from semel.broker.__main__ import start_readers
from semel.broker.node import READERS


def named(prefix: str) -> int:
    return sum(thread.name.startswith(prefix) for thread in threading.enumerate())


def test_all_readers_are_there_before_anything_is_read() -> None:
    with ThreadPoolExecutor(READERS, thread_name_prefix="pool-under-test") as pool:
        pool.submit(int).result()  # recovery has used one of them
        start_readers(pool)
        assert named("pool-under-test") == READERS
        assert pool.submit(lambda: 7).result(30) == 7


def test_a_busy_reader_keeps_nobody_for_long() -> None:
    done = threading.Event()
    with ThreadPoolExecutor(READERS) as pool:
        busy = pool.submit(done.wait, 30)
        start_readers(pool)
        assert pool.submit(lambda: 7).result(30) == 7
        assert not busy.done()
        done.set()
