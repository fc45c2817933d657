"""Callers of a restore that go away while their queue is being made."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.server import restores_service
from semel.broker.server.restores_service import RestoresService
from semel.protos.errors import InvalidRequest
from semel.protos.v1 import common_pb2, control_pb2, restores_pb2
from tests.kit.waiting import until_async

URL = "file:///tier"
REQUEST = restores_pb2.RestoreQueueRequest(
    cluster_id="c",
    url=URL,
    create=control_pb2.CreateQueue(queue=common_pb2.QueueRef(topic_id=1, queue_id=0)),
)


class Making:
    """Stands in for `restore_queue`: it takes until it is let go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[str] = []
        self.going_on = asyncio.Event()
        self.error: Exception | None = None
        monkeypatch.setattr(restores_service, "restore_queue", self._make)
        monkeypatch.setattr(restores_service, "is_restored", lambda state, key: False)

    async def _make(self, *_: Any) -> None:
        self.steps.append("begin")
        await self.going_on.wait()
        self.steps.append("end")
        if self.error is not None:
            raise self.error


def service() -> RestoresService:
    async def done(*_: Any) -> None: ...

    replica: Any = SimpleNamespace(
        wait_master=done, require_level=done, state=SimpleNamespace(feature_level=9)
    )
    place: Any = SimpleNamespace(url=URL, folder="f", call=done)
    config: Any = SimpleNamespace(cluster_id="c")
    return RestoresService(config, replica, place)


async def test_the_next_call_waits_for_what_a_caller_who_is_gone_has_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, node = Making(monkeypatch), service()
    first = asyncio.ensure_future(node.RestoreQueue(REQUEST, None))
    await until_async(lambda: made.steps == ["begin"])
    first.cancel()
    await asyncio.wait([first])
    second = asyncio.ensure_future(node.RestoreQueue(REQUEST, None))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert made.steps == ["begin"]
    made.going_on.set()
    await second
    assert made.steps == ["begin", "end", "begin", "end"]


async def test_a_caller_is_told_why_a_queue_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made, node = Making(monkeypatch), service()
    made.error = InvalidRequest("it is there already")
    made.going_on.set()
    with pytest.raises(InvalidRequest, match="already"):
        await node.RestoreQueue(REQUEST, None)
