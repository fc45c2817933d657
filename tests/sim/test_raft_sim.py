"""500 seeds of faults without a broken invariant, and every planted bug caught."""

from __future__ import annotations

from collections import Counter

import pytest

from semel.broker.raft import RaftCore
from tests.sim import planted
from tests.sim.cluster import run_seed
from tests.sim.soak import main, run_seeds

SEEDS = 500

# What must have happened over all seeds, at least so often: a fault that never fires shows nothing.
RARE = {
    "election": 1000,
    "prior-term entry committed": 500,
    "truncation": 200,
    "snapshot installed": 100,
    "partition": 500,
    "one-way cut": 500,
    "crash": 1000,
    "crash between write and sync": 200,
    "pause": 300,
    "disk stall": 100,
    "compaction": 500,
    "membership change": 300,
    "membership change with a learner": 150,
    "transfer": 200,
    "stale sync completion": 30,
    "read": 3000,
    "read failed": 300,
    "settled": SEEDS,
}


@pytest.mark.timeout(600)
def test_no_seed_breaks_an_invariant_and_every_fault_has_fired() -> None:
    seen, failures = run_seeds(range(SEEDS))
    assert not failures, "\n".join(f"seed {seed}: {error}" for seed, error in failures[:3])
    missing = Counter(RARE) - seen
    assert not missing, f"too rare, by so many: {dict(missing)}"


def test_a_seed_repeats_itself_exactly() -> None:
    first, second = run_seed(11), run_seed(11)
    assert first.checker.seen == second.checker.seen
    assert first.events == second.events
    assert [node.digest for node in first.nodes.values()] == [
        node.digest for node in second.nodes.values()
    ]


@pytest.mark.parametrize(
    ("bug", "seeds"),
    [
        (planted.CommitsBeforeOwnSync, 20),
        (planted.AcknowledgesBeforeSync, 5),
        (planted.TellsVoteBeforeSync, 5),
        (planted.VotesTwice, 20),
        (planted.VotesForOldLogs, 30),
        (planted.ComparesLogsByLength, 200),
        (planted.CommitsPriorTermsByCounting, 100),
        (planted.TruncatesWithoutConflict, 10),
        (planted.NeverTruncates, 20),
        (planted.CommitsBeyondMatched, 100),
        (planted.MatchesWithoutLooking, 50),
        (planted.ReadsWithoutAsking, 100),
        (planted.ReadsBeforeOwnCommit, 50),
        (planted.ChangesMembersTooEarly, 200),
        (planted.KeepsTruncatedMembership, 50),
        (planted.NeverLooksForLosses, 50),
    ],
)
def test_a_planted_bug_is_caught(bug: type[RaftCore], seeds: int) -> None:
    planted.assert_caught(bug, run_seed, seeds)


def test_soak_says_which_seeds_failed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3:5"]) == 0
    assert "2 seeds, 0 failed" in capsys.readouterr().out


def test_soak_refuses_an_empty_range(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--seeds", "5:5"])
    assert "A < B" in capsys.readouterr().err
