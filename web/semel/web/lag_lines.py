"""How lag changed while somebody watched: a few numbers a look, drawn as lines. Pure.

How it works. Each look at a group adds one point to the line of the whole group, and one to the
line of each queue that is shown. Points that are older than `SPAN_S` go, and beyond a line's most
every second one, so that a page that stays open for a day costs no more than one that was just
opened. All lines of a group begin at the same time, so that they can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

SPAN_S: Final = 3_600.0
POINTS_MAX: Final = 600
QUEUE_POINTS_MAX: Final = 60
QUEUES_MAX: Final = 100
"""Queues of a group whose lines are remembered: those that were looked at last."""
WIDTH: Final = 600
HEIGHT: Final = 120
QUEUE_WIDTH: Final = 120
QUEUE_HEIGHT: Final = 24

Queue = tuple[str, int]
"""Topic and number."""


class LagPoint(NamedTuple):
    """The lag at one time."""

    time_s: float
    lag: int


class QueueLine(NamedTuple):
    """One queue's line, to be drawn."""

    points: str
    """The points of an SVG polyline of QUEUE_WIDTH × QUEUE_HEIGHT; empty for none yet."""
    most: int


@dataclass(slots=True)
class GroupLines:
    """What was seen of one group."""

    whole: list[LagPoint] = field(default_factory=list)
    queues: dict[Queue, list[LagPoint]] = field(default_factory=dict)
    """The one that was looked at last stands last."""

    def add(self, time_s: float, lag: int, queues: Iterable[tuple[Queue, int]]) -> None:
        """Adds a look: the lag of the whole group, and of the queues that are shown."""
        add_point(self.whole, time_s, lag)
        for queue, own in queues:
            points = self.queues.pop(queue, [])
            add_point(points, time_s, own, most=QUEUE_POINTS_MAX)
            self.queues[queue] = points
        for queue in list(self.queues)[:-QUEUES_MAX]:
            del self.queues[queue]

    def line(self) -> str:
        """The line of the whole group, in a picture of WIDTH × HEIGHT."""
        return line_of(self.whole)

    def queue_line(self, queue: Queue) -> QueueLine:
        """The line of one queue."""
        points = self.queues.get(queue, [])
        drawn = line_of(
            points, width=QUEUE_WIDTH, height=QUEUE_HEIGHT, begin_s=self.whole[0].time_s
        )
        return QueueLine(drawn, max((point.lag for point in points), default=0))


def add_point(points: list[LagPoint], time_s: float, lag: int, *, most: int = POINTS_MAX) -> None:
    """Adds a point, and drops what is too old or too many."""
    points.append(LagPoint(time_s, lag))
    first = next(i for i, point in enumerate(points) if point.time_s >= time_s - SPAN_S)
    del points[:first]
    if len(points) > most:
        del points[1:-1:2]


def line_of(
    points: list[LagPoint],
    *,
    width: int = WIDTH,
    height: int = HEIGHT,
    begin_s: float | None = None,
) -> str:
    """The points of an SVG polyline in a picture of that size; 0 is at its bottom, and `begin_s`,
    by default the first point's time, at its left."""
    if len(points) < 2:
        return ""
    begin_s, end_s = points[0].time_s if begin_s is None else begin_s, points[-1].time_s
    most = max(1, *(point.lag for point in points))
    span_s = max(end_s - begin_s, 0.001)
    return " ".join(
        f"{(point.time_s - begin_s) / span_s * width:.1f},{height - point.lag / most * height:.1f}"
        for point in points
    )
