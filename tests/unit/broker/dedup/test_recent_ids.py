"""Ids in memory answer as a dictionary would, however many share a slot."""

from __future__ import annotations

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
    hits, _ = ids.look(keys_of(numbers), first_arrival)
    assert hits.digests.tolist() == [7 * numbers[row] for row in hits.rows.tolist()]
    rows, arrivals = hits.rows.tolist(), hits.arrivals.tolist()
    return {numbers[row]: arrival for row, arrival in zip(rows, arrivals, strict=True)}


@given(st.lists(st.lists(st.integers(0, 300), max_size=60), max_size=12), st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_recent_ids_are_a_dictionary(batches: list[list[int]], percent: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recent_ids, "_SLOT_BITS_MIN", 4)
        patch.setattr(recent_ids, "_ROWS_MIN", 8)
        ids = RecentIds(FIRST, 4)
        model: dict[int, int] = {}
        everything = list(range(301))
        seen = ids.look(keys_of(everything), 0)[1]
        for batch in batches:
            new = [each for each in dict.fromkeys(batch) if each not in model]
            model |= {each: ids.end_arrival + at for at, each in enumerate(new)}
            add(ids, new)
            # The order of the two look-ups must not matter: either links what is new.
            if len(new) % 2:
                assert look(ids, everything) == model
            late = ids.look_again(keys_of(everything), seen, seen.end_arrival)
            assert late is not None
            found = dict(zip(late.rows.tolist(), late.arrivals.tolist(), strict=True))
            assert found == {k: v for k, v in model.items() if v >= seen.end_arrival}
            assert look(ids, everything) == model
            seen = ids.look(keys_of(everything), 0)[1]
        middle = FIRST + len(ids) * percent // 100
        assert look(ids, everything, middle) == {k: v for k, v in model.items() if v >= middle}
        ordered = ids.sorted(middle)
        assert (np.diff(ordered.columns[0]) >= 0).all() if len(ordered) else True
        assert sorted(ordered.columns[3].tolist()) == list(range(middle, ids.end_arrival))
        below, rest = ids.split(middle)
        assert look(below, everything) == {k: v for k, v in model.items() if v < middle}
        assert look(rest, everything) == {k: v for k, v in model.items() if v >= middle}
        arrivals = np.arange(middle, ids.end_arrival, dtype=np.uint64)
        assert rest.places.find(arrivals).offsets.tolist() == arrivals.tolist()


def test_ids_that_were_taken_back_are_not_found_when_others_take_their_rows() -> None:
    ids = RecentIds(FIRST, 4)
    add(ids, list(range(40)))
    old, seen = ids.look(keys_of(list(range(80))), 0)
    assert len(old.rows) == 40
    ids = ids.cut(FIRST + 25)
    assert ids.look_again(keys_of(list(range(80))), seen, 0) is None
    add(ids, list(range(60, 80)))
    known = [*range(25), *range(60, 80)]
    expected = {each: FIRST + at for at, each in enumerate(known)}
    assert look(ids, list(range(80))) == expected
    assert ids.places.find(np.array([FIRST + 44], np.uint64)).offsets.tolist() == [FIRST + 44]


def test_a_look_up_that_saw_later_links_is_completed_with_them() -> None:
    # Another thread adds and links while this one looks: it has links to more than it looks at.
    ids = RecentIds(FIRST, 4)
    add(ids, list(range(30)))
    earlier, _ = ids.split(FIRST + 10)
    assert len(look(ids, list(range(30)))) == 30
    hits, seen = earlier.look(keys_of(list(range(30))), 0)
    assert hits.rows.tolist() == list(range(10))
    assert seen.end_arrival == FIRST + 10
    late = ids.look_again(keys_of(list(range(30))), seen, seen.end_arrival)
    assert late is not None
    assert late.rows.tolist() == list(range(10, 30))


def test_many_ids_in_one_slot_are_all_linked() -> None:
    rng = Random(1)
    ids = RecentIds(0, 4)
    numbers = [5 * number for number in range(200)]
    rng.shuffle(numbers)
    for start in range(0, 200, 50):
        add(ids, numbers[start : start + 50])
    assert look(ids, numbers) == {each: at for at, each in enumerate(numbers)}
