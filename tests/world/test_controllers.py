"""Whole clusters with three controllers: one decides at a time, and nobody obeys an old one."""

from __future__ import annotations

import pytest

from tests.world import planted
from tests.world.planted import Plant
from tests.world.soak import first_failure, run_until_seen

WORLDS = 8
SEEDS = range(80)
"""Tried in order, `WORLDS` at least, until everything rare has happened."""
RARE = {
    "at rest": WORLDS,
    "controller crash": 2,
    "controller cut off from the store": 1,
    "controller stop": 1,
    "answer of the store lost": 1,
    "controller unheard": 2,
    "outcome unknown": 1,
    "epoch begun": 2 * WORLDS,
    "epoch taken from a living controller": 1,
    "operator: made and deleted a topic": 2 * WORLDS,
}


@pytest.mark.timeout(300)
def test_controllers_replace_each_other_under_faults() -> None:
    run_until_seen(SEEDS, RARE, more=("controllers",))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (planted.writes_without_its_epoch, "has epoch"),
        (planted.obeys_replaced_controllers, "obeys controller epoch"),
    ],
    ids=["writes_without_its_epoch", "obeys_replaced_controllers"],
)
def test_a_planted_bug_of_controllers_is_found(plant: Plant, said: str) -> None:
    first_failure(SEEDS, plant, match=said, more=("controllers",))


@pytest.mark.timeout(300)
def test_tables_that_are_trusted_after_an_unknown_outcome_are_found() -> None:
    plant = planted.trusts_its_tables_after_an_unknown_outcome
    more = ("controllers", "moves")
    first_failure(range(200, 340), plant, match="not at rest", more=more)
