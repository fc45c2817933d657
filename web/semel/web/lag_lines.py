"""How lag changed while somebody watched: a few numbers a look, drawn as a line. Pure.

How it works. Each look at a group adds one point; points that are older than `SPAN_S` go, and
beyond `POINTS_MAX` every second one, so that a page that stays open for a day costs no more than
one that was just opened.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SPAN_S: Final = 3_600.0
POINTS_MAX: Final = 600
WIDTH: Final = 600
HEIGHT: Final = 120


class LagPoint(NamedTuple):
    """The lag at one time."""

    time_s: float
    lag: int


def add_point(points: list[LagPoint], time_s: float, lag: int) -> None:
    """Adds a point, and drops what is too old or too many."""
    points.append(LagPoint(time_s, lag))
    first = next(i for i, point in enumerate(points) if point.time_s >= time_s - SPAN_S)
    del points[:first]
    if len(points) > POINTS_MAX:
        del points[1:-1:2]


def line_of(points: list[LagPoint]) -> str:
    """The points of an SVG polyline in a picture of WIDTH × HEIGHT; 0 is at its bottom."""
    if len(points) < 2:
        return ""
    begin_s, end_s = points[0].time_s, points[-1].time_s
    most = max(1, *(point.lag for point in points))
    span_s = max(end_s - begin_s, 0.001)
    return " ".join(
        f"{(point.time_s - begin_s) / span_s * WIDTH:.1f},{HEIGHT - point.lag / most * HEIGHT:.1f}"
        for point in points
    )
