"""Draws the curves of `growth` as SVG text: a row a curve, a panel a figure, both axes logarithmic.

How it works. Each panel has the points of one metric over what grows: a line through the medians, a
thin line from the least to the most of the rounds, and in grey the small cluster that was measured
in turn. A flat line is a cost that does not grow, one that rises as steeply as the dotted diagonal
is linear. Plain text: a diff of two pictures can be read.

Not here: the figures (`curves.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from benchmarks.curves import HEADS, Curve
from benchmarks.harness import Comparison
from benchmarks.picture import BETTER, FAINT, INK, opening, text

PANEL_WIDTH, PANEL_HEIGHT, GAP = 200, 130, 24
LEFT, TOP, HEAD = 24, 56, 40
METRICS = ("rate", "p99_ms", "rss_mib", "snapshot_bytes", "restart_s")
"""A panel each; the rate is the first of `RATES` that the curve has."""
RATES = ("read_mb_s", "msg_s")
BESIDE = "#999999"
DASHES = "1 4"


class Line(NamedTuple):
    """One contender's points."""

    x: list[int]
    y: list[tuple[float, float, float]]
    """Median, least and most of the rounds."""
    colour: str


def draw(
    title: str, subtitle: str, curves: Sequence[tuple[Curve, Sequence[int], Comparison]]
) -> str:
    """An SVG document."""
    width = LEFT + len(METRICS) * (PANEL_WIDTH + GAP)
    height = TOP + len(curves) * (HEAD + PANEL_HEIGHT + GAP)
    body = [*opening(title, subtitle, width, height)]
    top = TOP
    for curve, points, table in curves:
        body.append(text(12, top + 14, curve.title, weight="bold"))
        for column, metric in enumerate(METRICS):
            left = LEFT + column * (PANEL_WIDTH + GAP)
            body += _panel(curve, points, table, metric, left, top + HEAD)
        top += HEAD + PANEL_HEIGHT + GAP
    return "\n".join([*body, "</svg>"]) + "\n"


def lines(curve: Curve, points: Sequence[int], table: Comparison, metric: str) -> list[Line]:
    """What a panel shows: the curve, then the small cluster beside it; positive figures only."""
    found = []
    for name, colour in ((curve.label, BETTER), (curve.label_beside, BESIDE)):
        line = Line([], [], colour)
        for point in points:
            values = [value for value in table.values(name(point), metric) if value > 0]
            if values:
                line.x.append(point)
                line.y.append((table.median(name(point), metric), min(values), max(values)))
        if line.x:
            found.append(line)
    return found


def _panel(
    curve: Curve, points: Sequence[int], table: Comparison, metric: str, left: int, top: int
) -> Iterator[str]:
    if metric == "rate":
        metric = next((each for each in RATES if lines(curve, points, table, each)), RATES[-1])
    shown = lines(curve, points, table, metric)
    if not shown:
        return
    yield text(left, top - 6, HEADS[metric], size=11)
    yield (
        f'<rect x="{left}" y="{top}" width="{PANEL_WIDTH}" height="{PANEL_HEIGHT}" '
        f'fill="none" stroke="{FAINT}"/>'
    )
    low_x, high_x = _decades([x for line in shown for x in line.x])
    low_y, high_y = _decades([y for line in shown for each in line.y for y in each])

    def x_at(value: float) -> float:
        return left + PANEL_WIDTH * (math.log10(value) - low_x) / (high_x - low_x)

    def y_at(value: float) -> float:
        share = (math.log10(value) - low_y) / (high_y - low_y)
        return top + PANEL_HEIGHT * (1 - share)

    for power in range(low_x, high_x + 1):
        yield text(x_at(10.0**power), top + PANEL_HEIGHT + 12, _short(power), size=9)
    for power in range(low_y, high_y + 1):
        y = y_at(10.0**power)
        yield (
            f'<line x1="{left}" y1="{y:.1f}" x2="{left + PANEL_WIDTH}" y2="{y:.1f}" '
            f'stroke="{FAINT}"/>'
        )
        yield text(left + 2, y - 2, _short(power), size=9)
    reach = min(high_x - low_x, high_y - low_y)
    yield (
        f'<line x1="{x_at(10.0**low_x):.1f}" y1="{y_at(10.0**low_y):.1f}" '
        f'x2="{x_at(10.0 ** (low_x + reach)):.1f}" y2="{y_at(10.0 ** (low_y + reach)):.1f}" '
        f'stroke="{INK}" stroke-dasharray="{DASHES}"/>'
    )
    for line in reversed(shown):
        yield from _drawn(line, [x_at(x) for x in line.x], y_at)


def _drawn(line: Line, xs: Sequence[float], y_at: Callable[[float], float]) -> Iterator[str]:
    dots = " ".join(f"{x:.1f},{y_at(y[0]):.1f}" for x, y in zip(xs, line.y, strict=True))
    yield f'<polyline points="{dots}" fill="none" stroke="{line.colour}" stroke-width="2"/>'
    for x, (middle, least, most) in zip(xs, line.y, strict=True):
        yield f'<circle cx="{x:.1f}" cy="{y_at(middle):.1f}" r="3" fill="{line.colour}"/>'
        yield (
            f'<line x1="{x:.1f}" y1="{y_at(least):.1f}" x2="{x:.1f}" y2="{y_at(most):.1f}" '
            f'stroke="{line.colour}"/>'
        )


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """Powers of ten around all values, at least one apart."""
    low = math.floor(math.log10(min(values)))
    return low, max(low + 1, math.ceil(math.log10(max(values))))


def _short(power: int) -> str:
    """A power of ten as people write it on an axis."""
    if power < 0:
        return f"{10.0**power:g}"
    steps = ("", "k", "M", "G", "T")
    return f"{10 ** (power % 3)}{steps[power // 3]}"
