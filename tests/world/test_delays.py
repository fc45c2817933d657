"""Whole clusters in which messages are delayed: each comes once, and none before its time."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.world import planted
from tests.world.planted import Plant
from tests.world.soak import first_failure, run_seeds

SEEDS = range(40, 66)
RARE = {
    "at rest": 20,
    "delayed messages released": 200,
    "election while something is delayed": 40,
    "kill of the master": 20,
    "message delayed": 2_000,
    "power cut of all": 5,
    "snapshot with something delayed": 1,
}


@pytest.mark.timeout(300)
def test_delayed_messages_come_once_and_never_early_under_faults() -> None:
    seen, failures, _ = run_seeds(SEEDS, more=("delays",))
    assert not failures
    missing = Counter(RARE) - seen
    assert not missing, f"too rare, by so many: {dict(missing)}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "others", [("splits",), ("moves",), ("transactions",), ("moves", "transactions")], ids=",".join
)
def test_delayed_messages_beside(others: tuple[str, ...]) -> None:
    seen, failures, _ = run_seeds(range(4), more=(*others, "delays"))
    assert not failures
    assert seen["delayed messages released"] >= 20
    assert seen["move: activated"] or "moves" not in others


@pytest.mark.timeout(300)
def test_what_has_no_room_in_its_second_is_refused_for_certain() -> None:
    seen, failures, _ = run_seeds(range(8), more=("delays", "limits"))
    assert not failures
    assert seen["send: DelayThrottled"] >= 50
    assert seen["delayed messages released"] >= 40


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
    seen, failures, _ = run_seeds(range(4), more=("delays", "limits", "idle"))
    assert not failures
    assert seen["send: DelayThrottled"] >= 20
    assert seen["send: DedupStateExpired"] >= 20
