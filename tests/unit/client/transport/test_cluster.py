"""What a client knows of its cluster when those who could tell more are silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from semel.client.config import ClientConfig, build
from semel.client.transport.cluster import Cluster
from semel.protos.errors import SemelError, Throttled, TimedOut, Unavailable, UnknownGroup
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


def with_replicas(version: int, term: int, master: int) -> controller_pb2.Routes:
    routes = controller_pb2.Routes(version=version, cluster_id="c")
    group = routes.groups.add(group_id=2, master_id=master, term=term)
    for node in (1, 2, 3):
        group.nodes.add(node_id=node, address=f"b:{node}")
    return routes


async def without_master(monkeypatch: pytest.MonkeyPatch) -> tuple[Played, list[str]]:
    """A client that has just lost a master, and the nodes that it asks."""
    cluster, asked = Played(), list[str]()
    cluster._on_routes(with_replicas(1, 3, 1))
    cluster.routes.on_master_failed(GroupId(2), await cluster.master(GroupId(2)))

    async def call(address: str, *_: Any) -> Any:
        asked.append(address)
        raise Unavailable("no answer")

    monkeypatch.setattr(cluster.connections, "call", call)
    return cluster, asked


async def test_one_of_very_many_clients_is_told_of_a_master_and_asks_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, asked = await without_master(monkeypatch)
    cluster.controllers.crowded = True
    monkeypatch.setattr("random.uniform", lambda *_: 60.0)
    search = asyncio.ensure_future(cluster.master(GroupId(2)))
    await asyncio.sleep(0)
    cluster._on_routes(with_replicas(2, 3, 1))  # of before
    await asyncio.sleep(0.01)
    assert not search.done()
    cluster._on_routes(with_replicas(3, 4, 2))
    assert (await search).address == "b:2"
    assert asked == []


@pytest.mark.parametrize("crowded", [True, False])
async def test_one_of_very_many_clients_asks_one_node_at_a_time(
    monkeypatch: pytest.MonkeyPatch, crowded: bool
) -> None:
    cluster, asked = await without_master(monkeypatch)
    cluster.controllers.crowded = crowded
    monkeypatch.setattr("random.uniform", lambda *_: 0.0)
    search = asyncio.ensure_future(cluster.master(GroupId(2)))
    while not asked:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(asked) == (1 if crowded else 3)
    cluster._on_routes(with_replicas(3, 4, 2))
    assert (await search).address == "b:2"


async def test_a_master_that_has_no_time_is_still_the_master() -> None:
    cluster = Played()
    cluster._on_routes(with_replicas(1, 3, 1))
    master = await cluster.master(GroupId(2))
    cluster.on_master_error(GroupId(2), master, Throttled("come back", retry_after_ms=100))
    assert cluster.routes.master(GroupId(2)) == master


async def test_a_node_that_very_many_ask_is_left_alone_for_as_long_as_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, asked = await without_master(monkeypatch)

    async def call(address: str, *_: Any) -> Any:
        asked.append(address)
        return broker_pb2.NodeStatusReply(group_id=2, role="slave", term=3, ask_again_ms=60_000)

    monkeypatch.setattr(cluster.connections, "call", call)
    search = asyncio.ensure_future(cluster.master(GroupId(2)))
    await asyncio.sleep(0.2)
    assert sorted(asked) == ["b:1", "b:2", "b:3"]
    cluster._on_routes(with_replicas(2, 4, 2))
    assert (await search).address == "b:2"
