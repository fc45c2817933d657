"""A quick part of the fault matrix; `./run soak faults` has all of it.

Each round starts a real cluster behind proxies, strikes under load, and ends with both checkers
over every node's files. Faults share a round to save the start of a cluster.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.checking.exactly_once import Violation, check
from tests.checking.history import EndRead, Outcome, Send
from tests.checking.linearizability import NotLinearizable
from tests.faults.campaign import strike
from tests.faults.matrix import FAULTS
from tests.faults.run import Run, committed

SEED = 20_26
LONGEST_S = 1.0


def survive(directory: Path, *names: str) -> Run:
    """A run that is over and was found good."""
    rng = random.Random(SEED)
    with Run(directory, seed=SEED, crews=2) as run:
        for name in names:
            strike(run, FAULTS[name], rng, LONGEST_S)
        verdict = run.finish()
    assert set(verdict.faults) == set(names)
    assert verdict.explained > verdict.report.ok
    return run


def test_killed_frozen_and_cut_off_masters_and_the_checkers_can_fail(tmp_path: Path) -> None:
    run = survive(
        tmp_path / "run",
        "kill-master",
        "pause-master",
        "isolate-master-with-clients",
        "lose-answers",
        "kill-producers",
    )
    the_checkers_object_to_lies(run)


def the_checkers_object_to_lies(run: Run) -> None:
    """Real recordings with one lie each."""
    recording, logs = run.recording, run.logs
    folded = committed(logs)
    stored = [send for send in recording.history.of(Send) if send.outcome is Outcome.OK]
    newest = max(stored, key=lambda send: send.ended_s)

    invented = Send(
        client="liar",
        number=1,
        digest="0" * 16,
        began_s=1.0,
        ended_s=2.0,
        outcome=Outcome.OK,
        queue=newest.queue,
        offset=10**9,
    )
    recording.history.add(invented)
    with pytest.raises(Violation, match="loss"):
        check(recording.history, logs)
    recording.history.notes.remove(invented)

    offset, newest.offset = newest.offset, newest.offset + 1
    with pytest.raises(Violation, match="was acknowledged at"):
        check(recording.history, logs)
    newest.offset = offset

    assert newest.queue is not None
    stale = EndRead(
        client="liar",
        queue=newest.queue,
        began_s=newest.ended_s + 1,
        ended_s=newest.ended_s + 2,
        end_offset=max(0, offset - 50),
    )
    recording.history.add(stale)
    with pytest.raises(Violation, match="stale read"):
        check(recording.history, logs)
    with pytest.raises(NotLinearizable):
        recording.check_order(folded)
    recording.history.notes.remove(stale)

    recording.check_repeats()
    repeat = recording.repeats[0]
    for lie in ({"duplicate": False}, {"offset": repeat["offset"] + 1}):
        recording.repeats[0] = {**repeat, **lie}
        with pytest.raises(AssertionError):
            recording.check_repeats()
    recording.repeats[0] = repeat

    assert recording.outcomes, "nobody asked for an outcome"
    said = recording.outcomes[0]
    outcome, said["outcome"] = said["outcome"], "OUTCOME_NOT_COMMITTED"
    with pytest.raises(NotLinearizable, match="was answered, and the log holds"):
        recording.check_order(folded)
    said["outcome"] = outcome
    recording.check_order(folded)

    (operations,) = recording.operations.values()
    grants = [one for one in operations if one.what == "acquire" and one.answered]
    assert len(grants) > 3, "the probers got no locks"
    grants[-1].fields["token"] -= 1
    with pytest.raises(NotLinearizable):
        recording.check_order(folded)


def test_failing_and_hanging_disks_and_damaged_files(tmp_path: Path) -> None:
    survive(tmp_path / "run", "sync-fails", "sync-hangs", "flip-byte", "clock-jump-master")


def test_lost_damaged_and_unwritten_indexes_of_message_ids(tmp_path: Path) -> None:
    survive(tmp_path / "run", "lose-ids", "ids-disk-full", "flip-ids", "kill-master")


def test_garbage_and_damaged_streams(tmp_path: Path) -> None:
    survive(tmp_path / "run", "garbage", "corrupt-peers", "mute-master", "pause-consumers")


def test_a_fault_that_does_not_bite_is_no_pass(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    with pytest.raises(AssertionError, match="did not bite"):
        run.bit("a cut that held nothing", 0)


def test_faults_that_strike_the_same_victim_are_no_pair() -> None:
    for first, second in (
        ("kill-consumers", "pause-consumers"),
        ("pause-controller", "kill-controller"),
        ("isolate-slave", "cut-one-link"),
        ("kill-all", "clock-jump-master"),
        ("kill-producers", "garbage"),  # nothing is stored then that it could bite on
    ):
        assert not FAULTS[second].follows(FAULTS[first], 3)
    assert FAULTS["pause-consumers"].follows(FAULTS["kill-controller"], 3)
    assert FAULTS["kill-slave"].follows(FAULTS["pause-master"], 3)
