"""Whole clusters in which more nodes are empty than may be: no group is founded a second time."""

from __future__ import annotations

import pytest

from tests.world import planted_members
from tests.world.planted import Plant
from tests.world.soak import first_failure, run_seeds, run_until_seen

SEEDS = 15
"""Three of each story, at most."""
RARE = {
    "at rest": 5,
    "founder away since the founding": 1,
    "founding record lost": 1,
    "death before it is fed": 1,
    "death while it is fed": 1,
    "group begun anew": 1,
    "lost directory beside a late founder": 1,
    "lost directory of a founder": 1,
    "stranger at a member's address": 1,
}


@pytest.mark.timeout(300)
def test_no_group_is_founded_twice_under_faults() -> None:
    run_until_seen(range(SEEDS), RARE, more=("foundings",))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("plant", "seeds"),
    [
        (planted_members.founds_with_a_majority_of_empty_nodes, range(0, 50, 5)),
        (planted_members.counts_strangers, range(16, 116, 10)),
        (planted_members.founders_of_one_begin_again, range(18, 118, 10)),
        (planted_members.asks_only_whom_it_knows, range(3, 103, 5)),
        (planted_members.removes_its_mark_before_it_has_caught_up, range(7, 107, 10)),
    ],
)
def test_a_planted_bug_of_foundings_is_found(plant: Plant, seeds: range) -> None:
    """In the story that is about it; its first seeds are whole without the bug."""
    first_failure(seeds, plant, more=("foundings",))
    for seed in seeds[:2]:
        _, failures, _ = run_seeds([seed], more=("foundings",))
        assert not failures
