"""Windows of message ids keep to their bytes and time, and are the same bytes on every node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.broker.state.apply.codec import Reader
from semel.broker.state.apply.id_windows import (
    ID_BYTES,
    MARKS_PER_WINDOW,
    WINDOW,
    IdSettings,
    IdWindow,
    IdWindows,
    Mark,
)
from semel.broker.state.apply.results import StateDiverged
from semel.protos.errors import CorruptSegment
from semel.protos.slots import SLOT_COUNT

SECOND_US = 1_000_000


def window_of(ids: int, keep_ms: int = -1) -> IdWindow:
    return IdWindow(IdSettings(window_bytes=ids * ID_BYTES, keep_ms=keep_ms))


def evicted(window: IdWindow, now_us: int = 0) -> int:
    """Evicts what is too much, and returns the first arrival."""
    first = window.eviction(window.first_arrival, window.next_arrival, SLOT_COUNT, now_us)
    window.evict(first)
    return window.first_arrival


def test_ids_age_in_the_order_of_their_arrival_once_the_bytes_are_used_up() -> None:
    window = window_of(100)
    window.take(0, 100, 0, 0, 5)
    assert (window.ids, window.logical_bytes, evicted(window)) == (100, 100 * ID_BYTES, 0)
    window.take(100, 30, 2, 1, 6)
    assert evicted(window) == 30
    assert (window.ids, window.duplicates, window.conflicts) == (100, 2, 1)


def test_a_broker_group_has_the_part_of_the_budget_that_it_has_of_the_slots() -> None:
    window = window_of(1_000)
    window.take(0, 600, 0, 0, 0)
    assert window.eviction(0, 600, SLOT_COUNT, 0) == 0
    assert window.eviction(0, 600, SLOT_COUNT // 2, 0) == 100
    assert window.eviction(0, 600, 1, 0) == 599


def test_small_excess_waits_for_more() -> None:
    window = window_of(10_240)
    window.take(0, 10_250, 0, 0, 0)
    assert evicted(window) == 0
    window.take(10_250, 1, 0, 0, 0)
    assert evicted(window) == 11


def test_what_is_in_flight_counts() -> None:
    window = window_of(100)
    window.take(0, 100, 0, 0, 0)
    assert window.eviction(0, 140, SLOT_COUNT, 0) == 40
    assert window.eviction(35, 140, SLOT_COUNT, 0) == 40
    assert window.eviction(50, 140, SLOT_COUNT, 0) == 50


def test_ids_are_forgotten_by_time() -> None:
    window = window_of(1_000_000, keep_ms=60_000)
    for second in range(200):
        window.take(10 * second, 10, 0, 0, second * SECOND_US)
    assert evicted(window, 30 * SECOND_US) == 0
    assert evicted(window, 100 * SECOND_US) == 10 * 40
    assert window.oldest_us == 40 * SECOND_US
    assert evicted(window, 199 * SECOND_US) == 10 * 139
    assert evicted(window, 259 * SECOND_US) == 10 * 199
    assert evicted(window, 260 * SECOND_US) == 10 * 200
    assert window.ids == 0
    assert window.oldest_us is None
    window.take(2_000, 1, 0, 0, 300 * SECOND_US)
    assert window.oldest_us == 300 * SECOND_US


def test_no_id_is_forgotten_before_its_time() -> None:
    window = window_of(100, keep_ms=1_000)
    times = []
    for number in range(500):
        times.append(number * 7_000)
        window.take(number, 1, 0, 0, times[-1])
        first = window.eviction(window.first_arrival, window.next_arrival, SLOT_COUNT, times[-1])
        if first > max(0, number + 1 - 100):
            assert times[first - 1] <= times[-1] - 1_000_000
        window.evict(first)


def test_the_age_of_the_oldest_is_never_told_too_small() -> None:
    window = window_of(5_000)
    times = []
    for number in range(20_000):
        times.append(number)
        window.take(number, 1, 0, 0, number)
        evicted(window)
        oldest_us = window.oldest_us
        assert oldest_us is not None
        too_old_us = times[window.first_arrival] - oldest_us
        assert 0 <= too_old_us <= 2 * 5_000 // MARKS_PER_WINDOW


def test_marks_stay_few_whatever_the_settings_become() -> None:
    windows = IdWindows()
    windows.configure(1, IdSettings(window_bytes=1 << 40))
    window = windows.topics[1]
    for number in range(10_000):
        keep_ms = -1 if number < 5_000 else 1
        windows.configure(1, IdSettings(window_bytes=ID_BYTES, keep_ms=keep_ms))
        window.take(window.next_arrival, 3, 0, 0, number * SECOND_US)
    assert len(window.marks) <= 4 * MARKS_PER_WINDOW + 1
    assert window.marks[0] == Mark(0, 0)


@pytest.mark.parametrize(
    ("first", "ids", "duplicates", "conflicts"),
    [(0, 1, 0, 0), (6, 1, 0, 0), (5, -1, 0, 0), (5, 1, -1, 0), (5, 1, 0, -1)],
)
def test_ids_that_do_not_follow_diverge(
    first: int, ids: int, duplicates: int, conflicts: int
) -> None:
    window = window_of(10)
    window.take(0, 5, 0, 0, 0)
    with pytest.raises(StateDiverged):
        window.take(first, ids, duplicates, conflicts, 0)


def test_an_eviction_never_goes_back_or_beyond_the_end() -> None:
    window = window_of(10)
    window.take(0, 5, 0, 0, 0)
    assert window.evict(3) == 3
    assert window.evict(1) == 0
    assert window.first_arrival == 3
    with pytest.raises(StateDiverged, match="next one is 5"):
        window.evict(6)


def test_settings_change_and_the_seed_does_not() -> None:
    windows = IdWindows()
    windows.configure(7, IdSettings(window_bytes=400))
    windows.topics[7].take(0, 9, 0, 0, 0)
    windows.configure(7, IdSettings(window_bytes=80, keep_first=True))
    assert evicted(windows.topics[7]) == 7
    with pytest.raises(StateDiverged, match="seed of topic 7"):
        windows.configure(7, IdSettings(window_bytes=80, seed=b"x" * 16))
    windows.configure(7, None)
    windows.configure(7, None)
    assert (windows.topics, windows.ended) == ({}, {7})
    windows.configure(7, IdSettings(window_bytes=80, seed=b"x" * 16))
    assert windows.ended == set()
    windows.forget(7)
    assert not windows.may_have_dropped(7)


# --- canonical bytes ----------------------------------------------------------------------------

TAKES = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 3), st.integers(0, SECOND_US), st.booleans()),
    max_size=40,
)


@given(
    st.dictionaries(st.integers(0, (1 << 63) - 1), TAKES, max_size=3),
    st.sampled_from([-1, 0, 7, 2_000]),
)
def test_bytes_come_back(topics: dict[int, list[tuple[int, int, int, bool]]], keep: int) -> None:
    windows = IdWindows()
    for topic_id, takes in topics.items():
        windows.configure(topic_id, IdSettings(window_bytes=900, keep_ms=keep, seed=b"s" * 16))
        window, now_us = windows.topics[topic_id], 0
        for ids, dropped, later_us, evict in takes:
            now_us += later_us
            window.take(window.next_arrival, ids, dropped, dropped // 2, now_us)
            if evict:
                evicted(window, now_us)
        if keep == 7:
            windows.configure(topic_id, None)
    data = b"".join(windows.parts(superseded=False))
    reader = Reader(data)
    again = IdWindows.read_parts(reader, superseded=False)
    assert again.ended == windows.ended
    reader.finish()
    assert b"".join(again.parts(superseded=False)) == data
    assert sorted([*again.topics, *again.ended]) == sorted(topics)


@pytest.mark.parametrize(
    ("first", "following", "marks"),
    [(5, 4, []), (0, 4, [(2, 0), (2, 1)]), (0, 4, [(2, 5), (3, 4)])],
)
def test_bytes_that_contradict_each_other_are_refused(
    first: int, following: int, marks: list[tuple[int, int]]
) -> None:
    window = window_of(5)
    window.first_arrival, window.next_arrival = first, following
    window.marks = [Mark(*mark) for mark in marks]
    data = (1).to_bytes(4, "little") + b"".join(window.parts(1, superseded=False)) + bytes(4)
    with pytest.raises(CorruptSegment, match="window of ids of topic 1"):
        IdWindows.read_parts(Reader(data), superseded=False)


def test_cut_bytes_are_refused() -> None:
    data = b"".join(IdWindows().parts(superseded=False)) + bytes(WINDOW.size)
    with pytest.raises(CorruptSegment):
        IdWindows.read_parts(Reader((1).to_bytes(4, "little") + data[4:-1]), superseded=False)
