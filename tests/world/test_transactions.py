"""Whole clusters over which programs commit transactions: each is stored whole and once, or not."""

from __future__ import annotations

import pytest

from tests.world import planted
from tests.world.planted import Plant
from tests.world.soak import first_failure, run_until_seen

SEEDS = range(40)
RARE = {
    "kill of the master in a step": 6,
    "transaction committed": 25,
    "transaction committed, as it turned out": 2,
    "transaction ended: TransactionAborted": 1,
    "transaction given up": 5,
    "transaction lost": 6,
    "transaction: drop_pin": 2,
    "transaction: drop_stagers": 2,
    "transaction: publish": 35,
}
"""A quarter of what is usual: what happens in a seed changes with the product."""


@pytest.mark.timeout(300)
def test_programs_commit_transactions_under_faults() -> None:
    run_until_seen(SEEDS, RARE, more=("transactions",))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "plant",
    [planted.tells_of_an_abort_that_is_none, planted.decides_any_attempt],
    ids=["tells_of_an_abort_that_is_none", "decides_any_attempt"],
)
def test_a_planted_bug_of_transactions_is_found(plant: Plant) -> None:
    match = "of transaction|was acknowledged and is not in the log"
    first_failure(range(40), plant, match=match, more=("transactions",))


@pytest.mark.timeout(300)
def test_an_epoch_that_is_finished_before_all_have_published_is_found() -> None:
    """The next one takes the place of what a participant had only pinned."""
    found_by = (16, 40, 53, 79, 99, 112)  # tried first: those that found it when it was planted
    seeds = (*found_by, *range(113))
    plant, match = planted.finishes_what_is_not_published, "was acknowledged and is not in the log"
    first_failure(seeds, plant, match=match, more=("transactions",))
