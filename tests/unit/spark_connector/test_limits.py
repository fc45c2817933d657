"""How much a trigger takes: exactly the limit, fairly shared, and not before it is worth while."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.spark_connector.limits import Pacer, rows_within, share

backlogs = st.dictionaries(st.integers(0, 30), st.integers(0, 1 << 40), max_size=12)


@given(backlogs, st.none() | st.integers(1, 1 << 42), st.integers(0, 1 << 50))
def test_exactly_the_limit_is_taken_and_no_queue_gives_more_than_it_has(
    available: dict[int, int], limit: int | None, turn: int
) -> None:
    taken = share(available, limit, turn)
    total = sum(available.values())
    assert sum(taken.values()) == (total if limit is None else min(limit, total))
    assert set(taken) == set(available)
    assert all(0 <= taken[queue] <= available[queue] for queue in available)


@given(backlogs, st.integers(1, 1 << 42))
def test_shares_are_in_proportion(available: dict[int, int], limit: int) -> None:
    waiting = [rows for rows in available.values() if rows]
    total = sum(waiting)
    if not total or limit <= len(waiting) or limit >= total:
        return
    taken = share(available, limit)
    for queue, rows in available.items():
        assert abs(taken[queue] - rows * limit / total) <= len(waiting) + 1
        assert not rows or taken[queue] >= 1


def test_more_queues_than_rows_take_turns() -> None:
    available = dict.fromkeys(range(7), 100)
    served = dict.fromkeys(range(7), 0)
    turn = 0
    for _ in range(7):
        for queue, rows in share(available, 3, turn).items():
            served[queue] += rows
            turn += rows
    assert set(served.values()) == {3}


@given(backlogs, st.integers(1, 1 << 50))
def test_bytes_become_rows(available: dict[int, int], bytes_max: int) -> None:
    sizes = {queue: 1.0 + queue * 100 for queue in available}
    rows = rows_within(available, sizes, bytes_max)
    total = sum(available.values())
    volume = sum(available[queue] * sizes[queue] for queue in available)
    assert rows <= max(1, total)
    if volume > bytes_max:
        assert rows == 1 or rows / total * volume <= bytes_max * 1.000001
    else:
        assert rows == total


def test_a_trigger_waits_for_enough_but_not_for_ever() -> None:
    pacer = Pacer(10, 1_000)
    assert pacer.ready(0, 0)  # the first one after a start
    pacer.on_trigger(0)
    assert not pacer.ready(9, 999)
    assert pacer.ready(10, 1)
    assert pacer.ready(0, 1_000)
    pacer.on_trigger(1_000)
    assert not pacer.ready(9, 1_999)


@pytest.mark.parametrize("rows", [0, 1])
def test_without_a_minimum_every_trigger_is_worth_while(rows: int) -> None:
    pacer = Pacer(None, 1_000)
    pacer.on_trigger(0)
    assert pacer.ready(rows, 1)
