"""The mastership as the controller hears of it: leases end by themselves, nothing is combined."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator

from semel.controller.store import ControllerAddress, Mastership
from semel.controller.store.embedded.consensus import LEASE_S
from semel.controller.store.embedded.hints import Hints
from semel.controller.store.embedded.member import Happened
from semel.protos import compat
from semel.protos.v1.metadata_store_pb2 import (
    CONTROLLER_MEMBERSHIP_VOTER,
    GroupMessage,
    NextIndex,
)
from tests.unit.controller.store.embedded.lone import lone

WITHIN_S = 60.0


def address_of(controller_id: int) -> ControllerAddress:
    return ControllerAddress(controller_id=controller_id, address=f"c{controller_id}:1")


NOBODY = Mastership(master=None, mine=False)
MINE = Mastership(master=address_of(1), mine=True)
OTHER = Mastership(master=address_of(2), mine=False)


def tick(master: int | None, *, term: int = 0, lease_s: float = math.inf) -> Happened:
    """What the thread says; the lease counts from now."""
    return Happened(
        events=(),
        membership=CONTROLLER_MEMBERSHIP_VOTER,
        incarnation=1,
        master=master,
        led_term=term,
        lease_end=asyncio.get_running_loop().time() + lease_s,
    )


async def told(hints: AsyncGenerator[Mastership], count: int) -> list[Mastership]:
    """The next `count` masterships."""
    async with compat.timeout(WITHIN_S):
        return [await anext(hints) for _ in range(count)]


def test_a_lease_counts_from_the_arrival_of_a_majoritys_answers() -> None:
    """Answers that have waited while the disk hung renew nothing."""
    with lone(5) as one:
        term = one.lead()
        assert one.node.master is None
        answer = GroupMessage(
            term=term, next=NextIndex(next_index=one.last_index + 1, success=True)
        )
        began = one.clock.now
        one.member.receive((2, False), answer)
        one.member.receive((3, True), answer)  # it is not counted
        one.pass_time(0.05)
        assert one.node.lease_end == -math.inf
        one.clock.now += 0.1
        one.member.receive((3, False), answer)
        one.pass_time(0.05)
        assert one.node.lease_end == began + LEASE_S
        happened = one.member.tick(0)
        assert (happened.master, happened.led_term) == (1, term)
        assert happened.lease_end == began + LEASE_S
        one.clock.now += LEASE_S
        waited = began + 0.15
        for other in (2, 3):
            one.member.receive((other, False), answer, waited)
        assert one.node.is_leader
        assert one.member.tick(0).master is None
        for other in (2, 3):
            one.member.receive((other, False), answer)
        assert one.member.tick(0).master == 1


async def test_a_lease_ends_by_itself_while_the_thread_says_nothing() -> None:
    hints = Hints(1, address_of)
    following = hints.follow()
    assert await told(following, 1) == [NOBODY]
    hints.on_tick(tick(1, term=3, lease_s=0.05))
    assert await told(following, 2) == [MINE, NOBODY]
    hints.on_tick(tick(1, term=3, lease_s=60))  # it hung, and nobody was elected
    assert await told(following, 1) == [MINE]
    hints.close()


async def test_a_renewed_lease_goes_on_and_one_that_is_over_begins_nothing() -> None:
    hints = Hints(1, address_of)
    hints.on_tick(tick(1, term=3, lease_s=0.05))
    hints.on_tick(tick(1, term=3, lease_s=60))
    following = hints.follow()
    assert await told(following, 1) == [MINE]
    hints.on_tick(tick(1, term=3, lease_s=-1))
    hints.on_tick(tick(1, term=4, lease_s=-1))
    hints.on_tick(tick(2))
    assert await told(following, 2) == [NOBODY, OTHER]
    hints.close()


async def test_a_mastership_that_was_lost_and_regained_is_two_changes() -> None:
    hints = Hints(1, address_of)
    following = hints.follow()
    assert await told(following, 1) == [NOBODY]
    hints.on_tick(tick(1, term=3))
    hints.on_tick(tick(1, term=5))
    assert await told(following, 3) == [MINE, NOBODY, MINE]
    hints.close()


async def test_what_was_resigned_does_not_come_back_in_the_same_term() -> None:
    hints = Hints(1, address_of)
    hints.on_tick(tick(1, term=3))
    following = hints.follow()
    assert await told(following, 1) == [MINE]
    hints.resign()
    hints.on_tick(tick(1, term=3))  # was on its way
    hints.on_tick(tick(None))
    hints.on_tick(tick(2))
    hints.on_tick(tick(1, term=5))
    assert await told(following, 3) == [NOBODY, OTHER, MINE]
    hints.close()


async def test_closing_ends_those_who_follow() -> None:
    hints = Hints(1, address_of)
    following = hints.follow()
    assert await told(following, 1) == [NOBODY]
    hints.close()
    async with compat.timeout(WITHIN_S):
        assert [one async for one in following] == []
        assert [one async for one in hints.follow()] == []
