"""Whole clusters whose topics compare message ids: each id once within its window, and no other
message dropped."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.world.planted_ids import PLANTS
from tests.world.soak import first_failure, run_seeds

SEEDS = range(45)
RARE = {
    "at rest": 30,
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
    seen, failures, _ = run_seeds(SEEDS, more=("ids",))
    assert not failures
    missing = Counter(RARE) - seen
    assert not missing, f"too rare, by so many: {dict(missing)}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "others",
    [("splits",), ("delays",), ("moves",), ("transactions", "upgrades")],
    ids=",".join,
)
def test_ids_beside(others: tuple[str, ...]) -> None:
    seen, failures, _ = run_seeds(range(4, 8), more=("ids", *others))
    assert not failures
    assert seen["id stored"] >= 4
    assert seen["queue split"] or "splits" not in others


@pytest.mark.timeout(300)
def test_a_run_with_ids_repeats_itself() -> None:
    prints = [run_seeds([3], more=("ids",))[2] for _ in range(2)]
    assert prints[0] == prints[1]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_of_ids_is_found(name: str) -> None:
    plant, told, seeds = PLANTS[name]
    first_failure(seeds, plant, match=told, more=("alone", "ids"))
