"""Due times: rounded up, never early, and every mistake named."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.client.core.dues import (
    AHEAD_US_MAX,
    DUE_STEP_US,
    due_at,
    due_column,
    due_of,
    runs_of,
)
from semel.client.core.message_ids import check_ids, id_bytes
from semel.protos.delays import AHEAD_MAX_US
from semel.protos.errors import InvalidRequest

NOW = 1_790_000_000_123_456
SECOND = 1_000_000
HOUR = 3_600 * SECOND
NOON = datetime(2026, 12, 24, 12, 0, 0, 1, UTC)
NOON_US = 1_798_113_600_000_001
DUE = NOON_US + SECOND - 1


def test_a_time_is_rounded_up_to_a_whole_second() -> None:
    assert due_of(NOON, None, NOW) == DUE
    assert due_of(NOON_US, None, NOW) == DUE
    assert due_of(DUE, None, NOW) == DUE
    berlin = timezone(timedelta(hours=1))
    assert due_of(NOON.astimezone(berlin), None, NOW) == DUE
    assert due_of(None, timedelta(seconds=5), NOW) == 1_790_000_006 * SECOND
    assert due_of(None, 5, NOW) == 1_790_000_006 * SECOND
    assert due_of(None, 0.000_000_1, NOW) == 1_790_000_001 * SECOND


def test_what_has_passed_is_due_at_once() -> None:
    assert due_of(None, None, NOW) == 0
    assert due_of(0, None, NOW) == due_of(NOW, None, NOW) == due_of(NOW - HOUR, None, NOW) == 0
    assert due_of(datetime(1969, 7, 20, tzinfo=UTC), None, NOW) == 0
    assert due_of(None, 0, NOW) == due_of(None, timedelta(0), NOW) == 0


@given(at_us=st.integers(NOW + 1, NOW + AHEAD_US_MAX))
def test_no_time_is_early_and_none_later_than_a_step(at_us: int) -> None:
    due_us = due_at(at_us, NOW)
    assert 0 <= due_us - at_us < DUE_STEP_US
    assert due_us % DUE_STEP_US == 0
    assert due_column([at_us, None], 2, NOW).tolist() == [due_us, 0]


def test_brokers_take_what_the_client_takes() -> None:
    """Though their clock may be half a day behind."""
    assert due_at(NOW + AHEAD_US_MAX, NOW) - (NOW - 12 * HOUR) <= AHEAD_MAX_US


@pytest.mark.parametrize(
    ("deliver_at", "deliver_after", "message"),
    [
        (NOON, 5, "contradict each other"),
        (datetime(2026, 12, 24), None, "has no time zone"),
        (-1, None, "not negative"),
        (True, None, "whole microseconds"),
        (5.5, None, "whole microseconds"),
        ("2026-12-24", None, "whole microseconds"),
        (NOON_US * 1_000, None, "more than ten years ahead; it looks like nanoseconds"),
        (NOON_US * 1_000_000, None, "more than ten years ahead: give microseconds"),
        (NOW + AHEAD_US_MAX + 1, None, "more than ten years ahead"),
        (NOON_US // 1_000, None, "no time in microseconds since 1970; it looks like milliseconds"),
        (NOON_US // 1_000_000, None, "no time in microseconds since 1970; it looks like seconds"),
        (datetime(2050, 1, 1, tzinfo=UTC), None, "more than ten years ahead"),
        (None, -1, "is negative"),
        (None, timedelta(microseconds=-1), "is negative"),
        (None, timedelta(days=4_000), "more than ten years; a number is in seconds"),
        (None, 1e300, "more than ten years"),
        (None, float("nan"), "a timedelta or seconds"),
        (None, "5m", "a timedelta or seconds"),
        (None, False, "a timedelta or seconds"),
    ],
)
def test_what_is_no_time_is_refused(deliver_at: Any, deliver_after: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        due_of(deliver_at, deliver_after, NOW)


def stamps(unit: str, zone: str | None = "UTC") -> pa.Array:
    return pa.array([NOON, None, datetime(1970, 1, 20, tzinfo=UTC)], pa.timestamp("us", zone)).cast(
        pa.timestamp(unit, zone), safe=False
    )


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([NOON, None, NOON_US, datetime(1970, 1, 20, tzinfo=UTC)], [DUE, 0, DUE, 0]),
        ((NOON_US, 0), [DUE, 0]),
        (np.array([NOON_US, NOW - HOUR]), [DUE, 0]),
        (pa.array([NOON_US, None], pa.uint64()), [DUE, 0]),
        (pa.array([None, None]), [0, 0]),
        (stamps("us"), [DUE, 0, 0]),
        (stamps("us", "Europe/Berlin"), [DUE, 0, 0]),
        (stamps("ms"), [DUE - SECOND, 0, 0]),
        (stamps("s"), [DUE - SECOND, 0, 0]),
        (stamps("us").cast(pa.timestamp("ns", "UTC")), [DUE, 0, 0]),
        (pa.chunked_array([stamps("us"), stamps("us")]).slice(1, 3), [0, 0, DUE]),
        (pa.chunked_array([], pa.int64()), []),
    ],
)
def test_columns_of_any_kind_are_taken(column: Any, expected: list[int]) -> None:
    assert due_column(column, len(expected), NOW).tolist() == expected


def test_nanoseconds_are_rounded_up_too() -> None:
    column = pa.array([DUE * 1_000 + 1], pa.timestamp("ns", "UTC"))
    assert due_column(column, 1, NOW).tolist() == [DUE + SECOND]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([NOON], "1 deliver_at for 2 values"),
        ([NOON, datetime(2026, 12, 24)], "has no time zone"),
        ([NOON, "x"], "whole microseconds"),
        ([NOON, True], "whole microseconds"),
        ([NOON_US, 1 << 70], "no time"),
        ([5, NOON_US // 1_000_000], "row 1 .* looks like seconds"),
        ([NOON_US, NOON_US // 1_000], "row 1 .* looks like milliseconds"),
        (pa.array([NOON_US, NOON_US * 1_000]), "row 1 .* looks like nanoseconds"),
        (pa.array([NOON_US, -5]), "row 1 is -5"),
        (pa.array([NOON_US, 5.0]), "not double"),
        (pa.array([True, False]), "not bool"),
        (pa.array(["a", "b"]), "not string"),
        (pa.array([1 << 63, 0], pa.uint64()), "cannot be read as times"),
        (pa.array([NOON, NOON], pa.timestamp("us")), "without a time zone"),
        (np.array(["2026-12-24", "2026-12-25"], "datetime64[us]"), "without a time zone"),
        (pa.array([1 << 60, 0], pa.timestamp("s", "UTC")), "more than ten years ahead"),
        (timedelta(seconds=1), "cannot be read as times"),
    ],
)
def test_columns_that_are_no_times_are_refused(column: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        due_column(column, 2, NOW)


@given(dues=st.lists(st.sampled_from([0, 5, 6, 7]), max_size=40), in_place=st.booleans())
def test_runs_hold_every_row_once_with_its_due_time(dues: list[int], in_place: bool) -> None:
    order, runs = runs_of(np.array(dues, np.int64), in_place=in_place)
    rows = list(range(len(dues))) if order is None else order.tolist()
    assert sorted(rows) == list(range(len(dues)))
    found = [(run.due_us, rows[run.start : run.end]) for run in runs]
    assert [row for _, some in found for row in some] == rows
    for due_us, some in found:
        assert some, "an empty run"
        assert {dues[row] for row in some} == {due_us}
        assert some == sorted(some)
    neighbours = [due_us for due_us, _ in found]
    if in_place:
        assert rows == sorted(rows)
        assert all(a != b for a, b in pairwise(neighbours))
    else:
        assert neighbours == sorted(set(dues))


def test_ids_are_bytes_of_bounded_length() -> None:
    assert id_bytes("ä") == "ä".encode()
    assert id_bytes(bytearray(b"x")) == b"x"
    assert id_bytes(b"x" * 1_024) == b"x" * 1_024
    ids = pa.array([b"abc", None, b"x" * 1_024, b""], pa.binary())
    assert check_ids(ids.slice(0, 3)).tolist() == [3, 0, 1_024]
    assert check_ids(ids.slice(2, 1)).tolist() == [1_024]


@pytest.mark.parametrize(
    ("message_id", "message"),
    [
        (b"", "has 0 bytes.*None for none"),
        (b"x" * 1_025, "has 1,025 bytes.*shorten it"),
        ("\udc80", "not valid Unicode"),
        (7, "not int"),
    ],
)
def test_what_is_no_id_is_refused(message_id: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        id_bytes(message_id)


@pytest.mark.parametrize(
    ("ids", "message"),
    [([b"a", b""], "row 1 has 0 bytes"), ([None, b"x" * 1_025], "row 1 has 1,025 bytes")],
)
def test_a_column_with_what_is_no_id_is_refused(ids: list[bytes | None], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        check_ids(pa.array(ids, pa.binary()))
