"""Whole clusters over which a query is copied by several programs: each epoch once, in order."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import pytest

from semel.broker.state.apply.coordination import Coordination
from tests.world.planted import Plant
from tests.world.soak import first_failure, run_until_seen

SEEDS = range(30)
RARE = {
    "driver overtaken": 9,
    "driver stop": 4,
    "epoch committed": 12,
    "epoch committed again": 5,
    "epoch staged again": 2,
    "impostor refused": 9,
    "receipt lost": 4,
    "stage aborted": 2,
}
"""A quarter of what is usual: what happens in a seed changes with the product."""


def _planted_begin(change: Any) -> AbstractContextManager[object]:
    """`change` is called with the row and the record before an attempt begins."""
    real = Coordination.begin

    def begin(self: Any, record: Any, now_us: int) -> Any:
        row = self.rows.get(record.transaction_id)
        if row is not None:
            change(row, record)
        return real(self, record, now_us)

    return patch.object(Coordination, "begin", begin)


def serves_any_query() -> AbstractContextManager[object]:
    """An id belongs to whoever comes."""

    def change(row: Any, record: Any) -> None:
        row.query_id = record.query_id

    return _planted_begin(change)


def forgets_the_last_epoch() -> AbstractContextManager[object]:
    """The newest committed epoch may be committed again."""

    def change(row: Any, record: Any) -> None:
        if record.HasField("epoch") and record.epoch == row.epoch and row.published:
            row.epoch -= 1

    return _planted_begin(change)


@pytest.mark.timeout(300)
def test_an_epoch_that_several_programs_stage_and_commit_is_stored_once() -> None:
    run_until_seen(SEEDS, RARE, more=("drivers",))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (serves_any_query, "somebody else's id"),
        (forgets_the_last_epoch, "of transaction copy is published twice"),
    ],
    ids=["serves_any_query", "forgets_the_last_epoch"],
)
def test_a_planted_bug_is_found(plant: Plant, said: str) -> None:
    first_failure(SEEDS, plant, match=said, more=("drivers",))
