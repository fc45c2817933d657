"""What a client knows of its cluster when those who could tell more are silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from semel.client.config import ClientConfig, build
from semel.client.transport.cluster import Cluster
from semel.protos.errors import SemelError, TimedOut, Unavailable, UnknownGroup
from semel.protos.ids import GroupId
from semel.protos.v1 import broker_pb2, controller_pb2

ROUTES = controller_pb2.Routes(version=1, cluster_id="c", topics=[{"name": "t", "topic_id": 7}])


class Played(Cluster):
    """One whose controllers answer as the test says."""

    def __init__(self) -> None:
        super().__init__(("c:1",), build(ClientConfig, {}), None)
        self.answer: controller_pb2.Routes | SemelError = ROUTES
        self.asked = 0
        self.on_asked: Callable[[], None] = lambda: None

    async def controller(self, method: str, request: Any, timeout_s: float | None = None) -> Any:
        self.asked += 1
        self.on_asked()
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


def with_group(version: int) -> controller_pb2.Routes:
    routes = controller_pb2.Routes(version=version, cluster_id="c")
    group = routes.groups.add(group_id=2, master_id=1, term=3)
    group.nodes.add(node_id=1, address="b:1")
    return routes


async def test_a_group_that_is_new_is_looked_up() -> None:
    """A queue may have moved there while no controller could tell about the group."""
    cluster = Played()
    cluster.answer = with_group(1)
    assert (await cluster.master(GroupId(2))).address == "b:1"
    assert cluster.asked == 1


@pytest.mark.parametrize(
    "first",
    [Unavailable("refused"), controller_pb2.Routes(version=1, cluster_id="c", copied=True)],
)
async def test_a_group_is_waited_for_until_a_controller_can_tell(
    first: controller_pb2.Routes | SemelError,
) -> None:
    """A broker's copy of the routes may be older than the group."""
    cluster = Played()
    cluster.answer = first

    def on_asked() -> None:
        if cluster.asked == 3:
            cluster.answer = with_group(2)

    cluster.on_asked = on_asked
    assert (await cluster.master(GroupId(2))).address == "b:1"


async def test_a_group_that_no_controller_knows_is_an_error() -> None:
    cluster = Played()
    with pytest.raises(UnknownGroup):
        await cluster.master(GroupId(2))


class Nodes:
    """The connections of a client to three nodes: one hangs, the others answer as the test says."""

    def __init__(self) -> None:
        self.asked: dict[str, int] = {}
        self.master_tells_at = 5
        """At which question to it the second node says that it is the master."""

    async def call(self, address: str, *_: Any) -> broker_pb2.NodeStatusReply:
        self.asked[address] = asked = self.asked.get(address, 0) + 1
        if address == "b:1":
            await asyncio.Event().wait()
        status = broker_pb2.NodeStatusReply(group_id=2, node_id=int(address[-1]), term=4)
        if address == "b:2" and asked == self.master_tells_at:
            status.role = "master"
            status.master_id = 2
            status.master_address = address
        return status


async def test_a_node_that_does_not_answer_is_asked_once_and_the_others_again() -> None:
    """Clients that give a question up and ask again keep a busy node busy."""
    cluster = Played()
    routes = controller_pb2.Routes(version=1, cluster_id="c")
    group = routes.groups.add(group_id=2)
    for node in (1, 2, 3):
        group.nodes.add(node_id=node, address=f"b:{node}")
    cluster.routes.on_routes(routes)
    nodes = Nodes()
    cluster.connections = cast(Any, nodes)
    assert (await cluster.master(GroupId(2))).address == "b:2"
    assert nodes.asked["b:1"] == 1
    assert nodes.asked["b:2"] == nodes.master_tells_at
    assert nodes.asked["b:3"] >= nodes.master_tells_at - 1
