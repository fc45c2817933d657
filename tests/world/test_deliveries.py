"""Consumers that reject messages, in whole simulated clusters: nothing lost, nothing twice."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.world.parts.deliveries import (
    PROCESSED,
    REJECTED,
    RETRIED,
    Decisions,
    judge,
    main,
    run_delivery,
)
from tests.world.planted_copies import PLANTS

SEEDS = 12
"""At most; a test ends before, once everything rare has happened."""
SEEDS_MIN = 4
RARE = {
    "dead letter": 120,
    "sorter crash": 2,
    "lock released": 20,
    "copies skipped": 3,
    "commit given up": 30,
}
FOUND_BY: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    "forgets copies": ((0,), ()),
    "commits first": ((0,), ()),
    "ends nobody": ((6,), ("redrive",)),
    "intends late": ((0,), ()),
    "looks where it would copy": ((0,), ("policies",)),
    "forgets the older copies": ((3,), ("policies",)),
    "trusts rows": ((19,), ()),
    "reads the ledger first": ((7,), ("redrive",)),
    "redrives without a record": ((3,), ("redrive",)),
    "writes down first": ((5,), ("redrive",)),
    "commits past copies under way": ((6,), ()),
    "commits past a seek back": ((5,), ()),
}
"""Seeds that are tried first, those that found the planted bug before; and what the plans have
besides."""


@pytest.mark.timeout(300)
def test_every_message_is_processed_or_a_dead_letter_and_never_both() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        counts, failure = run_delivery(seed)
        assert not failure, f"seed {seed}: {failure}"
        seen += counts
        if seed >= SEEDS_MIN - 1 and not Counter(RARE) - seen:
            break
    missing = Counter(RARE) - seen
    assert not missing, f"too rare, by so many: {dict(missing)}"


@pytest.mark.parametrize("seed", [122])
def test_a_lock_that_is_acquired_again_while_it_is_taken_over_stays_usable(seed: int) -> None:
    """The slower, older take-over ended last, and left notes that nobody could write to."""
    assert run_delivery(seed)[1] == ""


@pytest.mark.parametrize("seed", [93, 102])
def test_the_end_is_not_asked_of_a_master_that_was_stopped(seed: int) -> None:
    """It takes itself for the master, and knows of nothing that came since."""
    assert run_delivery(seed)[1] == ""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    seeds, more = FOUND_BY[name]
    for seed in (*seeds, *range(60)):
        failure = run_delivery(seed, *more, plant=PLANTS[name]())[1]
        if failure.startswith("deliveries: "):
            return
    pytest.fail(f"{name} survived")


@pytest.mark.parametrize(
    "more",
    [
        ("retries",),
        ("moves",),
        ("retries", "moves", "delays"),
        ("policies", "idle"),
        ("redrive", "splits"),
        ("moves", "redrive"),
        ("policies", "idle", "moves", "redrive", "splits"),
    ],
    ids=",".join,
)
@pytest.mark.timeout(300)
def test_messages_are_tried_again_or_moved_meanwhile(more: tuple[str, ...]) -> None:
    wanted = {
        f"message {RETRIED}": 21 * ("retries" in more),
        "move: activated": 1 * ("moves" in more),
        "letter brought back": 1 * ("redrive" in more),
        "producer expired": 101 * ("idle" in more),
        "redrive went on": 1 * (more == ("moves", "redrive")),
    }
    seen: Counter[str] = Counter()
    for seed in range(4):
        counts, failure = run_delivery(seed, *more)
        assert not failure, f"seed {seed}: {failure}"
        seen += counts
        if seed and not Counter(wanted) - seen:
            break
    missing = Counter(wanted) - seen
    assert not missing, f"too rare, by so many: {dict(missing)}"


PLACE = (0, 1)


@pytest.mark.parametrize(
    ("made", "acknowledged", "dead", "wrong"),
    [
        ((), (), 0, "skipped"),
        ((REJECTED,), (), 2, "2 dead letters"),
        ((REJECTED, PROCESSED), (REJECTED,), 0, "rejected for certain"),
        ((REJECTED, PROCESSED), (PROCESSED,), 1, "processed for certain"),
        ((PROCESSED,), (), 1, "nobody rejected"),
        ((REJECTED,), (), 0, "lost"),
        ((RETRIED,), (), 0, "lost"),
        ((REJECTED, PROCESSED), (), 1, ""),
        ((REJECTED, PROCESSED), (), 0, ""),
    ],
)
def test_the_judge_sees_what_is_wrong(
    made: tuple[str, ...], acknowledged: tuple[str, ...], dead: int, wrong: str
) -> None:
    decisions = Decisions()
    if made:
        decisions.made[PLACE][1] = set(made)
    decisions.acknowledged[PLACE][1] = set(acknowledged)
    decisions.dead = [PLACE] * dead
    found = judge(decisions, {PLACE})
    assert wrong in found
    assert bool(found) == bool(wrong)


@pytest.mark.parametrize(
    ("first", "certain", "second", "dead", "wrong"),
    [
        (RETRIED, RETRIED, PROCESSED, 0, ""),
        (RETRIED, "", RETRIED, 1, ""),
        (RETRIED, RETRIED, "", 0, "and never came"),
        (PROCESSED, PROCESSED, PROCESSED, 0, "decided for certain in attempt 1, and came again"),
        (PROCESSED, "", PROCESSED, 0, "nobody asked for it"),
        (RETRIED, "", PROCESSED, 1, "nobody rejected"),
    ],
)
def test_the_judge_follows_further_attempts(
    first: str, certain: str, second: str, dead: int, wrong: str
) -> None:
    decisions = Decisions()
    decisions.attempts_max = 2
    decisions.made[PLACE][1] = {first}
    decisions.acknowledged[PLACE][1] = {certain}
    if second:
        decisions.made[PLACE][2] = {second}
    decisions.dead = [PLACE] * dead
    found = judge(decisions, {PLACE})
    assert wrong in found
    assert bool(found) == bool(wrong)


def test_the_judge_sees_an_attempt_that_was_copied_twice() -> None:
    decisions = Decisions()
    decisions.made[PLACE][1] = {PROCESSED}
    decisions.copies[PLACE, 2] = {("retry", 0, 1), ("retry", 1, 0)}
    decisions.dead = []
    assert "more than once" in judge(decisions, {PLACE})


def test_soak_says_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3:4"]) == 0
    assert "1 seeds, 0 failed" in capsys.readouterr().out
