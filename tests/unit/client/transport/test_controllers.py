"""Whom of several controllers a client asks: real gRPC, controllers that do as they are told."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc.aio
import pytest

from semel.client.core.retry import BackoffPolicy
from semel.client.transport import controllers as module
from semel.client.transport.connection import Connections
from semel.client.transport.controllers import Controllers
from semel.protos import compat
from semel.protos.errors import (
    NotMaster,
    SemelError,
    Throttled,
    TimedOut,
    TopicExists,
    Unavailable,
)
from semel.protos.rpc import ServerInterceptor
from semel.protos.v1 import controller_pb2 as pb
from semel.protos.v1.controller_pb2_grpc import (
    ControllerServicer,
    add_ControllerServicer_to_server,
)


class Told(ControllerServicer):
    """Active, a standby, or hanging."""

    def __init__(self) -> None:
        self.address = ""
        self.master = ""
        """Whom it names; itself when it is active."""
        self.hanging = False
        self.slow: asyncio.Event | None = None
        """What a call waits for while the controller itself lives."""
        self.copied = False
        """It is a broker with a copy of the routes."""
        self.full = False
        """It has no room for watches."""
        self.calls = 0
        self.left = asyncio.Event()
        """It is not active any more: watches end."""

    async def GetRoutes(self, request: Any, context: Any) -> pb.Routes:  # noqa: N802
        self.calls += 1
        await self._pass()
        if self.slow is not None:
            await self.slow.wait()
        return pb.Routes(version=1, cluster_id=self.address, copied=self.copied)

    async def WatchRoutes(self, request: Any, context: Any) -> AsyncGenerator[pb.Routes]:  # noqa: N802
        await self._pass()
        if self.full:
            raise Throttled("no room", retry_after_ms=100)
        yield pb.Routes(version=1, cluster_id=self.address)
        await self.left.wait()
        raise self._refusal()

    async def GetClusterStatus(self, request: Any, context: Any) -> pb.ClusterStatusReply:  # noqa: N802
        if self.hanging:
            await asyncio.Event().wait()
        return pb.ClusterStatusReply()

    async def ListProducers(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.calls += 1
        raise TopicExists("an answer")

    async def _pass(self) -> None:
        if self.hanging:
            await asyncio.Event().wait()
        if self.master != self.address:
            raise self._refusal()

    def _refusal(self) -> NotMaster:
        return NotMaster("a standby", master_address=self.master)


@asynccontextmanager
async def told(count: int) -> AsyncIterator[tuple[list[Told], Controllers]]:
    """Controllers of which the first is active, and a client that knows the last one only."""
    servers, found = [], []
    for _ in range(count):
        one = Told()
        server = grpc.aio.server(interceptors=[ServerInterceptor()])
        add_ControllerServicer_to_server(one, server)
        one.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        servers.append(server)
        found.append(one)
    for one in found:
        one.master = found[0].address
    connections = Connections()
    try:
        yield found, Controllers([found[-1].address], connections)
    finally:
        await connections.close()
        for server in servers:
            await server.stop(None)


def make_broker(one: Told, client: Controllers) -> None:
    """Has the client know it as its only broker, which answers from a copy of the routes."""
    one.master, one.copied = one.address, True
    client._copies = lambda: [one.address]


@contextmanager
def dead_address() -> Iterator[str]:
    """HOST:PORT where connections are refused."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


async def asked(client: Controllers, timeout_s: float = 10.0) -> str:
    routes = await client.call("GetRoutes", pb.GetRoutesRequest(), timeout_s)
    return str(routes.cluster_id)


async def test_a_standby_leads_to_the_master_at_once_and_it_is_asked_first_then() -> None:
    async with told(3) as ((one, two, three), client):
        assert await asked(client) == one.address
        assert (one.calls, two.calls, three.calls) == (1, 0, 1)
        assert await asked(client) == one.address
        assert (one.calls, two.calls, three.calls) == (2, 0, 1)


async def test_who_is_given_one_controller_learns_the_others() -> None:
    async with told(3) as ((one, two, three), client):
        assert client.addresses == (three.address,)
        client.learn([one.address, two.address, three.address])
        assert set(client.addresses) == {one.address, two.address, three.address}
        client.learn([two.address])
        assert set(client.addresses) == {two.address, three.address}  # the given one stays


async def test_a_controller_that_hangs_is_left_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "HANG_S", 0.05)
    async with told(2) as ((one, two), client):
        client.learn([one.address, two.address])
        one.hanging = True
        two.master = two.address
        client._prefer(one.address)
        assert await asked(client) == two.address


async def test_a_call_that_takes_long_is_no_reason_to_go_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "HANG_S", 0.02)
    async with told(2) as ((one, two), client):
        client.learn([one.address, two.address])
        client._prefer(one.address)
        one.slow = asyncio.Event()
        asking = asyncio.ensure_future(asked(client))
        await asyncio.sleep(0.2)  # several looks at whether it lives
        assert not asking.done()
        one.slow.set()
        assert await asking == one.address
        assert (one.calls, two.calls) == (1, 0)


async def test_an_answer_that_is_an_error_is_not_asked_for_again() -> None:
    async with told(1) as ((one,), client):
        with pytest.raises(TopicExists, match="an answer"):
            await client.call("ListProducers", pb.ListProducersRequest(), 5.0)
        assert one.calls == 1


async def test_when_none_is_active_the_error_says_whom_was_asked() -> None:
    async with told(1) as ((one,), client):
        one.master = ""
        with pytest.raises(Unavailable, match=one.address):
            await asked(client, 0.3)


@pytest.mark.parametrize(("fair_s", "told_of"), [(60.0, Unavailable), (0.0, TimedOut)])
async def test_silence_counts_where_there_was_time_for_an_answer(
    monkeypatch: pytest.MonkeyPatch, fair_s: float, told_of: type[SemelError]
) -> None:
    monkeypatch.setattr(module, "FAIR_S", fair_s)
    async with told(1) as ((one,), client):
        one.master = ""
        asking = asyncio.ensure_future(asked(client, 2.0))
        while not one.calls:
            await asyncio.sleep(0)
        one.hanging = True
        with pytest.raises(told_of) as caught:
            await asking
        assert ("a standby" in str(caught.value)) == (told_of is Unavailable)


@pytest.mark.parametrize("first", ["the dead one", "the standby"])
async def test_a_broker_is_asked_when_a_standby_names_a_dead_controller(first: str) -> None:
    """The standby has not noticed yet, and goes on naming it for a while."""
    async with told(2) as ((broker, standby), client):
        with dead_address() as dead:
            make_broker(broker, client)
            standby.master = dead
            client._addresses = [dead, standby.address]
            if first == "the standby":
                client._addresses.reverse()
            assert await asked(client) == broker.address
            assert (standby.calls, broker.calls) == (1, 1)


async def test_a_round_asks_three_of_the_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    once = BackoffPolicy(initial_ms=60_000, max_ms=60_000)
    monkeypatch.setattr(module, "CALL_POLICY", once)
    async with told(7) as ((*brokers, controller), client):
        for one in (*brokers, controller):
            one.master = ""
        client._copies = lambda: [one.address for one in brokers]
        with pytest.raises(Unavailable):
            await asked(client, 10.0)
        assert controller.calls == 1
        assert sum(one.calls for one in brokers) == 3


async def test_a_broker_is_asked_when_the_only_controller_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "HANG_S", 0.05)
    async with told(2) as ((broker, controller), client):
        make_broker(broker, client)
        controller.hanging = True
        assert await asked(client) == broker.address


async def test_a_watch_follows_the_active_controller() -> None:
    async with told(2) as ((one, two), client):
        seen: asyncio.Queue[str] = asyncio.Queue()
        watching = asyncio.ensure_future(
            client.watch(pb.GetRoutesRequest(), lambda routes: seen.put_nowait(routes.cluster_id))
        )
        async with compat.timeout(60):
            assert await seen.get() == one.address
            one.master = two.master = two.address
            one.left.set()
            assert await seen.get() == two.address
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_a_watch_leaves_a_controller_that_calls_have_left() -> None:
    async with told(2) as ((one, two), client):
        seen: asyncio.Queue[str] = asyncio.Queue()
        watching = asyncio.ensure_future(
            client.watch(pb.GetRoutesRequest(), lambda routes: seen.put_nowait(routes.cluster_id))
        )
        async with compat.timeout(60):
            assert await seen.get() == one.address
            one.master = two.master = two.address  # and controller 1 ends no watch: it hangs
            client.learn([one.address, two.address])
            assert await asked(client) == two.address
            assert await seen.get() == two.address
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_a_watch_reaches_the_active_controller_although_a_standby_names_a_dead_one() -> None:
    async with told(2) as ((active, standby), client):
        with dead_address() as dead:
            standby.master = dead
            client._addresses = [standby.address, dead, active.address]
            seen: asyncio.Queue[str] = asyncio.Queue()
            watching = asyncio.ensure_future(
                client.watch(
                    pb.GetRoutesRequest(), lambda routes: seen.put_nowait(routes.cluster_id)
                )
            )
            async with compat.timeout(60):
                assert await seen.get() == active.address
            assert client.addresses[0] == active.address
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


async def test_who_finds_no_room_watches_a_broker_and_comes_back_when_that_ends() -> None:
    async with told(3) as ((active, other, broker), client):
        make_broker(broker, client)
        client._addresses = [active.address]
        active.full = True
        seen: asyncio.Queue[str] = asyncio.Queue()
        watching = asyncio.ensure_future(
            client.watch(pb.GetRoutesRequest(), lambda routes: seen.put_nowait(routes.cluster_id))
        )
        async with compat.timeout(60):
            assert await seen.get() == broker.address
            assert await asked(client) == active.address, "calls go to the controllers as before"
            assert seen.empty(), "and do not end the watch of the broker"
            other.master = other.address
            client._copies = lambda: [broker.address, other.address]
            broker.full = True
            broker.left.set()
            assert await seen.get() == other.address
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_who_finds_room_nowhere_asks_again() -> None:
    async with told(2) as ((active, broker), client):
        make_broker(broker, client)
        client._addresses = [active.address]
        active.full = broker.full = True
        seen: asyncio.Queue[str] = asyncio.Queue()
        watching = asyncio.ensure_future(
            client.watch(pb.GetRoutesRequest(), lambda routes: seen.put_nowait(routes.cluster_id))
        )
        async with compat.timeout(60):
            while client._crowded_until == 0:
                await asyncio.sleep(0.01)
            broker.full = False
            assert await seen.get() == broker.address
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_a_broker_that_was_given_as_an_address_is_not_watched() -> None:
    async with told(2) as ((active, broker), client):
        make_broker(broker, client)
        client._addresses = [broker.address, active.address]
        seen: asyncio.Queue[str] = asyncio.Queue()
        watching = asyncio.ensure_future(
            client.watch(pb.GetRoutesRequest(), lambda routes: seen.put_nowait(routes.cluster_id))
        )
        async with compat.timeout(60):
            assert await seen.get() == active.address
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
