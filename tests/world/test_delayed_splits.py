"""Whole clusters whose queues are split while messages of theirs wait: each comes once, none early,
in order; cancelled ones never."""

from __future__ import annotations

import pytest

from tests.world.planted_delayed_splits import PLANTS, PLANTS_OF_IDS
from tests.world.soak import first_failure, run_seeds, run_until_seen

SPLITS = ("splits", "parting", "delays")
IDS = ("alone", "ids", "waiting", "splits")
BROKEN = ("alone", "ids", "waiting", "parting")
RARE = {
    "delayed batch of several children parted": 5,
    "delayed batches parted": 80,
    "delayed messages released": 90,
    "kill of the master": 6,
    "queue split": 18,
}
"""A quarter of what is usual, or less."""


@pytest.mark.timeout(600)
def test_queues_are_split_with_delayed_messages_under_faults() -> None:
    run_until_seen(range(14), RARE, more=SPLITS)


@pytest.mark.timeout(600)
def test_messages_are_cancelled_while_their_queues_are_split() -> None:
    seen, failures, _ = run_seeds((13, 16), more=BROKEN)
    assert not failures
    assert seen["delayed batches parted"]
    wanted = {"at rest": 4, "delayed message cancelled": 3, "delayed batches parted": 1}
    run_until_seen(range(12), wanted, more=IDS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_of_delayed_splits_is_found(name: str) -> None:
    plant, told, seeds = PLANTS[name]
    first_failure(seeds, plant, match=told, more=SPLITS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PLANTS_OF_IDS)
def test_a_planted_bug_of_cancelled_messages_is_found(name: str) -> None:
    plant, told, seeds = PLANTS_OF_IDS[name]
    first_failure(seeds, plant, match=told, more=IDS)
