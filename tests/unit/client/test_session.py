"""Calls of a session that are awaited with a time limit."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from semel.client.session import Session
from semel.protos.errors import TimedOut


async def awaited(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return await coroutine


@pytest.fixture
def session() -> Session:
    """One without a cluster, whose I/O thread is the caller's loop."""
    made = object.__new__(Session)
    made.closed = False
    made.runtime = SimpleNamespace(await_run=awaited)  # type: ignore[assignment]
    return made


async def forever() -> None:
    await asyncio.Event().wait()


async def late() -> None:
    raise TimeoutError("its own")


async def test_a_call_that_takes_too_long_says_what_is_late(session: Session) -> None:
    with pytest.raises(TimedOut, match=r"not all stored within 0\.01 s"):
        await session.await_run(forever(), 0.01, "not all stored")


async def test_a_timeout_of_the_call_itself_is_not_taken_for_the_limit(session: Session) -> None:
    with pytest.raises(TimeoutError, match="its own"):
        await session.await_run(late(), 10.0)


def test_a_call_outside_of_a_task_leaves_no_coroutine_behind(session: Session) -> None:
    """As while a loop is torn down and the context of a client ends by its generator's close."""
    call = forever()
    with pytest.raises(RuntimeError):
        session.await_run(call, 10.0).send(None)
    assert inspect.getcoroutinestate(call) == inspect.CORO_CLOSED
