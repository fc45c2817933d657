"""The coordinator of a group: one call at a time, and nobody waits for one that has ended."""

from __future__ import annotations

import asyncio
from typing import Any

from semel.gateway.coordination.roles import Role, Roles
from semel.protos.v1 import controller_pb2

OWN: Any = None


class ClaimingRoles(Roles):
    """Roles whose claims succeed without a cluster."""

    def __init__(self) -> None:
        nothing: Any = None
        super().__init__(OWN, nothing, lambda role: None)
        self.claims = 0

    async def _claim(self, group_id: str, caller: Any) -> None:
        self.claims += 1
        await asyncio.sleep(0)
        nothing: Any = None
        self.held[group_id] = Role(group_id, nothing, caller)


async def test_a_claim_in_the_turn_in_which_a_call_ends_begins_one_of_its_own() -> None:
    """It spun for ever: the call had ended, and its callback had not run."""
    roles = ClaimingRoles()
    claims: list[asyncio.Task[Role]] = []

    async def leave() -> None:
        claims.append(asyncio.create_task(roles.claim("g", OWN)))

    await roles._begin("g", leave())
    role = await claims[0]
    assert (role.group_id, roles.claims) == ("g", 1)


async def test_claims_at_one_time_share_a_call() -> None:
    roles = ClaimingRoles()
    one, two = await asyncio.gather(roles.claim("g", OWN), roles.claim("g", OWN))
    assert one is two
    assert roles.claims == 1


async def test_who_asks_while_the_group_is_left_waits_for_that() -> None:
    """An administrator heard NOT_COORDINATOR of the only coordinator there was."""

    class LeavingRoles(ClaimingRoles):
        left = False

        async def _leave(self, role: Role) -> None:
            await asyncio.sleep(0.01)
            self.left = True

        async def _list(self, group_id: str, caller: Any) -> list[controller_pb2.GroupInfo]:
            members = [] if self.left else [controller_pb2.GroupMember(member_id="own")]
            return [controller_pb2.GroupInfo(group=group_id, members=members)]

    roles = LeavingRoles()
    leaving = asyncio.create_task(roles.give_up(await roles.claim("g", OWN)))
    await asyncio.sleep(0)
    info = await roles.look_up("g", OWN)
    assert info is not None
    assert not info.members
    await leaving
