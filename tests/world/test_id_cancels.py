"""Whole clusters in which delayed messages are cancelled by their ids: never delivered, and their
ids free again."""

from __future__ import annotations

import pytest

from tests.world.planted_cancels import PLANTS
from tests.world.soak import first_failure, run_until_seen

SEEDS = range(30)
RARE = {
    "cancel answered: cancelled": 8,
    "cancel answered: delivered": 8,
    "cancel answered: unknown": 15,
    "delayed message cancelled": 6,
    "id used again after a cancel": 4,
    "trim": 10,
}
"""A quarter of what is usual, or less."""


@pytest.mark.timeout(300)
def test_delayed_messages_are_cancelled_under_faults() -> None:
    run_until_seen(SEEDS, RARE, more=("alone", "ids"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_of_cancels_is_found(name: str) -> None:
    plant, told, seeds = PLANTS[name]
    first_failure(seeds, plant, match=told, more=("alone", "ids"))
