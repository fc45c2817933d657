"""Ids in memory answer as a dictionary would, however many share a slot."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.broker.dedup import recent_ids
from semel.broker.dedup.fingerprints import U64
from semel.broker.dedup.id_places import Places
from semel.broker.dedup.recent_ids import RecentIds

FIRST = 100


def keys_of(numbers: list[int]) -> U64:
    """Keys of which many have one slot, and some one first half."""
    pairs = [((number % 5 << 60) + number // 3, number) for number in numbers]
    return np.array(pairs, np.uint64).reshape(-1, 2)


def add(ids: RecentIds, numbers: list[int]) -> None:
    places = Places.of(ids.end_arrival, 1, ids.end_arrival, np.arange(len(numbers)))
    ids.add(keys_of(numbers), np.array(numbers, np.uint64) * np.uint64(7), places)


def look(ids: RecentIds, numbers: list[int], first_arrival: int = 0) -> dict[int, int]:
    hits = ids.look(keys_of(numbers), first_arrival)
    assert hits.digests.tolist() == [7 * numbers[row] for row in hits.rows.tolist()]
    rows, arrivals = hits.rows.tolist(), hits.arrivals.tolist()
    return {numbers[row]: arrival for row, arrival in zip(rows, arrivals, strict=True)}


@given(st.lists(st.lists(st.integers(0, 300), max_size=60), max_size=12), st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_recent_ids_are_a_dictionary(batches: list[list[int]], percent: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recent_ids, "_SLOT_BITS_MIN", 4)
        patch.setattr(recent_ids, "_ROWS_MIN", 8)
        patch.setattr(recent_ids, "_SORTED_AT_ONCE", 5)
        ids = RecentIds(FIRST, 4)
        model: dict[int, int] = {}
        everything = list(range(301))
        for batch in batches:
            new = [each for each in dict.fromkeys(batch) if each not in model]
            model |= {each: ids.end_arrival + at for at, each in enumerate(new)}
            add(ids, new)
            if len(new) % 2:  # often several batches are linked at once
                assert look(ids, everything) == model
        assert look(ids, everything) == model
        middle = FIRST + len(ids) * percent // 100
        assert look(ids, everything, middle) == {k: v for k, v in model.items() if v >= middle}
        blocks = list(ids.sorted(middle))
        ends = [(block.columns[0][0], block.columns[0][-1]) for block in blocks]
        assert all(one[1] < other[0] for one, other in pairwise(ends))
        assert all((block.columns[0][1:] >= block.columns[0][:-1]).all() for block in blocks)
        rows = [row for block in blocks for row in block.columns.T.tolist()]
        kept = [each for each, arrival in model.items() if arrival >= middle]
        wanted = [
            (*key, 7 * each, model[each])
            for key, each in zip(keys_of(kept).tolist(), kept, strict=True)
        ]
        assert sorted(map(tuple, rows)) == sorted(wanted)
        below, rest = ids.split(middle)
        assert look(below, everything) == {k: v for k, v in model.items() if v < middle}
        assert look(rest, everything) == {k: v for k, v in model.items() if v >= middle}
        arrivals = np.arange(middle, ids.end_arrival, dtype=np.uint64)
        assert rest.places.find(arrivals).offsets.tolist() == arrivals.tolist()


def test_ids_that_were_taken_back_are_not_found_when_others_take_their_rows() -> None:
    ids = RecentIds(FIRST, 4)
    add(ids, list(range(40)))
    assert len(look(ids, list(range(80)))) == 40
    ids = ids.cut(FIRST + 25)
    add(ids, list(range(60, 80)))
    known = [*range(25), *range(60, 80)]
    expected = {each: FIRST + at for at, each in enumerate(known)}
    assert look(ids, list(range(80))) == expected
    assert ids.places.find(np.array([FIRST + 44], np.uint64)).offsets.tolist() == [FIRST + 44]


def test_a_part_leaves_out_what_was_linked_behind_it() -> None:
    ids = RecentIds(FIRST, 4)
    add(ids, list(range(30)))
    earlier, _ = ids.split(FIRST + 10)
    assert len(look(ids, list(range(30)))) == 30
    assert look(earlier, list(range(30))) == {each: FIRST + each for each in range(10)}


def test_many_ids_in_one_slot_are_all_linked() -> None:
    rng = Random(1)
    ids = RecentIds(0, 4)
    numbers = [5 * number for number in range(200)]
    rng.shuffle(numbers)
    for start in range(0, 200, 50):
        add(ids, numbers[start : start + 50])
    assert look(ids, numbers) == {each: at for at, each in enumerate(numbers)}
