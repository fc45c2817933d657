"""Whole clusters of two broker groups between which queues move: each message once over both."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.world import planted
from tests.world.planted import Plant
from tests.world.soak import first_failure, run_seeds

SEEDS = (3, 30, 47, 48, 50)
"""Chosen so that the rarest things happen in a few worlds."""
RARE = {
    "election while a queue is frozen": 2,
    "election while a queue is incoming": 2,
    "kill of the master in a step": 1,
    "message read": 100,
    "move given up after the seal": 2,
    "move resumed by another controller": 3,
    "move: activated": 9,
    "move: dropped": 2,
    "move: forwarded": 9,
    "move: goes on": 2,
}


@pytest.mark.timeout(300)
def test_queues_move_between_groups_under_faults() -> None:
    seen, failures, _ = run_seeds(SEEDS, more=("moves",))
    assert not failures
    missing = Counter(RARE) - seen
    assert not missing, f"too rare, by so many: {dict(missing)}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (planted.moves_without_windows, "the log says"),
        (planted.activates_without_tokens, "has lock and progress (0,"),
    ],
    ids=["moves_without_windows", "activates_without_tokens"],
)
def test_a_planted_bug_of_moves_is_found(plant: Plant, said: str) -> None:
    assert said in first_failure(range(10), plant, more=("moves",))
