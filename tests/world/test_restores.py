"""Clusters that are lost with all machines and restored from their tiers: what was tiered reads the
same, offsets and sequences go on, and what is sent again is stored exactly if it was lost."""

from __future__ import annotations

from collections import Counter
from unittest.mock import patch

import pytest

from tests.world import planted_restores as planted
from tests.world.lost_cluster import Comeback
from tests.world.planted import Plant
from tests.world.stories import failure_of, until_seen
from tests.world.two_lives import run_lives

RARE = {
    "at rest": 4,
    "queue restored": 6,
    "message restored": 60,
    "message lost": 60,
    "row of a producer restored": 8,
    "group restored": 3,
    "restore goes on later": 2,
    "loader resumed": 2,
    "manifest decided": 20,
}


@pytest.mark.timeout(300)
def test_a_restored_cluster_goes_on_where_its_tier_ended() -> None:
    until_seen(run_lives, range(20), Counter(RARE))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("plant", "told", "seeds"),
    [
        (planted.counts_lost_messages_as_stored, "is lost", range(2)),
        (planted.forgets_what_is_stored, "is there", range(2)),
        (planted.publishes_before_the_facts, "were tiered", range(3, 5)),
        (planted.keeps_progress_beyond_the_end, "it had read", range(2)),
    ],
    ids=["lost", "stored", "published", "progress"],
)
def test_a_planted_bug_of_restores_is_found(plant: Plant, told: str, seeds: range) -> None:
    assert told in failure_of(run_lives, seeds, plant)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("plant", "told"),
    [
        (planted.counts_lost_messages_as_stored, "loss: "),
        (planted.forgets_what_is_stored, "duplicate: "),
        (planted.keeps_progress_beyond_the_end, "was never given"),
    ],
    ids=["lost", "stored", "progress"],
)
def test_clients_of_the_second_life_find_it_too(plant: Plant, told: str) -> None:
    """Without looking at what came back: by what they send, read and commit."""
    with patch.object(Comeback, "wrong", lambda self: ""):
        assert told in failure_of(run_lives, range(2), plant)
