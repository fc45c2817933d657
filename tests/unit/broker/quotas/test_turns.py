"""Turns of streams on an event loop."""

from __future__ import annotations

import asyncio

import pytest

from semel.broker.quotas.turns import GRANTED_BYTES, LOAD_MAX, Turns


async def stream(turns: Turns, owner: str, size: int, got: dict[str, int]) -> None:
    turns.enter(owner)
    try:
        while True:
            turn = turns.ask(owner, size)
            if turn is not None:
                await turn
            got[owner] += size
            await asyncio.sleep(0)
    finally:
        turns.leave(owner)


async def shares(offers: dict[str, tuple[int, int]], loops: int) -> dict[str, int]:
    turns, got = Turns(), dict.fromkeys(offers, 0)
    tasks = [
        asyncio.create_task(stream(turns, owner, size, got))
        for owner, (streams, size) in offers.items()
        for _ in range(streams)
    ]
    for _ in range(loops):
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not turns.contended
    return got


async def test_a_greedy_principal_takes_no_more_than_half_of_a_busy_loop() -> None:
    got = await shares({"greedy": (8, 1 << 20), "modest": (2, 128 << 10)}, 6_000)
    assert got["greedy"] / sum(got.values()) < 0.6


async def test_one_principal_alone_never_waits() -> None:
    turns = Turns(lambda: 1 << 40)
    turns.enter("alone")
    turns.enter("alone")
    assert turns.ask("alone", 1 << 30) is None
    turns.leave("alone")
    turns.leave("alone")


async def test_nothing_is_granted_while_the_node_is_full_and_all_is_when_it_has_room() -> None:
    load = LOAD_MAX
    turns = Turns(lambda: load)
    turns.enter("a")
    turns.enter("b")
    asked = [turns.ask(owner, 10) for owner in ("a", "b", "a")]
    assert None not in asked
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(turn.done() for turn in asked if turn)
    load = 0
    await asyncio.gather(*(turn for turn in asked if turn))


async def test_who_is_cancelled_takes_no_turn() -> None:
    load = LOAD_MAX
    turns = Turns(lambda: load)
    turns.enter("a")
    turns.enter("b")
    gone, waits = turns.ask("a", GRANTED_BYTES), turns.ask("b", GRANTED_BYTES)
    assert gone is not None
    assert waits is not None
    gone.cancel()
    load = 0
    await waits


@pytest.mark.parametrize("used", [0, GRANTED_BYTES // 2])
async def test_what_a_turn_did_not_use_is_there_for_others(used: int) -> None:
    turns = Turns()
    turns.enter("a")
    turns.enter("b")
    assert turns.ask("a", GRANTED_BYTES) is None
    turns.give_back("a", GRANTED_BYTES - used)
    assert turns.ask("b", 10) is None
    await asyncio.sleep(0)
    await asyncio.sleep(0)
