"""Waiting for messages that are on their way."""

from __future__ import annotations

import asyncio

import pytest

from semel.client.core.batching import Chunk, Outcome
from semel.client.producer.futures import BulkFuture, SendFuture
from semel.protos.errors import TimedOut, Unavailable
from tests.unit.client.chunks import chunk_of


@pytest.fixture
def chunk() -> Chunk:
    return chunk_of([b"a"])


def test_a_wait_that_is_over_leaves_nothing_with_the_message(chunk: Chunk) -> None:
    """A program may look again and again, for as long as no broker answers."""
    for _ in range(3):
        with pytest.raises(TimedOut):
            SendFuture(chunk, 0).result(0.001)
        with pytest.raises(TimedOut):
            BulkFuture([(chunk, 0, 1)]).result(0)
    assert chunk.waiters == []


async def test_an_await_that_is_cancelled_leaves_nothing_with_the_message(chunk: Chunk) -> None:
    async def wait() -> None:
        await SendFuture(chunk, 0)

    tasks = [asyncio.create_task(wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert len(chunk.waiters) == 3
    for task in tasks[:2]:
        task.cancel()
    await asyncio.wait(tasks[:2])
    assert len(chunk.waiters) == 1
    chunk.outcome = Outcome(error=Unavailable("gone"))
    chunk.wake()
    with pytest.raises(Unavailable):
        await tasks[2]


def test_a_wait_that_ends_while_others_are_woken_keeps_none_of_them_asleep(chunk: Chunk) -> None:
    waiters, called = chunk.waiters, []

    def woken() -> None:
        called.append("first")
        waiters.remove(gone)  # as another thread does whose time is over

    def gone() -> None:
        called.append("gone")

    waiters += [gone, woken, lambda: called.append("last")]
    chunk.wake()
    assert called == ["gone", "first", "last"]
