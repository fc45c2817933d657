"""Whole clusters of two broker groups between which queues move while messages of theirs wait: each
comes once, none early, in order; cancelled ones never, and their ids stay what they are."""

from __future__ import annotations

import pytest

from tests.world.planted_delayed_moves import PLANTS, PLANTS_OF_IDS
from tests.world.soak import first_failure, run_until_seen

MOVES = ("moves", "delays")
IDS = ("alone", "ids", "waiting")
RARE = {
    "delayed message cancelled": 5,
    "delayed messages released": 100,
    "id moved": 40,
    "move: activated": 8,
    "move: goes on": 2,
    "queue arrived with cancelled messages": 1,
    "queue arrived with delayed messages": 8,
}
"""A quarter of what is usual, or less."""


@pytest.mark.timeout(600)
def test_queues_move_with_delayed_messages_under_faults() -> None:
    wanted = {"at rest": 4, "queue arrived with delayed messages": 5}
    run_until_seen(range(12), wanted, more=MOVES)


@pytest.mark.timeout(600)
def test_messages_that_wait_are_cancelled_while_their_queues_move() -> None:
    run_until_seen(range(60), RARE, more=IDS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_of_delayed_moves_is_found(name: str) -> None:
    plant, told, seeds = PLANTS[name]
    first_failure(seeds, plant, match=told, more=MOVES)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PLANTS_OF_IDS)
def test_a_planted_bug_of_ids_that_wait_is_found(name: str) -> None:
    plant, told, seeds = PLANTS_OF_IDS[name]
    first_failure(seeds, plant, match=told, more=IDS)
