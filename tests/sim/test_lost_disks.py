"""Nodes lose their disks, and nothing that was committed with their help is lost with them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from semel.broker.raft import Message, RaftCore
from semel.broker.raft.progress import Progress
from tests.sim.lost_disks import run_lost_disks
from tests.sim.planted import assert_caught

SEEDS = 60
RARE = {"disk lost": 60, "readmission": 60, "election": 100, "snapshot installed": 20}


class CountsTheNonCounting(RaftCore):
    """A master believes what a node says that has forgotten what it said before."""

    def _hear_peer(self, message: Message) -> Progress | None:
        return super()._hear_peer(replace(message, non_counting=False))


class VotesAfterForgetting(RaftCore):
    """A node whose disk was lost votes and is counted at once."""

    def set_non_counting(self, non_counting: bool) -> None:
        pass


def test_no_seed_loses_what_was_committed() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        seen += run_lost_disks(seed).checker.seen
    missing = Counter(RARE) - seen
    assert not missing, f"too rare, by so many: {dict(missing)}"


@pytest.mark.parametrize(("bug", "seeds"), [(CountsTheNonCounting, 60), (VotesAfterForgetting, 60)])
def test_a_planted_bug_is_caught(bug: type[RaftCore], seeds: int) -> None:
    assert_caught(bug, run_lost_disks, seeds)
