"""Calls that tell how far they are, for callers that block and for those that await."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from semel.client.api.telling import await_telling, run_telling
from semel.protos.errors import TimedOut


class Work(Future[str]):
    """A call under way. It hands over its last news just as somebody looks whether it is done."""

    def __init__(self) -> None:
        super().__init__()
        self.note: Callable[[str], object] = lambda _: None
        self._looked = False

    def start(self, note: Callable[[str], object]) -> Coroutine[Any, Any, str]:
        self.note = note
        note("begun")
        return None  # type: ignore[return-value]

    def done(self) -> bool:
        if self._looked and not super().done():
            self.note("ended")
            self.set_result("all")
        self._looked = True
        return super().done()


def session_of(future: Future[str]) -> Any:
    runtime = SimpleNamespace(submit=lambda _: future)
    return SimpleNamespace(check=lambda: None, runtime=runtime)


def test_the_last_news_come_before_the_result() -> None:
    work = Work()
    news: list[tuple[str, int]] = []

    def on_news(each: str) -> None:
        news.append((each, threading.get_ident()))

    assert run_telling(session_of(work), work.start, on_news, 5.0, "too late") == "all"
    here = threading.get_ident()
    assert news == [("begun", here), ("ended", here)]


def test_what_is_never_done_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.client.api.telling.GRACE_S", 0.0)
    never: Future[str] = Future()
    with pytest.raises(TimedOut, match="too late"):
        run_telling(session_of(never), lambda note: note, None, 0.01, "too late")  # type: ignore[arg-type, return-value]
    assert never.cancelled()


async def test_news_are_told_on_the_callers_loop() -> None:
    news: list[tuple[str, int]] = []

    async def await_run(work: Coroutine[Any, Any, str]) -> str:
        return await asyncio.to_thread(asyncio.run, work)

    def start(note: Callable[[str], object]) -> Coroutine[Any, Any, str]:
        async def work() -> str:
            note("begun")
            return "all"

        return work()

    def on_news(each: str) -> None:
        news.append((each, threading.get_ident()))

    session: Any = SimpleNamespace(await_run=await_run)
    assert await await_telling(session, start, on_news) == "all"
    assert news == [("begun", threading.get_ident())]
