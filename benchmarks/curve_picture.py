"""Draws the curves of `growth`: one row per curve, one panel per figure, both axes logarithmic.

How it works. Each panel has the points of one metric over what grows: a line through the medians, a
thin line from the least to the most of the rounds, and in grey the small cluster that was measured
in turn. A flat line is a cost that does not grow; one that rises as steeply as the dotted diagonal
is linear.

Not here: the figures (`curves.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from benchmarks.curves import HEADS, Curve
from benchmarks.drawing import BETTER, FAINT, INK, style, svg
from benchmarks.harness import Comparison

WIDTH_INCHES: Final = 13.5
ROW_INCHES, HEAD_INCHES, TOP_INCHES = 1.55, 0.75, 0.6
LEFT_INCHES, PANEL_INCHES, GAP_INCHES = 0.55, 2.0, 0.62
METRICS = ("rate", "p99_ms", "rss_mib", "snapshot_bytes", "restart_s")
"""The metric of each panel; the rate is the first of `RATES` that the curve has."""
RATES = ("read_mb_s", "msg_s")
BESIDE: Final = "#999999"
TICKS_MAX: Final = 5


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
    with style():
        return svg(panels(title, subtitle, curves))


def panels(
    title: str, subtitle: str, curves: Sequence[tuple[Curve, Sequence[int], Comparison]]
) -> Figure:
    """The picture as a figure: one row of panels per curve, without empty panels."""
    height = TOP_INCHES + len(curves) * (HEAD_INCHES + ROW_INCHES)
    figure = Figure(figsize=(WIDTH_INCHES, height))
    figure.text(0.01, 1 - 0.22 / height, title, size=14, va="center")
    figure.text(0.01, 1 - 0.46 / height, subtitle, va="center")
    top = height - TOP_INCHES
    for curve, points, table in curves:
        figure.text(0.01, (top - 0.22) / height, curve.title, weight="bold")
        for column, metric in enumerate(METRICS):
            if metric == "rate":
                rates = (each for each in RATES if lines(curve, points, table, each))
                metric = next(rates, RATES[-1])
            if shown := lines(curve, points, table, metric):
                place = (
                    (LEFT_INCHES + column * (PANEL_INCHES + GAP_INCHES)) / WIDTH_INCHES,
                    (top - HEAD_INCHES - ROW_INCHES + 0.25) / height,
                    PANEL_INCHES / WIDTH_INCHES,
                    (ROW_INCHES - 0.25) / height,
                )
                _panel(figure.add_axes(place), HEADS[metric], shown)
        top -= HEAD_INCHES + ROW_INCHES
    return figure


def lines(curve: Curve, points: Sequence[int], table: Comparison, metric: str) -> list[Line]:
    """The lines of a panel: the curve, then the small cluster; only positive figures."""
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


def _panel(axes: Axes, head: str, shown: Sequence[Line]) -> None:
    low_x, high_x = _decades([x for line in shown for x in line.x])
    low_y, high_y = _decades([y for line in shown for each in line.y for y in each])
    axes.set_title(head, size=9, loc="left")
    axes.set(xscale="log", yscale="log")
    axes.set_xlim(10.0**low_x, 10.0**high_x)
    axes.set_ylim(10.0**low_y, 10.0**high_y)
    for axis, low, high in ((axes.xaxis, low_x, high_x), (axes.yaxis, low_y, high_y)):
        step = math.ceil((high - low) / TICKS_MAX)
        axis.set_major_locator(FixedLocator([10.0**power for power in range(low, high + 1, step)]))
        axis.set_major_formatter(FuncFormatter(lambda value, _: _short(round(math.log10(value)))))
        axis.set_minor_locator(NullLocator())
    axes.tick_params(labelsize=7.5, length=0)
    axes.tick_params(axis="x", pad=7)
    axes.grid(axis="y")
    reach = min(high_x - low_x, high_y - low_y)
    axes.plot(
        [10.0**low_x, 10.0 ** (low_x + reach)],
        [10.0**low_y, 10.0 ** (low_y + reach)],
        color=INK,
        linestyle=(0, (1, 4)),
        linewidth=1,
    )
    for line in reversed(shown):
        middle = [y[0] for y in line.y]
        axes.plot(line.x, middle, color=line.colour, linewidth=2, marker="o", markersize=4)
        axes.vlines(
            line.x, [y[1] for y in line.y], [y[2] for y in line.y], color=line.colour, linewidth=1
        )
    for spine in axes.spines.values():
        spine.set_color(FAINT)


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """Powers of ten around all values, at least one apart."""
    low = math.floor(math.log10(min(values)))
    return low, max(low + 1, math.ceil(math.log10(max(values))))


def _short(power: int) -> str:
    """The label of a power of ten on an axis."""
    if power < 0:
        return f"{10.0**power:g}"
    steps = ("", "k", "M", "G", "T")
    return f"{10 ** (power % 3)}{steps[power // 3]}"
