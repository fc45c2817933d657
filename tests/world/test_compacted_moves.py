"""Whole clusters of two broker groups between which queues of a compacted topic move, under faults:
readers end with the newest values wherever the queues are."""

from __future__ import annotations

from typing import Any

import pytest

from semel.protos.v1 import control_pb2
from tests.checking.compaction import purges_of
from tests.checking.small_run import REF, START_US, Run
from tests.world.planted_compacted_moves import PLANTS
from tests.world.soak import first_failure, run_until_seen

BOTH = ("moves", "compaction")
RARE = {
    "message removed by compaction": 300,
    "move: held": 5,
    "queue arrived with marks": 3,
    "table read": 20,
}


@pytest.mark.timeout(600)
def test_queues_of_a_compacted_topic_move_under_faults() -> None:
    run_until_seen(range(14), RARE, more=BOTH)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_of_compacted_moves_is_found(name: str) -> None:
    plant, told, seeds = PLANTS[name]
    first_failure(seeds, plant, match=told, more=BOTH)


def test_the_checker_of_records_follows_a_queue() -> None:
    """Passes keep their age: a tombstone goes at the target when it could have at the source."""
    source, target = Run(), Run(queues=False)

    def step(run: Run, name: str, **fields: Any) -> None:
        move = control_pb2.MoveQueue(queue=REF, job=1, step=f"MOVE_STEP_{name}", **fields)
        run.control(move_queue=move)

    def compact(run: Run, **fields: Any) -> None:
        run.control(compact=control_pb2.Compact(queue=REF, **fields))

    def problems(tombstone_ms: int) -> list[str]:
        found: list[str] = []
        logs = {
            number: dict(enumerate(run.frames, 1))
            for number, run in ((1, target), (2, source))  # the target is read first
        }
        purges_of(logs, tombstone_ms, found)
        return found

    compact(source, compacted_to=9)
    step(source, "HOLD")
    compact(source, compacted_to=11)  # without effect
    step(target, "BEGIN")
    step(source, "SEAL")
    step(target, "INGEST", source_time_us=START_US + 2_000)
    step(target, "ACTIVATE")
    compact(target, tombstones_below=9)
    assert problems(1) == []
    assert any("below 9 are removed" in each for each in problems(3))
    compact(target, tombstones_below=11)
    assert any("below 11 are removed" in each for each in problems(1))
