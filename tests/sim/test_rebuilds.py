"""Slaves replace their logs by snapshots, and nothing that they acknowledged is lost."""

from __future__ import annotations

from collections import Counter

import pytest

from semel.broker.raft import RaftCore
from tests.sim.planted import assert_caught
from tests.sim.rebuilds import run_rebuilds

SEEDS = 60
RARE = {"rebuild": 60, "rebuilt": 35, "election": 100, "truncation": 20, "settled": SEEDS}


class ForgetsWhatItAcknowledged(RaftCore):
    """A snapshot of what is committed here is taken to be enough."""

    def begin_rebuild(self) -> int | None:
        return None if super().begin_rebuild() is None else self.commit_index


class AcknowledgesMeanwhile(RaftCore):
    """Entries that come during the pull are taken, and vanish with the log."""

    def begin_rebuild(self) -> int | None:
        least = super().begin_rebuild()
        self.rebuilding = least is not None
        self._installing = False
        return least

    def on_snapshot_installed(self, *arguments: object) -> None:
        self._installing = True
        super().on_snapshot_installed(*arguments)  # type: ignore[arg-type]


def test_no_seed_loses_what_was_acknowledged() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        seen += run_rebuilds(seed).checker.seen
    missing = Counter(RARE) - seen
    assert not missing, f"too rare, by so many: {dict(missing)}"


@pytest.mark.parametrize(
    ("bug", "seeds"), [(ForgetsWhatItAcknowledged, 60), (AcknowledgesMeanwhile, 60)]
)
def test_a_planted_bug_is_caught(bug: type[RaftCore], seeds: int) -> None:
    assert_caught(bug, run_rebuilds, seeds)
