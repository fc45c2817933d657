"""A cut out of a small batch without Arrow gives what Arrow would have given, or nothing."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import google_crc32c
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from semel.protos import few_rows
from semel.protos.batch import HEADER_BYTES, BatchFlags, BatchHeader, Codec, check_batch
from semel.protos.columns import Columns, decode_columns, encode_batch
from semel.protos.errors import CorruptBatch
from semel.protos.few_rows import FEW_ROWS_MAX, cut_few, cut_few_with_ids
from semel.protos.ids import Sequence
from tests.kit.wire_damage import flips

short = st.binary(max_size=12)
Cut = tuple[list[Any], ...]


def encoded(columns: Columns, codec: Codec = Codec.NONE, **changes: Any) -> bytes:
    return encode_batch(
        columns,
        topic_id=1,
        queue_id=2,
        producer_id=3,
        epoch=4,
        session=5,
        previous_sequence=0,
        base_sequence=1,
        last_sequence=len(columns),
        timestamp_us=0,
        codec=codec,
        **changes,
    )


def by_arrow(batch: bytes) -> Cut:
    """Raises CorruptBatch."""
    columns = decode_columns(batch, check_batch(batch))
    columns.values.validate(full=True)
    nothing = [None] * len(columns)
    found = [columns.values.to_pylist()]
    found.append(nothing if columns.keys is None else columns.keys.to_pylist())
    if columns.message_ids is not None:
        found.append(columns.message_ids.to_pylist())
    return tuple(found)


def cut(batch: bytes | memoryview, header: BatchHeader) -> Cut | None:
    """By the function for such a batch; the other one leaves it."""
    ids = bool(header.flags & BatchFlags.MESSAGE_ID)
    found: Cut | None = cut_few_with_ids(batch, header) if ids else cut_few(batch, header)
    assert (cut_few(batch, header) if ids else cut_few_with_ids(batch, header)) is None
    return found


def sealed(batch: bytes, body: bytes) -> bytes:
    """The batch with another body; its header and CRCs are right."""
    header = replace(
        check_batch(batch),
        body_length=len(body),
        uncompressed_length=len(body),
        body_crc=google_crc32c.value(body),
    )
    return header.encode() + body


def accepted_wrongly(batch: bytes) -> str:
    """Empty if what is cut out is nothing, or what Arrow gives."""
    found = cut(memoryview(batch), check_batch(batch))
    if found is None:
        return ""
    try:
        wanted = by_arrow(batch)
    except CorruptBatch as error:
        return f"cut {found}, and {error.message}"
    return "" if found == wanted else f"cut {found}, not {wanted}"


@given(
    st.lists(short, min_size=1, max_size=FEW_ROWS_MAX + 2),
    st.one_of(st.none(), st.lists(st.one_of(st.none(), short), min_size=66, max_size=66)),
    st.sampled_from(Codec),
    st.sampled_from(["", "headers", "timestamps", "message_ids"]),
)
@example([b"x"] * FEW_ROWS_MAX, [b"k"] * 66, Codec.NONE, "")
@example([b"x"] * (FEW_ROWS_MAX + 1), None, Codec.NONE, "")
def test_values_and_keys_are_those_of_arrow(
    values: list[bytes], keys: list[bytes | None] | None, codec: Codec, more: str
) -> None:
    others: dict[str, list[Any]] = {
        "": [],
        "headers": [{"a": b"1"}] * len(values),
        "timestamps": [7] * len(values),
        "message_ids": [b"i" if len(value) % 2 else None for value in values],
    }
    columns = Columns.from_arrow(
        values,
        keys=None if keys is None else keys[: len(values)],
        **({more: others[more]} if more else {}),
    )
    batch = encoded(columns, codec)
    header = check_batch(batch)  # a codec that does not pay is left out
    few = header.codec is Codec.NONE and more in ("", "message_ids")
    few = few and len(values) <= FEW_ROWS_MAX
    assert cut(batch, header) == (by_arrow(batch) if few else None)


KEYED = encoded(Columns.from_arrow([b"one", b"", b"three"], keys=[b"k", None, b""]))
PLAIN = encoded(Columns.from_arrow([b"one", b"two"]))
IDS = encoded(Columns.from_arrow([b"one", b"two", b""], message_ids=[b"id", None, b"another"]))


@pytest.mark.parametrize("batch", [KEYED, PLAIN, IDS])
def test_whatever_is_wrong_inside_is_left_to_who_says_what(batch: bytes) -> None:
    """Every bit of a body, and every length of it, with right CRCs."""
    body = batch[HEADER_BYTES:]
    table = 12 if batch is PLAIN else 24  # a body without room for it, the header refuses
    others = [*flips(body), ("longer", body + bytes(8)), ("twice", body + body)]
    others += [(f"cut at {end}", body[:end]) for end in range(table, len(body))]
    batches = {name: sealed(batch, other) for name, other in others}
    assert [name for name, each in batches.items() if accepted_wrongly(each)] == []
    left = [each for each in batches.values() if cut(each, check_batch(each)) is None]
    assert len(left) > len(batches) // 2


@given(st.data())
def test_whatever_lengths_and_offsets_claim(data: st.DataObject) -> None:
    """Bodies whose tables are nearly right, which flips rarely hit."""
    batch = data.draw(st.sampled_from([KEYED, PLAIN, IDS]))
    body = bytearray(batch[HEADER_BYTES:])
    words = range(0, len(body) - 3, 4)
    for at in data.draw(st.lists(st.sampled_from(words), min_size=1, max_size=3)):
        struct.pack_into("<i", body, at, data.draw(st.integers(-2, 20)))
    count = data.draw(st.integers(1, 4))
    other = sealed(batch, bytes(body))
    header = replace(check_batch(other), count=count, last_sequence=Sequence(count))
    assert accepted_wrongly(header.encode() + other[HEADER_BYTES:]) == ""


def test_null_values_are_left_to_arrow() -> None:
    nulls = encoded(Columns.from_arrow([b"one", None], keys=[b"k", b"l"]))
    with_ids = encoded(Columns.from_arrow([None], keys=[b"k"], message_ids=[b"id"]))
    for batch in (nulls, with_ids):
        assert cut(batch, check_batch(batch)) is None


def test_a_batch_that_is_not_the_headers_is_left() -> None:
    header = check_batch(PLAIN)
    assert cut_few(PLAIN, header) is not None
    for other in (PLAIN[:-8], PLAIN + bytes(8), PLAIN[:HEADER_BYTES], b""):
        assert cut_few(other, header) is None
    assert cut_few(PLAIN, replace(header, flags=int(BatchFlags.POSITION_MARK))) is None


def test_a_cut_that_trusts_offsets_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: without the look at them, offsets that fall pass."""
    body = bytearray(PLAIN[HEADER_BYTES:])
    struct.pack_into("<i", body, 16 + 4, 7)  # the second of 0, 3, 6
    hostile = sealed(PLAIN, bytes(body))
    assert accepted_wrongly(hostile) == ""
    monkeypatch.setattr(few_rows, "rise_from_0", lambda offsets: True)
    assert "do not rise" in accepted_wrongly(hostile)
