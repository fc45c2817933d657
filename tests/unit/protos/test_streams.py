"""Envelopes of the hot streams: both ends agree, and malformed ones are refused by name."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.protos.errors import CorruptBatch, InvalidRequest
from semel.protos.streams import (
    PREFIX_BYTES,
    PRODUCE_BATCHES_MAX,
    PRODUCE_HEAD_BYTES,
    PRODUCE_HEAD_STRUCT,
    FetchReplies,
    Ping,
    decode_fetch_header,
    decode_produce,
    encode_fetch_reply,
    encode_ping,
    encode_produce,
    fetched_batches,
    frame_data,
    frame_prefix,
    padded,
    padded_bytes,
)
from semel.protos.v1.broker_pb2 import FetchReplyHeader
from semel.protos.v1.common_pb2 import Frame
from tests.kit.fetch_replies import decode_fetch_reply
from tests.kit.wire_damage import cuts, flips, unnoticed

batches = st.lists(st.binary(max_size=60), min_size=1, max_size=6)


@given(batches)
def test_produce_requests_round_trip(given_batches: list[bytes]) -> None:
    message = encode_produce(given_batches)
    assert decode_produce(message) == given_batches
    data = Frame.FromString(message).data
    assert data == frame_data(message)
    padded = (PREFIX_BYTES + (len(each) + 7 & ~7) for each in given_batches)
    assert len(data) == PRODUCE_HEAD_BYTES + sum(padded)


@given(st.integers(1, 2**64 - 1))
def test_pings_round_trip(number: int) -> None:
    assert decode_produce(encode_ping(number)) == Ping(number=number)


def _header(lengths: list[list[int]]) -> FetchReplyHeader:
    header = FetchReplyHeader(correlation_id=7)
    for each in lengths:
        result = header.results.add()
        for length in each:
            result.batches.add(length=length)
    return header


@given(st.lists(st.lists(st.binary(max_size=40), max_size=3), max_size=3))
def test_fetch_replies_round_trip(results: list[list[bytes]]) -> None:
    header = _header([[len(batch) for batch in result] for result in results])
    parts = [memoryview(batch) for result in results for batch in result]
    message = encode_fetch_reply(header, parts)
    decoded, views = decode_fetch_reply(message)
    assert decoded == header
    assert views == parts
    assert all(view.obj is message for view in views)


@given(st.lists(st.lists(st.binary(max_size=40), max_size=3), max_size=3))
def test_batches_may_stand_in_memory_instead(results: list[list[bytes]]) -> None:
    header = _header([[len(batch) for batch in result] for result in results])
    header.in_memory = True
    parts = [batch for result in results for batch in result]
    decoded, rest = decode_fetch_header(encode_fetch_reply(header, parts))
    assert decoded == header
    assert bytes(rest) == b""
    memory = memoryview(b"".join(padded(parts)) + b"left from earlier")
    assert fetched_batches(decoded, rest, memory) == parts
    sent = encode_fetch_reply(_header([[len(part) for part in parts]]), parts)
    assert frame_data(sent).tobytes().endswith(b"".join(padded(parts)))
    assert padded_bytes(parts) == len(b"".join(padded(parts)))


def test_memory_that_is_too_short_or_was_not_named_is_refused() -> None:
    header = _header([[11], [6]])
    header.in_memory = True
    for rest, memory in (
        (memoryview(b""), None),
        (memoryview(b""), memoryview(bytes(23))),
        (memoryview(bytes(24)), memoryview(bytes(24))),
    ):
        with pytest.raises(CorruptBatch):
            fetched_batches(header, rest, memory)
    assert fetched_batches(header, memoryview(b""), memoryview(bytes(24))) == [bytes(11), bytes(6)]


def test_every_cut_is_refused() -> None:
    message = encode_produce([b"first batch", b"second"])
    assert unnoticed(decode_produce, InvalidRequest, cuts(message)) == []
    assert unnoticed(decode_produce, InvalidRequest, cuts(encode_ping(5))) == []
    reply = encode_fetch_reply(_header([[11], [6]]), [b"first batch", b"second"])
    assert unnoticed(decode_fetch_reply, CorruptBatch, cuts(reply)) == []


def test_flips_show_in_the_batches_alone() -> None:
    """Batches have CRCs of their own; all else of a produce request is judged here."""
    message = encode_produce([b"first batch"])
    accepted = unnoticed(decode_produce, InvalidRequest, flips(message))
    start = message.index(b"first batch")
    places = {int(name.split()[1]) for name in accepted}
    assert all(name.endswith("accepted") for name in accepted)
    # A length that still fits the padding changes the batch, whose own CRC tells.
    assert places <= {*range(start, start + 11), start - 8}


@given(st.binary(max_size=200))
def test_garbage_is_refused_by_the_right_error(garbage: bytes) -> None:
    message = frame_prefix(len(garbage)) + garbage
    for data in (garbage, message):
        for decode, error in ((decode_produce, InvalidRequest), (decode_fetch_reply, CorruptBatch)):
            missed = unnoticed(decode, error, iter([("garbage", data)]))
            assert not missed or missed[0].endswith("accepted")


def _request(kind: int, count: int, number: int, rest: bytes = b"", zeros: int = 0) -> bytes:
    data = PRODUCE_HEAD_STRUCT.pack(kind, 0, count, zeros, number) + rest
    return frame_prefix(len(data)) + data


BATCH = struct.pack("<II", 5, 0) + b"batch\0\0\0"


def test_the_hand_made_request_is_the_encoders() -> None:
    assert _request(1, 1, 0, BATCH) == encode_produce([b"batch"])


@pytest.mark.parametrize(
    "message",
    [
        _request(1, 0, 0),
        _request(1, 1, 9, BATCH),
        _request(1, 2, 0, BATCH),
        _request(1, 1, 0, BATCH * 2),
        _request(1, 1, 0, BATCH, zeros=1),
        _request(1, 1, 0, struct.pack("<II", 2**32 - 1, 0) + b"batch\0\0\0"),
        _request(1, 1, 0, struct.pack("<II", 5, 1) + b"batch\0\0\0"),
        _request(1, 1, 0, struct.pack("<II", 5, 0) + b"batch\0\0\1"),
        _request(2, 0, 0),
        _request(2, 1, 9),
        _request(2, 0, 9, bytes(8)),
        _request(3, 0, 9),
        b"\x0a\x80\x80\x80\x80\x80\x80",
    ],
)
def test_malformed_requests_are_refused(message: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_produce(message)


def test_the_encoders_assert_what_callers_owe() -> None:
    for wrong in ([], [b""] * (PRODUCE_BATCHES_MAX + 1)):
        with pytest.raises(AssertionError):
            encode_produce(wrong)
    with pytest.raises(AssertionError):
        encode_fetch_reply(_header([[3]]), [b"four"])


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("number", [0, 1, 127, 128, 1 << 60])
def test_replies_that_share_their_batches_are_like_those_encoded_one_by_one(
    number: int, more: bool
) -> None:
    parts = [b"first batch", b"second", b"12345678"]
    header = _header([[len(part) for part in parts]])
    shared = FetchReplies(header.results[0], parts)
    found, rest = decode_fetch_header(shared.to(number, more=more))
    assert (found.correlation_id, found.more) == (number, more)
    assert list(found.results) == list(header.results)
    assert fetched_batches(found, rest) == parts
    header.correlation_id, header.more = number, more
    assert bytes(rest) == bytes(decode_fetch_header(encode_fetch_reply(header, parts))[1])


def test_shared_replies_need_the_batches_that_their_header_names() -> None:
    with pytest.raises(AssertionError, match="disagree"):
        FetchReplies(_header([[11]]).results[0], [b"second"])
