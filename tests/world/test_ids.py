"""Whole clusters whose topics compare message ids: each id once within its window, and no other
message dropped."""

from __future__ import annotations

import pytest

from tests.world.planted_ids import PLANTS
from tests.world.soak import first_failure, run_seeds, run_until_seen

SEEDS = range(45)
RARE = {
    "at rest": 12,
    "conflict refused": 15,
    "damage of an index noticed": 1,
    "duplicate dropped": 300,
    "id evicted": 200,
    "id stored": 300,
    "ids missing in an index": 20,
    "index damaged": 1,
    "index disk full": 1,
    "index lost": 2,
    "index refused for want of room": 8,
}
"""A quarter of what is usual, or less."""


@pytest.mark.timeout(300)
def test_ids_are_stored_once_under_faults() -> None:
    run_until_seen(SEEDS, RARE, more=("ids",))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "others",
    [("splits",), ("delays",), ("moves",), ("transactions", "upgrades")],
    ids=",".join,
)
def test_ids_beside(others: tuple[str, ...]) -> None:
    wanted = {"at rest": 2, "id stored": 4}
    wanted |= {"queue split": 1} if "splits" in others else {}
    run_until_seen(range(4, 8), wanted, more=("ids", *others))


@pytest.mark.timeout(300)
def test_a_run_with_ids_repeats_itself() -> None:
    prints = [run_seeds([3], more=("ids",))[2] for _ in range(2)]
    assert prints[0] == prints[1]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_of_ids_is_found(name: str) -> None:
    plant, told, seeds = PLANTS[name]
    first_failure(seeds, plant, match=told, more=("alone", "ids"))
