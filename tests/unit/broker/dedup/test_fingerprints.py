"""Fingerprints are what their docstring says, whatever stands beside a row."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.broker.dedup.fingerprints import Fingerprints
from semel.broker.dedup.looked_up import prints_in, prints_of
from semel.protos.batch import Codec, check_batch
from semel.protos.columns import Columns, decode_columns, encode_batch
from semel.protos.errors import InvalidRequest

SEED = b"the seed of a to"
MASK = (1 << 64) - 1
PLACE: dict[str, Any] = {
    "topic_id": 1,
    "queue_id": 0,
    "producer_id": 5,
    "epoch": 1,
    "session": 1,
    "previous_sequence": -1,
    "base_sequence": 0,
    "timestamp_us": 1,
}

Header = tuple[str, bytes]
Row = tuple[bytes, bytes | None, bytes | None, list[Header]]


def stream(label: str, count: int) -> list[int]:
    data = hashlib.shake_256(SEED + label.encode()).digest(8 * max(count, 1024))
    return list(struct.unpack(f"<{len(data) // 8}Q", data))


def plain_sum(row: bytes, label: str) -> int:
    words = struct.unpack(f"<{-(-len(row) // 4)}I", row + bytes(-len(row) % 4))
    weights = stream(label, len(words) + 1)
    total = (len(row) + 1) * weights[0]
    return int(total + sum(w * x for w, x in zip(weights[1:], words, strict=False))) & MASK


def plain_key(message_id: bytes) -> tuple[int, int]:
    tops = [plain_sum(message_id, f"key {number}") >> 32 for number in range(4)]
    return tops[0] << 32 | tops[1], tops[2] << 32 | tops[3]


def plain_digest(row: Row) -> int:
    value, key, message_id, headers = row
    total = plain_sum(value, "value")
    total += 0 if key is None else plain_sum(key, "key")
    total += 0 if message_id is None else plain_sum(message_id, "id")
    if headers:
        names = [name.encode() for name, _ in headers]
        values = [each for _, each in headers]
        for what, parts in (("name", names), ("value", values)):
            total += plain_sum(b"".join(parts), f"header {what}s")
            lengths = b"".join(struct.pack("<I", len(part)) for part in parts)
            total += plain_sum(lengths, f"header {what} lengths")
    return total & MASK


def columns_of(rows: list[Row]) -> Columns:
    values, keys, ids, headers = zip(*rows, strict=True)
    return Columns.from_arrow(
        list(values), keys=list(keys), message_ids=list(ids), headers=list(headers)
    )


def sizes(longest: int) -> st.SearchStrategy[bytes]:
    return st.binary(max_size=longest)


ROWS = st.lists(
    st.tuples(
        sizes(300),
        st.none() | sizes(40),
        st.none() | st.binary(min_size=1, max_size=128),
        st.lists(st.tuples(st.text(max_size=5), sizes(20)), max_size=3),
    ),
    min_size=1,
    max_size=30,
)


@given(ROWS)
def test_digests_are_the_sums_of_the_docstring(rows: list[Row]) -> None:
    found = Fingerprints(SEED).digests(columns_of(rows)).tolist()
    assert found == [plain_digest(row) for row in rows]


@given(st.lists(st.binary(min_size=1, max_size=128), min_size=1, max_size=40))
def test_keys_are_the_upper_halves_of_four_sums(ids: list[bytes]) -> None:
    found = Fingerprints(SEED).keys(pa.array(ids, pa.binary()))
    assert [tuple(row) for row in found.tolist()] == [plain_key(each) for each in ids]


@pytest.mark.parametrize("length", [0, 1, 3, 4, 16, 100, 4_097, 70_000])
def test_rows_of_one_length_and_long_rows(length: int) -> None:
    rows: list[Row] = [(bytes([number]) * length, None, b"id", []) for number in range(20)]
    found = Fingerprints(SEED).digests(columns_of(rows)).tolist()
    assert found == [plain_digest(row) for row in rows]


def test_bytes_that_are_no_text_are_padded_all_the_same() -> None:
    rows: list[Row] = [(bytes([255, 0, number]) * 7, None, None, []) for number in range(100)]
    rows.append((b"\xff" * 9, None, None, []))
    found = Fingerprints(SEED).digests(columns_of(rows)).tolist()
    assert found == [plain_digest(row) for row in rows]


def test_a_row_counts_the_same_alone_sliced_and_stored_with_a_codec() -> None:
    rows: list[Row] = [
        (b"v%d" % n * (n % 9), None if n % 3 else b"k", b"id-%d" % n, [("a", b"b")] * (n % 2))
        for n in range(50)
    ]
    columns = columns_of(rows)
    prints = Fingerprints(SEED)
    keys, digests = prints.keys(columns.message_ids), prints.digests(columns)
    part = columns.slice(7, 40)
    assert (prints.keys(part.message_ids) == keys[7:40]).all()
    assert (prints.digests(part) == digests[7:40]).all()
    for codec in Codec:
        batch = encode_batch(
            columns,
            topic_id=1,
            queue_id=0,
            producer_id=1,
            epoch=1,
            session=1,
            previous_sequence=-1,
            base_sequence=0,
            last_sequence=49,
            timestamp_us=1,
            codec=codec,
        )
        stored = decode_columns(batch, check_batch(batch))
        assert (prints.keys(stored.message_ids) == keys).all()
        assert (prints.digests(stored) == digests).all()


@pytest.mark.parametrize("count", [1, 8, 9, 100])
def test_few_rows_and_many_are_computed_alike(count: int) -> None:
    ids = [b"id-%d" % number for number in range(count)]
    found = Fingerprints(SEED).keys(pa.array(ids, pa.binary()))
    assert [tuple(row) for row in found.tolist()] == [plain_key(each) for each in ids]


@given(st.lists(st.tuples(sizes(60), st.binary(min_size=1, max_size=50)), min_size=1, max_size=40))
def test_both_are_computed_together_as_apart(rows: list[tuple[bytes, bytes]]) -> None:
    fingerprints = Fingerprints(SEED)
    columns = columns_of([(value, None, each, []) for value, each in rows])
    keys, digests = fingerprints.both(columns)
    assert keys.tolist() == fingerprints.keys(columns.message_ids).tolist()
    assert digests.tolist() == fingerprints.digests(columns).tolist()


@given(ROWS)
def test_few_messages_are_read_without_arrow_and_come_out_the_same(rows: list[Row]) -> None:
    rows = [(value, key, each, []) for value, key, each, _ in rows[:8]]
    values, keys, ids, _ = zip(*rows, strict=True)
    columns = Columns.from_arrow(list(values), keys=list(keys), message_ids=list(ids))
    data = encode_batch(columns, **PLACE, last_sequence=len(rows) - 1)
    header = check_batch(data)
    fingerprints = Fingerprints(SEED)
    found = prints_in(fingerprints, header, data)
    expected = prints_of(fingerprints, decode_columns(data, header))
    for name in ("rows", "keys", "digests"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist()
        assert getattr(found, name).dtype == getattr(expected, name).dtype


@pytest.mark.parametrize("wrong", [b"", b"x" * 129])
def test_an_id_of_a_wrong_length_is_named_among_few(wrong: bytes) -> None:
    with pytest.raises(InvalidRequest, match=f"message 1 .* {len(wrong)} bytes"):
        Fingerprints(SEED).of_few([(b"v", None, b"id"), (b"v", None, wrong)])


def test_what_differs_has_another_digest() -> None:
    rows: list[Row] = [
        (b"v", None, b"i", []),
        (b"v\0", None, b"i", []),
        (b"", b"v", b"i", []),
        (b"v", b"", b"i", []),
        (b"v", None, b"j", []),
        (b"v", None, b"i", [("", b"")]),
        (b"v", None, b"i", [("", b""), ("", b"")]),
        (b"v", None, b"i", [("ab", b"c")]),
        (b"v", None, b"i", [("a", b"bc")]),
        (b"v", None, b"i", [("a", b"b"), ("", b"c")]),
        (b"v", None, b"i", [("a", b""), ("", b"bc")]),
    ]
    digests = Fingerprints(SEED).digests(columns_of(rows))
    assert len(set(digests.tolist())) == len(rows)


def test_a_null_value_is_not_an_empty_one() -> None:
    for count in (1, 40):
        keys, ids = [b"k"] * count, [b"i"] * count
        empty = Columns.from_arrow([b""] * count, keys=keys, message_ids=ids)
        null = Columns.from_arrow([None] * count, keys=keys, message_ids=ids)
        digests = [set(Fingerprints(SEED).digests(each).tolist()) for each in (empty, null)]
        assert len(digests[0] | digests[1]) == 2


def test_another_seed_gives_other_keys() -> None:
    ids = pa.array([b"a"], pa.binary())
    assert (Fingerprints(SEED).keys(ids) != Fingerprints(bytes(16)).keys(ids)).all()


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("wrong", [b"", b"x" * 129])
def test_an_id_of_a_wrong_length_is_named(count: int, wrong: bytes) -> None:
    ids = pa.array([b"ok"] * (count - 1) + [wrong], pa.binary())
    with pytest.raises(InvalidRequest, match=f"message {count - 1} .* id of {len(wrong)} bytes"):
        Fingerprints(SEED).keys(ids)


def test_ids_may_be_absent_and_128_bytes_long() -> None:
    keys = Fingerprints(SEED).keys(pa.array([None, b"x" * 128], pa.binary()))
    assert keys.shape == (2, 2)
    assert tuple(keys[1].tolist()) == plain_key(b"x" * 128)


def test_a_seed_has_16_bytes() -> None:
    with pytest.raises(InvalidRequest, match="16 bytes, not 3"):
        Fingerprints(b"abc")


def test_digests_do_not_depend_on_absent_columns() -> None:
    prints = Fingerprints(SEED)
    bare = Columns(values=pa.array([b"a", b"b"], pa.binary()))
    full = columns_of([(b"a", None, None, []), (b"b", None, None, [])])
    assert np.array_equal(prints.digests(bare), prints.digests(full))
