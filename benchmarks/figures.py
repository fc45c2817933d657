"""Figures of many workloads in one round, the comparison that each workload is, and its table.

How it works. A system (Semel, a peer, a floor) runs all workloads in one round and gives figures by
*cell*: system, workload, variant ("Semel", "W1", "send_many, list"). `harness.compare` knows only
flat names, so a cell and a metric become one name there. Afterwards `by_workload` turns all rounds
into one `Comparison` per workload, whose contenders are "SYSTEM: VARIANT".

Not here: the goals for the figures (`goals.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from benchmarks.harness import Comparison

WORKLOADS: Mapping[str, str] = {
    "W1": "produce 100 B random values",
    "W2": "produce 1 KiB random values",
    "W2b": "produce 100 B log lines, lz4",
    "W3": "one 1 KiB message at a time, each awaited",
    "W4": "open loop, 1,000 messages/s of 1 KiB, from the planned time",
    "W5": "consume 100 B messages, warm",
    "W6": "longest gap between acknowledgements, the master killed or frozen",
    "W8": "all nodes killed and started again: seconds to the first acknowledgement",
}
_BETWEEN = "\t"
"""Occurs in no name: names come from this code, or from JSON strings that are cleaned of it."""


class Cell(NamedTuple):
    """The system, workload and variant to which figures belong."""

    system: str
    workload: str
    variant: str

    @property
    def contender(self) -> str:
        """The cell's name within its workload."""
        return f"{self.system}: {self.variant}" if self.variant else self.system


Figures = dict[Cell, dict[str, float]]


def flat(run: Callable[[], Figures]) -> Callable[[], Mapping[str, float]]:
    """The same round with flat names, in the form of `harness.Contender`."""

    def figures() -> Mapping[str, float]:
        return {
            _BETWEEN.join((*(part.replace(_BETWEEN, " ") for part in cell), metric)): value
            for cell, metrics in run().items()
            for metric, value in metrics.items()
        }

    return figures


def by_workload(comparison: Comparison) -> dict[str, Comparison]:
    """One comparison for each workload that was run, in the order of WORKLOADS."""
    found: dict[str, Comparison] = {}
    for rounds in comparison.rounds.values():
        for figures in rounds:
            one: dict[tuple[str, str], dict[str, float]] = {}
            for name, value in figures.items():
                system, workload, variant, metric = name.split(_BETWEEN)
                cell = Cell(system, workload, variant)
                one.setdefault((workload, cell.contender), {})[metric] = value
            for (workload, contender), metrics in one.items():
                title = f"{workload}: {WORKLOADS.get(workload, 'another workload')}"
                table = found.setdefault(workload, Comparison(title=title))
                table.rounds.setdefault(contender, []).append(metrics)
    known = {name: found.pop(name) for name in WORKLOADS if name in found}
    return known | found


def table_lines(
    table: Comparison, metrics: Iterable[str], heads: Mapping[str, str], *, wide: int = 24
) -> list[str]:
    """Medians with spread, one line per contender; `heads` are metrics' names for people."""
    metrics = list(metrics)
    width = max([len("median, spread"), *map(len, table.rounds)])
    named = "".join(f"{heads.get(metric, metric):>{wide}}" for metric in metrics)
    lines = [f"  {'median, spread':<{width}}{named}"]
    for contender in table.rounds:
        cells = "".join(f"{_cell(table, contender, metric):>{wide}}" for metric in metrics)
        lines.append(f"  {contender:<{width}}{cells}")
    return lines


def _cell(table: Comparison, contender: str, metric: str) -> str:
    value = table.median(contender, metric)
    if math.isnan(value):
        return ""
    digits = 0 if value >= 1_000 else 2 if value >= 0.1 or not value else 4
    spread = table.spread(contender, metric)
    return f"{value:,.{digits}f}" + ("" if math.isnan(spread) else f" ±{spread:.0%}")
