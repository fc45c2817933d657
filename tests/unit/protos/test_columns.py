"""Columns: encode and decode agree, whatever Arrow arrays the messages come in."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.protos import few_rows
from semel.protos.arrays import offsets_of
from semel.protos.arrow_arrays import HEADERS_TYPE
from semel.protos.arrow_records import RECORD_SCHEMA
from semel.protos.batch import (
    BATCH_BYTES_MAX,
    HEADER_BYTES,
    MESSAGE_BYTES_MAX,
    BatchFlags,
    BrokerHeader,
    Codec,
    check_batch,
)
from semel.protos.columns import (
    Columns,
    decode_columns,
    encode_batch,
)
from semel.protos.errors import CorruptBatch, InvalidRequest, MessageTooLarge
from semel.protos.few_rows import FEW_ROWS_MAX, FewRows
from semel.protos.ids import Offset, Term
from tests.kit.batches import check_content, encode_position_mark, to_record_batch
from tests.kit.wire_damage import cuts, flips, unnoticed

IDENTITY: dict[str, Any] = {
    "topic_id": 11,
    "queue_id": 2,
    "producer_id": 33,
    "epoch": 4,
    "session": 5,
    "timestamp_us": 1_700_000_000_000_000,
}
BROKER = BrokerHeader(base_offset=Offset(1000), append_time_us=1, term=Term(1)).encode()

short = st.binary(max_size=12)
optional = st.one_of(st.none(), short)
pairs = st.lists(st.tuples(st.text(max_size=5), short), max_size=3)


def encode(columns: Columns | FewRows, base: int = 0, **changes: Any) -> bytes:
    """A contiguous batch, or one with the source positions that the columns have."""
    last = base + len(columns) - 1
    if isinstance(columns, Columns) and columns.sequences is not None:
        base, last = columns.sequences[0].as_py(), columns.sequences[-1].as_py()
        changes.setdefault("source_positions", True)
    given: dict[str, Any] = IDENTITY | {
        "previous_sequence": base - 1,
        "base_sequence": base,
        "last_sequence": last,
    }
    return encode_batch(columns, **(given | changes))


def decode(batch: bytes | memoryview) -> Columns:
    return decode_columns(batch, check_batch(batch))


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    """Python lists for any set of columns."""
    count = draw(st.integers(1, 20))

    def column(elements: st.SearchStrategy[Any]) -> Any:
        if draw(st.booleans()):
            return None
        return draw(st.lists(elements, min_size=count, max_size=count))

    stamps = st.integers(-(2**62), 2**62)
    sequences = column(st.integers(1, 1000))
    keys = column(optional)
    values: list[bytes | None] = draw(st.lists(short, min_size=count, max_size=count))
    if keys is not None:
        dropped = draw(st.lists(st.booleans(), min_size=count, max_size=count))
        rows = zip(values, keys, dropped, strict=True)
        values = [None if drop and key is not None else each for each, key, drop in rows]
    return {
        "values": values,
        "keys": keys,
        "headers": column(pairs),
        "timestamps": column(stamps),
        "message_ids": column(optional),
        "slots": column(st.integers(0, 65_535)),
        "sequences": sequences and np.cumsum(sequences).tolist(),
        "deliver_at": column(st.integers(0, 2**62)),
    }


def listed(columns: Columns) -> dict[str, Any]:
    """Columns as Python lists, headers as lists of pairs."""
    found: dict[str, Any] = {}
    for name in messages_columns:
        column = getattr(columns, name)
        found[name] = None if column is None else column.to_pylist()
    if found["headers"] is not None:
        found["headers"] = [
            [(each["key"], each["value"]) for each in row or ()] for row in found["headers"]
        ]
    return found


messages_columns = (
    "values",
    "keys",
    "headers",
    "timestamps",
    "message_ids",
    "slots",
    "sequences",
    "deliver_at",
)


@given(messages(), st.sampled_from(Codec))
def test_messages_round_trip(given_messages: dict[str, Any], codec: Codec) -> None:
    batch = encode(Columns.from_arrow(**given_messages), codec=codec)
    assert listed(decode(batch)) == given_messages
    assert check_content(batch) == check_batch(batch)


@given(
    st.lists(st.tuples(short, short, short), min_size=1, max_size=FEW_ROWS_MAX),
    st.booleans(),
    st.booleans(),
    st.sampled_from(Codec),
)
def test_few_rows_are_written_as_arrow_writes_them(
    rows: list[tuple[bytes, bytes, bytes]], keyed: bool, named: bool, codec: Codec
) -> None:
    values, keys, ids = map(list, zip(*rows, strict=True))
    few = FewRows(values, keys if keyed else None, ids if named else None)
    columns = Columns.of_few(few)
    assert listed(columns) == listed(
        Columns.from_arrow(few.values, keys=few.keys, message_ids=few.message_ids)
    )
    assert encode(few, codec=codec) == encode(columns, codec=codec)


def test_few_rows_keep_the_limits() -> None:
    over = FewRows([b"", bytes(MESSAGE_BYTES_MAX)], [b"k", b"k"])
    with pytest.raises(MessageTooLarge, match="message 1 ") as caught:
        encode(over)
    assert caught.value.limit_bytes == MESSAGE_BYTES_MAX
    with pytest.raises(AssertionError, match="1 keys for 2 values"):
        encode(FewRows([b"a", b"b"], [b"k"]))


def test_few_rows_that_differ_from_arrow_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: keys in the reverse order."""
    few = FewRows([b"a", b"b"], [b"k", b"l"])
    assert encode(few) == encode(Columns.of_few(few))
    binary = few_rows._binary
    monkeypatch.setattr(few_rows, "_binary", lambda pieces: binary(pieces[::-1]))
    assert encode(few) != encode(Columns.of_few(few))


@given(messages(), st.integers(0, 20), st.integers(0, 20))
def test_a_slice_is_written_as_if_it_stood_alone(
    given_messages: dict[str, Any], one: int, other: int
) -> None:
    columns = Columns.from_arrow(**given_messages)
    start, end = sorted((min(one, len(columns) - 1), min(other, len(columns))))
    end = max(end, start + 1)
    alone = {name: part and part[start:end] for name, part in given_messages.items()}
    assert encode(columns.slice(start, end)) == encode(Columns.from_arrow(**alone))


VALUES = [b"one", b"", b"three\0\xff", b"four" * 10]
KEYS = [b"k", None, b"", b"l"]
HEADERS = [[("a", b"1"), ("ü", b"")], [], [("b", b"2")], []]
PLAIN = encode(Columns.from_arrow(VALUES, keys=KEYS, headers=HEADERS, message_ids=KEYS))


def _chunked(array: pa.Array) -> pa.ChunkedArray:
    return pa.chunked_array([array.slice(0, 1), array.slice(1, 2), array.slice(3)], array.type)


def _sliced(array: pa.Array) -> pa.Array:
    return pa.concat_arrays([array, array, array]).slice(4, 4)


HEADERS_ARRAY = pa.array(
    [[{"key": key, "value": value} for key, value in row] for row in HEADERS], HEADERS_TYPE
)


@pytest.mark.parametrize("shape", [lambda array: array, _chunked, _sliced])
@pytest.mark.parametrize("binary", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_the_shape_of_arrow_arrays_does_not_show(shape: Any, binary: pa.DataType) -> None:
    columns = Columns.from_arrow(
        shape(pa.array(VALUES, binary)),
        keys=shape(pa.array(KEYS, binary)),
        headers=shape(HEADERS_ARRAY),
        message_ids=shape(pa.array(KEYS, binary)),
    )
    assert encode(columns) == PLAIN


@pytest.mark.parametrize("text", [pa.string(), pa.large_string(), pa.string_view()])
def test_strings_are_stored_as_their_utf8(text: pa.DataType) -> None:
    words = ["eins", "zwei", "grün", ""]
    array = _chunked(pa.array(words, text))
    expected = encode(Columns.from_arrow([word.encode() for word in words]))
    assert encode(Columns.from_arrow(array)) == expected
    assert encode(Columns.from_arrow(words)) == expected


def test_dictionary_and_fixed_size_arrays_are_taken() -> None:
    words = [b"aa", b"bb", b"aa"]
    expected = encode(Columns.from_arrow(words))
    array = pa.array(words).dictionary_encode()
    assert encode(Columns.from_arrow(array)) == expected
    other = pa.chunked_array([array.slice(0, 1), pa.array(words[1:]).dictionary_encode()])
    assert encode(Columns.from_arrow(other)) == expected
    assert encode(Columns.from_arrow(pa.array(words, pa.binary(2)))) == expected


@pytest.mark.parametrize(
    "headers",
    [
        [dict(row) for row in HEADERS],
        [dict(row) or None for row in HEADERS],
        [tuple(row) for row in HEADERS],
        HEADERS_ARRAY,
        pa.array(HEADERS, pa.map_(pa.string(), pa.binary())),
        _sliced(pa.array(HEADERS, pa.map_(pa.string(), pa.binary()))),
        _chunked(pa.array(HEADERS, pa.map_(pa.string(), pa.binary()))),
        pa.array([row or None for row in HEADERS], pa.map_(pa.string(), pa.binary())),
        HEADERS_ARRAY.cast(pa.large_list(HEADERS_TYPE.value_type)),
    ],
)
def test_headers_in_any_form(headers: Any) -> None:
    columns = Columns.from_arrow(VALUES, keys=KEYS, headers=headers, message_ids=KEYS)
    assert encode(columns) == PLAIN


def test_a_batch_without_null_values_has_no_bitmap_for_them() -> None:
    keys = [b"k", b"l"]
    whole = encode(Columns.from_arrow([b"a", b"b"], keys=keys))
    part = encode(
        Columns.from_arrow([b"a", None, b"b"], keys=[b"k", b"l", b"l"]).filter(
            pa.array([True, False, True])
        )
    )
    assert whole == part
    assert not check_batch(whole).flags & BatchFlags.NULL_VALUES
    empty = encode(Columns.from_arrow([b"a", b""], keys=keys))
    null = encode(Columns.from_arrow([b"a", None], keys=keys))
    assert check_batch(null).flags & BatchFlags.NULL_VALUES
    assert decode(null).values.to_pylist() == [b"a", None]
    assert check_batch(null).content_crc != check_batch(empty).content_crc


def test_bytes_behind_a_null_value_do_not_show() -> None:
    offsets, data = np.array([0, 2, 4], np.int32), b"aabb"
    buffers = [pa.py_buffer(b"\1"), pa.py_buffer(offsets), pa.py_buffer(data)]
    dirty = pa.Array.from_buffers(pa.binary(), 2, buffers)
    keys = pa.array([b"k", b"l"])
    clean = Columns(values=pa.array([b"aa", None], pa.binary()), keys=keys)
    assert encode(Columns(values=dirty, keys=keys)) == encode(clean)


@pytest.mark.parametrize("keys", [None, [b"k", None], [None, None]])
def test_a_message_needs_a_value_or_a_key(keys: list[bytes | None] | None) -> None:
    with pytest.raises(InvalidRequest, match="message 1: a null value"):
        Columns.from_arrow([b"a", None], keys=keys)
    given = None if keys is None else pa.array(keys, pa.binary())
    with pytest.raises(InvalidRequest, match="message 1: a null value"):
        encode(Columns(values=pa.array([b"a", None], pa.binary()), keys=given))


def test_null_headers_are_no_headers() -> None:
    array = pa.array([row or None for row in HEADERS_ARRAY.to_pylist()], HEADERS_TYPE)
    columns = Columns.from_arrow(VALUES, keys=KEYS, headers=array, message_ids=KEYS)
    assert encode(columns) == PLAIN


def test_bytes_behind_a_null_do_not_show() -> None:
    data = pa.py_buffer(b"kXXXl")
    offsets = pa.py_buffer(np.array([0, 1, 4, 4, 5], np.int32))
    dirty = pa.Array.from_buffers(pa.binary(), 4, [pa.py_buffer(b"\xfd"), offsets, data])
    assert dirty.to_pylist() == KEYS
    columns = Columns.from_arrow(VALUES, keys=dirty, headers=HEADERS, message_ids=dirty)
    assert encode(columns) == PLAIN


def test_timestamps_of_any_unit_become_microseconds() -> None:
    stamps = pa.array([1, 2], pa.timestamp("s", "UTC"))
    decoded = decode(encode(Columns.from_arrow([b"a", b"b"], timestamps=stamps)))
    assert decoded.timestamps is not None
    assert decoded.timestamps.to_pylist() == [1_000_000, 2_000_000]
    head = check_batch(encode(Columns.from_arrow([b"a"] * 3, timestamps=[5, 9, 7])))
    assert (head.first_timestamp_us, head.max_timestamp_us) == (5, 9)
    head = check_batch(encode(Columns.from_arrow([b"a"] * 3, deliver_at=[5, 0, 7])))
    assert head.deliver_at_us == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"values": [b"a", None]},
        {"values": [1, 2]},
        {"values": pa.array([1, 2])},
        {"values": [b"a", b"b"], "keys": [b"k"]},
        {"values": [b"a", b"b"], "timestamps": [1, None]},
        {"values": [b"a", b"b"], "timestamps": [1, 2**64]},
        {"values": [b"a", b"b"], "slots": [1, 65_536]},
        {"values": [b"a", b"b"], "slots": pa.array([1, -1])},
        {"values": [b"a", b"b"], "headers": [{"a": b""}]},
        {"values": [b"a", b"b"], "headers": pa.array([1, 2])},
    ],
)
def test_columns_that_cannot_be_stored_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        Columns.from_arrow(**wrong)


@pytest.mark.parametrize(
    ("columns", "changes"),
    [
        ({"values": []}, {}),
        ({"values": [b"a"]}, {"last_sequence": 1}),
        ({"values": [b"a"]}, {"previous_sequence": 0}),
        ({"values": [b"a"]}, {"producer_id": 0}),
        ({"values": [b"a"]}, {"topic_id": 2**63}),
        ({"values": [b"a"]}, {"topic_id": -1}),
        ({"values": [b"a"]}, {"queue_id": 2**32}),
        ({"values": [b"a"]}, {"deliver_at_us": -1}),
        ({"values": [b"a"]}, {"last_sequence": 5, "source_positions": True}),
        ({"values": [b"a", b"b"], "sequences": [3, 3]}, {}),
        ({"values": [b"a", b"b", b"c"], "sequences": [1, 0, 9]}, {}),
        ({"values": [b"a", b"b"], "sequences": [3, 9]}, {"last_sequence": 8}),
        ({"values": [b"a"], "headers": [[("a", None)]]}, {}),
        ({"values": [b"a"], "headers": pa.array([[None]], HEADERS_TYPE)}, {}),
    ],
)
def test_a_batch_that_would_be_refused_is_not_built(
    columns: dict[str, Any], changes: dict[str, Any]
) -> None:
    base = {"base_sequence": 0, "previous_sequence": -1, "last_sequence": 0}
    made = Columns.from_arrow(**columns)
    wanted = ({} if made.sequences is not None else base) | changes
    with pytest.raises(InvalidRequest):
        encode(made, **wanted)


def test_a_message_over_the_limit_is_named() -> None:
    half = bytes(MESSAGE_BYTES_MAX // 2)
    fits = Columns.from_arrow([b"a", half], keys=[half, half], headers=[{}, {}])
    assert decode(encode(fits)).values[1].as_py() == half
    for over in (
        Columns.from_arrow([half, half + b"x"], keys=[None, half]),
        Columns.from_arrow([half, half], keys=[half, half], headers=[{}, {"a": b""}]),
        Columns.from_arrow([b"", half + half], headers=[{}, {"": b"1"}]),
    ):
        with pytest.raises(MessageTooLarge, match="message 1 ") as caught:
            encode(over)
        assert caught.value.limit_bytes == MESSAGE_BYTES_MAX


def test_a_batch_over_the_limit_is_refused_and_compression_helps() -> None:
    big = Columns.from_arrow([bytes(MESSAGE_BYTES_MAX)] * 9)
    with pytest.raises(MessageTooLarge) as caught:
        encode(big)
    assert caught.value.limit_bytes == BATCH_BYTES_MAX
    assert decode(encode(big, codec=Codec.ZSTD)).values[8].as_py() == bytes(MESSAGE_BYTES_MAX)
    huge = Columns.from_arrow([bytes(MESSAGE_BYTES_MAX)] * 64)
    with pytest.raises(MessageTooLarge):
        encode(huge, codec=Codec.ZSTD)


def test_a_codec_that_does_not_help_is_left_out() -> None:
    noise = np.random.default_rng(1).bytes(100)
    assert check_batch(encode(Columns.from_arrow([noise]), codec=Codec.LZ4)).codec is Codec.NONE
    assert (
        check_batch(encode(Columns.from_arrow([b"x" * 1000]), codec=Codec.LZ4)).codec is Codec.LZ4
    )


def test_the_content_crc_ignores_codec_timestamps_slots_and_sequences() -> None:
    same: list[Columns] = [
        Columns.from_arrow(VALUES, keys=KEYS, headers=HEADERS, message_ids=KEYS, **other)
        for other in (
            {},
            {"timestamps": [1, 2, 3, 4], "slots": [1, 2, 3, 4]},
            {"sequences": [1, 2, 3, 9], "deliver_at": [0] * 4},
        )
    ]
    crcs = {
        check_content(encode(columns, codec=codec)).content_crc
        for columns in same
        for codec in Codec
    }
    assert len(crcs) == 1
    for other in (
        Columns.from_arrow(VALUES, keys=KEYS, headers=HEADERS),
        Columns.from_arrow(VALUES, keys=KEYS[::-1], headers=HEADERS, message_ids=KEYS),
        Columns.from_arrow(VALUES[::-1], keys=KEYS, headers=HEADERS, message_ids=KEYS),
        Columns.from_arrow(VALUES, keys=KEYS, headers=HEADERS[::-1], message_ids=KEYS),
    ):
        assert check_content(encode(other)).content_crc not in crcs


def test_empty_arrays_have_one_offset_whatever_buffers_they_have() -> None:
    bare = pa.Array.from_buffers(pa.binary(), 0, [None, pa.py_buffer(b""), pa.py_buffer(b"")])
    for empty in (bare, pa.array([], pa.binary()), pa.array([b"a", b"b"]).slice(2)):
        assert offsets_of(empty).tolist() == [0]
    assert offsets_of(pa.array([b"a", b"bc"])).tolist() == [0, 1, 3]
    assert offsets_of(pa.array([b"a", b"bc"]).slice(1)).tolist() == [1, 3]


# --- no copies ----------------------------------------------------------------------------------


def _address(data: Any) -> int:
    return int(pa.py_buffer(data).address)


def test_columns_lie_in_the_memory_of_the_batch() -> None:
    columns = Columns.from_arrow(
        [b"value"] * 100, keys=[b"key"] * 100, headers=[{"a": b"b"}] * 100, slots=range(100)
    )
    batch = encode(columns)
    start, end = _address(batch), _address(batch) + len(batch)
    decoded = decode_columns(memoryview(batch), check_batch(batch))
    assert decoded.keys is not None
    assert decoded.headers is not None
    assert decoded.slots is not None
    buffers = [
        *decoded.values.buffers(),
        *decoded.keys.buffers(),
        *decoded.headers.buffers(),
        *decoded.slots.buffers(),
    ]
    assert len([buffer for buffer in buffers if buffer is not None]) == 2 + 3 + 5 + 1
    for buffer in buffers:
        if buffer is not None:
            assert start < buffer.address
            assert buffer.address + buffer.size <= end


def test_record_batches_share_values_with_the_stored_batch() -> None:
    stored = BROKER + encode(Columns.from_arrow([b"value"] * 100, keys=[b"key"] * 100))
    start = _address(stored)
    records = to_record_batch(stored, 10, 20)
    for name in ("value", "key"):
        data = records.column(name).buffers()[2]
        assert start < data.address < start + len(stored)


@pytest.mark.parametrize("shift", range(8))
def test_an_unaligned_batch_is_read_and_its_data_still_not_copied(shift: int) -> None:
    batch = encode(Columns.from_arrow(VALUES, keys=KEYS, sequences=[1, 5, 6, 7]))
    padded = bytes(shift) + batch
    view = memoryview(padded)[shift:]
    decoded = decode(view)
    assert decoded.values.to_pylist() == VALUES
    assert decoded.sequences is not None
    assert decoded.sequences.to_pylist() == [1, 5, 6, 7]
    offsets, data = decoded.values.buffers()[1:]
    assert offsets.address % 4 == 0
    assert _address(padded) < data.address < _address(padded) + len(padded)


def test_encoding_reads_arrays_where_they_lie() -> None:
    values = pa.array(VALUES * 2, pa.binary())
    columns = Columns.from_arrow(values)
    assert columns.values.buffers()[2].address == values.buffers()[2].address
    assert columns.slice(2, 4).values.buffers()[2].address == values.buffers()[2].address


# --- what readers get ---------------------------------------------------------------------------


def test_records_of_a_plain_batch() -> None:
    records = to_record_batch(BROKER + encode(Columns.from_arrow(VALUES), base=70), 1, 3)
    assert records.schema == RECORD_SCHEMA
    records.validate(full=True)
    stamp = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert records.to_pylist() == [
        {
            "key": None,
            "value": VALUES[row],
            "offset": 1000 + row,
            "timestamp": stamp,
            "headers": [],
            "producer": 33,
            "sequence": 70 + row,
        }
        for row in (1, 2)
    ]


@given(messages(), st.sampled_from(Codec), st.integers(0, 20), st.integers(0, 20))
@settings(max_examples=50)
def test_records_of_any_batch_are_valid(
    given_messages: dict[str, Any], codec: Codec, one: int, other: int
) -> None:
    given_messages["timestamps"] = None
    batch = encode(Columns.from_arrow(**given_messages), base=5, codec=codec)
    count = len(given_messages["values"])
    start, end = sorted((min(one, count), min(other, count)))
    records = to_record_batch(memoryview(BROKER + batch), start, end, base_offset=50)
    records.validate(full=True)
    assert records.schema == RECORD_SCHEMA
    assert records.column("value").to_pylist() == given_messages["values"][start:end]
    assert records.column("offset").to_pylist() == list(range(50 + start, 50 + end))
    sequences = given_messages["sequences"] or range(5, 5 + count)
    assert records.column("sequence").to_pylist() == list(sequences[start:end])
    keys = given_messages["keys"] or [None] * count
    assert records.column("key").to_pylist() == keys[start:end]


def test_a_position_mark_has_no_records_and_no_columns() -> None:
    identity = IDENTITY | {"previous_sequence": 1, "last_sequence": 9}
    mark = encode_position_mark(**identity)
    assert to_record_batch(BROKER + mark).num_rows == 0
    assert to_record_batch(BROKER + mark).schema == RECORD_SCHEMA
    assert check_content(mark).count == 0
    with pytest.raises(CorruptBatch):
        decode(mark)


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (3, 2), (0, 5), (5, 5)])
def test_rows_that_the_batch_does_not_have(start: int, end: int) -> None:
    with pytest.raises(InvalidRequest):
        to_record_batch(BROKER + PLAIN, start, end)


@pytest.mark.parametrize("codec", Codec)
def test_every_damage_of_a_stored_batch_is_noticed(codec: Codec) -> None:
    columns = Columns.from_arrow(
        [b"value"] * 20, keys=[b"k", None] * 10, headers=[{"a": b"b"}] * 20, slots=[1] * 20
    )
    stored = BROKER + encode(columns, codec=codec)
    assert check_batch(stored[32:]).codec is codec
    assert unnoticed(to_record_batch, CorruptBatch, flips(stored)) == []
    assert unnoticed(to_record_batch, CorruptBatch, cuts(stored)) == []
    assert unnoticed(check_content, CorruptBatch, flips(stored[32:])) == []


def test_the_header_is_128_bytes_in_front_of_the_body() -> None:
    assert len(PLAIN) == HEADER_BYTES + check_batch(PLAIN).body_length
    assert check_batch(PLAIN).flags == (BatchFlags.KEY | BatchFlags.HEADERS | BatchFlags.MESSAGE_ID)
