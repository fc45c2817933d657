"""Consumers that reject messages, in whole simulated clusters: nothing lost, nothing twice."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.world.deliveries import (
    PLANTS,
    PROCESSED,
    REJECTED,
    Decisions,
    judge,
    main,
    run_delivery,
)

SEEDS = 6
RARE = {"dead letter": 60, "sorter crash": 1, "lock released": 10}
FOUND_BY = {"forgets copies": (1, 11), "commits first": (6, 14)}
"""Seeds that are tried first: those that found the planted bug when it was planted."""


@pytest.mark.timeout(300)
def test_every_message_is_processed_or_a_dead_letter_and_never_both() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        counts, failure = run_delivery(seed)
        assert not failure, f"seed {seed}: {failure}"
        seen += counts
    missing = Counter(RARE) - seen
    assert not missing, f"too rare, by so many: {dict(missing)}"


@pytest.mark.parametrize("seed", [122])
def test_a_lock_that_is_acquired_again_while_it_is_taken_over_stays_usable(seed: int) -> None:
    """The slower, older take-over ended last, and left notes that nobody could write to."""
    assert run_delivery(seed)[1] == ""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    for seed in (*FOUND_BY[name], *range(60)):
        failure = run_delivery(seed, PLANTS[name]())[1]
        if failure.startswith("deliveries: "):
            return
    pytest.fail(f"{name} survived")


@pytest.mark.parametrize(
    ("made", "acknowledged", "dead", "wrong"),
    [
        ((), (), 0, "skipped"),
        ((REJECTED,), (), 2, "2 dead letters"),
        ((REJECTED, PROCESSED), (REJECTED,), 0, "rejected for certain"),
        ((REJECTED, PROCESSED), (PROCESSED,), 1, "processed for certain"),
        ((PROCESSED,), (), 1, "nobody rejected"),
        ((REJECTED,), (), 0, "lost"),
        ((REJECTED, PROCESSED), (), 1, ""),
        ((REJECTED, PROCESSED), (), 0, ""),
    ],
)
def test_the_judge_sees_what_is_wrong(
    made: tuple[str, ...], acknowledged: tuple[str, ...], dead: int, wrong: str
) -> None:
    decisions = Decisions()
    if made:
        decisions.made[0, 1] = set(made)
    decisions.acknowledged[0, 1] = set(acknowledged)
    decisions.dead = [(0, 1)] * dead
    found = judge(decisions, {(0, 1)})
    assert wrong in found
    assert bool(found) == bool(wrong)


def test_soak_says_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3:4"]) == 0
    assert "1 seeds, 0 failed" in capsys.readouterr().out
