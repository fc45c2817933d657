"""Whole clusters with three controllers: one decides at a time, and nobody obeys an old one."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.world import planted
from tests.world.plan import make_plan, with_controllers
from tests.world.planted import Plant
from tests.world.run import run_plan

SEEDS = (0, 8, 12, 13, 17, 22)
"""Chosen so that the rarest things happen in a few worlds."""
RARE = {
    "controller crash": 2,
    "controller cut off from the store": 1,
    "controller stop": 1,
    "controller unheard": 2,
    "mastership laid down": 1,
    "office taken": 2 * len(SEEDS),
    "office taken from a living controller": 1,
    "operator: made and deleted a topic": 2 * len(SEEDS),
}


@pytest.mark.timeout(300)
def test_controllers_replace_each_other_under_faults() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        result, error, _ = run_plan(with_controllers(make_plan(seed)))
        assert result is not None, f"seed {seed}: {error}"
        seen += result.seen
    missing = Counter(RARE) - seen
    assert not missing, f"too rare, by so many: {dict(missing)}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (planted.writes_without_its_office, "has office"),
        (planted.obeys_replaced_controllers, "obeys office"),
    ],
    ids=["writes_without_its_office", "obeys_replaced_controllers"],
)
def test_a_planted_bug_of_controllers_is_found(plant: Plant, said: str) -> None:
    for seed in range(10):
        result, error, _ = run_plan(with_controllers(make_plan(seed)), plant=plant())
        if result is None:
            assert said in error, error
            return
    pytest.fail(f"{plant.__name__} survived 10 seeds")
