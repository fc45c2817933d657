"""Whole clusters whose queues are split under faults: nothing lost, twice or out of order."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import Any

import pytest

from semel.broker.state.producers import SequenceTable
from tests.world.plan import make_plan, with_splits
from tests.world.run import run_plan

SEEDS = 4


@pytest.mark.timeout(300)
def test_queues_are_split_under_faults() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        result, error, _ = run_plan(with_splits(make_plan(seed)))
        assert result is not None, f"seed {seed}: {error}"
        seen += result.seen
    assert seen["queue split"] > SEEDS


@contextmanager
def planted(target: Any, name: str, value: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, value)
        yield


def children_inherit_nothing() -> Any:
    """A retry, or a loader that starts again, meets an empty table."""
    return planted(SequenceTable, "inherit", lambda *_: None)


@pytest.mark.timeout(300)
def test_a_planted_bug_of_splits_is_found() -> None:
    """Others need many seeds here, and are found by the histories of one queue alone."""
    for seed in range(10):
        plan = with_splits(make_plan(seed))
        result, error, _ = run_plan(plan, plant=children_inherit_nothing())
        if result is None:
            assert "the simulator itself" not in error, error
            return
    pytest.fail("children that inherit nothing survived 10 seeds")
