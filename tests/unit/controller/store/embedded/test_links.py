"""Streams between controllers that end at the worst moment."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from semel.controller.store import ControllerAddress, StoreFailed
from semel.controller.store.embedded import EmbeddedStore
from semel.controller.store.embedded import links as module
from semel.controller.store.embedded.identity import Identity
from semel.controller.store.embedded.links import Links
from semel.controller.store.embedded.member import Member
from semel.protos import compat
from semel.protos.rpc import SERVER_OPTIONS, ServerInterceptor
from semel.protos.v1.metadata_store_pb2 import (
    CONTROLLER_MEMBERSHIP_VOTER,
    GroupMessage,
    MembershipReply,
    NewerTerm,
)
from semel.protos.v1.metadata_store_pb2_grpc import MetadataGroupStub

MESSAGE = GroupMessage(term=1, newer_term=NewerTerm())


class LateCall:
    """A real call whose end its reader hears of when the test says so."""

    def __init__(self, call: Any, ends: asyncio.Event) -> None:
        self.call = call
        self.refused = 0
        """Writes after the end."""
        self._ends = ends
        self._reads = 0

    async def read(self) -> Any:
        self._reads += 1
        if self._reads > 1:  # the welcome came first
            await self._ends.wait()
        return await self.call.read()

    async def write(self, frame: Any) -> None:
        try:
            await self.call.write(frame)
        except asyncio.InvalidStateError:
            self.refused += 1
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self.call, name)


class Ends:
    """Controllers 1 to 3 of a group: the links only, and what they tell their members."""

    def __init__(self) -> None:
        self.addresses: dict[int, str] = {}
        self.links: dict[int, Links] = {}
        self.servers: dict[int, grpc.aio.Server] = {}
        self.heard: dict[int, Counter[str]] = {}

    async def serve(self, number: int) -> None:
        server = grpc.aio.server(interceptors=[ServerInterceptor()], options=SERVER_OPTIONS)
        port = server.add_insecure_port(self.addresses.get(number, "127.0.0.1:0"))
        self.addresses[number] = f"127.0.0.1:{port}"
        self.servers[number] = server

    def open(self, number: int) -> None:
        heard = self.heard[number] = Counter()

        def post(action: Callable[[Member], None]) -> None:
            action(Listening(heard))  # type: ignore[arg-type]

        peers = {peer: address for peer, address in self.addresses.items() if peer != number}
        self.links[number] = Links(
            Identity(cluster_id="c", controller_id=number, members=(1, 2, 3)),
            peers,
            post=post,
            post_message=post,
            describe=MembershipReply,
            must_ask=lambda: False,
        )
        self.links[number].on_membership(CONTROLLER_MEMBERSHIP_VOTER)

    async def until(self, number: int, **counts: int) -> None:
        """Returns when that controller's member has been told so often of what is named."""
        async with compat.timeout(30):
            while any(self.heard[number][name] < count for name, count in counts.items()):
                await asyncio.sleep(0.01)


class Listening:
    """In a member's place: counts what it is told."""

    def __init__(self, heard: Counter[str]) -> None:
        self._heard = heard

    def connected(self, peer: tuple[int, bool]) -> None:
        self._heard[f"connected_{peer[0]}"] += 1

    def disconnected(self, peer: tuple[int, bool]) -> None:
        self._heard[f"disconnected_{peer[0]}"] += 1

    def receive(self, peer: tuple[int, bool], message: GroupMessage, arrived: float) -> None:
        self._heard[f"from_{peer[0]}"] += 1


@contextlib.asynccontextmanager
async def running(ends: Ends) -> AsyncIterator[asyncio.Future[None]]:
    """The links of controller 1 are kept; the others only listen."""
    for number in (1, 2, 3):
        await ends.serve(number)
    for number in (1, 2, 3):
        ends.open(number)
        ends.links[number].attach(ends.servers[number])
        await ends.servers[number].start()
    run = asyncio.ensure_future(ends.links[1].run())
    try:
        yield run
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        await asyncio.gather(*(server.stop(0) for server in ends.servers.values()))


async def test_a_peer_that_ends_while_one_writes_to_it_costs_no_other_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = asyncio.Event()
    late: list[LateCall] = []

    class LateStub(MetadataGroupStub):
        def __init__(self, channel: Any) -> None:
            MetadataGroupStub.__init__(self, channel)
            opened = self.OpenLink

            def open_link(**options: Any) -> LateCall:
                late.append(LateCall(opened(**options), told))
                return late[-1]

            self.OpenLink = open_link

    monkeypatch.setattr(module, "MetadataGroupStub", LateStub)
    ends = Ends()
    async with running(ends) as run:
        await ends.until(1, connected_2=1, connected_3=1)
        before = list(late)
        await ends.servers[2].stop(0)
        ended = next(call for call in before if call is ends.links[1]._calls[2])
        await ended.call.code()  # gRPC knows
        ends.links[1].send(2, MESSAGE)
        await ends.until(1, disconnected_2=1)
        assert ended.refused == 1, "nobody wrote to a call that had ended: this shows nothing"

        ends.links[1].send(3, MESSAGE)
        await ends.until(3, from_1=1)
        assert ends.heard[1]["disconnected_3"] == 0

        await ends.serve(2)
        ends.links[2].attach(ends.servers[2])
        await ends.servers[2].start()
        await ends.until(1, connected_2=2)
        ends.links[1].send(2, MESSAGE)
        await ends.until(2, from_1=1)
        assert not run.done()
        told.set()


async def test_links_that_end_by_an_error_of_our_own_end_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stumble(self: Links, peer: int) -> None:
        raise AssertionError(f"a bug on the way to {peer}")

    monkeypatch.setattr(Links, "_keep", stumble)
    peers = {2: "127.0.0.1:1", 3: "127.0.0.1:1"}  # nobody is there
    store = await EmbeddedStore.open(tmp_path, 1, peers, cluster_id="c")
    await store.start(ControllerAddress(controller_id=1, address="127.0.0.1:7070"))
    async with compat.timeout(30):
        failure = await store.wait_failed()
    assert "a bug on the way to" in failure.message
    with pytest.raises(StoreFailed):
        await store.get("/a")
    await store.close()
