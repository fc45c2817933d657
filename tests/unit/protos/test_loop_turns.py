"""Steps of very many connections leave the loop to others between them."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial

from semel.protos.loop_turns import LoopTurns


async def test_no_more_than_the_limit_is_done_in_one_turn() -> None:
    turns, done = LoopTurns(2), list[int]()
    assert [turns.begin() for _ in range(4)] == [True, True, False, False]
    for number in range(5):
        turns.enlist(partial(done.append, number))
    seen = []
    while turns.waiting:
        seen.append(len(done))
        await asyncio.sleep(0)
    assert done == [0, 1, 2, 3, 4]
    assert all(after - before <= 2 for before, after in itertools.pairwise(seen))


async def test_nobody_begins_before_those_who_wait() -> None:
    turns, done = LoopTurns(1), list[int]()
    assert turns.begin()
    turns.enlist(partial(done.append, 1))
    turns.enlist(partial(done.append, 2))
    while turns.waiting:
        assert not turns.begin()
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert turns.begin()


async def test_a_step_that_fails_holds_nobody_up() -> None:
    turns, done = LoopTurns(1), list[int]()
    errors: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))

    def fail() -> None:
        raise RuntimeError("a bug")

    turns.enlist(fail)
    turns.enlist(partial(done.append, 1))
    for _ in range(4):
        await asyncio.sleep(0)
    assert done == [1]
    assert len(errors) == 1
