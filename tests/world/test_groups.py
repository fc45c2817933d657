"""Whole clusters in which consumer groups are deleted while queues move: they stay away."""

from __future__ import annotations

import pytest

from tests.world import planted
from tests.world.soak import first_failure, run_until_seen

WORLDS = 6
RARE = {"at rest": WORLDS, "group deleted": 10, "move: activated": 6}
FOUND_BY = (0, 18, 25, 47, 52, 54)
"""Seeds that are tried first: those that found the planted bug when it was planted."""
MORE = ("groups", "moves")


@pytest.mark.timeout(300)
def test_deleted_groups_stay_away_wherever_queues_go() -> None:
    run_until_seen(range(60), RARE, more=MORE)


@pytest.mark.timeout(300)
def test_a_group_that_a_move_brings_back_is_found() -> None:
    seeds = (*FOUND_BY, *range(60))
    plant = planted.asks_once_to_delete_a_group
    first_failure(seeds, plant, match="knows deleted groups", more=MORE)
