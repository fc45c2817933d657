"""Lag over time as a line."""

from __future__ import annotations

from semel.web.lag_lines import HEIGHT, POINTS_MAX, SPAN_S, WIDTH, LagPoint, add_point, line_of


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
