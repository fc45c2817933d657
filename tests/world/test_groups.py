"""Whole clusters in which consumer groups are deleted while queues move: they stay away."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.world import planted
from tests.world.soak import first_failure, run_seeds

SEEDS = (0, 18, 25, 47, 52, 54)
"""Chosen because the planted bug shows in each of them."""
MORE = ("groups", "moves")


@pytest.mark.timeout(300)
def test_deleted_groups_stay_away_wherever_queues_go() -> None:
    seen, failures, _ = run_seeds(SEEDS, more=MORE)
    assert not failures
    missing = Counter({"group deleted": 10, "move: activated": 6}) - seen
    assert not missing, f"too rare, by so many: {dict(missing)}"


@pytest.mark.timeout(300)
def test_a_group_that_a_move_brings_back_is_found() -> None:
    said = first_failure(SEEDS, planted.asks_once_to_delete_a_group, more=MORE)
    assert "knows deleted groups" in said
