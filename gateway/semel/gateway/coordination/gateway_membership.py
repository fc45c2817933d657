"""This gateway among the gateways of the cluster, and who the others are.

How it works. The gateways are the members of a group of their own at the controllers, each with the
address that clients of Kafka reach it by. A gateway that is silent for its session is dropped, and
all the groups that it coordinated are free. One that finds itself dropped joins again under a new
id and coordinates nothing. With each heartbeat it asks who else is there.

A gateway's node id follows from its address, so that all tell clients the same, whoever is asked.

While no controller answers, everything stays as it is: clients keep their coordinators.

Not here: which groups a gateway coordinates (`roles.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
import zlib
from collections.abc import Callable
from typing import Any, Final

from semel.client.session import Session
from semel.gateway.dispatch import GatewayPlace
from semel.protos import compat
from semel.protos.addresses import Address
from semel.protos.errors import InvalidRequest, SemelError, UnknownGroup, UnknownMember
from semel.protos.groups import GATEWAY_GROUP
from semel.protos.v1 import controller_pb2
from semel.protos.v1.metadata_pb2 import GroupKind

logger = logging.getLogger(__name__)

SESSION_MS: Final = 2_000
"""A gateway that dies leaves its groups without a coordinator for this long."""
CALL_S: Final = 2.0
LEAVE_S: Final = 2.0


def place_of(address: str) -> GatewayPlace:
    """Returns the gateway that advertises an address. Raises InvalidRequest."""
    parsed = Address.parse(address, what="advertised address")
    node_id = 1 + zlib.crc32(str(parsed).encode()) % (2**31 - 2)
    return GatewayPlace(node_id=node_id, host=parsed.host, port=parsed.port)


class GatewayMembership:
    """See the module's text. Lives on the gateway's event loop. It is what `Gateways` asks for."""

    def __init__(
        self, session: Session, advertised: Address, *, on_dropped: Callable[[], None]
    ) -> None:
        """`on_dropped` is called when the gateway was taken for dead, and is back as another."""
        self.address = str(advertised)
        self.own = place_of(self.address)
        self.member_id = ""
        """Its id among the gateways; another one after it was dropped."""
        self._session = session
        self._on_dropped = on_dropped
        self._present: tuple[GatewayPlace, ...] = (self.own,)
        self._beat_s = SESSION_MS / 3000

    @property
    def present(self) -> tuple[GatewayPlace, ...]:
        """All gateways, as of the last heartbeat, by rising `node_id`."""
        return self._present

    async def join(self) -> None:
        """Joins the gateways. Raises SemelError."""
        member_id = f"gateway-{uuid.uuid4().hex}"
        reply = await self._controller(
            "JoinGroup",
            controller_pb2.JoinGroupRequest(
                group=GATEWAY_GROUP,
                member_id=member_id,
                session_ms=SESSION_MS,
                client=f"Kafka gateway {self.address}",
                kind=GroupKind.GROUP_KIND_GATEWAYS,
                address=self.address,
            ),
        )
        self.member_id = member_id
        self._beat_s = max(0.05, reply.heartbeat_ms / 1000)

    async def run(self) -> None:
        """Sends heartbeats until it is cancelled."""
        while True:
            try:
                await self._beat()
            except SemelError as error:
                logger.info("heartbeat failed error=%s", error.message)
            await asyncio.sleep(self._beat_s)

    async def leave(self) -> None:
        """Leaves the gateways, as far as the controllers answer in time."""
        with contextlib.suppress(SemelError, TimeoutError):
            async with compat.timeout(LEAVE_S):
                await self._controller(
                    "LeaveGroup",
                    controller_pb2.LeaveGroupRequest(group=GATEWAY_GROUP, member_id=self.member_id),
                )

    async def _beat(self) -> None:
        request = controller_pb2.HeartbeatGroupRequest(
            group=GATEWAY_GROUP, member_id=self.member_id
        )
        try:
            reply = await self._controller("HeartbeatGroup", request)
            self._beat_s = max(0.05, reply.heartbeat_ms / 1000)
        except UnknownMember:
            logger.warning("gateway was taken for dead member=%s", self.member_id)
            self._on_dropped()
            await self.join()
        await self._look_around()

    async def _look_around(self) -> None:
        request = controller_pb2.ListGroupsRequest(group=GATEWAY_GROUP)
        with contextlib.suppress(UnknownGroup):
            reply = await self._controller("ListGroups", request)
            found = {self.own.node_id: self.own}
            for member in (member for group in reply.groups for member in group.members):
                with contextlib.suppress(InvalidRequest):
                    place = place_of(member.address)
                    found[place.node_id] = place
            self._present = tuple(found[node_id] for node_id in sorted(found))

    async def _controller(self, method: str, request: object) -> Any:
        session = self._session
        return await session.await_run(session.cluster.controller(method, request, CALL_S))
