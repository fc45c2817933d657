"""What many clients ask when their master is gone: it does not grow with their number."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from semel.client.core.routing import RouteTable
from semel.client.transport import master_search
from semel.client.transport.master_search import CROWD_S, ELECTION_S, MasterSearch
from semel.client.transport.streams import FEW
from semel.protos.errors import Unavailable
from semel.protos.ids import GroupId
from semel.protos.v1 import broker_pb2, controller_pb2
from tests.kit.virtual_time import run_virtually

GROUP = GroupId(2)
DEAD, SLAVE, NEXT = "b:1", "b:2", "b:3"
ELECTED_S = 0.8
CROWDS = (FEW + 1, 1_000, 10_000)


def routes(version: int, term: int, master: int) -> controller_pb2.Routes:
    made = controller_pb2.Routes(version=version, cluster_id="c")
    group = made.groups.add(group_id=GROUP, master_id=master, term=term)
    for node in (1, 2, 3):
        group.nodes.add(node_id=node, address=f"b:{node}")
    return made


class Group:
    """Three nodes without their master, and what they are asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, str]] = []
        self.elected = False
        self.died = True

    async def call(self, address: str, *_: Any) -> broker_pb2.NodeStatusReply:
        self.asked.append((asyncio.get_running_loop().time(), address))
        if address == DEAD and self.died:
            raise Unavailable("connection refused")
        await asyncio.sleep(0.001)
        reply = broker_pb2.NodeStatusReply(group_id=GROUP, node_id=int(address[-1]), term=3)
        reply.role = "slave"
        if not self.died:
            reply.role, reply.master_id = ("master", 1) if address == DEAD else ("slave", 1)
        elif self.elected:
            reply.term, reply.master_id, reply.master_address = 4, 3, NEXT
            reply.role = "master" if address == NEXT else "slave"
        return reply


class Client:
    """One of many."""

    def __init__(
        self, group: Group, crowd: int, *, crowded: bool = False, watching: bool = False
    ) -> None:
        self.routes = RouteTable()
        self.routes.on_routes(routes(1, 3, 1))
        self.group = self.connections = group
        self.streams: Any = self
        self.crowd = crowd
        self.controllers = cast(Any, SimpleNamespace(crowded=crowded, watching=watching))
        self.search = MasterSearch(cast(Any, self))

    async def find(self) -> float:
        """Loses its master and finds the next one; returns when."""
        master = self.routes.master(GROUP)
        assert master is not None
        self.routes.on_master_failed(GROUP, master)
        await self.search.find(GROUP)
        return asyncio.get_running_loop().time()

    @property
    def clients(self) -> int:
        return max(self.crowd, self.routes.watches)

    async def is_there(self, address: str) -> bool:
        return address != DEAD or not self.group.died

    def tell(self) -> None:
        """Its watch tells of the new master."""
        self.routes.on_routes(routes(2, 4, 3))
        self.search.on_news()


async def storm(
    crowd: int, told: Callable[[int], bool], *, crowded: bool = False, watching: bool = False
) -> tuple[Group, list[float]]:
    """All lose their master at once; the watch tells those for which `told` says so. Returns the
    times at which they have the new one."""
    random.seed(5)
    group = Group()
    clients = [Client(group, crowd, crowded=crowded, watching=watching) for _ in range(crowd)]
    found = asyncio.gather(*(client.find() for client in clients))
    await asyncio.sleep(ELECTED_S)
    group.elected = True
    for number, client in enumerate(clients):
        if told(number):
            client.tell()
    return group, await found


def busiest(times: list[float]) -> int:
    """Most of them in a tenth of a second."""
    return max(Counter(int(time * 10) for time in times).values(), default=0)


@pytest.mark.parametrize("crowd", CROWDS)
def test_many_whose_watch_tells_ask_no_living_node(crowd: int) -> None:
    group, found = run_virtually(storm(crowd, lambda _: True))
    assert group.asked == []
    assert max(found) <= ELECTED_S + CROWD_S + 0.1
    assert min(found) >= ELECTED_S
    # They come to the new master over a time that is as long as they are many.
    share = max(crowd // 10, 1_000 // 10)
    assert busiest(found) <= 1.5 * max(share, crowd / CROWD_S / 10)


def test_whoever_has_a_watch_trusts_it_for_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """An election may take longer where very many clients are, and their questions would not make
    it shorter."""
    monkeypatch.setattr(f"{__name__}.ELECTED_S", 4.0)
    group, _ = run_virtually(storm(1_000, lambda _: True, watching=True))
    assert group.asked == []
    group, found = run_virtually(storm(1_000, lambda _: False, watching=True))
    assert len(group.asked) == 1_000
    assert max(found) < master_search.WATCHED_S[1] + 0.1


@pytest.mark.parametrize("crowd", CROWDS)
def test_many_whom_nobody_tells_ask_one_living_node_each(crowd: int) -> None:
    group, found = run_virtually(storm(crowd, lambda _: False))
    living = [time for time, address in group.asked if address != DEAD]
    assert len(living) == crowd
    assert len(group.asked) == crowd
    assert min(living) >= ELECTION_S
    assert max(found) <= ELECTION_S + CROWD_S + 0.1
    assert busiest(living) <= 1.5 * max(100, crowd / CROWD_S / 10)


@pytest.mark.parametrize("crowd", CROWDS)
def test_many_without_a_master_for_long_ask_seldom(
    monkeypatch: pytest.MonkeyPatch, crowd: int
) -> None:
    monkeypatch.setattr(f"{__name__}.ELECTED_S", 20.0)
    group, _ = run_virtually(storm(crowd, lambda _: True))
    assert len(group.asked) <= 12 * crowd


@pytest.mark.parametrize("crowded", [False, True])
def test_many_whose_connection_broke_find_their_master_again_at_once(crowded: bool) -> None:
    async def run() -> tuple[Group, float]:
        group = Group()
        group.died = False
        return group, await Client(group, 5_000, crowded=crowded).find()

    group, found = run_virtually(run())
    assert [address for _, address in group.asked] == [DEAD]
    assert found < 0.01


def test_those_for_whom_controllers_have_no_room_go_on_as_soon_as_a_broker_tells() -> None:
    group, found = run_virtually(storm(2_000, lambda _: True, crowded=True))
    assert group.asked == []
    assert max(found) < ELECTED_S + 0.01


def test_who_does_not_know_how_many_use_a_group_knows_how_many_there_are() -> None:
    """The first ones that come to a new master find few streams there."""

    async def run() -> tuple[Group, float]:
        group = Group()
        client = Client(group, 1)
        told = routes(1, 3, 1)
        told.watches = FEW + 1
        client.routes.on_routes(told)
        search = asyncio.ensure_future(client.find())
        await asyncio.sleep(ELECTED_S)
        client.tell()
        return group, await search

    group, found = run_virtually(run())
    assert group.asked == []
    assert found < ELECTED_S + 0.01


def test_few_ask_all_nodes_until_one_is_master() -> None:
    group, found = run_virtually(storm(FEW, lambda _: False))
    assert max(found) < ELECTED_S + master_search.SEARCH_POLICY.max_ms / 1000 + 0.1
    assert {address for _, address in group.asked} == {DEAD, SLAVE, NEXT}
