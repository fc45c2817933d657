"""Columns over Arrow and over numpy: the same batches, the same rows, the same refusals."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.protos.batch import HEADER_BYTES, Codec, check_batch
from semel.protos.errors import CorruptBatch, InvalidRequest
from tests.kit.both_arrays import over_arrow, over_numpy

COLUMNS = (
    *("values", "keys", "headers", "timestamps", "message_ids", "slots", "sequences"),
    *("deliver_at",),
)
WIDTHS = st.sampled_from([0, 1, 4, 12])


def encoded(ways: Any, columns: Any, **changes: Any) -> bytes:
    """A batch of these columns."""
    sequences = columns.sequences
    numbers = range(len(columns)) if sequences is None else sequences.to_pylist()
    identity: dict[str, Any] = {
        "topic_id": 11,
        "queue_id": 2,
        "producer_id": 33,
        "epoch": 4,
        "session": 5,
        "timestamp_us": 1_700_000_000_000_000,
        "previous_sequence": numbers[0] - 1,
        "base_sequence": numbers[0],
        "last_sequence": numbers[-1],
        "source_positions": sequences is not None,
    }
    batch: bytes = ways.columns.encode_batch(columns, **(identity | changes))
    return batch


def decoded(ways: Any, batch: bytes) -> Any:
    return ways.columns.decode_columns(batch, check_batch(batch))


def listed(ways: Any, columns: Any) -> dict[str, Any]:
    """All columns as lists."""
    found: dict[str, Any] = {"context": columns.context}
    for name in (*COLUMNS, "offsets"):
        column = getattr(columns, name)
        if column is None:
            found[name] = None
        elif name == "headers":
            found[name] = ways.arrays.pairs_of(column)
        elif name in ("values", "keys", "message_ids"):
            found[name] = ways.arrays.pieces_of(column)
            assert found[name] == column.to_pylist()
        else:
            found[name] = column.to_pylist()
    return found


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    """Lists for any set of columns; the pieces of a column often have one length."""
    count = draw(st.integers(1, 70))
    # Few choices are drawn and the rest follows from a seed, so that columns may be long.
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def pieces(nulls: bool) -> list[bytes | None]:
        width, even = draw(WIDTHS), draw(st.booleans())
        sizes = [width if even else int(rng.integers(0, width + 1)) for _ in range(count)]
        return [None if nulls and rng.random() < 0.3 else rng.bytes(size) for size in sizes]

    def maybe(column: Callable[[], Any]) -> Any:
        return column() if draw(st.booleans()) else None

    keys = maybe(lambda: pieces(draw(st.booleans())))
    values = pieces(False)
    if keys is not None and draw(st.booleans()):
        values = [
            None if key and rng.random() < 0.3 else each
            for each, key in zip(values, keys, strict=True)
        ]
    headers = maybe(
        lambda: [
            [("né"[: rng.integers(0, 3)], rng.bytes(3)) for _ in range(rng.integers(0, 3))]
            for _ in range(count)
        ]
    )
    return {
        "values": values,
        "keys": keys,
        "headers": headers,
        "timestamps": maybe(lambda: rng.integers(-(2**62), 2**62, count).tolist()),
        "message_ids": maybe(lambda: pieces(True)),
        "slots": maybe(lambda: rng.integers(0, 65_536, count).tolist()),
        "sequences": maybe(lambda: np.cumsum(rng.integers(1, 1_000, count)).tolist()),
        "deliver_at": maybe(lambda: rng.integers(0, 2**62, count).tolist()),
    }


@given(messages(), st.sampled_from(Codec), st.binary(max_size=5))
def test_both_write_the_same_batch_and_read_it(
    given_messages: dict[str, Any], codec: Codec, context: bytes
) -> None:
    batches = []
    for ways in (over_arrow(), over_numpy()):
        columns = ways.columns.Columns.from_arrow(**given_messages)
        assert listed(ways, columns) == given_messages | {"context": None, "offsets": None}
        columns = replace(columns, context=context or None)
        batches.append(encoded(ways, columns, codec=codec))
    assert batches[0] == batches[1]
    for ways in (over_arrow(), over_numpy()):
        found = listed(ways, decoded(ways, batches[0]))
        assert found == given_messages | {"context": context or None, "offsets": None}


@given(messages(), st.data(), st.booleans())
def test_both_cut_and_take_the_same_rows(
    given_messages: dict[str, Any], data: st.DataObject, read: bool
) -> None:
    count = len(given_messages["values"])
    start = data.draw(st.integers(0, count - 1))
    end = data.draw(st.integers(start + 1, count))
    kept = data.draw(st.lists(st.booleans(), min_size=end - start, max_size=end - start))
    order = data.draw(st.permutations(range(sum(kept))))
    found = []
    for ways in (over_arrow(), over_numpy()):
        columns = ways.columns.Columns.from_arrow(**given_messages)
        if read:
            columns = decoded(ways, encoded(ways, columns))
        columns = columns.slice(start, end).filter(np.array(kept, np.bool_))
        columns = replace(columns, sequences=None)
        taken = columns.take(np.array(order, np.int64))
        found.append((listed(ways, taken), encoded(ways, taken) if any(kept) else b""))
    assert found[0] == found[1]


def resealed(batch: bytes, body: bytes) -> bytes:
    """The batch with another body, all lengths and checksums right."""
    crc = int(google_crc32c.value(body))
    header = check_batch(batch)
    changed = replace(
        header, body_length=len(body), uncompressed_length=len(body), body_crc=crc, content_crc=crc
    )
    return changed.encode() + body


@given(messages(), st.data())
def test_both_refuse_the_same_damage(given_messages: dict[str, Any], data: st.DataObject) -> None:
    ways = over_arrow()
    good = encoded(ways, ways.columns.Columns.from_arrow(**given_messages))
    body = bytearray(good[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] ^= 1 << data.draw(st.integers(0, 7))
    batch = resealed(good, bytes(body))
    found = []
    for ways in (over_arrow(), over_numpy()):
        try:
            found.append(listed(ways, decoded(ways, batch)))
        except CorruptBatch as error:
            found.append({"error": str(error)})
    assert found[0] == found[1]


def test_bytes_behind_a_null_are_dropped_by_both() -> None:
    """Writers of ours leave none there, but others may."""
    good = encoded(
        over_arrow(),
        over_arrow().columns.Columns.from_arrow([b"v", b"w", b"x"], keys=[b"ab", b"cd", b"e"]),
    )
    body = good[HEADER_BYTES:]
    keys = struct.pack("<4i", 0, 2, 4, 5)
    at = body.index(keys) - 8
    assert body[at] == 0b111
    batch = resealed(good, body[:at] + bytes([0b101]) + body[at + 1 :])
    found = []
    for ways in (over_arrow(), over_numpy()):
        columns = decoded(ways, batch)
        assert columns.keys.to_pylist() == [b"ab", None, b"e"]
        turned = columns.take(np.array([2, 1, 0]))
        assert turned.keys.to_pylist() == [b"e", None, b"ab"]
        found.append((encoded(ways, columns), encoded(ways, turned)))
    assert found[0] == found[1]


def test_both_refuse_a_character_that_two_names_share() -> None:
    ways = over_arrow()
    good = encoded(
        ways, ways.columns.Columns.from_arrow([b"v"], headers=[[("é", b""), ("x", b"")]])
    )
    names = struct.pack("<3i", 0, 2, 3)
    body = good[HEADER_BYTES:].replace(names, struct.pack("<3i", 0, 1, 3))
    for ways in (over_arrow(), over_numpy()):
        with pytest.raises(CorruptBatch, match="UTF-8"):
            decoded(ways, resealed(good, body))


ODD: tuple[dict[str, Any], ...] = (
    {"values": [bytearray(b"x"), memoryview(b"y"), "é", np.bytes_(b"z"), np.str_("s")]},
    {"values": (b"a", b"b")},
    {"values": iter([b"a"])},
    {"values": "ab"},
    {"values": {b"a": 1}},
    {"values": np.array([b"a", b"bc"])},
    {"values": np.array([b"a", b"b"], object)},
    {"values": []},
    {"values": [], "keys": [], "headers": [], "timestamps": [], "message_ids": []},
    {"values": [1]},
    {"values": ["\ud800"]},
    {"values": [float("nan")]},
    {"values": [[b"a"]]},
    {"values": [np.arange(2)]},
    {"values": [None]},
    {"values": [None], "keys": [None]},
    {"values": [None, b"a"], "keys": [b"k", None]},
    {"values": b"ab"},
    {"values": 5},
    {"values": [b"a"], "keys": [b"a", b"b"]},
    {"values": [b"a"], "timestamps": [1, 2]},
    {"values": [b"a"], "timestamps": [None]},
    {"values": [b"a"], "timestamps": [1.5]},
    {"values": [b"a"], "timestamps": [float("nan")]},
    {"values": [b"a"], "timestamps": [float("inf")]},
    {"values": [b"a"], "timestamps": [True]},
    {"values": [b"a"], "timestamps": ["1"]},
    {"values": [b"a"], "timestamps": [2**63]},
    {"values": [b"a"], "timestamps": [-(2**63)]},
    {"values": [b"a"], "timestamps": [-(2**63) - 1]},
    {"values": [b"a"], "timestamps": np.array([1])},
    {"values": [b"a"], "timestamps": np.array([1.0])},
    {"values": [b"a"], "timestamps": np.array([[1]])},
    {"values": [b"a"], "timestamps": np.array([2**63], "u8")},
    {"values": [b"a"], "timestamps": np.array([5], "u1")},
    {"values": [b"a"], "timestamps": [np.int64(3)]},
    {"values": [b"a"], "timestamps": range(1)},
    {"values": [b"a"], "slots": [65_535]},
    {"values": [b"a"], "slots": [65_536]},
    {"values": [b"a"], "slots": [-1]},
    {"values": [b"a"], "slots": np.array([65_536])},
    {"values": [b"a"], "headers": [None]},
    {"values": [b"a"], "headers": [{}]},
    {"values": [b"a"], "headers": [{"a": b"b"}]},
    {"values": [b"a"], "headers": [(("a", b"b"), ("a", "é"))]},
    {"values": [b"a"], "headers": [[(b"a", bytearray(b"b"))]]},
    {"values": [b"a"], "headers": [[(b"\xff", b"b")]]},
    {"values": [b"a"], "headers": [[(b"\xc3", b""), (b"\xa9", b"")]]},
    {"values": [b"a"], "headers": [[("\ud800", b"")]]},
    {"values": [b"a"], "headers": [[("a", None)]]},
    {"values": [b"a"], "headers": [[(None, b"")]]},
    {"values": [b"a"], "headers": [[None]]},
    {"values": [b"a"], "headers": [[("a",)]]},
    {"values": [b"a"], "headers": [[("a", b"", 1)]]},
    {"values": [b"a"], "headers": [[["a", b""]]]},
    {"values": [b"a"], "headers": [["ab"]]},
    {"values": [b"a"], "headers": [5]},
    {"values": [b"a"], "headers": 5},
    {"values": [b"a"], "headers": [{}, {}]},
)


@pytest.mark.parametrize("given_messages", ODD)
def test_both_take_and_refuse_the_same_of_a_caller(given_messages: dict[str, Any]) -> None:
    found: list[Any] = []
    for ways in (over_arrow(), over_numpy()):
        copy = dict(given_messages)
        if hasattr(copy["values"], "__next__"):
            copy["values"] = iter([b"a"])
        try:
            columns = ways.columns.Columns.from_arrow(**copy)
            if columns.headers is not None:
                ways.arrays.header_buffers(columns.headers)  # which the intake asks for
            found.append(listed(ways, columns))
        except InvalidRequest:
            found.append(InvalidRequest)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "given_messages",
    [
        {"values": pa.array([b"a"])},
        {"values": pa.chunked_array([[b"a"]])},
        {"values": [b"a"], "keys": pa.array([b"a"])},
        {"values": [b"a"], "headers": pa.array([[]])},
        {"values": [b"a"], "timestamps": pa.array([1])},
        {"values": pa.table({"a": [b"a"]})["a"]},
    ],
)
def test_without_arrow_its_columns_are_refused_by_what_to_install(
    given_messages: dict[str, Any],
) -> None:
    over_arrow().columns.Columns.from_arrow(**given_messages)
    with pytest.raises(InvalidRequest, match=r"pip install 'semel\[arrow\]'"):
        over_numpy().columns.Columns.from_arrow(**given_messages)


def test_decimals_are_no_numbers_without_arrow() -> None:
    """The one list that Arrow takes and numpy alone does not."""
    with pytest.raises(InvalidRequest):
        over_numpy().columns.Columns.from_arrow([b"a"], timestamps=[Decimal(1)])


@given(messages())
def test_keys_have_the_same_slots(given_messages: dict[str, Any]) -> None:
    keys = given_messages["keys"]
    if keys is None or None in keys:
        return
    found = [
        ways.slots.slots_of_column(ways.arrays.binary_array(keys)).tolist()
        for ways in (over_arrow(), over_numpy())
    ]
    assert found[0] == found[1] == over_numpy().slots.slots_of_keys(keys).tolist()


@given(messages())
def test_a_plain_column_has_the_ids_of_rows_without_a_key(given_messages: dict[str, Any]) -> None:
    keys, ids = given_messages["keys"], given_messages["message_ids"]
    if keys is None or ids is None:
        return
    found = []
    for ways in (over_arrow(), over_numpy()):
        arrays = ways.arrays
        both = arrays.coalesce(arrays.binary_array(keys), arrays.binary_array(ids))
        found.append((both.to_pylist(), arrays.valid_of(both).tolist(), both.null_count))
    assert found[0] == found[1]
