"""Frames round trip; every damage is a CorruptFrame."""

from __future__ import annotations

import struct

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.protos.errors import CorruptFrame, CorruptSegment
from semel.protos.frames import (
    FRAME_BYTES_MAX,
    FRAME_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    FrameHeader,
    RecordKind,
    build_frame,
    check_frame,
    decode_frame_header,
    iter_records,
)
from tests.kit.wire_damage import cuts, flips, unnoticed

Record = tuple[RecordKind, list[bytes]]

RECORDS: list[Record] = [
    (RecordKind.NOOP, []),
    (RecordKind.BATCH, [b"broker header", b"client header", b"body" * 20]),
    (RecordKind.CONTROL, [b"12345678"]),
    (RecordKind.MEMBERSHIP, [b"m"]),
]
FRAME, POSITIONS = build_frame(7, 3, 1_700_000_000_000_000, RECORDS)

records = st.lists(
    st.tuples(st.sampled_from(RecordKind), st.lists(st.binary(max_size=40), max_size=3)),
    min_size=1,
    max_size=20,
)


@given(
    st.integers(1, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(-(2**63), 2**63 - 1),
    records,
)
def test_frames_round_trip(
    index: int, term: int, time_us: int, given_records: list[Record]
) -> None:
    frame, positions = build_frame(index, term, time_us, given_records)
    assert type(frame) is bytes
    assert len(frame) % 8 == 0
    for form in (frame, bytearray(frame), memoryview(frame)):
        header = check_frame(form)
        assert (header.index, header.term, header.time_us) == (index, term, time_us)
        assert header.record_count == len(given_records)
        assert header.frame_length == len(frame)
        found = list(iter_records(form))
        assert [(kind, bytes(payload)) for _, kind, payload in found] == [
            (kind, b"".join(parts)) for kind, parts in given_records
        ]
        assert [position for position, _, _ in found] == positions
        assert all(position % 8 == 0 for position in positions)
        assert all(type(kind) is RecordKind for _, kind, _ in found)


def test_parts_may_be_views_and_large() -> None:
    body = bytes(range(256)) * 400
    parts: list[bytes | memoryview] = [memoryview(body)[1:], memoryview(body)[:5], body]
    frame, (position,) = build_frame(1, 1, 1, [(RecordKind.BATCH, parts)])
    check_frame(frame)
    ((_, _, payload),) = iter_records(frame)
    assert payload == b"".join(parts)
    assert position == FRAME_HEADER_BYTES


def test_payloads_are_views_of_the_frame() -> None:
    ((_, _, payload),) = iter_records(build_frame(1, 1, 1, [(RecordKind.BATCH, [b"x" * 100])])[0])
    assert isinstance(payload, memoryview)
    assert isinstance(payload.obj, bytes)
    assert len(payload.obj) == FRAME_HEADER_BYTES + RECORD_HEADER_BYTES + 104


def test_a_header_is_found_at_any_place() -> None:
    data = b"before" + FRAME + b"behind"
    assert decode_frame_header(data, 6) == check_frame(FRAME)


def test_every_flip_is_noticed() -> None:
    assert unnoticed(check_frame, CorruptFrame, flips(FRAME)) == []
    header_flips = flips(FRAME, 0, FRAME_HEADER_BYTES)
    assert unnoticed(decode_frame_header, CorruptFrame, header_flips) == []


def test_every_cut_is_noticed() -> None:
    assert unnoticed(check_frame, CorruptFrame, cuts(FRAME)) == []


@given(st.binary(max_size=200))
def test_garbage_is_never_accepted_and_never_another_error(data: bytes) -> None:
    tried = iter([("garbage", data), ("magic", b"SMF1\x01\0" + data)])
    assert unnoticed(check_frame, CorruptFrame, tried) == []


def test_a_damaged_frame_counts_as_a_damaged_segment() -> None:
    with pytest.raises(CorruptSegment):
        check_frame(b"")


def _frame(payload: bytes, **changes: int | bytes) -> bytes:
    """A frame with right CRCs around any payload and any header."""
    fields: dict[str, int | bytes] = {
        "magic": b"SMF1",
        "version": 1,
        "count": 1,
        "index": 7,
        "length": len(payload),
        "zero": 0,
    }
    fields |= changes
    prefix = struct.pack(
        "<4sHHQQqII",
        fields["magic"],
        fields["version"],
        fields["count"],
        fields["index"],
        3,
        4,
        fields["length"],
        google_crc32c.value(payload),
    )
    return prefix + struct.pack("<II", google_crc32c.value(prefix), fields["zero"]) + payload


def _record(length: int, kind: int = 1, zero: int = 0) -> bytes:
    return struct.pack("<IHH", length, kind, zero)


def test_the_hand_made_frame_is_what_build_frame_makes() -> None:
    assert _frame(_record(0)) == build_frame(7, 3, 4, [(RecordKind.NOOP, [])])[0]


@pytest.mark.parametrize(
    "frame",
    [
        _frame(_record(0), magic=b"SMF2"),
        _frame(_record(0), version=2),
        _frame(_record(0), index=0),
        _frame(_record(0), zero=1),
        _frame(b"", count=0),
        _frame(_record(0), count=2),
        _frame(_record(0) * 2),
        _frame(_record(1)),
        _frame(_record(2**32 - 1)),
        _frame(_record(2**32 - 8)),
        _frame(_record(0, zero=1)),
        _frame(_record(0) + b"abcd"),
        _frame(_record(4) + b"abcd"),
        _frame(_record(0), length=16),
        _frame(_record(0), length=FRAME_BYTES_MAX),
    ],
)
def test_what_contradicts_is_refused_with_right_crcs(frame: bytes) -> None:
    with pytest.raises(CorruptFrame):
        check_frame(frame)


def test_an_unknown_kind_passes_the_log_and_stops_the_reader() -> None:
    frame = _frame(_record(0, kind=99))
    assert check_frame(frame).record_count == 1
    with pytest.raises(CorruptFrame, match="99"):
        list(iter_records(frame))


def test_records_of_an_unchecked_frame_never_lead_out_of_it() -> None:
    with pytest.raises(CorruptFrame):
        list(iter_records(_frame(_record(2**31))))
    with pytest.raises(CorruptFrame):
        list(iter_records(_frame(_record(0) + b"abcd")))


@pytest.mark.parametrize("bad", [[], [(RecordKind.NOOP, [])] * 65_536])
def test_the_builder_asserts_its_limits(bad: list[Record]) -> None:
    with pytest.raises(AssertionError):
        build_frame(1, 1, 1, bad)


def test_a_frame_may_have_as_many_records_as_its_header_can_count() -> None:
    frame, _ = build_frame(1, 1, 1, [(RecordKind.NOOP, [])] * 65_535)
    assert check_frame(frame).record_count == 65_535


def test_a_frame_over_the_limit_is_a_bug_of_the_caller() -> None:
    room = FRAME_BYTES_MAX - FRAME_HEADER_BYTES - RECORD_HEADER_BYTES
    frame, _ = build_frame(1, 1, 1, [(RecordKind.BATCH, [bytes(room)])])
    assert check_frame(frame).frame_length == FRAME_BYTES_MAX
    with pytest.raises(AssertionError):
        build_frame(1, 1, 1, [(RecordKind.BATCH, [bytes(room + 1)])])


def test_a_checker_that_skips_a_crc_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bugs: a payload, then a header, whose CRC nobody compares."""

    def forgetful(data: bytes) -> FrameHeader:
        header = decode_frame_header(data)
        if header.frame_length != len(data):
            raise CorruptFrame("length")
        return header

    assert unnoticed(forgetful, CorruptFrame, flips(FRAME))
    stored = struct.unpack_from("<I", FRAME, 40)[0]
    monkeypatch.setattr(google_crc32c, "value", lambda data: stored)
    missed = unnoticed(decode_frame_header, CorruptFrame, flips(FRAME, 0, 48))
    assert any(name.startswith("byte 8 ") for name in missed)
