"""Token buckets against a simple model: a queue at a counter that serves at one rate."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.protos.security.buckets import BURST_S, Bucket

COSTS = st.lists(st.tuples(st.floats(0, 3), st.integers(0, 5_000)), min_size=1, max_size=60)
"""Seconds since the one before, and cost, of what comes."""


def served(rate: float, comes: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """When each of what comes passes, by a bucket; in the order in which they came."""
    bucket, now_s, passed = Bucket(rate, 0.0), 0.0, []
    for pause_s, cost in comes:
        now_s += pause_s
        mark = bucket.reserve(cost, now_s)
        passed.append((now_s + bucket.left_s(mark, now_s), cost))
    return passed


@given(st.floats(1, 1e6), COSTS)
def test_no_more_than_the_rate_passes_in_any_time(
    rate: float, comes: list[tuple[float, int]]
) -> None:
    passed = served(rate, comes)
    for first in range(len(passed)):
        total = 0.0
        for at_s, cost in passed[first:]:
            # What passes at the end of the time is not divided: it may be the one cost beyond.
            allowed = (BURST_S + at_s - passed[first][0]) * rate
            assert total <= allowed * (1 + 1e-9) + 1e-6
            total += cost


@given(st.floats(1, 1e6), COSTS)
def test_they_pass_in_order_and_as_early_as_the_model(
    rate: float, comes: list[tuple[float, int]]
) -> None:
    passed = served(rate, comes)
    for (at_s, _), (next_s, _) in pairwise(passed):
        assert next_s >= at_s * (1 - 1e-12), "their times are rounded, each by itself"
    # The model: what is left of a burst, which fills at the rate, and costs that take turns.
    tokens, now_s = rate * BURST_S, 0.0
    for (pause_s, cost), (at_s, _) in zip(comes, passed, strict=True):
        now_s += pause_s
        tokens = min(tokens + pause_s * rate, rate * BURST_S)
        assert at_s == pytest.approx(now_s + max(0.0, -tokens / rate), rel=1e-6, abs=1e-6)
        tokens -= cost


def test_what_gives_up_makes_room_for_others() -> None:
    bucket = Bucket(100, 0.0)
    bucket.reserve(100, 0.0)
    mark = bucket.reserve(500, 0.0)
    assert bucket.wait_s(0.0) == 5.0
    bucket.put_back(mark, 500)
    assert bucket.wait_s(0.0) == 0.0


def test_what_gives_up_helps_those_behind_it_and_nobody_in_front() -> None:
    bucket = Bucket(100, 0.0)
    bucket.reserve(300, 0.0)
    front = bucket.reserve(100, 0.0)
    gone = bucket.reserve(10_000, 0.0)
    behind = bucket.reserve(100, 0.0)
    bucket.put_back(gone, 10_000)
    assert bucket.left_s(front, 0.0) == 2.0
    assert bucket.left_s(behind, 0.0) == 3.0
    assert bucket.wait_s(0.0) == 4.0
    assert bucket.left_s(behind, 2.5) == pytest.approx(0.5)
    assert bucket.left_s(behind, 3.0) == 0.0
    assert bucket.wait_s(3.0) == pytest.approx(1.0)


def test_what_costs_nothing_waits_for_those_in_front_though_both_its_neighbours_give_up() -> None:
    bucket = Bucket(100, 0.0)
    bucket.reserve(300, 0.0)
    before = bucket.reserve(100, 0.0)
    free = bucket.reserve(0, 0.0)
    after = bucket.reserve(400, 0.0)
    bucket.reserve(100, 0.0)
    bucket.put_back(before, 100)
    bucket.put_back(after, 400)
    assert bucket.left_s(free, 0.0) == 2.0
    assert bucket.wait_s(0.0) == 3.0
    assert bucket.left_s(free, 2.0) == 0.0


@given(
    st.floats(10, 1e5),
    st.lists(
        st.tuples(
            st.floats(0, 0.5), st.just(0) | st.integers(0, 5_000), st.none() | st.floats(0, 3)
        ),
        min_size=1,
        max_size=40,
    ),
)
def test_whoever_gives_up_changes_nothing_but_that_it_does_not_pass(
    rate: float, comes: list[tuple[float, int, float | None]]
) -> None:
    """Beside the model: a line at a counter, which some leave. `comes` are seconds since the one
    before, cost, and the patience; each passes at the same time, and in the order in which it
    came."""
    bucket, now_s = Bucket(rate, 0.0), 0.0
    tokens, line = rate * BURST_S, dict[int, tuple[float, int, float]]()
    arrivals = deque[tuple[float, int, float]]()
    for pause_s, cost, patience_s in comes:
        at_s = pause_s + (arrivals[-1][0] if arrivals else 0.0)
        arrivals.append((at_s, cost, inf if patience_s is None else at_s + patience_s))
    number = 0
    while arrivals or line:
        # The next of what happens: one comes, one gives up, or the first of the line passes.
        head_s = now_s + max(0.0, -tokens / rate) if line else inf
        leaving_s = min((ends_s for _, _, ends_s in line.values()), default=inf)
        next_s = min(arrivals[0][0] if arrivals else inf, leaving_s, head_s)
        tokens = min(tokens + (next_s - now_s) * rate, rate * BURST_S)
        now_s = next_s
        if line and head_s == next_s:
            first = next(iter(line))
            mark, cost, _ = line.pop(first)
            assert bucket.left_s(mark, now_s) == pytest.approx(0, abs=1e-6)
            tokens -= cost
            for behind, (later, _, _) in line.items():
                before = sum(line[other][1] for other in line if other < behind)
                wanted_s = max(0.0, (before - tokens) / rate)
                assert bucket.left_s(later, now_s) == pytest.approx(wanted_s, rel=1e-6, abs=1e-6)
        elif leaving_s == next_s:
            gone = next(one for one, (_, _, ends_s) in line.items() if ends_s == leaving_s)
            mark, cost, _ = line.pop(gone)
            bucket.put_back(mark, cost)
            assert len(bucket._gaps) <= len(line) + 1
        else:
            _, cost, ends_s = arrivals.popleft()
            line[number] = bucket.reserve(cost, now_s), cost, ends_s
            number += 1
    assert bucket.wait_s(now_s) == pytest.approx(max(0.0, -tokens / rate), rel=1e-6, abs=1e-6)


def test_a_higher_rate_helps_those_who_wait() -> None:
    bucket = Bucket(100, 0.0)
    bucket.reserve(1_100, 0.0)
    mark = bucket.reserve(50, 0.0)
    assert bucket.left_s(mark, 0.0) == 10.0
    bucket.set_rate(1_000, 1.0)
    assert bucket.left_s(mark, 1.0) == pytest.approx(0.9)


def test_a_lower_rate_keeps_no_more_than_its_own_burst() -> None:
    bucket = Bucket(1_000, 0.0)
    bucket.set_rate(10, 0.0)
    bucket.reserve(10, 0.0)
    bucket.reserve(10, 0.0)
    assert bucket.wait_s(0.0) == pytest.approx(1.0)


def test_a_clock_that_stands_still_or_goes_back_gives_nothing() -> None:
    bucket = Bucket(10, 5.0)
    bucket.reserve(20, 5.0)
    assert bucket.wait_s(5.0) == bucket.wait_s(4.0) == 1.0
    assert not bucket.is_full(5.0)
    assert bucket.is_full(7.0)
