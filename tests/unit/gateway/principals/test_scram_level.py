"""SCRAM is offered once the metadata may hold verifiers, whatever the controllers do until then."""

from __future__ import annotations

from typing import Any, cast

import pytest

from semel.client.transport.cluster import Cluster
from semel.gateway.principals import scram_level
from semel.gateway.principals.scram_level import ScramLevel
from semel.protos.errors import SemelError, Unavailable
from semel.protos.levels import SCRAM_LEVEL
from semel.protos.v1.controller_pb2 import WhoAmIReply
from tests.kit.waiting import until_async


class Controllers:
    """What controllers answer, one after the other; the last one stays."""

    def __init__(self, *answers: int | SemelError) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def controller(self, method: str, request: Any, timeout_s: float) -> WhoAmIReply:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, SemelError):
            raise answer
        return WhoAmIReply(level=answer)


def watching(controllers: Controllers) -> ScramLevel:
    return ScramLevel(cast("Cluster", controllers))


async def test_it_is_offered_at_once_where_the_level_is_high_enough() -> None:
    for level in (SCRAM_LEVEL, SCRAM_LEVEL + 1):
        controllers = Controllers(level)
        async with watching(controllers) as watched:
            assert watched.reached
        assert controllers.asked == 1


async def test_it_is_offered_when_the_level_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scram_level, "AGAIN_S", 0.0)
    # Controllers that are older than the field tell no level at all.
    controllers = Controllers(0, SCRAM_LEVEL - 1, Unavailable("they elect"), SCRAM_LEVEL)
    async with watching(controllers) as watched:
        assert not watched.reached
        await until_async(lambda: watched.reached)
    assert controllers.asked == 4


async def test_a_gateway_that_hears_nothing_does_not_start() -> None:
    with pytest.raises(Unavailable):
        async with watching(Controllers(Unavailable("nobody is there"))):
            pass


async def test_it_stops_asking_with_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scram_level, "AGAIN_S", 0.0)
    controllers = Controllers(SCRAM_LEVEL - 1)
    async with watching(controllers) as watched:
        await until_async(lambda: controllers.asked > 2)
    asked = controllers.asked
    await until_async(lambda: watched._task is not None and watched._task.done())
    assert controllers.asked == asked
