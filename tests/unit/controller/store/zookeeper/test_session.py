"""A session with ZooKeeper, without a server: the answers come from the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from semel.controller.store.zookeeper.session import Session
from semel.protos.errors import Closed


class Asked:
    """A request on its way, as kazoo gives it out."""

    def __init__(self) -> None:
        self._links: list[Callable[[Any], None]] = []

    def rawlink(self, callback: Callable[[Any], None]) -> None:
        self._links.append(callback)

    def answer(self, value: object) -> None:
        for callback in self._links:
            callback(SimpleNamespace(exception=None, value=value))


async def test_an_answer_in_the_turn_in_which_the_session_is_closed_counts() -> None:
    """The session is closed nevertheless, with the requests that nobody has answered."""
    session = Session(("127.0.0.1:1",), session_ms=1_000, auth="", on_state=lambda: None)
    requests = [Asked(), Asked()]
    asking = [asyncio.create_task(session._ask(lambda one=one: one)) for one in requests]
    await asyncio.sleep(0)
    requests[0].answer("here")  # taken in the next turn, before the session is closed in it
    await asyncio.create_task(session.close())
    assert await asking[0] == "here"
    with pytest.raises(Closed):
        await asking[1]
    with pytest.raises(Closed):
        await session.sync("/")
