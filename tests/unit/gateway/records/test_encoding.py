"""Other clients' code reads what is written for consumers as it was stored."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.gateway.records import RecordCodec, encode, encode_gap, encoding
from semel.gateway.records.even_written import write_even
from semel.gateway.records.few_written import FEW_RECORDS, write_few
from semel.gateway.records.record_codecs import decompress
from semel.protos.columns import Columns
from tests.kit.kafka_batches import (
    HEAD_BYTES,
    READERS,
    ReadBatch,
    Record,
    with_records,
)

TIME_US = 1_700_000_000_000_000

short = st.binary(max_size=70)
pairs = st.lists(st.tuples(st.text(max_size=4), short), max_size=3)


@st.composite
def columns(draw: st.DrawFn) -> Columns:
    """Any columns that a batch of a queue may have, in a few rows or in many."""
    few = draw(st.integers(1, 9))
    times = draw(st.sampled_from([1, 1, 9, 40]))

    def column(elements: st.SearchStrategy[Any]) -> Any:
        if draw(st.booleans()):
            return None
        return draw(st.lists(elements, min_size=few, max_size=few)) * times

    keys = column(st.none() | short)
    values: list[bytes | None] = [*draw(st.lists(short, min_size=few, max_size=few))] * times
    if keys is not None and draw(st.booleans()):
        values = [None if key else value for key, value in zip(keys, values, strict=True)]
    span = draw(st.sampled_from([0, 999, 10**6, 10**15]))
    made = Columns.from_arrow(
        values,
        keys=keys,
        headers=column(pairs),
        timestamps=column(st.integers(TIME_US, TIME_US + span)),
        message_ids=column(st.none() | st.binary(min_size=1, max_size=9)),
    )
    start = draw(st.integers(0, len(made) - 1))
    return made.slice(start, draw(st.integers(start + 1, len(made))))


def expected(given_columns: Columns, timestamp_us: int, due_us: int) -> list[Record]:
    count = len(given_columns)

    def rows(column: pa.Array | None, default: Any) -> Any:
        return [default] * count if column is None else column.to_pylist()

    found = []
    for stamp, key, value, headers, message_id in zip(
        rows(given_columns.timestamps, timestamp_us),
        rows(given_columns.keys, None),
        given_columns.values.to_pylist(),
        rows(given_columns.headers, []),
        rows(given_columns.message_ids, None),
        strict=True,
    ):
        shown = [(pair["key"], pair["value"]) for pair in headers]
        if message_id is not None:
            shown.append(("semel-message-id", message_id))
        if due_us:
            shown.append(("semel-deliver-at", str(due_us // 1000).encode()))
        found.append(Record(stamp // 1000, key, value, shown))
    return found


@settings(max_examples=100, deadline=None)
@given(columns(), st.sampled_from(READERS), st.sampled_from([0, TIME_US]))
def test_other_clients_read_what_is_stored(
    given_columns: Columns, read: Callable[[bytes], ReadBatch], due_us: int
) -> None:
    count = len(given_columns)
    batch = encode(
        given_columns,
        base_offset=7_000,
        next_offset=7_000 + count,
        timestamp_us=TIME_US + 5,
        deliver_at_us=due_us,
    )
    found = read(batch)
    records = expected(given_columns, TIME_US + 5, due_us)
    assert found.records == records
    assert found.offsets == list(range(7_000, 7_000 + count))
    assert found.next_offset == 7_000 + count
    assert found.max_timestamp == max(record.timestamp for record in records)


@settings(max_examples=60, deadline=None)
@given(columns(), st.sampled_from([0, TIME_US]))
def test_few_and_many_records_are_written_alike(given_columns: Columns, due_us: int) -> None:
    count = len(given_columns)
    deltas = np.cumsum(np.arange(count)) * 3
    for times in (0, 5, np.arange(count) * -77):
        one = write_few(given_columns, deltas, times, due_us)
        many = encoding._records(given_columns, deltas, times, due_us)
        assert many.to_pybytes() == one
        assert write_even(given_columns, deltas, times, due_us) in (one, None)


@pytest.mark.parametrize("due_us", [0, TIME_US])
@pytest.mark.parametrize("keys", [None, b"", b"key", b"k" * 100])
@pytest.mark.parametrize("size", [0, 1, 63, 64, 5_000, 9_000])
def test_records_that_are_alike_are_written_as_the_others(
    size: int, keys: bytes | None, due_us: int
) -> None:
    made = Columns.from_arrow(
        [bytes([row]) * size for row in range(90)], keys=None if keys is None else [keys] * 90
    ).slice(10, 90)
    count = len(made)
    for deltas in (np.arange(count), np.arange(count) * 200):
        for times in (0, -9, np.arange(count), np.arange(count) * 200, np.arange(count) - 1):
            even = write_even(made, deltas, times, due_us)
            assert even == write_few(made, deltas, times, due_us)


def test_records_that_are_not_alike_are_written_otherwise() -> None:
    count = 30
    plain = Columns.from_arrow([b"v"] * count, keys=[b"k"] * count)
    numbers = np.arange(count)
    assert write_even(plain, numbers, 0, 0) is not None
    others: list[dict[str, Any]] = [
        {"values": [b"v"] * 29 + [b"vv"]},
        {"values": [b"v"] * 28 + [b"", b"vv"]},
        {"values": [b"v"] * 29 + [None]},
        {"keys": [b"k"] * 29 + [None]},
        {"keys": [b""] + [b"k"] * 29},
        {"headers": [[]] * 29 + [[("a", b"")]]},
        {"message_ids": [b"i"] + [None] * 29},
    ]
    for change in others:
        given_columns = {"values": [b"v"] * count, "keys": [b"k"] * count} | change
        assert write_even(Columns.from_arrow(**given_columns), numbers, 0, 0) is None
    assert write_even(plain, numbers, numbers % 2 * 100, 0) is None, "too many tables"


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("count", [3, FEW_RECORDS + 1, 300])
def test_offsets_without_a_message_are_gaps(read: Callable[[bytes], ReadBatch], count: int) -> None:
    offsets = [100 + 7 * row for row in range(count)]
    made = Columns(values=pa.array([b"v"] * count, pa.binary()), offsets=pa.array(offsets))
    end = offsets[-1] + 50
    found = read(encode(made, base_offset=90, next_offset=end, timestamp_us=TIME_US))
    assert found.base_offset == 90
    assert found.offsets == offsets
    assert found.next_offset == end
    rest = made.slice(2, count)
    found = read(encode(rest, base_offset=110, next_offset=end, timestamp_us=TIME_US))
    assert found.offsets == offsets[2:]


@pytest.mark.parametrize("read", READERS)
def test_a_gap_brings_consumers_past_it(read: Callable[[bytes], ReadBatch]) -> None:
    nothing = Columns(values=pa.array([], pa.binary()))
    for batch in (
        encode_gap(40, 45),
        encode(nothing, base_offset=40, next_offset=45, timestamp_us=TIME_US),
    ):
        found = read(batch)
        assert found.records == []
        assert found.max_timestamp == -1, "no time"
        assert (found.base_offset, found.next_offset) == (40, 45)


def test_a_gap_that_is_too_wide_is_told_in_part() -> None:
    found = READERS[0](encode_gap(40, 1 << 40))
    assert (found.base_offset, found.next_offset) == (40, 40 + (1 << 31))


@pytest.mark.parametrize(("base", "end"), [(5, 9), (4, 6), (0, 6)])
def test_rows_outside_of_their_batch_are_a_bug(base: int, end: int) -> None:
    made = Columns(values=pa.array([b"v"] * 2, pa.binary()), offsets=pa.array([4, 6]))
    with pytest.raises(AssertionError):
        encode(made, base_offset=base, next_offset=end, timestamp_us=0)


def test_the_header_names_no_producer() -> None:
    made = Columns(values=pa.array([b"v"], pa.binary()))
    batch = encode(made, base_offset=1, next_offset=2, timestamp_us=TIME_US, leader_epoch=6)
    assert batch[12:16] == b"\0\0\0\6"
    assert batch[21:23] == b"\0\0", "creation time, no codec, no transaction, no control batch"
    assert batch[43:57] == b"\xff" * 14
    plain = encode(made, base_offset=1, next_offset=2, timestamp_us=TIME_US)
    assert plain[12:16] == b"\xff" * 4


@pytest.mark.parametrize("codec", RecordCodec)
@pytest.mark.parametrize("count", [2, 500])
def test_a_codec_changes_the_records_alone(codec: RecordCodec, count: int) -> None:
    made = Columns(values=pa.array([b"value"] * count, pa.binary()))
    whole = partial(encode, made, base_offset=5, next_offset=5 + count, timestamp_us=TIME_US)
    plain, packed = whole(), whole(codec=codec)
    assert packed[22] == codec
    records = bytes(decompress(memoryview(packed)[HEAD_BYTES:], codec, 1 << 20))
    assert with_records(packed, records) == plain
    assert all(read(with_records(packed, records)).offsets for read in READERS)


def test_times_below_a_millisecond_are_rounded_down() -> None:
    stamps = [-1, 1_999, 0, -1_000_001]
    made = Columns(values=pa.array([b"v"] * 4, pa.binary()), timestamps=pa.array(stamps))
    batch = encode(made, base_offset=0, next_offset=4, timestamp_us=0)
    assert [each.timestamp for each in READERS[0](batch).records] == [-1, 1, 0, -1001]
