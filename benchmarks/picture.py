"""Draws how many times better or worse Semel is, as SVG text.

How it works. One bar a ratio, on a logarithmic scale around the line of 1: to the right Semel is
better, to the left worse, whatever the figure. A thin line shows the least and the most of all
rounds. Plain text: bars need no drawing library, and a diff of two pictures can be read.

Not here: the ratios (`goals.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from benchmarks.goals import Ratio

WIDTH, LEFT, RIGHT = 1_060, 520, 110
ROW, HEAD, TOP = 20, 28, 64
BETTER, WORSE, INK, FAINT = "#2a7f62", "#b5483a", "#222222", "#cccccc"
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
    """An SVG document: for each (heading, ratios) a heading and a bar each."""
    shown = [(heading, ratios) for heading, ratios in groups if ratios]
    reach = max(
        (abs(math.log2(value)) for _, some in shown for ratio in some for value in ratio.better),
        default=1.0,
    )
    steps = max(1, math.ceil(reach))
    height = TOP + sum(HEAD + ROW * len(some) for _, some in shown) + 20
    body = [*opening(title, subtitle, WIDTH, height), *_axis(steps, height)]
    y = TOP
    for heading, some in shown:
        body.append(text(12, y + 18, heading, weight="bold"))
        y += HEAD
        for ratio in some:
            body += _bar(ratio, y, steps)
            y += ROW
    return "\n".join([*body, "</svg>"]) + "\n"


def _x(better: float, steps: int) -> float:
    """Where a ratio stands; 1 is in the middle."""
    half = (WIDTH - LEFT - RIGHT) / 2
    return LEFT + half * (1 + math.log2(better) / steps)


def _axis(steps: int, height: int) -> Iterator[str]:
    every = math.ceil(2 * steps / 8)
    for power in range(-steps, steps + 1):
        if power % every == 0:
            x = _x(2.0**power, steps)
            stroke = INK if power == 0 else FAINT
            yield (
                f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{height - 12}" stroke="{stroke}"/>'
            )
            label = f"{2**power}×" if power >= 0 else f"1/{2**-power}"
            yield text(x, TOP - 6, label, anchor="middle")


def _bar(ratio: Ratio, y: int, steps: int) -> Iterator[str]:
    middle, least, most = ratio.better
    one, x, low, high = (_x(value, steps) for value in (1.0, middle, least, most))
    name = f"{ratio.contender} / {ratio.of}: {WORDS.get(ratio.metric, ratio.metric)}"
    yield text(LEFT - 8, y + 14, name, anchor="end", size=11)
    yield (
        f'<rect x="{min(one, x):.1f}" y="{y + 4}" width="{abs(x - one):.1f}" height="{ROW - 8}" '
        f'fill="{BETTER if middle >= 1 else WORSE}"/>'
    )
    yield (
        f'<line x1="{low:.1f}" y1="{y + ROW / 2}" x2="{high:.1f}" y2="{y + ROW / 2}" '
        f'stroke="{INK}" stroke-width="2"/>'
    )
    words = f"{middle:.2f} × better" if middle >= 1 else f"{1 / middle:.2f} × worse"
    yield text(WIDTH - RIGHT + 8, y + 14, words, size=11)


def opening(title: str, subtitle: str, width: int, height: int) -> Iterator[str]:
    """How an SVG document begins."""
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
    )
    yield f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    yield text(12, 22, title, size=16)
    yield text(12, 40, subtitle)


def text(
    x: float, y: float, words: str, *, size: int = 12, anchor: str = "start", weight: str = "normal"
) -> str:
    """An SVG text."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}" fill="{INK}">{escape(words)}</text>'
    )
