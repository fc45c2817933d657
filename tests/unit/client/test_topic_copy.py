"""What a mirror makes of the source's routes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from semel.client.mirror.topic_copy import MirrorWork
from semel.protos.errors import Unavailable
from semel.protos.v1.controller_pb2 import Routes


def test_older_routes_than_those_that_are_known_change_nothing() -> None:
    """A broker answers with its copy while no controller does: queues that a split has made since
    are not in it."""

    async def controller(method: str, request: Any) -> Routes:
        assert method == "GetRoutes"
        return Routes(version=6)

    source: Any = SimpleNamespace(controller=controller)  # nothing else of it is asked
    work = MirrorWork(
        source, source, ["*"], settle_s=1, progress_s=1, once=False, note=lambda _: None
    )
    work._version = 7
    with pytest.raises(Unavailable, match="newest routes"):
        asyncio.run(work._look(None))  # type: ignore[arg-type]
