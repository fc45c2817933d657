"""The master looks for what is due as long as something is delayed, and not longer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.background import delayed_release
from semel.broker.background.delayed_release import DelayedRelease
from tests.kit.waiting import until_async


async def test_it_looks_while_something_is_delayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed_release, "LOOK_S", 0.001)
    looks: list[int] = []
    delaying = asyncio.Event()
    delayed: dict[str, int] = {"queue": 1}
    replica: Any = SimpleNamespace(
        applier=SimpleNamespace(delaying=delaying),
        state=SimpleNamespace(delays=SimpleNamespace(queues=delayed)),
        is_master=True,
        release_due=looks.append,
    )
    task = asyncio.ensure_future(DelayedRelease(replica).run())
    try:
        await asyncio.sleep(0.02)
        assert looks == [], "nothing was ever delayed"
        delaying.set()
        await until_async(lambda: len(looks) >= 3)
        replica.is_master = False
        await asyncio.sleep(0.01)
        looks.clear()
        await asyncio.sleep(0.02)
        assert looks == [], "a slave releases nothing"
        replica.is_master = True
        await until_async(lambda: len(looks) >= 3)
        delayed.clear()
        await until_async(lambda: not delaying.is_set())
    finally:
        task.cancel()
        await asyncio.wait([task])
