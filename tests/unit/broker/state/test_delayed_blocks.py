"""Packed blocks of delayed batches: nothing is lost in them, and they are small."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.broker.state.apply import delayed_block, delayed_queue
from semel.broker.state.apply.cancelled_rows import CancelledRows
from semel.broker.state.apply.codec import joined
from semel.broker.state.apply.delayed_block import DelayedBlock, behind, packed, unpacked
from semel.broker.state.apply.delayed_extent import (
    DELAYED_EXTENT,
    EXTENT,
    DelayedExtent,
    DelayedPlace,
)
from semel.broker.state.apply.delayed_queue import DelayedQueue

DAY_US = 86_400_000_000
I64_MAX, U64_MAX, U32_MAX = (1 << 63) - 1, (1 << 64) - 1, (1 << 32) - 1
ANY_EXTENT = st.builds(
    DelayedExtent,
    st.integers(0, I64_MAX),
    st.integers(0, U64_MAX),
    st.integers(0, I64_MAX),
    *[st.integers(0, U32_MAX)] * 3,
)


@given(st.lists(ANY_EXTENT, min_size=1, max_size=40))
def test_packed_extents_are_what_they_were(extents: list[DelayedExtent]) -> None:
    rows = np.array(extents, EXTENT)
    assert unpacked(packed(rows)).tobytes() == rows.tobytes()


@pytest.mark.parametrize("step", [0, 1, 8, 255, 256, 1_000_000, 1 << 40])
@pytest.mark.parametrize("count", [1, 2, 300])
def test_even_distances_cost_as_much_as_their_number(step: int, count: int) -> None:
    rows = np.zeros(count, EXTENT)
    rows["due_us"] = 5 + step * np.arange(count)
    rows["ordinal"] = U64_MAX
    found = unpacked(packed(rows))
    assert found.tobytes() == rows.tobytes()
    width = 0 if step == 0 or count == 1 else 1 if count <= 256 else 2
    assert len(packed(rows)) == len(packed(rows[:1])) + width * count


def small_blocks(monkeypatch: pytest.MonkeyPatch, rows: int = 16, added: int = 4) -> None:
    monkeypatch.setattr(delayed_queue, "BLOCK_ROWS", rows)
    monkeypatch.setattr(delayed_block, "ADDED_ROWS_MAX", added)
    monkeypatch.setattr(delayed_block, "_ADDED_BYTES_MAX", added * DELAYED_EXTENT.size)


def check(queue: DelayedQueue, model: dict[DelayedPlace, DelayedExtent]) -> None:
    """All that a queue can be asked."""
    expected = [model[place] for place in sorted(model)]
    assert list(queue) == expected
    assert queue.table().tolist() == [tuple(each) for each in expected]
    assert joined(queue.parts(cancelled=False)) == queue.table().tobytes()
    assert (queue.batches, queue.bytes) == (len(model), sum(each.length for each in expected))
    assert queue.messages == sum(map(queue.left, expected))
    blocks = queue._blocks
    assert all(0 < len(block) <= delayed_queue.BLOCK_ROWS for block in blocks)
    for block in blocks:
        rows = block.rows()
        assert len(rows) == len(block)
        assert (block.first, block.last) == (rows[0].tolist()[:2], rows[-1].tolist()[:2])
        assert block.lowest_entry <= rows["entry"].min()
    assert all(low.last < high.first for low, high in pairwise(blocks))
    if expected:
        assert queue.first_place == expected[0].place
        assert queue.last == expected[-1].place
        columns = [np.concatenate(each) for each in zip(*queue.columns(), strict=True)]
        assert columns[0].tolist() == [each.due_us for each in expected]
        assert columns[1].tolist() == [queue.left(each) for each in expected]
        assert columns[2].tolist() == [each.length for each in expected]


def random_extent(rng: random.Random, ordinal: int) -> DelayedExtent:
    due_us = rng.choice([7, 8, rng.randrange(1, 30), rng.randrange(1, 3_000)])
    entry = rng.randrange(1, 40)
    return DelayedExtent(due_us, ordinal, entry, 8 * rng.randrange(90), 20, rng.randrange(1, 4))


@pytest.mark.parametrize("seed", range(6))
def test_a_queue_of_small_blocks_is_a_sorted_list(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_blocks(monkeypatch, rows=16 + seed, added=1 + seed)
    monkeypatch.setattr(delayed_queue, "_READ_ROWS", 3 * (16 + seed))
    rng, queue = random.Random(seed), DelayedQueue()
    model: dict[DelayedPlace, DelayedExtent] = {}
    free = list(range(0, 2_000, 2))
    for number in range(900):
        kind = rng.random()
        if kind < 0.55 or not model:
            extent = random_extent(rng, 2 * number + 1)
            queue.add(extent)
            model[extent.place] = extent
        elif kind < 0.65:
            extent = random_extent(rng, free.pop(rng.randrange(len(free))))
            queue.insert(extent)
            model[extent.place] = extent
        elif kind < 0.85:
            place = rng.choice(list(model))
            extent = model[place]
            held = [
                row for row in range(extent.messages) if not queue.cancelled.holds(place[1], row)
            ]
            if queue.cancel(extent, rng.choice(held)):
                del model[place]
                assert queue.find(place) is None
        else:
            below = rng.choice([4_000, 2 * number - 40])
            before = rng.choice([None, None, rng.choice(list(model))])
            found = queue.first(1_500, below, rng.randrange(1, 50), before)
            expected = [model[place] for place in sorted(model) if place[1] < below]
            expected = [each for each in expected if before is None or each.place < before]
            assert found == [each for each in expected if each.due_us <= 1_500][: len(found)]
            queue.remove(found)
            for extent in found:
                del model[extent.place]
        if number % 20 == 0:
            check(queue, model)
            for place in rng.sample(list(model), min(5, len(model))):
                assert queue.find(place) == model[place]
                assert queue.find(DelayedPlace(place.due_us, place.ordinal + 5_000)) is None
    check(queue, model)
    rows = joined(queue.cancelled.parts())
    again = DelayedQueue.of(queue.table().tobytes(), queue.cancelled)
    check(again, model)
    assert joined(again.parts(cancelled=True)) == queue.table().tobytes() + rows


def test_what_is_frozen_does_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)
    rng, queue = random.Random(5), DelayedQueue()
    for ordinal in range(200):
        queue.add(random_extent(rng, ordinal))
    before = queue.table().tobytes()
    parts, rows = queue.parts(cancelled=False), [block.rows() for block in queue._blocks]
    queue.remove(queue.first(20, 150, 40))
    for extent in list(queue)[::3]:
        for row in range(extent.messages):
            queue.cancel(extent, row)
    for ordinal in range(200, 400):
        queue.add(random_extent(rng, ordinal))
    assert joined(parts) == before
    assert b"".join(each.tobytes() for each in rows) == before


@pytest.mark.parametrize("order", ["rising", "scattered"])
def test_a_batch_takes_few_bytes_however_it_came(order: str) -> None:
    """Single messages over seven days, twelve an entry."""
    rng, queue = random.Random(1), DelayedQueue()
    count = 20_000
    for ordinal in range(count):
        at = ordinal / count if order == "rising" else rng.random()
        due_us = 1_700_000_000_000_000 + int(at * 604_800) * 1_000_000
        place = 48 + 304 * (ordinal % 12)
        queue.add(DelayedExtent(due_us, ordinal, 1_000_000 + ordinal // 12, place, 296, 1))
    assert queue.memory_bytes <= (11 if order == "rising" else 16) * count
    again = DelayedQueue.of(queue.table().tobytes(), CancelledRows())
    assert again.memory_bytes <= 12 * count
    assert list(again) == list(queue)


def test_the_place_behind_any_place() -> None:
    rows = np.zeros(4, EXTENT)
    rows["due_us"], rows["ordinal"] = [3, 5, 5, 9], [U64_MAX, 0, 7, 2]
    places = [(2, 9), (3, 0), (3, U64_MAX), (4, 0), (5, -1), (5, 0), (5, 6), (5, 7), (9, 1), (9, 2)]
    found = [behind(rows, DelayedPlace(*place)) for place in places]
    assert found == [0, 0, 1, 1, 1, 2, 2, 3, 3, 4]


# --- planted ----------------------------------------------------------------------------------


def added_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def frozen(self: DelayedBlock) -> Any:
        return delayed_block.FrozenBlock(
            self._packed, self._skipped, b"" if self._packed else self._added
        )

    patch.setattr(DelayedBlock, "frozen", frozen)


def skipped_comes_back(patch: pytest.MonkeyPatch) -> None:
    def frozen(self: DelayedBlock) -> Any:
        return delayed_block.FrozenBlock(self._packed, 0, self._added)

    patch.setattr(DelayedBlock, "frozen", frozen)


def added_stays_behind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(delayed_block, "_in_order", lambda rows: rows)


def one_byte_too_few(patch: pytest.MonkeyPatch) -> None:
    original = delayed_block.unpacked

    def unpacked(data: bytes) -> Any:
        rows = original(data)
        rows["ordinal"] &= np.uint64(0xFF)
        return rows

    patch.setattr(delayed_block, "unpacked", unpacked)


@pytest.mark.parametrize(
    "plant", [added_is_forgotten, skipped_comes_back, added_stays_behind, one_byte_too_few]
)
def test_planted_bugs_of_blocks_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)

    def try_some() -> None:
        for seed in range(6):
            with pytest.MonkeyPatch.context() as inner:
                test_a_queue_of_small_blocks_is_a_sorted_list(seed, inner)

    with pytest.raises((AssertionError, IndexError)):
        try_some()
