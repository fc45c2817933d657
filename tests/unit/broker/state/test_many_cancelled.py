"""Cancelled messages among thousands of batches: blocks and chunks are searched as lists."""

from __future__ import annotations

from random import Random

import pytest

from semel.broker.state.apply.cancelled_rows import CancelledRows
from semel.broker.state.apply.codec import Reader, joined
from semel.broker.state.apply.delayed_extent import DelayedExtent, DelayedPlace
from semel.broker.state.apply.delayed_queue import DelayedQueue
from semel.broker.state.apply.extents import CHUNK, Extents

BATCHES = 3_000


@pytest.mark.parametrize("seed", range(4))
def test_batches_are_found_and_cancelled_in_every_block(seed: int) -> None:
    random = Random(seed)
    queue = DelayedQueue()
    model: dict[DelayedPlace, tuple[DelayedExtent, set[int]]] = {}
    for ordinal in range(BATCHES):
        due_us = random.choice([5, 7, 7, 7, random.randrange(1, 40)])
        extent = DelayedExtent(due_us, ordinal, 1_000 + ordinal // 3, 8, 10, 1 + ordinal % 3)
        queue.add(extent)
        model[DelayedPlace(due_us, ordinal)] = extent, set(range(extent.messages))
    for _ in range(4_000):
        place = random.choice(list(model))
        extent, rows = model[place]
        assert queue.find(place) == extent
        row = random.choice(sorted(rows))
        assert not queue.cancelled.holds(place.ordinal, row)
        rows.discard(row)
        assert queue.cancel(extent, row) == (not rows)
        if not rows:
            del model[place]
            assert queue.find(place) is None
    assert list(queue) == [model[place][0] for place in sorted(model)]
    assert (queue.batches, queue.bytes) == (len(model), 10 * len(model))
    assert queue.messages == sum(len(rows) for _, rows in model.values())
    for extent, rows in model.values():
        stretches = queue.cancelled.stretches(extent.ordinal, extent.messages)
        found = [row for first, count in stretches for row in range(first, first + count)]
        assert found == sorted(rows)
    for due_us in range(41):
        for entry in (1_000, 1_300, 1_999):
            wanted = [
                model[place][0]
                for place in sorted(model)
                if place.due_us == due_us and (model[place][0].entry ^ entry) & 0xFF == 0
            ]
            assert list(queue.due_at(due_us, entry, 0xFF)) == wanted
    data = joined(queue.parts(cancelled=True))
    again = DelayedQueue.read_parts(Reader(data), queue.batches, cancelled=True)
    assert joined(again.parts(cancelled=True)) == data
    assert (again.messages, list(again)) == (queue.messages, list(queue))


def test_the_extents_of_an_entry_are_found_in_every_chunk() -> None:
    extents = Extents()
    indexes = [number % 700 + (1 << 31) * (number % 2) for number in range(3 * CHUNK + 100)]
    for number, index in enumerate(indexes):
        extents.append(2 * number, 0, index, 48, 100, number)
    for first in (0, 5, CHUNK, 2 * CHUNK + 7, 3 * CHUNK, 3 * CHUNK + 100):
        extents.trim(first)
        for start in (first, first + 1, max(first, 2 * CHUNK), extents.total):
            for entry in (0, 5, 699, 700, (1 << 31) + 4):
                for mask in ((1 << 31) - 1, (1 << 40) - 1):
                    wanted = [
                        number
                        for number in range(max(start, first), len(indexes))
                        if indexes[number] & mask == entry & mask
                    ]
                    assert extents.find_entry(start, entry, mask) == wanted


def test_rows_are_bounded_by_the_batch() -> None:
    rows = CancelledRows()
    for row in (7, 0, 3):
        rows.add(2, row)
    assert (list(rows.rows(2)), rows.count(2), rows.count(1)) == ([0, 3, 7], 3, 0)
    assert rows.stretches(2, 8) == [(1, 2), (4, 3)]
    assert rows.stretches(1, 8) == [(0, 8)]
    assert sum(map(len, rows.parts())) == 4 + 12 + 3 * 4
    rows.forget(2)
    rows.forget(2)
    assert rows.batches == {}
