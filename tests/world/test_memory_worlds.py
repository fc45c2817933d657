"""Whole clusters with a topic in memory: nothing is lost silently, and nothing is stored twice."""

from __future__ import annotations

import pytest

from tests.world import planted_memory as planted
from tests.world.planted import Plant
from tests.world.soak import first_failure, run_until_seen

RARE = {
    "at rest": 5,
    "careful kill": 8,
    "message in memory read": 500,
    "message held in memory": 1_000,
    "message dropped by the bound": 50,
    "message lost": 20,
    "reader told of a loss": 2,
}


@pytest.mark.timeout(300)
def test_nothing_is_lost_silently_under_faults() -> None:
    run_until_seen(range(100, 116), RARE, more=("memory",))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("others", [("splits",), ("moves",)], ids=",".join)
def test_topics_in_memory_beside(others: tuple[str, ...]) -> None:
    wanted = {"at rest": 2, "message held in memory": 100}
    run_until_seen(range(4), wanted, more=(*others, "memory"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("plant", "told", "seeds"),
    [
        (
            planted.acknowledges_before_it_has_bodies,
            "though one node died at a time",
            range(128, 134),
        ),
        (planted.leaves_out_bodies, "is gone, and nobody was told", range(8)),
        (planted.believes_a_look_that_began_too_early, "is gone, and nobody", range(100, 112)),
        (planted.serves_the_body_of_another_record, "", range(8)),
        (planted.tells_no_loss, "no loss was told", range(40)),
        (planted.forgets_sequences_with_bodies, "", range(16)),
        (planted.drops_too_much, "is gone", range(16)),
    ],
    ids=["early", "none", "look", "another", "told", "twice", "dropped"],
)
def test_a_planted_bug_of_topics_in_memory_is_found(plant: Plant, told: str, seeds: range) -> None:
    first_failure(seeds, plant, match=told, more=("memory",))
