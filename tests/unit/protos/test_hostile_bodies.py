"""Bodies made to harm, with every CRC right, as only a malicious client would send them."""

from __future__ import annotations

import gc
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.protos import body as body_module
from semel.protos.batch import HEADER_BYTES, BatchFlags, BatchHeader, Codec, check_batch
from semel.protos.columns import Columns, decode_columns, encode_batch
from semel.protos.errors import CorruptBatch
from tests.kit.batches import check_content
from tests.kit.wire_damage import flips, unnoticed

COLUMNS = Columns.from_arrow(
    [b"one", b"two", None],
    keys=[b"k", None, b"m"],
    headers=[{"a": b"1", "b": b"2"}, {}, {"c": b"3"}],
    timestamps=[5, 6, 7],
    message_ids=[b"i", b"j", None],
    slots=[1, 2, 3],
    sequences=[10, 20, 30],
    deliver_at=[0, 1, 2],
)
GOOD = encode_batch(
    COLUMNS,
    topic_id=1,
    queue_id=2,
    producer_id=3,
    epoch=4,
    session=5,
    previous_sequence=9,
    base_sequence=10,
    last_sequence=30,
    timestamp_us=0,
    source_positions=True,
)
HEADER = check_batch(GOOD)
BODY = GOOD[HEADER_BYTES:]
NAMES = (
    "value bitmap",
    "value offsets",
    "value data",
    "key bitmap",
    "key offsets",
    "key data",
    "list offsets",
    "name offsets",
    "name data",
    "header value offsets",
    "header value data",
    "timestamps",
    "id bitmap",
    "id offsets",
    "id data",
    "slots",
    "sequences",
    "deliver_at",
)
OFFSETS = [name for name in NAMES if name.endswith("offsets")]


@pytest.fixture(scope="module", params=[0, body_module.FEW_OFFSETS_MAX], autouse=True)
def few_offsets_max(request: pytest.FixtureRequest) -> Iterator[None]:
    """Offsets are looked at by numpy, or one by one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_module, "FEW_OFFSETS_MAX", request.param)
        yield


def buffers() -> dict[str, bytes]:
    """The buffers of the good body by name."""
    count, *lengths = struct.unpack_from("<19I", BODY)
    assert count == len(NAMES)
    position = 80
    found = {}
    for name, length in zip(NAMES, lengths, strict=True):
        found[name] = BODY[position : position + length]
        position += length + 7 & ~7
    assert position == len(BODY)
    return found


def laid_out(parts: dict[str, bytes]) -> bytes:
    table = struct.pack(f"<{len(parts) + 1}I", len(parts), *map(len, parts.values()))
    padded = [part + bytes(-len(part) % 8) for part in (table, *parts.values())]
    return b"".join(padded)


def sealed(body: bytes, **changes: Any) -> bytes:
    """A batch with `body` whose header and CRCs are right."""
    header = replace(
        HEADER,
        body_length=len(body),
        uncompressed_length=len(body),
        body_crc=google_crc32c.value(body),
    )
    return replace(header, **changes).encode() + body


def read(batch: bytes) -> Columns:
    """Checks and decodes, then touches every value: an offset that leads out would show."""
    columns = decode_columns(batch, check_batch(batch))
    for name in columns.__slots__:
        column: Any = getattr(columns, name)
        if column is not None:
            column.validate(full=True)
            column.to_pylist()
    return columns


def refused(batch: bytes) -> None:
    with pytest.raises(CorruptBatch):
        read(batch)
    with pytest.raises(CorruptBatch):
        # A wrong length or offset, or a content that is not the header's.
        check_content(replace(check_batch(batch), content_crc=1).encode() + batch[HEADER_BYTES:])


def test_the_good_body_is_good_and_can_be_made_again() -> None:
    assert laid_out(buffers()) == BODY
    assert sealed(BODY) == GOOD
    assert read(GOOD) is not None


@pytest.mark.parametrize("name", OFFSETS)
@pytest.mark.parametrize("row", range(4))
@pytest.mark.parametrize("value", [-1, -(2**31), 2**31 - 1, 10_000, 1 << 20])
def test_an_offset_that_leads_out_or_falls_is_refused(name: str, row: int, value: int) -> None:
    parts = buffers()
    offsets = np.frombuffer(parts[name], np.int32).copy()
    offsets[row] = value
    refused(sealed(laid_out(parts | {name: offsets.tobytes()})))


@pytest.mark.parametrize("name", OFFSETS)
def test_offsets_that_do_not_start_at_0_or_go_backwards_are_refused(name: str) -> None:
    parts = buffers()
    offsets = np.frombuffer(parts[name], np.int32)
    refused(sealed(laid_out(parts | {name: offsets[::-1].copy().tobytes()})))
    from_one = np.maximum(offsets, 1).astype(np.int32)
    refused(sealed(laid_out(parts | {name: from_one.tobytes()})))


@pytest.mark.parametrize("name", NAMES)
def test_a_buffer_of_another_length_is_refused(name: str) -> None:
    parts = buffers()
    for other in (parts[name][:-1], parts[name] + b"\0", parts[name] + bytes(8), b""):
        refused(sealed(laid_out(parts | {name: other})))


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_buffer_is_refused(name: str) -> None:
    parts = buffers()
    del parts[name]
    refused(sealed(laid_out(parts)))


def test_a_buffer_too_many_is_refused() -> None:
    refused(sealed(laid_out(buffers() | {"more": b""})))


@pytest.mark.parametrize("slot", range(19))
@pytest.mark.parametrize("value", [2**32 - 1, 2**32 - 8, 2**31, 0, 100_000])
def test_a_length_table_that_leads_out_is_refused(slot: int, value: int) -> None:
    table = bytearray(BODY)
    (old,) = struct.unpack_from("<I", table, 4 * slot)
    struct.pack_into("<I", table, 4 * slot, value)
    if value != old:
        refused(sealed(bytes(table)))


def test_bytes_behind_the_last_buffer_are_refused() -> None:
    refused(sealed(BODY + bytes(8)))
    refused(sealed(BODY[:-8]))


@pytest.mark.parametrize("length", [40, 44, 68, 72, 76])
def test_a_body_shorter_than_its_table_is_refused(length: int) -> None:
    refused(sealed(BODY[:length]))


@pytest.mark.parametrize("flag", [flag for flag in BatchFlags if 0 < flag.value <= 128])
def test_flags_that_do_not_fit_the_body_are_refused(flag: BatchFlags) -> None:
    with pytest.raises(CorruptBatch):
        read(sealed(BODY, flags=HEADER.flags ^ flag))


@pytest.mark.parametrize("count", [1, 2, 4, 5, 100])
def test_a_wrong_count_is_refused(count: int) -> None:
    with pytest.raises(CorruptBatch):
        read(sealed(BODY, count=count, last_sequence=10 + 1000))


@pytest.mark.parametrize("sequences", [[10, 10, 30], [30, 20, 10], [9, 20, 30], [10, 20, 31]])
def test_sequences_outside_the_header_are_refused(sequences: list[int]) -> None:
    numbers = np.array(sequences, np.int64).tobytes()
    with pytest.raises(CorruptBatch):
        read(sealed(laid_out(buffers() | {"sequences": numbers})))


@pytest.mark.parametrize("name", [b"\xff\xfe\xfd", b"\xc3a\xc3"])
def test_header_names_that_are_not_utf8_are_refused(name: bytes) -> None:
    assert len(buffers()["name data"]) == len(name)
    with pytest.raises(CorruptBatch, match="UTF-8"):
        read(sealed(laid_out(buffers() | {"name data": name})))


def test_content_that_differs_from_its_crc_is_refused() -> None:
    batch = sealed(laid_out(buffers() | {"value data": b"ONEtwo"}))
    assert read(batch).values[0].as_py() == b"ONE"
    with pytest.raises(CorruptBatch, match="content"):
        check_content(batch)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("claim", [-8, -1, 1, 8, 1 << 20])
def test_a_wrong_uncompressed_length_is_refused(codec: Codec, claim: int) -> None:
    packed = pa.Codec(codec.name.lower()).compress(BODY, asbytes=True)
    good = sealed(packed, codec=codec, uncompressed_length=len(BODY))
    assert read(good).values.to_pylist() == COLUMNS.values.to_pylist()
    refused(sealed(packed, codec=codec, uncompressed_length=len(BODY) + claim))


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_bomb_does_not_unpack_beyond_its_claim(codec: Codec) -> None:
    packed = pa.Codec(codec.name.lower()).compress(bytes(256 << 20), asbytes=True)
    batch = sealed(packed, codec=codec, uncompressed_length=len(BODY))
    gc.collect()
    pa.default_memory_pool().release_unused()
    before = pa.total_allocated_bytes()
    refused(batch)
    assert pa.total_allocated_bytes() - before < 4 << 20


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_no_damaged_compression_crashes(codec: Codec) -> None:
    """With right CRCs: what unpacks to a good body again is fine, all else is CorruptBatch."""
    packed = pa.Codec(codec.name.lower()).compress(BODY, asbytes=True)

    def decode(data: bytes) -> Columns:
        return read(sealed(data, codec=codec, uncompressed_length=len(BODY)))

    missed = unnoticed(decode, CorruptBatch, flips(packed))
    assert [name for name in missed if not name.endswith("accepted")] == []


def test_no_damaged_body_crashes() -> None:
    """Any flip with right CRCs gives sound columns or CorruptBatch, nothing else."""

    def decode(data: bytes) -> Columns:
        return read(sealed(data))

    missed = unnoticed(decode, CorruptBatch, flips(BODY))
    assert [name for name in missed if not name.endswith("accepted")] == []


@given(st.binary(min_size=20, max_size=300), st.integers(0, 127), st.integers(1, 4))
def test_no_garbage_crashes(garbage: bytes, flags: int, count: int) -> None:
    header = {
        "flags": flags | BatchFlags.SOURCE_POSITIONS | BatchFlags.SEQUENCE,
        "count": count,
    }
    try:
        read(sealed(garbage, **header))
    except CorruptBatch:
        return


def test_a_batch_shorter_than_its_header_says_is_refused() -> None:
    for length in (0, HEADER_BYTES, len(GOOD) - 1):
        with pytest.raises(CorruptBatch):
            decode_columns(GOOD[:length], HEADER)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=80))
def test_both_ways_to_look_at_offsets_agree(offsets: list[int]) -> None:
    """Whatever the number of messages: the rule said once more, in plain words."""
    good = offsets[0] == 0 and offsets == sorted(offsets)
    body = laid_out({"offsets": np.array(offsets, np.int32).tobytes(), "data": bytes(offsets[-1])})
    changes = {"flags": 0, "count": len(offsets) - 1, "base_sequence": 10}
    batch = sealed(body, **changes, last_sequence=10 + len(offsets) - 2)
    if good:
        assert len(read(batch)) == len(offsets) - 1
    else:
        with pytest.raises(CorruptBatch):
            read(batch)


def test_a_reader_that_trusts_offsets_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: without the look at the offsets, hostile ones pass."""

    def trusting(self: body_module.BodyReader, count: int) -> tuple[pa.Buffer, int]:
        buffer = self._next(4 * (count + 1))
        return buffer, int(np.frombuffer(buffer, np.int32)[-1])

    parts = buffers()
    hostile = np.frombuffer(parts["value offsets"], np.int32).copy()
    hostile[1] = 1 << 20
    batch = sealed(laid_out(parts | {"value offsets": hostile.tobytes()}))
    monkeypatch.setattr(body_module.BodyReader, "_offsets", trusting)
    header: BatchHeader = check_batch(batch)
    columns = decode_columns(batch, header)
    with pytest.raises(pa.ArrowInvalid):
        columns.values.validate(full=True)
