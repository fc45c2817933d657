"""Draws how many times better or worse Semel is: one bar for each ratio of `side_by_side`.

How it works. Each workload has a panel of bars on one logarithmic scale around the line of 1: a bar
to the right means that Semel is better, to the left worse, whatever the figure. A thin line shows
the least and the most of all rounds.

Not here: the ratios (`goals.py`), the short picture for a stranger (`recorded.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from benchmarks.drawing import BETTER, INK, WORSE, style, svg, times_axis
from benchmarks.goals import Ratio

WIDTH_INCHES, LEFT_INCHES, RIGHT_INCHES = 12.5, 5.9, 1.2
BAR_INCHES, GAP_INCHES, TOP_INCHES, BOTTOM_INCHES = 0.19, 0.45, 0.75, 0.15
WORDS = {
    "msg_s": "messages/s",
    "p50_ms": "p50",
    "p99_ms": "p99",
    "ack_p50_ms": "acknowledged, p50",
    "ack_p99_ms": "acknowledged, p99",
    "end_to_end_p50_ms": "end to end, p50",
    "end_to_end_p99_ms": "end to end, p99",
    "longest_gap_s": "longest gap",
    "first_ack_s": "first acknowledgement",
    "cpu_s_per_million": "CPU per message",
    "cpu_s_per_million_no_consumer": "CPU per message",
    "rss_mib": "memory",
}


def draw(title: str, subtitle: str, groups: Sequence[tuple[str, Sequence[Ratio]]]) -> str:
    """An SVG document: for each (heading, ratios) the heading and one bar per ratio."""
    with style():
        return svg(bars(title, subtitle, groups))


def bars(title: str, subtitle: str, groups: Sequence[tuple[str, Sequence[Ratio]]]) -> Figure:
    """The picture as a figure: one panel for each heading that has ratios."""
    shown = [(heading, ratios) for heading, ratios in groups if ratios]
    reach = max(
        (abs(math.log2(value)) for _, some in shown for ratio in some for value in ratio.better),
        default=1.0,
    )
    limit = 2.0 ** max(1, math.ceil(reach))
    height = TOP_INCHES + BOTTOM_INCHES
    height += sum(GAP_INCHES + BAR_INCHES * len(some) for _, some in shown)
    figure = Figure(figsize=(WIDTH_INCHES, height))
    figure.text(0.01, 1 - 0.22 / height, title, size=14, va="center")
    figure.text(0.01, 1 - 0.48 / height, subtitle, va="center")
    top = height - TOP_INCHES
    for heading, some in shown:
        tall = BAR_INCHES * len(some)
        top -= GAP_INCHES
        figure.text(0.01, (top + 0.2) / height, heading, weight="bold")
        _panel(figure, some, (top - tall) / height, tall / height, limit)
        top -= tall
    return figure


def _panel(figure: Figure, some: Sequence[Ratio], bottom: float, tall: float, limit: float) -> None:
    width = (WIDTH_INCHES - LEFT_INCHES - RIGHT_INCHES) / WIDTH_INCHES
    axes = figure.add_axes((LEFT_INCHES / WIDTH_INCHES, bottom, width, tall))
    times_axis(axes, least=1 / limit, most=limit)
    axes.xaxis.tick_top()
    axes.tick_params(axis="x", labelsize=7)
    axes.set_ylim(len(some) - 0.5, -0.5)
    axes.set_yticks(
        range(len(some)),
        [
            f"{ratio.contender} / {ratio.of}: {WORDS.get(ratio.metric, ratio.metric)}"
            for ratio in some
        ],
        size=8,
    )
    for row, ratio in enumerate(some):
        middle, least, most = ratio.better
        colour = BETTER if middle >= 1 else WORSE
        axes.barh(row, middle - 1, left=1, height=0.65, color=colour)
        axes.plot([least, most], [row, row], color=INK, linewidth=1.4)
        words = f"{middle:.2f} × better" if middle >= 1 else f"{1 / middle:.2f} × worse"
        axes.annotate(
            words,
            (1, row),
            xycoords=("axes fraction", "data"),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            size=8,
        )
