"""A gateway among the others: who has ended is missed as soon as somebody asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from semel.gateway.coordination import gateway_membership
from semel.gateway.coordination.gateway_membership import GatewayMembership, place_of
from semel.protos import compat
from semel.protos.addresses import Address
from semel.protos.errors import TimedOut
from semel.protos.groups import GATEWAY_GROUP
from semel.protos.v1 import controller_pb2

OWN = "127.0.0.1:1"


class Controllers:
    """What controllers tell of the gateways, and what they are told; `away` they never answer, and
    while they elect they answer those who wait for `electing_s`."""

    def __init__(self) -> None:
        self.members: dict[str, str] = {}
        self.left: list[str] = []
        self.away = False
        self.electing_s = 0.0
        self.cluster = SimpleNamespace(controller=self._call)

    async def await_run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return await coroutine

    async def _call(self, method: str, request: Any, timeout_s: float) -> Any:
        while self.away:
            await asyncio.sleep(1)
        if timeout_s < self.electing_s:
            raise TimedOut("no controller has answered")
        if method == "JoinGroup":
            self.members[request.member_id] = request.address
            return controller_pb2.GroupMembershipReply(heartbeat_ms=500)
        if method == "LeaveGroup":
            self.left.append(request.member_id)
            return controller_pb2.LeaveGroupReply()
        assert method == "ListGroups"
        members = [
            controller_pb2.GroupMember(member_id=member_id, address=address)
            for member_id, address in self.members.items()
        ]
        group = controller_pb2.GroupInfo(group=GATEWAY_GROUP, members=members)
        return controller_pb2.ListGroupsReply(groups=[group])


class Other:
    """Another gateway: a port that takes connections until it is closed."""

    async def start(self) -> None:
        self.connections = 0
        self._server = await asyncio.start_server(self._on_connection, "127.0.0.1", 0)
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname())

    async def _on_connection(self, reader: object, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.close()

    async def die(self) -> None:
        self._server.close()
        await self._server.wait_closed()


@pytest.fixture
async def known() -> AsyncIterator[tuple[GatewayMembership, Controllers, Other]]:
    """A gateway that knows of another one and has reached it."""
    controllers, other = Controllers(), Other()
    await other.start()
    membership = GatewayMembership(
        controllers,  # type: ignore[arg-type]
        Address.parse(OWN),
        on_dropped=lambda: None,
    )
    membership.member_id = "own"
    controllers.members = {"own": OWN, "other": other.address}
    await membership.look_around()
    assert set(membership.present) == {place_of(OWN), place_of(other.address)}
    yield membership, controllers, other
    await other.die()


async def test_one_that_refuses_connections_is_missed_at_once_and_reported(
    known: tuple[GatewayMembership, Controllers, Other],
) -> None:
    membership, controllers, other = known
    assert await membership.checked() == membership.present
    await other.die()
    membership._checked_s -= gateway_membership.CHECK_S
    assert await membership.checked() == (place_of(OWN),)
    await asyncio.gather(*membership._reports)
    assert controllers.left == ["other"]
    await membership.look_around()  # by controllers that have not heard of it yet
    assert membership.present == (place_of(OWN),)
    controllers.members["again"] = other.address
    await membership.look_around()
    assert place_of(other.address) in membership.present


async def test_one_that_has_ended_is_expected_back_for_a_while(
    known: tuple[GatewayMembership, Controllers, Other], monkeypatch: pytest.MonkeyPatch
) -> None:
    membership, controllers, other = known
    gone = place_of(other.address)
    assert list(membership.missed) == []
    await other.die()
    await membership.checked()
    await asyncio.gather(*membership._reports)
    assert list(membership.missed) == [gone]
    del controllers.members["other"]
    await membership.look_around()
    assert list(membership.present) == [place_of(OWN)]
    assert list(membership.missed) == [gone]
    controllers.members["again"] = other.address
    await membership.look_around()
    assert list(membership.missed) == []
    del controllers.members["again"]
    monkeypatch.setattr(gateway_membership, "MISSED_S", 0.0)
    await membership.look_around()
    assert list(membership.missed) == []


async def test_clients_do_not_wait_for_controllers_that_are_away(
    known: tuple[GatewayMembership, Controllers, Other],
) -> None:
    membership, controllers, other = known
    controllers.away = True
    await other.die()
    async with compat.timeout(1):
        assert await membership.checked() == (place_of(OWN),)
    for report in membership._reports:
        report.cancel()


async def test_many_who_ask_share_a_look(
    known: tuple[GatewayMembership, Controllers, Other],
) -> None:
    membership, _, other = known
    before = other.connections
    await asyncio.gather(*(membership.checked() for _ in range(20)))
    await membership.checked()
    assert other.connections - before <= 1


async def test_one_that_was_never_reached_stays() -> None:
    """Its address may be of use to clients alone."""
    controllers = Controllers()
    membership = GatewayMembership(
        controllers,  # type: ignore[arg-type]
        Address.parse(OWN),
        on_dropped=lambda: None,
    )
    controllers.members = {"other": "127.0.0.1:2"}  # nobody listens there
    await membership.look_around()
    assert place_of("127.0.0.1:2") in await membership.checked()
    assert not controllers.left


async def test_a_gateway_that_starts_waits_while_controllers_elect() -> None:
    controllers = Controllers()
    controllers.electing_s = 10.0
    session: Any = controllers
    membership = GatewayMembership(session, Address.parse(OWN), on_dropped=lambda: None)
    await membership.start()
    assert controllers.members == {membership.member_id: OWN}
    assert [str(place.port) for place in membership.present] == ["1"]
    with pytest.raises(TimedOut):  # later there is always a next heartbeat
        await membership.look_around()
