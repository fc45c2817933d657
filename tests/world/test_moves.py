"""Whole clusters of two broker groups between which queues move: each message once over both."""

from __future__ import annotations

import pytest

from tests.world import planted
from tests.world.planted import Plant
from tests.world.soak import first_failure, run_until_seen

SEEDS = range(80)
RARE = {
    "election while a queue is frozen": 1,
    "election while a queue is incoming": 3,
    "kill of the master in a step": 2,
    "message read": 500,
    "move given up after the seal": 1,
    "move resumed by another controller": 8,
    "move: activated": 20,
    "move: dropped": 5,
    "move: forwarded": 20,
    "move: goes on": 5,
    "strike in a move: begun": 2,
    "strike in a move: sealed": 1,
    "strike in a move: activated": 1,
}
"""A quarter of what is usual: what happens in a seed changes with the product."""


@pytest.mark.timeout(300)
def test_queues_move_between_groups_under_faults() -> None:
    run_until_seen(SEEDS, RARE, more=("moves",))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (planted.moves_without_windows, "the log says"),
        (planted.activates_without_tokens, r"has lock and progress \(0,"),
    ],
    ids=["moves_without_windows", "activates_without_tokens"],
)
def test_a_planted_bug_of_moves_is_found(plant: Plant, said: str) -> None:
    first_failure(range(10), plant, match=said, more=("moves",))
