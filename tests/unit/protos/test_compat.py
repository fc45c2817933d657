"""Cancellation, timeouts and backpressure are the same on every supported Python and loop."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import pytest

from semel.protos import compat
from tests.kit.waiting import WITHIN_S, until_async

TIMEOUTS: list[Callable[[float], Any]] = [
    compat.timeout,
    lambda delay: compat._Timeout(asyncio.get_running_loop().time() + delay),
]
"""That of this Python, and the one for Pythons whose own is wrong, which works on all of them."""


async def group_with_failure(body_turns: int) -> None:
    async with compat.TaskGroup() as tasks:
        tasks.create_task(fail_after(2))
        for _ in range(body_turns):
            await asyncio.sleep(0)


async def fail_after(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    raise OSError("broken")


def cancelling() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def cancelled_soon(work: Coroutine[Any, Any, None], turns: int = 3) -> asyncio.Task[None]:
    """Begins `work` and cancels it after some turns of the loop."""
    task = asyncio.create_task(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=5)
    return task


class TestTaskGroup:
    @pytest.mark.parametrize("body_turns", [0, 1, 5])
    async def test_a_failure_inside_leaves_no_trace_on_the_parent(self, body_turns: int) -> None:
        """Whether the parent is still in the block when a task fails, or waits at its end."""
        for _ in range(3):
            with pytest.raises(ExceptionGroup):
                await group_with_failure(body_turns)
            assert cancelling() == 0
            await asyncio.sleep(0)  # and nothing is still to be raised

    async def test_a_cancellation_that_meets_a_failure_is_heard(self) -> None:
        reached = False

        async def work() -> None:
            nonlocal reached
            for _ in range(100):
                try:
                    async with compat.TaskGroup() as tasks:
                        tasks.create_task(fail_when_cancelled())
                except* OSError:
                    reached = True
                await asyncio.sleep(0)

        async def fail_when_cancelled() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                raise OSError("broken while it was cancelled")

        task = await cancelled_soon(work())
        assert task.cancelled()
        assert reached

    async def test_an_outer_group_ends_although_an_inner_one_failed_in_the_same_turn(self) -> None:
        async def both() -> None:
            async with compat.TaskGroup() as outer:
                outer.create_task(fail_after(1))
                try:
                    async with compat.TaskGroup() as inner:
                        inner.create_task(fail_after(1))
                        await asyncio.sleep(60)
                except* OSError:
                    pass
                await asyncio.sleep(60)

        task = asyncio.create_task(both())
        await asyncio.wait([task], timeout=5)
        assert isinstance(task.exception(), ExceptionGroup)

    async def test_a_group_of_a_task_that_cleans_up_keeps_its_cancellation(self) -> None:
        counts: list[int] = []

        async def work() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                with pytest.raises(ExceptionGroup):
                    await group_with_failure(0)
                counts.append(cancelling())

        assert (await cancelled_soon(work())).cancelled()
        assert counts == [1]


@pytest.mark.parametrize("timeout", TIMEOUTS)
class TestTimeout:
    async def test_it_is_a_timeout_error(self, timeout: Callable[[float], Any]) -> None:
        with pytest.raises(TimeoutError):
            async with timeout(0.0):
                await asyncio.sleep(60)
        assert cancelling() == 0

    async def test_it_is_one_in_a_clean_up_after_a_cancellation(
        self, timeout: Callable[[float], Any]
    ) -> None:
        ended: list[BaseException] = []

        async def work() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                try:
                    async with timeout(0.0):
                        await asyncio.sleep(60)
                except BaseException as error:
                    ended.append(error)

        assert (await cancelled_soon(work())).cancelled()
        assert [type(error) for error in ended] == [TimeoutError]

    async def test_a_cancellation_that_comes_meanwhile_stays_one(
        self, timeout: Callable[[float], Any]
    ) -> None:
        async def work() -> None:
            try:
                async with timeout(0.0):
                    try:
                        await asyncio.sleep(60)
                    finally:
                        await asyncio.sleep(0)
            except TimeoutError:
                pytest.fail("a cancellation became a timeout")

        task = asyncio.create_task(work())
        while not task.cancelling():
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=5)
        assert task.cancelled()

    async def test_what_ends_in_time_is_left_alone(self, timeout: Callable[[float], Any]) -> None:
        async with timeout(60.0) as patience:
            await asyncio.sleep(0)
        assert not patience.expired()

    async def test_a_generator_that_is_abandoned_in_its_block_is_closed_outside_of_a_task(
        self, timeout: Callable[[float], Any]
    ) -> None:
        """As the garbage collector does when a loop is not there any more."""

        async def waits() -> AsyncGenerator[int, None]:
            async with timeout(60):
                yield 1

        generator = waits()
        assert await anext(generator) == 1
        raised: list[BaseException] = []

        def close() -> None:
            assert asyncio.current_task() is None
            try:
                generator.aclose().send(None)
            except BaseException as error:
                raised.append(error)

        asyncio.get_running_loop().call_soon(close)
        await asyncio.sleep(0)
        assert [type(error) for error in raised] == [StopIteration]

    async def test_another_error_stays_what_it_is(self, timeout: Callable[[float], Any]) -> None:
        with pytest.raises(OSError, match="broken"):
            async with timeout(60.0):
                await fail_after(1)


class Paused(asyncio.Protocol):
    """Counts how often it is asked to wait."""

    def __init__(self) -> None:
        self.pauses = 0
        self.received = b""
        self.lost = asyncio.get_running_loop().create_future()

    def pause_writing(self) -> None:
        self.pauses += 1

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(None)


@pytest.mark.both_loops
async def test_an_operator_is_told_the_python_and_the_loop(request: pytest.FixtureRequest) -> None:
    python, loop = compat.runtime().split(", ")
    assert python == f"CPython {'.'.join(map(str, sys.version_info[:3]))}"
    assert loop.split(" ")[0] in request.node.name


@pytest.mark.both_loops
class TestPartsWriter:
    async def test_who_takes_nothing_off_stops_the_writer(self) -> None:
        transport, protocol, far = await self._connect()
        write = compat.parts_writer(transport)
        written = 0
        while not protocol.pauses:
            write((b"head", bytes(1 << 16)))
            written += (1 << 16) + 4
            assert written < 64 << 20, "the writer is never told to wait"
        transport.abort()
        await protocol.lost
        far.close()

    async def test_what_is_written_to_a_lost_connection_touches_no_other(self) -> None:
        """Written before the protocol has heard of the loss; the next one has its descriptor."""
        transport, protocol, far = await self._connect()
        transport.abort()
        compat.parts_writer(transport)((b"for ", b"nobody"))
        await protocol.lost
        far.close()
        other, others, far = await self._connect()
        compat.parts_writer(other)((b"for ", b"the ", b"other"))
        far.settimeout(WITHIN_S)
        assert await asyncio.to_thread(far.recv, 100) == b"for the other"
        far.send(b"answer")
        await until_async(lambda: others.received == b"answer", what="the answer")
        other.abort()
        await others.lost
        far.close()

    async def _connect(self) -> tuple[asyncio.Transport, Paused, socket.socket]:
        near, far = socket.socketpair()
        transport, protocol = await asyncio.get_running_loop().create_connection(Paused, sock=near)
        return transport, protocol, far
