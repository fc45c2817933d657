"""Calls have a thread for themselves, and threads serve call after call."""

from __future__ import annotations

import threading

from semel.tier import DaemonThreads
from tests.kit.waiting import until


def run(threads: DaemonThreads) -> threading.Thread:
    """Runs a call to its end; returns its thread, which has nothing to do any more."""
    ran: list[threading.Thread] = []
    threads.run(lambda: ran.append(threading.current_thread()))
    until(lambda: threads.busy == 0, what="the call to return")
    return ran[0]


def test_a_thread_serves_call_after_call() -> None:
    threads = DaemonThreads("test")
    first = run(threads)
    assert first.daemon
    assert first.name == "test"
    assert {run(threads) for _ in range(10)} == {first}


def test_a_call_that_hangs_holds_up_no_other() -> None:
    threads, goes_on = DaemonThreads("test"), threading.Event()
    other = run(threads)

    def wait() -> None:
        goes_on.wait()

    try:
        threads.run(wait)
        assert threads.busy == 1
        ran = threading.Event()
        threads.run(ran.set)
        assert ran.wait(60)
        until(lambda: threads.busy == 1)
    finally:
        goes_on.set()
    until(lambda: threads.busy == 0)
    assert other.is_alive()


def test_only_some_threads_stay_without_work() -> None:
    threads, goes_on = DaemonThreads("test", idle_max=2), threading.Event()
    ran: list[threading.Thread] = []

    def call() -> None:
        ran.append(threading.current_thread())
        goes_on.wait()

    for _ in range(5):
        threads.run(call)
    until(lambda: len(ran) == 5)
    goes_on.set()
    until(lambda: sum(thread.is_alive() for thread in ran) == 2)
    assert run(threads) in ran
