"""Whole clusters whose older messages are in an object store: nothing is lost or read wrongly,
whatever fails, and the store ends clean."""

from __future__ import annotations

import pytest

from tests.world import planted_tiers as planted
from tests.world.planted import Plant
from tests.world.soak import first_failure, run_until_seen

RARE = {
    "at rest": 5,
    "manifest decided": 100,
    "manifest with pages decided": 10,
    "files of a tier merged": 10,
    "extents forgotten": 50,
    "object deleted": 100,
    "queue read from its start": 40,
    "queue read without brokers": 40,
    "old manifest: InvalidRequest": 3,
    "kill of the master": 8,
}


@pytest.mark.timeout(300)
def test_nothing_is_lost_in_the_tier_under_faults() -> None:
    run_until_seen(range(100, 116), RARE, more=("tiers",))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "others",
    [("splits", "ids"), ("moves",), ("transactions", "delays"), ("deletions",)],
    ids=",".join,
)
def test_tiers_beside(others: tuple[str, ...]) -> None:
    wanted = {"at rest": 2, "manifest decided": 10}
    run_until_seen(range(4), wanted, more=(*others, "tiers"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("plant", "told", "seeds"),
    [
        (planted.takes_any_number, "does not follow", range(8)),
        (planted.forgets_what_is_not_tiered, "its tier ends at", range(4)),
        (planted.believes_that_puts_succeed, "not whole|is damaged", range(14, 22)),
        (planted.collects_by_copies_alone, "is deleted|not there", range(4, 50)),
        (planted.collects_young_objects, "is deleted|not there", range(12)),
        (planted.loses_the_last_row, "tier:", range(4)),
        (planted.names_by_content_alone, "is deleted|not there", range(318, 325)),
    ],
    ids=["number", "forget", "read back", "copies", "young", "row", "names"],
)
def test_a_planted_bug_of_tiers_is_found(plant: Plant, told: str, seeds: range) -> None:
    first_failure(seeds, plant, match=told, more=("tiers",))


@pytest.mark.timeout(300)
def test_files_that_a_deletion_leaves_behind_are_found() -> None:
    plant = planted.remembers_no_deletions
    first_failure(
        range(5, 20), plant, match="unfinished clients: .'ja1'", more=("deletions", "tiers")
    )
