"""What a client knows of its cluster when those who could tell more are silent."""

from __future__ import annotations

from typing import Any

import pytest

from semel.client.config import ClientConfig, build
from semel.client.transport.cluster import Cluster
from semel.protos.errors import SemelError, TimedOut, Unavailable
from semel.protos.v1 import controller_pb2

ROUTES = controller_pb2.Routes(version=1, cluster_id="c", topics=[{"name": "t", "topic_id": 7}])


class Played(Cluster):
    """One whose controllers answer as the test says."""

    def __init__(self) -> None:
        super().__init__(("c:1",), build(ClientConfig, {}), None)
        self.answer: controller_pb2.Routes | SemelError = ROUTES

    async def controller(self, method: str, request: Any, timeout_s: float | None = None) -> Any:
        if isinstance(self.answer, SemelError):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("error", [Unavailable("refused"), TimedOut("it hangs")])
async def test_a_known_route_is_good_enough_when_no_controller_answers(error: SemelError) -> None:
    cluster = Played()
    cluster.answer = error
    with pytest.raises(type(error)):
        await cluster.topic("t")
    cluster.answer = ROUTES
    assert (await cluster.topic("t")).topic_id == 7
    cluster.answer = error
    assert (await cluster.topic("t", refresh=True)).topic_id == 7
