"""Calls that wait for the I/O thread: results, time limits, and a client that is closed."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from semel.client.transport.runtime import Runtime
from semel.protos import compat
from semel.protos.errors import Closed, TimedOut


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    running = Runtime()
    yield running
    running.stop()


class Waiting:
    """A call that waits for a task of the client's, which ends when the client is closed."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._task: asyncio.Task[bool] | None = None

    async def call(self) -> None:
        self._task = asyncio.create_task(asyncio.Event().wait())
        self._runtime.call_soon(self._task.cancel)
        await self._task


async def test_whoever_awaits_a_call_when_the_client_is_closed_is_told(runtime: Runtime) -> None:
    with pytest.raises(Closed, match="while the call was under way"):
        await runtime.await_run(Waiting(runtime).call())


async def test_a_group_of_tasks_is_told_that_the_client_was_closed(runtime: Runtime) -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        async with compat.TaskGroup() as tasks:
            tasks.create_task(runtime.await_run(Waiting(runtime).call()))
    assert [type(each) for each in caught.value.exceptions] == [Closed]


def test_whoever_blocks_when_the_client_is_closed_is_told(runtime: Runtime) -> None:
    with pytest.raises(Closed, match="while the call was under way"):
        runtime.run(Waiting(runtime).call(), 60.0, "late")


async def test_a_caller_that_is_cancelled_gets_its_own_cancellation(runtime: Runtime) -> None:
    began = asyncio.Event()
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def call() -> None:
        loop.call_soon_threadsafe(began.set)
        try:
            await asyncio.Event().wait()
        finally:
            loop.call_soon_threadsafe(ended.set)

    task = asyncio.create_task(runtime.await_run(call()))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with compat.timeout(60):
        await ended.wait()


async def test_a_time_limit_of_the_caller_stays_one(runtime: Runtime) -> None:
    with pytest.raises(TimeoutError):
        async with compat.timeout(0.01):
            await runtime.await_run(asyncio.Event().wait())


def test_a_call_that_is_late_is_told_so(runtime: Runtime) -> None:
    with pytest.raises(TimedOut, match=r"no answer within 0.01 s"):
        runtime.run(asyncio.Event().wait(), 0.01, "no answer")


class LastMoment(concurrent.futures.Future[int]):
    """Ends between the end of the wait and the look at what came of it."""

    def __init__(self, error: BaseException | None) -> None:
        super().__init__()
        self._error = error

    def result(self, timeout: float | None = None) -> int:
        if timeout is None:
            return super().result()
        if self._error is None:
            self.set_result(7)
        elif isinstance(self._error, asyncio.CancelledError):
            self.cancel()
        else:
            self.set_exception(self._error)
        raise TimeoutError


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (None, None),
        (TimedOut("the broker's"), TimedOut),
        (TimeoutError(), TimeoutError),
        (asyncio.CancelledError(), Closed),
    ],
)
def test_a_result_at_the_last_moment_counts(
    runtime: Runtime,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException | None,
    told: type[BaseException] | None,
) -> None:
    def submit(coroutine: Coroutine[Any, Any, Any]) -> LastMoment:
        coroutine.close()
        return LastMoment(error)

    async def call() -> int:
        return 0

    monkeypatch.setattr(runtime, "submit", submit)
    if told is None:
        assert runtime.run(call(), 1.0, "late") == 7
        return
    with pytest.raises(told) as caught:
        runtime.run(call(), 1.0, "late")
    assert "late" not in str(caught.value)
