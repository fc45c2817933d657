"""Batch headers round trip; every damage and every contradiction is a CorruptBatch."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.protos import batch as module
from semel.protos.batch import (
    BODY_BYTES_MAX,
    BROKER_HEADER_BYTES,
    HEADER_BYTES,
    UNCOMPRESSED_BYTES_MAX,
    BatchFlags,
    BatchHeader,
    BrokerHeader,
    Codec,
    check_batch,
    decode_broker_header,
    decode_header,
)
from semel.protos.errors import CorruptBatch
from semel.protos.ids import Offset, ProducerId, QueueId, QueueKey, Sequence, Term, TopicId
from tests.kit.batches import encode_position_mark
from tests.kit.wire_damage import cuts, flips, unnoticed

BODY = bytes(range(200)) * 2
JUMPING = BatchFlags.SOURCE_POSITIONS | BatchFlags.SEQUENCE
MARK: dict[str, Any] = {
    "flags": BatchFlags.POSITION_MARK | BatchFlags.SOURCE_POSITIONS,
    "count": 0,
    "body_length": 0,
    "uncompressed_length": 0,
}
I63 = st.integers(0, 2**63 - 1)
U32 = st.integers(0, 2**32 - 1)


def header(**changes: Any) -> BatchHeader:
    """A header that is right for BODY, with `changes`."""
    return replace(
        BatchHeader(
            codec=Codec.NONE,
            flags=BatchFlags.KEY | BatchFlags.TIMESTAMP,
            body_length=len(BODY),
            uncompressed_length=len(BODY),
            body_crc=google_crc32c.value(BODY),
            content_crc=0x01020304,
            topic_id=TopicId(0x1112131415161718),
            queue_id=QueueId(0x21222324),
            count=10,
            producer_id=ProducerId(0x3132333435363738),
            epoch=5,
            session=6,
            previous_sequence=Sequence(99),
            base_sequence=Sequence(100),
            last_sequence=Sequence(109),
            first_timestamp_us=1_700_000_000_000_000,
            max_timestamp_us=1_700_000_000_000_001,
            deliver_at_us=0,
        ),
        **changes,
    )


BATCH = header().encode() + BODY


@st.composite
def headers(draw: st.DrawFn) -> BatchHeader:
    """Any header that `decode_header` accepts."""
    jumps = draw(st.booleans())
    count = draw(st.integers(1, 1000))
    previous = draw(st.integers(-1, 2**62))
    gap = draw(st.integers(0, 1000)) if jumps else 0
    spread = draw(st.integers(0, 1000)) if jumps else 0
    flags = draw(st.integers(0, 0xFF))
    if jumps:
        flags |= BatchFlags.SOURCE_POSITIONS | BatchFlags.SEQUENCE
    codec = draw(st.sampled_from(Codec))
    uncompressed = draw(st.integers(4 * (count + 1), BODY_BYTES_MAX))
    stored = uncompressed if codec is Codec.NONE else draw(st.integers(0, BODY_BYTES_MAX))
    first = draw(st.integers(-(2**63), 2**62))
    base = previous + 1 + gap
    return header(
        codec=codec,
        flags=flags,
        body_length=stored,
        uncompressed_length=uncompressed,
        body_crc=draw(U32),
        content_crc=draw(U32),
        topic_id=draw(I63),
        queue_id=draw(U32),
        count=count,
        producer_id=draw(st.integers(1, 2**63 - 1)),
        epoch=draw(U32),
        session=draw(U32),
        previous_sequence=previous,
        base_sequence=base,
        last_sequence=base + count - 1 + spread,
        first_timestamp_us=first,
        max_timestamp_us=first + draw(st.integers(0, 10**6)),
        deliver_at_us=draw(I63),
    )


@given(headers(), st.integers(0, 50))
def test_headers_round_trip_at_any_place(given_header: BatchHeader, at: int) -> None:
    data = bytes(at) + given_header.encode() + b"tail"
    assert len(given_header.encode()) == HEADER_BYTES
    for form in (data, bytearray(data), memoryview(data)):
        decoded = decode_header(form, at)
        assert decoded == given_header
        assert type(decoded.codec) is Codec
        assert type(decoded.flags) is int


@given(
    st.integers(-1, 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 50),
)
def test_broker_headers_round_trip(
    offset: int, time_us: int, term: int, span: int, at: int
) -> None:
    span = max(0, span) if offset >= 0 else 0
    sent = BrokerHeader(base_offset=offset, append_time_us=time_us, term=term, span=span)  # type: ignore[arg-type]
    data = bytes(at) + sent.encode() + b"tail"
    assert len(sent.encode()) == BROKER_HEADER_BYTES
    assert decode_broker_header(data, at) == sent
    assert decode_broker_header(memoryview(data), at) == sent


def test_headers_stand_at_the_start_unless_told_otherwise() -> None:
    sent = BrokerHeader(base_offset=Offset(-1), append_time_us=1, term=Term(2))
    assert decode_broker_header(sent.encode()) == sent
    assert decode_header(BATCH) == header()
    assert check_batch(b"before" + BATCH, 6) == header()


def test_a_batch_is_checked_where_it_lies() -> None:
    data = b"before" + BATCH + b"behind"
    assert check_batch(BATCH) == header()
    for form in (data, bytearray(data), memoryview(data)):
        assert check_batch(form, 6, len(BATCH)) == header()
    with pytest.raises(CorruptBatch):
        check_batch(data, 6)
    assert header().batch_length == len(BATCH)
    assert header().queue_key == QueueKey(header().topic_id, header().queue_id)


@pytest.mark.parametrize("size", [4095, 4096, 4097, 100_000])
def test_a_large_body_is_checked_without_a_copy(size: int) -> None:
    body = bytes(range(251)) * (size // 251) + bytes(size % 251)
    whole = (
        header(
            body_length=size, uncompressed_length=size, body_crc=google_crc32c.value(body)
        ).encode()
        + body
    )
    for form in (whole, memoryview(whole)):
        assert check_batch(form).body_length == size
    for at in (HEADER_BYTES, HEADER_BYTES + size // 2, len(whole) - 1):
        bad = whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :]
        with pytest.raises(CorruptBatch):
            check_batch(memoryview(bad))


def test_every_flip_in_header_and_body_is_noticed() -> None:
    assert unnoticed(check_batch, CorruptBatch, flips(BATCH)) == []


def test_every_flip_in_the_header_is_noticed_without_the_body() -> None:
    assert unnoticed(decode_header, CorruptBatch, flips(BATCH[:HEADER_BYTES])) == []


def test_every_cut_is_noticed() -> None:
    assert unnoticed(check_batch, CorruptBatch, cuts(BATCH)) == []


def test_every_damage_of_the_broker_header_is_noticed() -> None:
    data = BrokerHeader(base_offset=77, append_time_us=10**15, term=3).encode()  # type: ignore[arg-type]
    assert unnoticed(decode_broker_header, CorruptBatch, flips(data)) == []
    short = ((f"cut at {end}", data[:end]) for end in range(len(data)))
    assert unnoticed(decode_broker_header, CorruptBatch, short) == []


@given(st.binary(max_size=400))
def test_garbage_is_never_accepted_and_never_another_error(data: bytes) -> None:
    prefixed = iter([("garbage", data), ("magic", b"SMB1\x01" + data)])
    assert unnoticed(check_batch, CorruptBatch, prefixed) == []


def _sealed(data: bytearray, crc_at: int) -> bytes:
    """`data` with the header CRC that a malicious writer would compute."""
    struct.pack_into("<I", data, crc_at, google_crc32c.value(bytes(data[:crc_at])))
    return bytes(data)


@pytest.mark.parametrize(
    ("at", "content", "words"),
    [
        (0, b"SMB2", "not a record batch"),
        (4, b"\x02", "version 2"),
        (5, b"\x03", "codec"),
        (6, b"\x00\x10", "flags"),
        (6, b"\x00\x80", "flags"),
        (104, b"\x01", "field"),
        (123, b"\x01", "field"),
    ],
)
def test_what_this_version_does_not_know_is_refused(at: int, content: bytes, words: str) -> None:
    data = bytearray(BATCH[:HEADER_BYTES])
    data[at : at + len(content)] = content
    with pytest.raises(CorruptBatch, match=words):
        decode_header(_sealed(data, 124))


@pytest.mark.parametrize(
    "changes",
    [
        {"body_length": BODY_BYTES_MAX + 1, "uncompressed_length": BODY_BYTES_MAX + 1},
        {"body_length": 2**32 - 1, "codec": Codec.LZ4},
        {"uncompressed_length": UNCOMPRESSED_BYTES_MAX + 1, "codec": Codec.ZSTD},
        {"uncompressed_length": len(BODY) + 1},
        {"count": 0, "last_sequence": 99},
        {"count": 0},
        {"count": 11},
        {"count": len(BODY) // 4, "last_sequence": 99 + len(BODY) // 4},
        {"count": 2**32 - 1, "last_sequence": 98 + 2**32},
        {"topic_id": 2**63},
        {"producer_id": 0},
        {"producer_id": 2**63},
        {"previous_sequence": -2},
        {"previous_sequence": 98},
        {"previous_sequence": 100},
        {"base_sequence": 99, "last_sequence": 108},
        {"base_sequence": 101, "last_sequence": 110},
        {"last_sequence": 108},
        {"last_sequence": 110},
        {"last_sequence": 99},
        {"first_timestamp_us": 1_700_000_000_000_002},
        {"deliver_at_us": -1},
        {"flags": BatchFlags.SOURCE_POSITIONS, "last_sequence": 108},
        {"flags": BatchFlags.SOURCE_POSITIONS, "last_sequence": 110},
        {"flags": JUMPING, "last_sequence": 108},
        {"flags": JUMPING, "previous_sequence": -2},
        {"flags": JUMPING, "previous_sequence": 100},
        {"flags": JUMPING, "previous_sequence": 101},
        {"flags": JUMPING, "base_sequence": 200, "last_sequence": 199, "count": 1},
        {**MARK, "count": 1},
        {**MARK, "deliver_at_us": 1},
        {**MARK, "flags": MARK["flags"] | BatchFlags.KEY},
        {**MARK, "flags": MARK["flags"] | BatchFlags.CONTEXT},
        {**MARK, "flags": MARK["flags"] | BatchFlags.DELIVER_AT},
        {**MARK, "body_length": 8, "codec": Codec.LZ4},
        {**MARK, "uncompressed_length": 8, "codec": Codec.LZ4},
        {**MARK, "previous_sequence": 109},
        {**MARK, "previous_sequence": -2},
        {"flags": BatchFlags.POSITION_MARK},
        {"flags": BatchFlags.POSITION_MARK, "count": 0},
        {"flags": BatchFlags.POSITION_MARK, "body_length": 0, "uncompressed_length": 0},
    ],
)
def test_fields_that_contradict_are_refused_with_a_right_crc(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptBatch):
        decode_header(header(**changes).encode())


@pytest.mark.parametrize(
    "changes",
    [
        {"flags": BatchFlags.SOURCE_POSITIONS},
        {"flags": BatchFlags.SOURCE_POSITIONS, "base_sequence": 500, "last_sequence": 509},
        {"flags": BatchFlags.SOURCE_POSITIONS | BatchFlags.SEQUENCE, "last_sequence": 10**9},
        {"previous_sequence": -1, "base_sequence": 0, "last_sequence": 9},
        {"last_sequence": 99 + 99, "count": 99},
        {"body_length": BODY_BYTES_MAX, "uncompressed_length": BODY_BYTES_MAX},
        {"uncompressed_length": UNCOMPRESSED_BYTES_MAX, "codec": Codec.ZSTD},
        MARK,
        {**MARK, "codec": Codec.ZSTD},
        {"flags": JUMPING},
        {"flags": JUMPING, "previous_sequence": -1},
        {"topic_id": 2**63 - 1, "producer_id": 2**63 - 1},
        {"topic_id": 0, "producer_id": 1},
        {"first_timestamp_us": 1_700_000_000_000_001},
        {"count": 1, "last_sequence": 100},
        {
            "flags": BatchFlags.SOURCE_POSITIONS,
            "count": 1,
            "base_sequence": 200,
            "last_sequence": 200,
        },
    ],
)
def test_what_is_just_right_is_accepted(changes: dict[str, Any]) -> None:
    assert decode_header(header(**changes).encode()) == header(**changes)


def test_a_position_mark_moves_only_the_sequence() -> None:
    data = encode_position_mark(
        topic_id=1,
        queue_id=2,
        producer_id=3,
        epoch=4,
        session=5,
        previous_sequence=6,
        last_sequence=60,
        timestamp_us=7,
    )
    mark = check_batch(data)
    assert len(data) == HEADER_BYTES
    assert (mark.count, mark.content_crc) == (0, 0)
    assert (mark.previous_sequence, mark.base_sequence, mark.last_sequence) == (6, 7, 60)
    assert mark.flags == BatchFlags.POSITION_MARK | BatchFlags.SOURCE_POSITIONS
    assert unnoticed(check_batch, CorruptBatch, flips(data)) == []


@pytest.mark.parametrize("changes", [{"span": 1, "base_offset": -1}, {"base_offset": -2}])
def test_a_broker_header_out_of_range_is_refused(changes: dict[str, int]) -> None:
    packed = module.BROKER_HEADER_STRUCT.pack(
        changes.get("base_offset", 0), 0, 0, changes.get("span", 0), 0
    )
    with pytest.raises(CorruptBatch):
        decode_broker_header(_sealed(bytearray(packed), 28))


def test_a_checker_that_skips_a_crc_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: without the body's CRC, and without the header's, flips pass."""

    def forgetful(data: bytes) -> BatchHeader:
        decoded = decode_header(data)
        if decoded.batch_length != len(data):
            raise CorruptBatch("length")
        return decoded

    assert len(unnoticed(forgetful, CorruptBatch, flips(BATCH))) >= 8 * len(BODY)
    real = google_crc32c.value
    stored = struct.unpack_from("<I", BATCH, 124)[0]
    monkeypatch.setattr(
        google_crc32c, "value", lambda data: stored if len(data) == 124 else real(data)
    )
    missed = unnoticed(check_batch, CorruptBatch, flips(BATCH))
    assert any(name.startswith("byte 20 ") for name in missed)  # the content's CRC
    assert any(name.startswith("byte 24 ") for name in missed)  # the topic
