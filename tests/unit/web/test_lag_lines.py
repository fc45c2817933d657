"""Lag over time as a line."""

from __future__ import annotations

from semel.web.lag_lines import (
    HEIGHT,
    POINTS_MAX,
    QUEUE_HEIGHT,
    QUEUE_POINTS_MAX,
    QUEUE_WIDTH,
    QUEUES_MAX,
    SPAN_S,
    WIDTH,
    GroupLines,
    LagPoint,
    add_point,
    line_of,
)


def test_a_line_has_two_points_at_least() -> None:
    points: list[LagPoint] = []
    add_point(points, 1.0, 5)
    assert line_of(points) == ""
    add_point(points, 2.0, 10)
    add_point(points, 3.0, 0)
    assert line_of(points) == f"0.0,{HEIGHT / 2:.1f} {WIDTH / 2:.1f},0.0 {WIDTH:.1f},{HEIGHT:.1f}"


def test_old_points_go_and_many_become_fewer() -> None:
    points: list[LagPoint] = []
    for second in range(100_000):
        add_point(points, float(second), second)
        assert len(points) <= POINTS_MAX
    assert points[0].time_s >= 99_999 - SPAN_S
    assert points[-1] == LagPoint(99_999.0, 99_999)
    assert [point.time_s for point in points] == sorted({point.time_s for point in points})
    add_point(points, 99_999 + 2 * SPAN_S, 1)
    assert len(points) == 1


def test_each_queue_has_a_line_that_begins_with_the_groups() -> None:
    lines = GroupLines()
    lines.add(0.0, 10, [(("a", 0), 10)])
    assert lines.queue_line(("a", 0)).points == ""
    lines.add(1.0, 20, [(("a", 0), 10), (("a", 1), 5)])
    lines.add(2.0, 30, [(("a", 0), 0), (("a", 1), 10)])
    whole, half = f"{QUEUE_WIDTH:.1f}", f"{QUEUE_WIDTH / 2:.1f}"
    assert lines.queue_line(("a", 0)).points == f"0.0,0.0 {half},0.0 {whole},{QUEUE_HEIGHT:.1f}"
    drawn = lines.queue_line(("a", 1))
    assert drawn == (f"{half},{QUEUE_HEIGHT / 2:.1f} {whole},0.0", 10)
    assert lines.queue_line(("a", 2)) == ("", 0)
    assert lines.line().startswith("0.0,")


def test_lines_of_many_queues_take_bounded_memory() -> None:
    lines = GroupLines()
    for second in range(300):
        shown = range(second, second + 50)
        lines.add(float(second), 1, [(("a", queue), 1) for queue in shown])
        lines.add(second + 0.5, 1, [(("b", 0), second)])
    assert len(lines.queues) == QUEUES_MAX
    assert ("b", 0) in lines.queues
    assert ("a", 0) not in lines.queues
    assert max(map(len, lines.queues.values())) <= QUEUE_POINTS_MAX
