"""Semel's fields leave the headers on the way in and are shown on the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.gateway.records import InvalidRecords, decode_produced, encode
from semel.gateway.records.own_headers import due_time_us, put_back_nulls
from semel.protos.columns import Columns
from tests.kit.kafka_batches import READERS, Pairs, ReadBatch, Record, of_kafka_python

BYTES_MAX = 1 << 22
COUNTS = (1, 200)


def sent(headers: Pairs, count: int, others: Pairs | None = None) -> Any:
    """The batch that is found of records, the last of which has these headers."""
    records = [Record(1, b"k", b"v", others or [])] * (count - 1)
    return decode_produced(
        of_kafka_python([*records, Record(1, b"k", b"v", headers)]), bytes_max=BYTES_MAX
    )


def shown(columns: Columns, read: Callable[[bytes], ReadBatch], **changes: Any) -> list[Pairs]:
    batch = encode(columns, base_offset=0, next_offset=len(columns), timestamp_us=1_000, **changes)
    return [record.headers for record in read(batch).records]


@pytest.mark.parametrize("count", COUNTS)
def test_the_fields_leave_the_headers(count: int) -> None:
    found = sent(
        [("a", b"1"), ("semel-message-id", b"\0id"), ("semel-deliver-at", b"9"), ("b", b"")],
        count,
        [("c", b"2")],
    )
    headers = found.columns.headers.to_pylist()
    assert headers[-1] == [{"key": "a", "value": b"1"}, {"key": "b", "value": b""}]
    assert headers[:-1] == [[{"key": "c", "value": b"2"}]] * (count - 1)
    assert found.columns.message_ids.to_pylist() == [None] * (count - 1) + [b"\0id"]
    assert found.deliver_at_us.tolist() == [0] * (count - 1) + [9000]


@pytest.mark.parametrize("count", COUNTS)
def test_without_other_headers_there_is_no_column(count: int) -> None:
    found = sent([("semel-message-id", b"x")], count)
    assert found.columns.headers is None
    assert found.deliver_at_us is None


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    "headers",
    [
        [("semel-message-id", b"a"), ("semel-message-id", b"a")],
        [("semel-deliver-at", b"1"), ("x", b""), ("semel-deliver-at", b"1")],
        [("semel-message-id", None)],
        [("semel-message-id", b"")],
        [("semel-message-id", b"x" * 1025)],
        [("semel-deliver-at", None)],
        [("semel-deliver-at", b"")],
        [("semel-deliver-at", b"tomorrow")],
        [("semel-null-headers", b"0")],
        [("x", None), ("semel-null-headers", None)],
    ],
)
def test_headers_that_say_nothing_sensible_are_refused(headers: Pairs, count: int) -> None:
    with pytest.raises(InvalidRecords, match="semel-"):
        sent(headers, count)


def test_any_record_that_has_a_header_twice_is_refused() -> None:
    once: Pairs = [("semel-message-id", b"a")]
    rows = [once, once, once + once, once]
    batch = of_kafka_python([Record(1, b"k", b"v", headers) for headers in rows])
    with pytest.raises(InvalidRecords, match="twice"):
        decode_produced(batch, bytes_max=BYTES_MAX)


@pytest.mark.parametrize(
    ("text", "us"),
    [
        (b"0", 0),
        (b"1893499200000", 1_893_499_200_000_000),
        (b"2030-01-01T12:00:00Z", 1_893_499_200_000_000),
        (b"2030-01-01t12:00:00z", 1_893_499_200_000_000),
        (b"2030-01-01 12:00:00+00:00", 1_893_499_200_000_000),
        (b"2030-01-01T14:30:00+02:30", 1_893_499_200_000_000),
        (b"2030-01-01T12:00:00.000001Z", 1_893_499_200_000_001),
        (b"2030-01-01T12:00:00.5Z", 1_893_499_200_500_000),
        (b"2030-01-01T12:00:00.123456789Z", 1_893_499_200_123_456),
        (b"1960-01-01T00:00:00Z", 0),
        (b"0001-01-01T00:00:00+23:59", 0),
    ],
)
def test_times_are_understood(text: bytes, us: int) -> None:
    assert due_time_us(text) == us


@pytest.mark.parametrize(
    "text",
    [
        b"-1",
        b"1.5",
        b" 5",
        b"5\n",
        b"1e9",
        b"0x10",
        b"1234567890123456",
        "٣".encode(),
        b"\xff",
        b"2030-01-01",
        b"2030-01-01T12:00:00",
        b"2030-02-31T12:00:00Z",
        b"2030-01-01T25:00:00Z",
        b"2030-W01-1T12:00:00Z",
        b"2030-01-01T12:00:00+99:99",
        b"0000-01-01T00:00:00Z",
        b"x" * 100_000,
    ],
)
def test_other_times_are_refused(text: bytes) -> None:
    with pytest.raises(InvalidRecords) as caught:
        due_time_us(text)
    assert len(caught.value.message) < 500


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("count", COUNTS)
def test_the_fields_are_shown_again(count: int, read: Callable[[bytes], ReadBatch]) -> None:
    headers: Pairs = [("a", b"1"), ("semel-message-id", b"id"), ("semel-deliver-at", b"7")]
    found = sent(headers, count, headers)
    assert shown(found.columns, read, deliver_at_us=7_000) == [headers] * count


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=4),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([1, 20]),
    st.sampled_from(READERS),
)
def test_null_values_of_headers_come_back(
    headers: list[Pairs], times: int, read: Callable[[bytes], ReadBatch]
) -> None:
    records = [Record(1, None, b"v", own) for own in headers] * times
    found = decode_produced(of_kafka_python(records), bytes_max=BYTES_MAX)
    assert shown(found.columns, read) == headers * times


def test_a_null_is_stored_as_the_format_says() -> None:
    found = sent([("a", None), ("b", b""), ("c", None)], 1)
    assert found.columns.headers.to_pylist() == [
        [
            {"key": "a", "value": b""},
            {"key": "b", "value": b""},
            {"key": "c", "value": b""},
            {"key": "semel-null-headers", "value": b"0,2"},
        ]
    ]


@pytest.mark.parametrize("value", [b"", b"x", b"1", b"0,", b"0,5", b"-1", b"99999999"])
def test_a_list_of_nulls_that_fits_nothing_is_shown_as_it_is(value: bytes) -> None:
    """Semel's own clients may send any header."""
    pairs = [("a", b""), ("semel-null-headers", value)]
    assert put_back_nulls([pairs]) == [pairs]
    full = [("a", b"not null"), ("semel-null-headers", b"0")]
    assert put_back_nulls([full]) == [full]
    elsewhere = [("semel-null-headers", b"0"), ("a", b"")]
    assert put_back_nulls([elsewhere]) == [elsewhere]
