"""This gateway among the gateways of the cluster, and who the others are.

How it works. The gateways are the members of a group of their own at the controllers, each with the
address that clients of Kafka reach it by. A gateway that is silent for its session is dropped, and
all the groups that it coordinated are free. One that finds itself dropped joins again under a new
id and coordinates nothing. As often it asks who else is there.

A gateway's node id follows from its address, so that all tell clients the same, whoever is asked.

A gateway that refuses connections has ended: whoever finds that out reports it to the controllers
as having left, so that its groups need not wait for its session. Only a gateway that this one has
reached before is reported; an address that is of use to clients alone proves nothing. One that is
reported by mistake joins again, and its groups' members as well. Clients ask for metadata when they
have lost their gateway, so that is when the others are looked at: a partition has another leader as
soon as somebody misses the one that it had, and not when a session ends.

A gateway that has ended is remembered for a while: most are started again under their address.
Java's clients before 4.0 look at their bootstrap addresses once, and then know the brokers of their
last metadata alone, which they ask for anew after five minutes. Were a gateway missing there that
has long come back, the end of another one would leave them without any.

While no controller answers, everything stays as it is: clients keep their coordinators.

Not here: which groups a gateway coordinates (`roles.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
import zlib
from collections.abc import Awaitable, Callable
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

SESSION_MS: Final = 6_000
"""A gateway whose machine dies leaves its groups without a coordinator for this long. One that is
taken for dead while it is only slow forgets their members, which is worse: all join again."""
CALL_S: Final = 2.0
START_S: Final = 30.0
"""Seconds for which a gateway that starts waits for the controllers, which may be electing."""
LEAVE_S: Final = 2.0
REACH_S: Final = 0.5
MISSED_S: Final = 600.0
"""Seconds for which a gateway that has ended is expected back: twice `metadata.max.age.ms`."""
CHECK_S: Final = 0.25
"""Seconds for which a gateway that was looked at counts as there."""


def place_of(address: str) -> GatewayPlace:
    """Returns the gateway that advertises an address. Raises InvalidRequest."""
    parsed = Address.parse(address, what="advertised address")
    node_id = 1 + zlib.crc32(str(parsed).encode()) % (2**31 - 2)
    return GatewayPlace(node_id=node_id, host=parsed.host, port=parsed.port)


class GatewayMembership:
    """See the module's text. Lives on the gateway's event loop. It is what `Gateways` asks for."""

    def __init__(
        self,
        session: Session,
        advertised: Address,
        *,
        protocol: str = "",
        on_dropped: Callable[[], None],
    ) -> None:
        """`protocol` is how clients reach it, in Kafka's words. `on_dropped` is called when the
        gateway was taken for dead, and is back as another."""
        self.address = str(advertised)
        self.own = place_of(self.address)
        self.member_id = ""
        """Its id among the gateways; another one after it was dropped."""
        self._session = session
        self._protocol = protocol
        self._on_dropped = on_dropped
        self._reached: set[str] = set()
        """Ids of other gateways that a connection has reached."""
        self._gone: set[str] = set()
        """Ids of others that have ended and that the controllers may still name: one that was
        reported by mistake comes back under another id."""
        self._others: dict[str, GatewayPlace] = {}
        """All other gateways by id, as of the last look around."""
        self._seen_s: dict[GatewayPlace, float] = {}
        """When others were there last, by the monotonic clock; at most `MISSED_S` ago."""
        self._check: asyncio.Task[None] | None = None
        """The look at the others that is under way."""
        self._checked_s = -CHECK_S
        self._reports: set[asyncio.Task[None]] = set()
        self._beat_s = SESSION_MS / 3000

    @property
    def present(self) -> tuple[GatewayPlace, ...]:
        """All gateways, as of the last look around, but those that were found to have ended, by
        rising `node_id`."""
        others = (self._others[member_id] for member_id in self._others.keys() - self._gone)
        found = {place.node_id: place for place in (self.own, *others)}
        return tuple(found[node_id] for node_id in sorted(found))

    @property
    def missed(self) -> tuple[GatewayPlace, ...]:
        """Those that ended less than `MISSED_S` ago and have not come back, by rising `node_id`."""
        last = time.monotonic() - MISSED_S
        lately = {place for place, seen_s in self._seen_s.items() if seen_s >= last}
        return tuple(sorted(lately.difference(self.present), key=lambda place: place.node_id))

    async def checked(self) -> tuple[GatewayPlace, ...]:
        """Returns those present, after a look whether they are still there."""
        if self._check is None and time.monotonic() - self._checked_s >= CHECK_S:
            self._check = asyncio.get_running_loop().create_task(
                self._check_others(), name="semel-kafka-check"
            )
        if self._check is not None:
            await asyncio.shield(self._check)
        return self.present

    async def _check_others(self) -> None:
        try:
            others = [each for each in self._others.items() if each[0] not in self._gone]
            ended = await asyncio.gather(*(self._has_ended(*other) for other in others))
            for (member_id, _), has in zip(others, ended, strict=True):
                if has:  # controllers may be away, and clients do not wait for them
                    task = asyncio.get_running_loop().create_task(self._remove(member_id))
                    self._reports.add(task)
                    task.add_done_callback(self._reports.discard)
        finally:
            self._check, self._checked_s = None, time.monotonic()

    async def start(self) -> None:
        """Joins the gateways and learns who else is there. Raises SemelError, for example
        InvalidRequest if clients reach the others otherwise."""
        await self._join(START_S)
        await self.look_around(START_S)

    async def _join(self, timeout_s: float) -> None:
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
                protocol=self._protocol,
            ),
            timeout_s,
        )
        self.member_id = member_id
        self._beat_s = max(0.05, reply.heartbeat_ms / 1000)

    async def run(self) -> None:
        """Sends heartbeats and looks around until it is cancelled."""
        async with compat.TaskGroup() as tasks:
            tasks.create_task(self._again_and_again(self._beat))
            tasks.create_task(self._again_and_again(self.look_around))

    async def _again_and_again(self, what: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await what()
            except SemelError as error:
                logger.info("controllers not reached error=%s", error.message)
            await asyncio.sleep(self._beat_s)

    async def leave(self) -> None:
        """Leaves the gateways, as far as the controllers answer in time."""
        await self._remove(self.member_id)

    async def is_gone(self, member_id: str, place: GatewayPlace) -> bool:
        """Whether another gateway has ended; then the controllers know it as well."""
        if not await self._has_ended(member_id, place):
            return False
        await self._remove(member_id)
        return True

    async def _has_ended(self, member_id: str, place: GatewayPlace) -> bool:
        """Whether nobody is there any more; what was found out once is remembered."""
        if member_id in self._gone:
            return True
        if member_id not in self._reached or await _reaches(place) is not False:
            return False
        if member_id not in self._gone:
            logger.warning("gateway has ended member=%s port=%d", member_id, place.port)
            self._gone.add(member_id)
        return True

    async def _remove(self, member_id: str) -> None:
        request = controller_pb2.LeaveGroupRequest(group=GATEWAY_GROUP, member_id=member_id)
        with contextlib.suppress(SemelError, TimeoutError):
            async with compat.timeout(LEAVE_S):
                await self._controller("LeaveGroup", request)

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
            await self._join(CALL_S)

    async def look_around(self, timeout_s: float = CALL_S) -> None:
        """Learns who else is there. Raises SemelError."""
        request = controller_pb2.ListGroupsRequest(group=GATEWAY_GROUP)
        with contextlib.suppress(UnknownGroup):
            reply = await self._controller("ListGroups", request, timeout_s)
            others: dict[str, GatewayPlace] = {}
            for member in (member for group in reply.groups for member in group.members):
                if member.member_id != self.member_id:
                    with contextlib.suppress(InvalidRequest):
                        others[member.member_id] = place_of(member.address)
            self._gone &= others.keys()
            self._reached &= others.keys()
            for member_id in others.keys() - self._reached - self._gone:
                if await _reaches(others[member_id]):
                    self._reached.add(member_id)
            self._others = others
            self._note_present()

    def _note_present(self) -> None:
        now = time.monotonic()
        self._seen_s |= dict.fromkeys(self.present, now)
        self._seen_s = {
            place: seen_s for place, seen_s in self._seen_s.items() if seen_s >= now - MISSED_S
        }

    async def _controller(self, method: str, request: object, timeout_s: float = CALL_S) -> Any:
        session = self._session
        return await session.await_run(session.cluster.controller(method, request, timeout_s))


async def _reaches(place: GatewayPlace) -> bool | None:
    """Whether somebody takes a connection there; None if nothing comes back."""
    try:
        async with compat.timeout(REACH_S):
            _, writer = await asyncio.open_connection(place.host, place.port)
    except ConnectionRefusedError:
        return False
    except (OSError, TimeoutError):
        return None
    writer.close()
    return True
