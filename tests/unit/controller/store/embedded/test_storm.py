"""Whole groups in a simulated world; `./run soak metadata` runs many more seeds."""

from __future__ import annotations

from collections import Counter

from tests.unit.controller.store.embedded.storm import storm


def test_nothing_is_lost_or_doubled_whatever_happens() -> None:
    counts: Counter[str] = Counter()
    for seed in range(5):
        counts += storm(seed, duration_s=15.0).counts
    for seed in (100,):
        counts += storm(seed, size=5, duration_s=8.0).counts
    for bite in ("crashes", "pauses", "cuts", "lost disks", "states", "conflicts"):
        assert counts[bite] >= 1, f"{bite} did not bite"
    assert counts["writes"] > 300
    assert counts["reads"] > 200


def test_a_seed_replays_its_run() -> None:
    first, second = (storm(5, duration_s=6.0) for _ in range(2))
    assert first.counts == second.counts
    assert first.masters == second.masters
    assert first.written == second.written
