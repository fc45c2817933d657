"""Whole clusters under faults without a violation; every planted bug found; a seed repeats."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.sim import planted as raft_planted
from tests.world import planted, planted_members
from tests.world.plan import Plan, make_plan
from tests.world.planted import Plant, raft
from tests.world.run import run_plan
from tests.world.shrink import describe, shrink
from tests.world.soak import THIRD, first_failure, main, run_chunks, run_until_seen

SEEDS = 500
"""At most; the run ends before, once it has shown its share of everything rare."""
SEEDS_MIN = 150
ROOT = Path(__file__).resolve().parents[2]

# What must have happened over SEEDS seeds, at least so often: what never bites shows nothing.
RARE = {
    "at rest": SEEDS,
    "batch parked": 20,
    "checkpoint": 150,
    "commit of a lost lock": 15,
    "commit refused": 30,
    "controller crash": 20,
    "controller crash after a write": 5,
    "controller crash before a write": 5,
    "crash in allocate": 2,
    "crash in create": 3,
    "crash in remove": 1,
    "crash in rename": 3,
    "crash in sync": 8,
    "crash in syncdir": 3,
    "crash in write": 10,
    "damage found by the scrub": 1,
    "disk error in sync": 3,
    "disk error in write": 10,
    "disk full": 30,
    "disk stall": 35,
    "duplicate acknowledged": 60,
    "election": 500,
    "end read": 500,
    "entry repaired": 5,
    "isolated master": 30,
    "loader forgotten": 5,
    "loader read what is stored": 5,
    "loader resumed": 15,
    "kernel waited for at the end": 3,
    "lock released": 500,
    "loop woken late for a sync": 500,
    "log cleaned": 800,
    "long stop of the master": 15,
    "lost directory": 8,
    "lost write of the first vote": 2,
    "master without a group": 20,
    "member stop": 30,
    "membership changed": 60,
    "misdirected write of segment": 10,
    "misdirected write to another file": 4,
    "misdirected write within a file": 10,
    "one-way cut": 60,
    "operator: drained": 10,
    "operator: fenced all": 10,
    "operator: grew to 3": 5,
    "operator: grew to 5": 5,
    "operator: made and deleted a topic": 20,
    "operator: replaced a node": 10,
    "operator: transferred": 15,
    "outcome asked: committed": 15,
    "outcome asked: not committed": 15,
    "outcome asked: too old": 3,
    "outcome of a fence: committed": 15,
    "outcome of a fence: not committed": 15,
    "partition": 70,
    "planned restart": 30,
    "power cut of all": 40,
    "prior-term entry committed": 100,
    "producer expired": 40,
    "producer fenced": 10,
    "rot in checkpoint": 3,
    "rot in hard_state": 3,
    "rot in segment": 15,
    "send: DedupStateExpired": 3,
    "send: ProducerFenced": 6,
    "short system call": 2_000,
    "snapshot installed": 15,
    "stop of the master": 40,
    "sync by the kernel": 20_000,
    "trim": 300,
    "truncation": 15,
    "unknown message stored": 400,
    "wall clock jump": 30,
    "world of datagrams": 150,
    "world of streams": 150,
    "zombie": 15,
}


@pytest.mark.timeout(900)
def test_no_seed_breaks_a_promise_and_everything_rare_has_happened() -> None:
    seen: Counter[str] = Counter()
    failures: list[tuple[int, str]] = []
    for done, counters, failed, _ in run_chunks(0, SEEDS, os.cpu_count() or 1, more=(THIRD,)):
        seen += counters
        failures += failed
        missing = shares(done) - seen
        if failures or (done >= SEEDS_MIN and not missing):
            break
    assert not failures, "\n".join(f"seed {seed}: {error}" for seed, error in failures[:3])
    assert not missing, f"too rare, by so many: {dict(missing)}"


def shares(done: int) -> Counter[str]:
    """What must have happened in so many seeds, and everything rare at least once."""
    return Counter({event: -(-times * done // SEEDS) for event, times in RARE.items()})


def _fingerprints(hash_seed: str) -> str:
    found = subprocess.run(
        [sys.executable, "-m", "tests.world.soak", "--seeds", "0:3", "--fingerprints"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return found.stdout


@pytest.mark.timeout(300)
def test_a_seed_repeats_itself_exactly_in_every_process() -> None:
    first = _fingerprints("1")
    assert len(first.split()) == 6
    assert _fingerprints("2") == first


def test_the_trace_of_a_seed_repeats_itself_word_for_word() -> None:
    plan = make_plan(4)
    _, _, first = run_plan(plan, traced=True)
    _, _, second = run_plan(plan, traced=True)
    assert first == second
    assert any("nemesis" in line for line in first)
    assert any("serving as master" in line for line in first), "the product's own words are in it"


# Each with the theme that shows it, if it needs one, and how many seeds it may take.
PLANTS: list[tuple[Plant, str | None, int]] = [
    (planted.acknowledges_before_sync, None, 5),
    (planted.acknowledges_before_the_kernel_synced, None, 5),
    (planted.acknowledges_before_commit, None, 40),
    (planted.answers_duplicates_early, "deposed", 10),
    (planted.chains_anew_what_may_be_stored, None, 100),
    (planted.believes_a_vote_that_it_finds, "page cache", 20),
    (planted.cleans_live_records, None, 10),
    (planted_members.asks_only_whom_it_knows, "moved on", 10),
    (planted.counts_the_group_that_has_just_begun, None, 5),
    (planted.commits_under_any_token, "late commits", 5),
    (planted.drops_the_window_in_checkpoints, None, 30),
    (planted.forgets_the_table_in_checkpoints, None, 10),
    (planted.forgets_to_save_its_vote, None, 5),
    (planted.forgets_to_sync_checkpoints, "checkpoints", 5),
    (planted.forgets_to_sync_its_vote, None, 5),
    (planted.hears_of_a_sync_when_it_is_woken_for_nothing, None, 10),
    (planted.admits_before_it_has_applied, None, 10),
    (planted.admits_without_room_for_its_new_term, "deposed without room", 15),
    (planted.lets_log_time_fall, None, 20),
    (planted.lets_state_follow_a_snapshot_late, "left behind", 20),
    (planted.repairs_in_memory_only, "late rot", 5),
    (planted.moves_on_after_a_mere_read, None, 30),
    (planted.reads_without_a_quorum, "asleep", 5),
    (planted.scrubs_without_looking, "late rot", 5),
    (planted.serves_what_it_does_not_check, None, 80),  # rot that is read before it is scrubbed
    (planted.takes_a_failed_sync_for_one_that_is_done, "page cache", 10),
    (planted.takes_the_page_cache_for_the_disk, "page cache", 20),
    (planted_members.votes_after_losing_its_disk, "lost disk", 20),
    (planted.writes_the_rest_at_the_start, None, 5),
    (raft(raft_planted.CommitsBeforeOwnSync), None, 10),
    (raft(raft_planted.TruncatesWithoutConflict), None, 10),
    (raft(raft_planted.NeverTruncates), None, 30),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("plant", "theme", "seeds"), PLANTS, ids=[plant.__name__ for plant, _, _ in PLANTS]
)
def test_a_planted_bug_is_found(plant: Plant, theme: str | None, seeds: int) -> None:
    first_failure(range(seeds), plant, theme=theme)


@pytest.mark.timeout(300)
def test_a_failing_plan_is_shrunk_and_told() -> None:
    plant = planted.chains_anew_what_may_be_stored

    def fails(candidate: Plan) -> bool:
        return run_plan(candidate, plant=plant())[0] is None

    plan = next(plan for plan in map(make_plan, range(50, 100)) if fails(plan))
    small = shrink(plan, fails, runs_max=40)
    assert len(small.steps) < len(plan.steps)
    result, error, trace = run_plan(small, plant=plant(), traced=True)
    assert result is None
    assert error
    assert trace
    assert describe(small).count("\n") >= len(small.steps)
    assert run_plan(small, plant=plant())[1] == error, "it fails the same way again"


def test_a_search_for_what_never_happens_ends_and_says_so() -> None:
    with pytest.raises(AssertionError, match=r"too rare in 2 seeds, by so many: \{'nothing': 3\}"):
        run_until_seen(range(2), {"nothing": 3})


def test_soak_says_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3:5"]) == 0
    told = capsys.readouterr().out
    assert "2 seeds, 0 failed" in told
    assert "election" in told


def test_soak_shows_one_seed_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3:4", "--trace"]) == 0
    told = capsys.readouterr().out
    assert "faults:" in told
    assert told.endswith("no failure\n")


def test_soak_refuses_an_empty_range(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--seeds", "5:5"])
    assert "A < B" in capsys.readouterr().err
