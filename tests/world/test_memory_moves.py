"""Whole clusters of two broker groups between which queues of a topic in memory move, under faults:
nothing is lost silently, and with careful faults nothing is lost."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.world.planted_memory_moves import PLANTS
from tests.world.soak import first_failure, run_seeds

BOTH = ("moves", "memory")
RARE = {
    "message held in memory": 300,
    "message in memory read": 150,
    "queue in memory arrived": 2,
}


@pytest.mark.timeout(600)
def test_queues_in_memory_move_under_faults() -> None:
    seen, failures, _ = run_seeds(range(6), more=BOTH)
    assert not failures
    missing = Counter(RARE) - seen
    assert not missing, f"too rare, by so many: {dict(missing)}"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_of_moves_in_memory_is_found(name: str) -> None:
    plant, told, seeds = PLANTS[name]
    first_failure(seeds, plant, match=told, more=BOTH)
