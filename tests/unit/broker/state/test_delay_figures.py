"""Counts of what is due when, over packed extents, against counting one by one."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.broker.state import DelayedExtent, DueHistogram
from semel.broker.state.apply.delay_figures import DelayFigures
from semel.broker.state.apply.delayed_extent import DELAYED_EXTENT
from semel.broker.state.apply.delayed_queue import DelayedQueue

BIG = (1 << 32) - 1


def filled(extents: list[DelayedExtent]) -> DelayedQueue:
    queue = DelayedQueue()
    for extent in extents:
        queue.add(extent)
    return queue


def counted(queue: DelayedQueue, histogram: DueHistogram, blocks_max: int) -> DueHistogram:
    """Adds all, so many blocks at a time."""
    after, left = None, queue.batches + 1
    while packed := queue.packed(after, blocks_max):
        left -= len(packed) // DELAYED_EXTENT.size
        assert left > 0, "an extent came twice"
        after = histogram.add(packed)
    return histogram


def expected(
    extents: list[DelayedExtent], bounds_us: list[int], below_ordinal: int
) -> list[DelayFigures]:
    figures = [DelayFigures()] * (len(bounds_us) + 1)
    for extent in extents:
        if extent.ordinal < below_ordinal:
            at = sum(bound < extent.due_us for bound in bounds_us)
            batches, messages, length = figures[at]
            figures[at] = DelayFigures(
                batches + 1, messages + extent.messages, length + extent.length
            )
    return figures


@given(
    st.lists(st.integers(1, 12), max_size=30),
    st.sets(st.integers(0, 13), max_size=6).map(sorted),
    st.integers(0, 31),
)
def test_figures_are_those_of_counting_one_by_one(
    dues: list[int], bounds_us: list[int], below_ordinal: int
) -> None:
    extents = [DelayedExtent(due_us, at, 1, 48, 7 + at, 1 + at) for at, due_us in enumerate(dues)]
    queue = filled(extents)
    found = counted(queue, DueHistogram(bounds_us, below_ordinal), 1)
    assert found.figures == expected(extents, bounds_us, below_ordinal)
    times = [extent.due_us for extent in extents if extent.ordinal < below_ordinal]
    assert found.first_due_us == min(times, default=0)
    assert found.last_due_us == max(times, default=0)


@pytest.mark.parametrize("blocks_max", [1, 2, 64])
def test_many_blocks_are_counted_once_each(blocks_max: int) -> None:
    rng = random.Random(1)
    extents = [
        DelayedExtent(rng.randrange(1, 90), number, number, 48, BIG, BIG) for number in range(5_000)
    ]
    queue = filled(extents)
    bounds = [10, 50, 88]
    found = counted(queue, DueHistogram(bounds, 1 << 62), blocks_max)
    assert found.figures == expected(extents, bounds, 1 << 62), "and sums do not overflow"
    assert (found.first_due_us, found.last_due_us) == (1, 89)


def test_what_is_added_or_released_between_two_parts_is_no_trouble() -> None:
    extents = [DelayedExtent(1 + number // 4, number, number, 48, 10, 1) for number in range(2_000)]
    queue = filled(extents)
    histogram = DueHistogram([100], 2_000)
    after = histogram.add(queue.packed(None, 1))
    queue.remove(queue.first(100, 2_000, 396))
    queue.add(DelayedExtent(1, 2_000, 1, 48, 10, 1))
    queue.add(DelayedExtent(400, 2_001, 1, 48, 10, 1))
    while packed := queue.packed(after, 1):
        after = histogram.add(packed)
    lost = sum(figures.batches for figures in histogram.figures) - 2_000
    assert -396 <= lost <= 0, "what was released before it was counted is not"
    assert histogram.figures[1].batches == 1_600, "due later, and there all the time"
    assert histogram.last_due_us == 500


def test_a_part_of_what_came_too_late_counts_nothing() -> None:
    histogram = DueHistogram([5], 3)
    after = histogram.add(DELAYED_EXTENT.pack(9, 3, 1, 48, 10, 1))
    assert after == (9, 3)
    assert (histogram.first_due_us, histogram.last_due_us) == (0, 0)
    assert histogram.figures == [DelayFigures()] * 2
