"""Rates are asked for while somebody follows, once for all who do."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from semel.client.admin.descriptions import (
    BrokerGroupDescription,
    ClusterStatus,
    NodeDescription,
)
from semel.protos.errors import Closed, Unavailable
from semel.web import rates
from semel.web.rates import Point, Problem, Rates, point_of


def node(number: int, *, alive: bool = True) -> NodeDescription:
    return NodeDescription(
        id=number,
        address="",
        role="",
        log_end_index=0,
        alive=alive,
        silent_ms=0,
        damaged=0,
        lost=0,
        disk_full=False,
        produced_messages=1,
        fetched_messages=2,
        produced_bytes=3,
        fetched_bytes=4,
    )


def status(*nodes: NodeDescription) -> ClusterStatus:
    group = BrokerGroupDescription(
        id=1, term=1, master=1, commit_index=0, queues=0, nodes=list(nodes)
    )
    return ClusterStatus(cluster_id="", version="", topics=0, groups=[group], controllers=[])


def test_nodes_that_are_away_count_nothing() -> None:
    point = point_of(status(node(1), node(2), node(3, alive=False)), 5.0)
    assert point == Point(5.0, 2, 4, 6, 8)


async def test_all_followers_share_one_question_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "EVERY_S", 0.0)
    answers: list[Any] = [status(node(1)), Unavailable("away"), status(node(1)), Closed("over")]
    asked = 0

    async def ask() -> ClusterStatus:
        nonlocal asked
        answer = answers[asked]
        asked += 1
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, ClusterStatus)
        return answer

    tasks: list[asyncio.Task[None]] = []

    def spawn(work: Any) -> asyncio.Task[None]:
        tasks.append(asyncio.create_task(work))
        return tasks[-1]

    shared = Rates(ask, spawn)

    async def follow() -> list[Point | Problem]:
        async with contextlib.aclosing(shared.follow()) as found:
            return [each async for each in found]

    one, two = await asyncio.gather(follow(), follow())
    assert [type(each) for each in one] == [Point, Problem, Point, Problem]
    assert one == two
    assert one[1] == Problem("away", final=False)
    assert one[3] == Problem("over", final=True)
    assert asked == 4
    assert len(shared.history) == 2
    await asyncio.gather(*tasks)
