"""Whole clusters of two broker groups between which queues move whose topics compare message ids:
what was known of a queue stays known where it goes."""

from __future__ import annotations

import pytest

from tests.world.planted_moves_of_ids import PLANTS
from tests.world.soak import first_failure, run_until_seen

SEEDS = range(40)
RARE = {
    "batch of a payer": 80,
    "duplicate told to a payer": 400,
    "id moved": 30,
    "move: activated": 6,
    "move: dropped": 2,
    "move: goes on": 2,
    "strike in a move: sealed": 1,
}
"""A quarter of what is usual, or less."""


@pytest.mark.timeout(300)
def test_ids_move_with_their_queues_under_faults() -> None:
    run_until_seen(SEEDS, RARE, more=("alone", "ids"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_of_moves_of_ids_is_found(name: str) -> None:
    plant, told, seeds = PLANTS[name]
    first_failure(seeds, plant, match=told, more=("alone", "ids"))
