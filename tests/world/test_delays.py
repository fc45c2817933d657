"""Whole clusters in which messages are delayed: each comes once, and none before its time."""

from __future__ import annotations

import pytest

from tests.world import planted
from tests.world.planted import Plant
from tests.world.soak import first_failure, run_until_seen

SEEDS = range(40, 66)
RARE = {
    "at rest": 8,
    "delayed messages released": 200,
    "election while something is delayed": 40,
    "kill of the master": 20,
    "message delayed": 2_000,
    "power cut of all": 5,
    "snapshot with something delayed": 1,
}


@pytest.mark.timeout(300)
def test_delayed_messages_come_once_and_never_early_under_faults() -> None:
    run_until_seen(SEEDS, RARE, more=("delays",))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "others", [("splits",), ("moves",), ("transactions",), ("moves", "transactions")], ids=",".join
)
def test_delayed_messages_beside(others: tuple[str, ...]) -> None:
    wanted = {"at rest": 2, "delayed messages released": 20}
    wanted |= {"move: activated": 1} if "moves" in others else {}
    run_until_seen(range(4), wanted, more=(*others, "delays"))


@pytest.mark.timeout(300)
def test_what_has_no_room_in_its_second_is_refused_for_certain() -> None:
    wanted = {"at rest": 3, "send: DelayThrottled": 50, "delayed messages released": 40}
    run_until_seen(range(8), wanted, more=("delays", "limits"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("plant", "told", "seeds"),
    [
        (planted.releases_early, "early", range(3)),
        (planted.releases_twice, "", range(5)),
        (planted.forgets_delays_in_checkpoints, "", range(10)),
        (planted.cleans_what_is_delayed, "a live record cannot be read", range(20)),
        (planted.leaves_seconds_full, "as due in its seconds", range(3)),
    ],
    ids=["early", "twice", "forgets", "cleans", "counts"],
)
def test_a_planted_bug_of_delays_is_found(plant: Plant, told: str, seeds: range) -> None:
    first_failure(seeds, plant, match=told, more=("delays",))


@pytest.mark.timeout(300)
def test_rows_that_expire_while_batches_have_no_room_store_nothing_twice() -> None:
    """A batch without room makes its producer ask what is stored, and the queue may have forgotten
    it, or another of its queues has made it begin anew."""
    wanted = {"at rest": 2, "send: DelayThrottled": 20, "send: DedupStateExpired": 20}
    run_until_seen(range(4), wanted, more=("delays", "limits", "idle"))
