"""Pages of a queue's delayed batches: all of them, in order, whatever comes and goes between."""

from __future__ import annotations

import random

import pytest

from semel.broker.state import DelayedExtent, DelayedPlace
from semel.broker.state.apply.delayed_queue import DelayedQueue


def filled(count: int, seed: int = 1) -> tuple[DelayedQueue, list[DelayedExtent]]:
    """A queue of several blocks, with many batches of one due time; and its batches in order."""
    rng = random.Random(seed)
    extents = [
        DelayedExtent(rng.randrange(1, 60), ordinal, ordinal + 1, 64, rng.randrange(1, 500), 3)
        for ordinal in range(count)
    ]
    queue = DelayedQueue()
    for extent in extents:
        queue.add(extent)
    return queue, sorted(extents)


def place_of(extent: DelayedExtent) -> DelayedPlace:
    return DelayedPlace(extent.due_us, extent.ordinal)


@pytest.mark.parametrize("messages_max", [1, 3, 4, 300, 10_000])
def test_pages_give_everything_once_in_order(messages_max: int) -> None:
    queue, expected = filled(3_000)
    found: list[DelayedExtent] = []
    after, more = None, True
    while more:
        page, more = queue.page(after, None, messages_max, 1 << 40)
        assert sum(extent.messages for extent in page[:-1]) < messages_max
        assert not more or sum(extent.messages for extent in page) >= messages_max
        found += page
        after = place_of(page[-1])
        assert len(found) <= len(expected)
    assert found == expected
    assert queue.page(after, None, messages_max, 1 << 40) == ([], False)


def test_a_page_is_bounded_in_bytes_and_has_one_batch_at_least() -> None:
    queue, expected = filled(100)
    found: list[DelayedExtent] = []
    after, more = None, True
    while more:
        page, more = queue.page(after, None, 1 << 40, 400)
        assert len(page) == 1 or sum(extent.length for extent in page) <= 400
        found += page
        after = place_of(page[-1])
    assert found == expected
    (first,), more = queue.page(None, None, 1 << 40, 0)
    assert (first, more) == (expected[0], True)
    both = expected[0].length + expected[1].length
    assert queue.page(None, None, 1 << 40, both) == (expected[:2], True)
    assert queue.page(None, None, 1 << 40, both - 1) == (expected[:1], True)


@pytest.mark.parametrize("before_us", [1, 2, 30, 60])
def test_what_is_due_at_the_given_time_or_later_is_left_out(before_us: int) -> None:
    queue, expected = filled(2_000)
    fitting = [extent for extent in expected if extent.due_us < before_us]
    assert queue.page(None, before_us, 1 << 40, 1 << 40) == (fitting, False)
    if fitting:
        page, more = queue.page(None, before_us, 3 * len(fitting), 1 << 40)
        assert (page, more) == (fitting, False), "no more of those asked for"


def test_a_place_that_is_empty_by_now_is_still_a_place() -> None:
    """The batch behind which a page begins was released, and an earlier one came meanwhile."""
    queue, expected = filled(1_500)
    first, _ = queue.page(None, None, 1_200, 1 << 40)
    after = place_of(first[-1])
    queue.remove(first[:-200])
    queue.remove(first[-200:])
    queue.add(DelayedExtent(first[0].due_us, 9_000, 1, 64, 10, 3))
    later = DelayedExtent(expected[-1].due_us, 9_001, 1, 64, 10, 3)
    queue.add(later)
    rest, more = queue.page(after, None, 1 << 40, 1 << 40)
    assert (rest, more) == ([*expected[len(first) :], later], False)


@pytest.mark.parametrize(
    "place", [DelayedPlace(0, 0), DelayedPlace(30, (1 << 64) - 1), DelayedPlace((1 << 63) - 1, 0)]
)
def test_any_place_is_a_place_between_two_batches(place: DelayedPlace) -> None:
    queue, expected = filled(1_500)
    rest, _ = queue.page(place, None, 1 << 40, 1 << 40)
    assert rest == [extent for extent in expected if place_of(extent) > place]
