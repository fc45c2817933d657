"""Delayed messages of several queues in one order: nothing left out, and little asked for."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.client.core.due_merge import DueMerge


@dataclass(frozen=True)
class Row:
    due_us: int
    queue: int
    number: int


QUEUES = st.dictionaries(
    st.integers(0, 5), st.lists(st.integers(1, 9), min_size=1, max_size=12), max_size=5
)


def rows_of(queues: dict[int, list[int]]) -> dict[int, list[Row]]:
    return {
        queue: [Row(due_us, queue, number) for number, due_us in enumerate(sorted(dues))]
        for queue, dues in queues.items()
    }


@given(QUEUES, st.integers(1, 4), st.booleans())
def test_the_merge_is_what_sorting_everything_gives(
    queues: dict[int, list[int]], page: int, vague: bool
) -> None:
    """Whatever the pages are; with `vague` the last page is empty, and first times are too low."""
    rows = rows_of(queues)
    merge: DueMerge[Row] = DueMerge({queue: each[0].due_us - vague for queue, each in rows.items()})
    left = {queue: list(each) for queue, each in rows.items()}
    found: list[Row] = []
    ended: set[int] = set()
    while True:
        if (queue := merge.wanted) is not None:
            assert queue not in ended
            some, left[queue] = left[queue][:page], left[queue][page:]
            more = bool(left[queue]) or vague  # and an empty page says that there is more
            merge.on_page(some, more=more)
            if not (some and more):
                ended.add(queue)
        elif (row := merge.take()) is not None:
            found.append(row)
        else:
            break
    expected = sorted(
        (row for each in rows.values() for row in each),
        key=lambda row: (row.due_us, row.queue, row.number),
    )
    assert found == expected
    assert not any(left.values())


def test_a_queue_is_asked_when_its_turn_comes() -> None:
    merge: DueMerge[Row] = DueMerge({1: 50, 2: 10, 3: 90})
    assert merge.wanted == 2
    merge.on_page([Row(10, 2, 0), Row(60, 2, 1)], more=True)
    assert merge.wanted is None
    assert merge.take() == Row(10, 2, 0)
    assert merge.wanted == 1
    merge.on_page([], more=True)  # released meanwhile
    assert merge.take() == Row(60, 2, 1)
    assert merge.wanted == 2, "its next page may come before what queue 3 has"
    merge.on_page([], more=False)
    assert merge.wanted == 3


def test_nothing_is_wanted_of_no_queues() -> None:
    merge: DueMerge[Row] = DueMerge({})
    assert merge.wanted is None
    assert merge.take() is None


def test_nothing_is_taken_before_it_is_known() -> None:
    merge: DueMerge[Row] = DueMerge({1: 5})
    with pytest.raises(AssertionError):
        merge.take()
