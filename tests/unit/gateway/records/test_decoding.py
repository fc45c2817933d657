"""What other clients' code writes is read as it was meant, by both ways of finding fields."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.gateway.records import DecodedBatch, decode, decode_produced
from semel.gateway.records.few_records import parse_few
from semel.gateway.records.field_places import Places
from semel.gateway.records.many_records import MANY_RECORDS, parse_many
from semel.protos.batch import check_batch
from semel.protos.columns import decode_columns, encode_batch
from tests.kit.kafka_batches import (
    HEAD_BYTES,
    MAKERS,
    Pairs,
    Record,
    Sender,
    of_aiokafka,
    of_kafka_python,
    record_bytes,
    varint,
    with_records,
)

BYTES_MAX = 1 << 20
TIME_MS = 1_700_000_000_000

short = st.binary(max_size=90)
pairs = st.lists(st.tuples(st.text(max_size=4), short), max_size=3)
# Values of a few sizes and counts above the limit meet runs, their ends, and every width of a
# length.
bodies = st.one_of(short, st.sampled_from([b"", b"v" * 50, b"v" * 56, b"v" * 100, b"v" * 9000]))


@st.composite
def record_lists(draw: st.DrawFn) -> list[Record]:
    """A few records, or many that repeat a few."""
    stamps = st.integers(TIME_MS, TIME_MS + draw(st.sampled_from([0, 3, 100, 10_000, 1 << 40])))
    headers = pairs if draw(st.booleans()) else st.just([])
    keys = st.none() | short if draw(st.booleans()) else st.none()
    few = draw(st.lists(st.builds(Record, stamps, keys, bodies, headers), min_size=1, max_size=9))
    return few * draw(st.sampled_from([1, 1, 7, 40]))


def rows_of(found: DecodedBatch) -> list[Record]:
    """The columns as the records that were sent, without Semel's own fields."""
    columns, count = found.columns, len(found)
    keys: list[Any] = [None] * count
    if columns.keys is not None:
        keys = columns.keys.to_pylist()
    stamps = [found.timestamp_us] * count
    if columns.timestamps is not None:
        stamps = columns.timestamps.to_pylist()
    headers: list[Any] = [[]] * count
    if columns.headers is not None:
        headers = columns.headers.to_pylist()
    return [
        Record(stamp // 1000, key, value, [(pair["key"], pair["value"]) for pair in own])
        for stamp, key, value, own in zip(
            stamps, keys, columns.values.to_pylist(), headers, strict=True
        )
    ]


@settings(max_examples=60, deadline=None)
@given(record_lists(), st.sampled_from(MAKERS))
def test_what_other_clients_write_is_read(records: list[Record], make: Any) -> None:
    found = decode_produced(make(records), bytes_max=1 << 24)
    assert rows_of(found) == records
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (-1, -1, -1)
    assert not found.is_idempotent
    assert not found.transactional
    assert found.deliver_at_us is None
    assert found.due_runs() == [(0, len(records), 0)]


@settings(max_examples=60, deadline=None)
@given(record_lists())
def test_few_and_many_records_are_found_alike(records: list[Record]) -> None:
    data = of_aiokafka(records)[HEAD_BYTES:]
    few, many = parse_few(data, len(records)), parse_many(memoryview(data), len(records))
    for one, other in zip(few, many, strict=True):
        assert _plain(one) == _plain(other)


def _plain(field: Any) -> Any:
    if isinstance(field, Places):
        return field.starts.tolist(), field.lengths.tolist(), field.has_nulls
    return field.tolist()


def test_columns_become_a_batch_as_they_are() -> None:
    records = [Record(TIME_MS + at, b"k%d" % at, b"v" * at, [("h", b"x")]) for at in range(100)]
    columns = decode_produced(of_kafka_python(records), bytes_max=BYTES_MAX).columns
    batch = encode_batch(
        columns,
        topic_id=1,
        queue_id=0,
        producer_id=1,
        epoch=1,
        session=1,
        previous_sequence=-1,
        base_sequence=0,
        last_sequence=99,
        timestamp_us=0,
    )
    stored = decode_columns(batch, check_batch(batch))
    assert stored.values == columns.values
    assert stored.keys == columns.keys
    assert stored.headers == columns.headers
    assert stored.timestamps == columns.timestamps


def test_the_producer_is_told() -> None:
    sender = Sender(producer_id=1 << 40, epoch=7, sequence=(1 << 31) - 1, transactional=True)
    found = decode_produced(of_aiokafka([Record(1, None, b"v")], sender), bytes_max=BYTES_MAX)
    assert found.is_idempotent
    assert found.transactional
    assert (found.producer_id, found.producer_epoch) == (1 << 40, 7)
    assert found.base_sequence == (1 << 31) - 1


def test_columns_that_no_record_needs_are_absent() -> None:
    columns = decode_produced(
        of_aiokafka([Record(5, None, b"a"), Record(5, None, b"b")]), bytes_max=BYTES_MAX
    ).columns
    assert columns.keys is None
    assert columns.headers is None
    assert columns.timestamps is None
    assert columns.message_ids is None
    assert columns.deliver_at is None, "brokers refuse that column"


def test_tombstones_keep_their_keys() -> None:
    records = [Record(1, b"k", None), Record(2, None, b"v"), Record(3, b"", b"")] * 30
    assert rows_of(decode_produced(of_aiokafka(records), bytes_max=BYTES_MAX)) == records


def test_a_record_set_may_have_several_batches() -> None:
    first, second = [Record(1, None, b"a")], [Record(2, None, b"b"), Record(2, None, b"c")]
    found = decode(of_aiokafka(first) + of_kafka_python(second), bytes_max=BYTES_MAX)
    assert [rows_of(each) for each in found] == [first, second]
    assert decode(b"", bytes_max=BYTES_MAX) == []


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_bytes_are_taken(kind: Any) -> None:
    records = [Record(1, b"k", b"v" * 100)] * (MANY_RECORDS + 1)
    assert rows_of(decode_produced(kind(of_aiokafka(records)), bytes_max=BYTES_MAX)) == records


@pytest.mark.parametrize("count", [1, MANY_RECORDS + 8])
def test_the_columns_do_not_need_the_record_set_any_more(count: int) -> None:
    records = [Record(1, b"k", b"value")] * count
    data = bytearray(of_aiokafka(records))
    found = decode_produced(data, bytes_max=BYTES_MAX)
    data[:] = bytes(len(data))
    assert rows_of(found) == records


@pytest.mark.parametrize("width", [2, 3, 5])
@pytest.mark.parametrize("count", [1, MANY_RECORDS, 300])
def test_numbers_may_have_more_bytes_than_they_need(width: int, count: int) -> None:
    """Java's reader takes them, too."""
    plain = [record_bytes(row, value=b"v" * (row % 3)) for row in range(count)]
    wide = [varint(len(each) - 1, width) + each[1:] for each in plain]
    batch = of_aiokafka([Record(9, None, b"")])
    found = decode_produced(with_records(batch, b"".join(wide), count=count), bytes_max=BYTES_MAX)
    assert found.columns.values.to_pylist() == [b"v" * (row % 3) for row in range(count)]


def test_times_before_1970_and_far_away_are_kept() -> None:
    most = ((1 << 63) - 1) // 1000
    for stamps in ((-1, -1), (-5_000, 3), (0, most), (most, 0)):
        for repeat in (1, 30):
            records = [Record(stamp, None, b"v") for stamp in stamps] * repeat
            found = decode_produced(of_kafka_python(records), bytes_max=BYTES_MAX)
            assert [row.timestamp for row in rows_of(found)] == [*stamps] * repeat


def test_rows_with_one_due_time_are_a_run() -> None:
    records = [
        Record(1, None, b"v", [] if due is None else [("semel-deliver-at", due)])
        for due in (None, b"5", b"5", None, b"0", b"7", b"5")
    ]
    found = decode_produced(of_aiokafka(records), bytes_max=BYTES_MAX)
    assert found.deliver_at_us is not None
    assert found.deliver_at_us.tolist() == [0, 5000, 5000, 0, 0, 7000, 5000]
    assert found.due_runs() == [(0, 1, 0), (1, 3, 5000), (3, 5, 0), (5, 6, 7000), (6, 7, 5000)]


def test_many_thousands_of_records_are_read() -> None:
    """Offset deltas of three bytes, and more fields than are taken by a kept index."""
    records = [Record(1, b"%d" % row, b"v" * (row % 3)) for row in range(17_000)]
    assert rows_of(decode_produced(of_aiokafka(records), bytes_max=BYTES_MAX)) == records


def test_headers_of_one_record_may_be_many_where_others_have_none() -> None:
    many: Pairs = [(f"n{at}", b"%d" % at) for at in range(200)]
    records = [Record(1, None, b"v", many if row == 70 else []) for row in range(100)]
    assert rows_of(decode_produced(of_aiokafka(records), bytes_max=BYTES_MAX)) == records
