"""Clusters at two sites: what was copied is promoted whole, once, and as the source had it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.world import planted_mirrors as planted
from tests.world.planted import Plant
from tests.world.stories import failure_of, until_seen
from tests.world.two_sites import run_sites

RARE = {
    "at rest": 3,
    "fail-over: lost": 1,
    "fail-over: alive": 1,
    "fail-over: planned": 1,
    "queue promoted": 5,
    "message promoted": 60,
    "delayed message promoted": 5,
    "row of a producer promoted": 6,
    "group promoted": 3,
    "slice settled": 10,
    "mirror crash": 1,
    "mirror ended by another one": 1,
    "mirror: message behind the promoted slice": 2,
    "message lost with its site": 20,
    "site cut": 1,
    "loader resumed": 2,
}
SEEDS = (3, 5, 14, 6, 8, 9, 10, 11, 20, 21)


@pytest.mark.timeout(300)
def test_a_promoted_cluster_goes_on_where_its_source_was() -> None:
    until_seen(run_sites, SEEDS, Counter(RARE))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("plant", "told", "seeds"),
    [
        (planted.settles_without_looking, "its copies end at", SEEDS),
        (planted.settles_parents_first, "has no slice", SEEDS[3:]),  # of a topic that is split
        (planted.keeps_the_first_slice, "the log says", SEEDS),
        (planted.forgets_producers, "nobody knows the producer", SEEDS),
        (planted.lets_groups_run_ahead, "at the source", SEEDS),
        (planted.gives_tokens_out_again, "belongs to", SEEDS),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_planted_bug_of_mirrors_is_found(plant: Plant, told: str, seeds: Sequence[int]) -> None:
    assert told in failure_of(run_sites, seeds, plant)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("plant", "seeds"),
    [
        (planted.keeps_what_is_behind_the_slice, range(7, 12)),
        (planted.forgets_what_is_delayed, range(9, 12)),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_planted_bug_that_halts_nodes_is_found(plant: Plant, seeds: range) -> None:
    """As whatever the next thing is that breaks."""
    assert failure_of(run_sites, seeds, plant)
