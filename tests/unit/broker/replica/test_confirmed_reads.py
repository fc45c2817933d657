"""Reads that a round of heartbeats confirms: which round counts for whom, and from when."""

from __future__ import annotations

import asyncio

import pytest

from semel.broker.raft import ReadState
from semel.broker.replica.confirmed_reads import ConfirmedReads
from semel.protos.errors import NotMaster, SemelError


def not_master() -> SemelError:
    return NotMaster("not any more")


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Reads:
    """Rounds that the test ends."""

    def __init__(self) -> None:
        self.rounds: list[int] = []
        self.reads = ConfirmedReads(self.rounds.append)

    def wait(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.reads.wait())

    def confirm(self, context: int, index: int) -> None:
        self.reads.on_rounds([ReadState(context=context, index=index)], [], not_master)


@pytest.fixture
async def reads() -> Reads:
    return Reads()


async def test_a_read_is_over_when_what_was_committed_before_it_is_applied(reads: Reads) -> None:
    waiting = reads.wait()
    await turns()
    assert reads.rounds == [1]
    reads.confirm(1, 7)
    reads.reads.on_applied(6)
    await turns()
    assert not waiting.done(), "entry 7 is not applied"
    reads.reads.on_applied(7)
    await waiting


async def test_a_round_is_no_answer_to_who_comes_after_it_has_begun(reads: Reads) -> None:
    """Its heartbeats may have been answered before: another master may have committed since."""
    first = reads.wait()
    await turns()
    later = [reads.wait(), reads.wait()]
    await turns()
    assert reads.rounds == [1]
    reads.confirm(1, 3)
    reads.reads.on_applied(9)
    await turns()
    assert [first.done(), *(one.done() for one in later)] == [True, False, False]
    assert reads.rounds == [1, 2], "one round serves both"
    reads.confirm(2, 9)
    reads.reads.on_applied(9)
    await asyncio.gather(*later)


async def test_who_waits_for_a_round_that_failed_is_told(reads: Reads) -> None:
    waiting = reads.wait()
    await turns()
    reads.reads.on_rounds([], [1], not_master)
    reads.reads.on_applied(9)
    with pytest.raises(NotMaster):
        await waiting


async def test_when_mastership_is_lost_everybody_hears_so(reads: Reads) -> None:
    confirmed = reads.wait()
    await turns()
    reads.confirm(1, 7)
    await turns()
    begun = reads.wait()
    await turns()
    coming = reads.wait()
    await turns()
    assert reads.rounds == [1, 2]
    reads.reads.fail(not_master)
    reads.reads.on_applied(9)
    for waiting in (confirmed, begun, coming):
        with pytest.raises(NotMaster):
            await waiting
