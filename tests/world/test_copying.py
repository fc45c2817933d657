"""Whole clusters in which programs copy messages with their progress in the same transactions: each
message once, whoever is fenced, dies, or carries on though it was fenced."""

from __future__ import annotations

import pytest

from tests.world.planted_copying import PLANTS
from tests.world.soak import first_failure, run_until_seen

SEEDS = range(40)
RARE = {
    "at rest": 4,
    "copies committed": 12,
    "copies given up": 1,
    "copyist begins": 10,
    "copyist refused: invalid_producer_epoch": 1,
    "notes on a partition deleted": 1,
    "staged commit published": 20,
    "transaction: drop_stagers": 5,
}
"""A quarter of what is usual in eight seeds, or less."""
MORE = ("copying",)


@pytest.mark.timeout(300)
def test_messages_are_copied_once_under_faults() -> None:
    run_until_seen(SEEDS, RARE, more=MORE)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_of_staged_progress_is_found(name: str) -> None:
    plant, match, seed = PLANTS[name]
    first_failure((seed, *range(3 * len(SEEDS))), plant, match=match, more=MORE)
