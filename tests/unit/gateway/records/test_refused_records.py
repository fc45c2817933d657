"""Every kind of damage to a record batch is refused by one error, whole, by both ways."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import islice

import pytest
from kio.schema.errors import ErrorCode

from semel.gateway.records import (
    CorruptRecords,
    InvalidRecords,
    InvalidRecordTime,
    RecordsTooLarge,
    RefusedRecords,
    UnsupportedCompression,
    UnsupportedMagic,
    decode,
    decode_produced,
)
from semel.gateway.records.many_records import MANY_RECORDS
from semel.gateway.records.record_batch import RECORDS_MAX
from semel.protos.errors import SemelError
from tests.kit.kafka_batches import (
    COUNT_AT,
    HEAD_BYTES,
    Record,
    Sender,
    of_aiokafka,
    record_bytes,
    sealed,
    varint,
    with_bytes,
    with_records,
)
from tests.kit.wire_damage import cuts, flips, unnoticed

BYTES_MAX = 1 << 20
FEW, MANY = 3, MANY_RECORDS + 40
COUNTS = (FEW, MANY)
PLAIN = of_aiokafka([Record(1_000, b"k", b"value", [("h", b"x")])] * FEW)


def refusal(batch: bytes) -> RefusedRecords:
    with pytest.raises(RefusedRecords) as caught:
        decode_produced(batch, bytes_max=BYTES_MAX)
    return caught.value


def with_bad_row(bad: Callable[[int], bytes], count: int, row: int) -> bytes:
    """A batch in which one record is not as it should be."""
    records = [bad(at) if at == row else record_bytes(at, key=b"key") for at in range(count)]
    return with_records(PLAIN, b"".join(records), count=count)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (RefusedRecords, ErrorCode.invalid_record),
        (CorruptRecords, ErrorCode.corrupt_message),
        (InvalidRecords, ErrorCode.invalid_record),
        (UnsupportedMagic, ErrorCode.unsupported_for_message_format),
        (UnsupportedCompression, ErrorCode.unsupported_compression_type),
        (InvalidRecordTime, ErrorCode.invalid_timestamp),
        (RecordsTooLarge, ErrorCode.message_too_large),
    ],
)
def test_each_refusal_has_its_code(kind: type[RefusedRecords], code: ErrorCode) -> None:
    assert kind.kafka_code is code
    assert issubclass(kind, SemelError)
    assert not kind.retriable


@pytest.mark.parametrize("magic", [0, 1])
def test_older_message_sets_are_refused(magic: int) -> None:
    message = struct.pack(">qiIbbiii", 0, 18, 0, magic, 0, -1, 0, 0)
    assert type(refusal(message)) is UnsupportedMagic
    assert type(refusal(with_bytes(PLAIN, 16, bytes([magic])))) is UnsupportedMagic


def test_an_unknown_magic_is_damage() -> None:
    for magic in (3, 0x7F, 0x80, 0xFF):
        assert type(refusal(PLAIN[:16] + bytes([magic]) + PLAIN[17:])) is CorruptRecords


def test_a_flipped_bit_is_noticed() -> None:
    """Base offset and leader epoch, in front of the CRC, say nothing in a producer's batch."""
    for start, stop in ((8, 12), (16, len(PLAIN))):
        assert unnoticed(_decode, RefusedRecords, flips(PLAIN, start, stop)) == []


def test_a_cut_batch_is_noticed() -> None:
    assert unnoticed(_decode, RefusedRecords, cuts(PLAIN)) == []
    assert unnoticed(_decode, CorruptRecords, islice(cuts(PLAIN), 1, len(PLAIN))) == []


def _decode(batch: bytes) -> None:
    decode_produced(batch, bytes_max=BYTES_MAX)


def test_a_cut_batch_with_a_right_crc_is_noticed() -> None:
    for length in range(HEAD_BYTES, len(PLAIN)):
        assert type(refusal(sealed(PLAIN[:length]))) is CorruptRecords


def test_bytes_behind_the_batch_are_no_second_batch() -> None:
    assert type(refusal(PLAIN + b"\0")) is InvalidRecords
    with pytest.raises(CorruptRecords):
        decode(PLAIN + b"\0", bytes_max=BYTES_MAX)
    assert type(refusal(PLAIN + PLAIN)) is InvalidRecords


@pytest.mark.parametrize("count", [-1, 0, 1, FEW - 1, FEW + 1, 1 << 17])
def test_a_lying_count_is_noticed(count: int) -> None:
    """It costs no memory either."""
    last = struct.pack(">i", max(count - 1, -(1 << 31)))
    lying = with_bytes(with_bytes(PLAIN, COUNT_AT, struct.pack(">i", count)), 23, last)
    assert type(refusal(lying)) is CorruptRecords


def test_a_batch_without_a_record_is_refused() -> None:
    assert type(refusal(with_records(PLAIN, b"", count=0))) is CorruptRecords


def test_a_batch_of_very_many_records_is_refused_before_they_are_read() -> None:
    count = RECORDS_MAX + 1
    wrong = with_records(PLAIN, bytes(7 * count), count=count)
    with pytest.raises(RecordsTooLarge):
        decode_produced(wrong, bytes_max=8 * count)


def test_a_last_offset_that_the_count_contradicts_is_noticed() -> None:
    for delta in (-1, 0, FEW - 2, FEW, 1 << 30):
        assert type(refusal(with_bytes(PLAIN, 23, struct.pack(">i", delta)))) is CorruptRecords


@pytest.mark.parametrize("bit", [5, 6, 7, 14, 15])
def test_attributes_that_no_producer_sets_are_refused(bit: int) -> None:
    attributes = struct.pack(">H", 1 << bit)
    assert type(refusal(with_bytes(PLAIN, 21, attributes))) is InvalidRecords


def test_append_time_is_the_brokers_to_give() -> None:
    assert type(refusal(with_bytes(PLAIN, 21, b"\0\x08"))) is InvalidRecordTime


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_refused(codec: int) -> None:
    assert type(refusal(with_bytes(PLAIN, 21, bytes([0, codec])))) is UnsupportedCompression


@pytest.mark.parametrize(
    "sender",
    [
        Sender(producer_id=-2, epoch=0, sequence=0),
        Sender(producer_id=5, epoch=-1, sequence=0),
        Sender(producer_id=5, epoch=0, sequence=-1),
        Sender(transactional=True),
    ],
)
def test_a_producer_that_does_not_say_who_it_is_is_refused(sender: Sender) -> None:
    assert type(refusal(of_aiokafka([Record(1, None, b"v")], sender))) is InvalidRecords


_WRONG: dict[str, Callable[[int], bytes]] = {
    "offset delta too high": lambda row: record_bytes(row + 1),
    "offset delta too low": lambda row: record_bytes(row - 1),
    "negative length": lambda row: varint(-5) + record_bytes(row)[1:],
    "length too short": lambda row: varint(5) + record_bytes(row)[1:],
    "length too long": lambda row: varint(12) + record_bytes(row)[1:],
    "bytes behind the headers": lambda row: record_bytes(row, behind=b"\0"),
    "fewer headers than counted": lambda row: record_bytes(row, header_count=1),
    "very many headers": lambda row: record_bytes(row, header_count=(1 << 31) - 1),
    "more headers than counted": lambda row: record_bytes(
        row, headers=[(b"a", b"b")] * 2, header_count=1
    ),
    "negative header count": lambda row: record_bytes(row, header_count=-1),
    "header without a name": lambda row: record_bytes(row, headers=[(None, b"b")]),
    "key that leads out": lambda row: _record(row, varint(200) + b"k" + varint(1) + b"v\0"),
    "key of length -2": lambda row: _record(row, varint(-2) + varint(1) + b"v\0"),
    "value that leads out": lambda row: _record(row, varint(-1) + varint(1 << 30) + b"v\0"),
    "value of length -2": lambda row: _record(row, varint(-1) + varint(-2) + b"\0"),
    "header value that leads out": lambda row: _record(
        row, varint(-1) + varint(0) + varint(1) + varint(1) + b"n" + varint(99)
    ),
    "header name that leads out": lambda row: _record(
        row, varint(-1) + varint(0) + varint(1) + varint(99) + b"n" + varint(0)
    ),
    "header value of length -2": lambda row: _record(
        row, varint(-1) + varint(0) + varint(1) + varint(1) + b"n" + varint(-2)
    ),
    "number of six bytes": lambda row: _record(row, b"\xff\xff\xff\xff\xff\0" + b"\0\0"),
    "number of 33 bits": lambda row: _record(row, b"\xff\xff\xff\xff\x1f" + b"\0\0"),
    "time of eleven bytes": lambda row: _timed(row, b"\xff" * 10 + b"\0"),
    "time of 65 bits": lambda row: _timed(row, b"\xff" * 9 + b"\x02"),
}


def _record(row: int, fields: bytes) -> bytes:
    body = b"\0" + varint(0) + varint(row) + fields
    return varint(len(body)) + body


def _timed(row: int, time: bytes) -> bytes:
    body = b"\0" + time + varint(row) + varint(-1) + varint(1) + b"v\0"
    return varint(len(body)) + body


@pytest.mark.parametrize("where", ["first", "middle", "last"])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("wrong", _WRONG)
def test_a_wrong_record_is_noticed(wrong: str, count: int, where: str) -> None:
    row = {"first": 0, "middle": count // 2, "last": count - 1}[where]
    assert type(refusal(with_bad_row(_WRONG[wrong], count, row))) is CorruptRecords


@pytest.mark.parametrize("count", COUNTS)
def test_bytes_behind_the_last_record_are_noticed(count: int) -> None:
    records = b"".join(map(record_bytes, range(count)))
    decode_produced(with_records(PLAIN, records, count=count), bytes_max=BYTES_MAX)
    for behind in (b"\0", record_bytes(count), bytes(100)):
        wrong = with_records(PLAIN, records + behind, count=count)
        assert type(refusal(wrong)) is CorruptRecords


@pytest.mark.parametrize("count", COUNTS)
def test_wrong_headers_of_many_records_are_noticed(count: int) -> None:
    """Rounds of headers have checks of their own."""
    for bad in ([(None, b"v")], [(b"n", b"v"), (None, None)]):
        records = [record_bytes(row, headers=[(b"n", b"v"), *bad]) for row in range(count)]
        wrong = with_records(PLAIN, b"".join(records), count=count)
        assert type(refusal(wrong)) is CorruptRecords
    long = [
        _record(row, varint(-1) + varint(0) + varint(1) + varint(1) + b"n" + varint(3))
        for row in range(count)
    ]
    assert type(refusal(with_records(PLAIN, b"".join(long), count=count))) is CorruptRecords


@pytest.mark.parametrize("cut", range(1, 5))
@pytest.mark.parametrize("count", COUNTS)
def test_a_header_that_the_bytes_cut_is_noticed(count: int, cut: int) -> None:
    """One record's headers are read one by one, up to the end of the bytes."""
    field = (varint(1) + b"n" + b"\x80\x80")[: 4 - cut % 4]
    last = _record(count - 1, varint(-1) + varint(0) + varint(1) + field)
    records = b"".join(map(record_bytes, range(count - 1))) + last
    assert type(refusal(with_records(PLAIN, records, count=count))) is CorruptRecords


@pytest.mark.parametrize("count", COUNTS)
def test_neither_key_nor_value_is_refused(count: int) -> None:
    keyed = with_bad_row(lambda row: record_bytes(row, key=b"k", value=None), count, 1)
    assert decode_produced(keyed, bytes_max=BYTES_MAX).columns.values.null_count == 1
    nothing = with_bad_row(lambda row: record_bytes(row, value=None), count, 1)
    assert type(refusal(nothing)) is InvalidRecords
    alone = with_records(
        PLAIN, b"".join(record_bytes(row, value=None) for row in range(count)), count=count
    )
    assert type(refusal(alone)) is InvalidRecords


@pytest.mark.parametrize("count", COUNTS)
def test_a_header_name_that_is_not_utf_8_is_refused(count: int) -> None:
    wrong = with_bad_row(lambda row: record_bytes(row, headers=[(b"\xff", b"")]), count, 1)
    assert type(refusal(wrong)) is InvalidRecords


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    ("base", "delta"),
    [
        (0, 1 << 55),
        (0, -(1 << 55)),
        (1 << 55, 0),
        ((1 << 63) - 1, 1),
        (-(1 << 63), -(1 << 62)),
        ((1 << 63) - 1, (1 << 63) - 1),
    ],
)
def test_times_without_microseconds_are_refused(base: int, delta: int, count: int) -> None:
    wrong = with_bad_row(lambda row: record_bytes(row, delta=delta), count, 1)
    assert type(refusal(with_bytes(wrong, 27, struct.pack(">q", base)))) is InvalidRecordTime


def test_a_batch_is_bounded_without_a_codec_too() -> None:
    size = len(PLAIN) - HEAD_BYTES
    decode_produced(PLAIN, bytes_max=size)
    with pytest.raises(RecordsTooLarge):
        decode_produced(PLAIN, bytes_max=size - 1)
