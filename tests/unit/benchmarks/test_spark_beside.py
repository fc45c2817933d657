"""Spark side by side: the peer's lines become the figures that ours are compared with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.figures import Figures
from benchmarks.harness import Comparison
from benchmarks.peer import PeerError, collect
from benchmarks.spark_beside import peer_round, targets

SPENT = {"mb_s": 1.5, "runs_rows_s": [10, 12, 11], "cpu_s_per_million": 2.5}
LINES: list[dict[str, Any]] = [
    {"workload": "W7 batch read", "rows": 40, "rows_s": 800, **SPENT},
    {"workload": "W7 sink", "rows": 15, "rows_s": 200, **SPENT},
    {"workload": "W7 sink, larger batches", "rows": 15, "rows_s": 500, **SPENT},
    {
        "workload": "W7 micro-batch",
        "sink": "noop",
        "trigger": {"p50_ms": 180.5, "n": 9},
        "rate_msg_s": 200,
        "latency": None,
    },
    {
        "workload": "W7 micro-batch",
        "sink": "foreachBatch",
        "trigger": {"p50_ms": 190.5, "n": 9},
        "rate_msg_s": 200,
        "latency": {"p50_ms": 240.5, "n": 9},
    },
]


class Printed:
    """A peer that prints these lines."""

    name = "peer_spark"

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self._lines = lines

    def run(self) -> Figures:
        return collect(json.dumps({"peer": "spark on kafka", **line}) for line in self._lines)


def test_lines_become_figures() -> None:
    assert peer_round(Printed(LINES)) == {  # type: ignore[arg-type]
        "read_rows_s": 800,
        "sink_rows_s": 200,
        "sink_tuned_rows_s": 500,
        "trigger_p50_ms": 180.5,
        "to_sink_p50_ms": 240.5,
    }


@pytest.mark.parametrize("missing", range(len(LINES)))
def test_a_peer_that_leaves_something_out_is_refused(missing: int) -> None:
    lines = LINES[:missing] + LINES[missing + 1 :]
    with pytest.raises(PeerError, match=r"peer_spark gave no figure .*is it a peer of Spark's"):
        peer_round(Printed(lines))  # type: ignore[arg-type]


def test_goals_are_judged_by_the_right_figures() -> None:
    table = Comparison(title="test", targets=targets("peer_spark"))
    table.rounds = {
        "peer_spark": [peer_round(Printed(LINES))],  # type: ignore[arg-type]
        "semel": [
            {
                "read_rows_s": 3_200,
                "read_value_rows_s": 3_100,
                "sink_rows_s": 749,
                "trigger_p50_ms": 216.6,
                "to_sink_p50_ms": 288.7,
            }
        ],
    }
    assert [holds for _, _, holds in table.judged()] == [True, False, False, True, False]
