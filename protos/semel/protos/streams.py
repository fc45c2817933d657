"""The bytes inside `Frame` on the produce and fetch streams.

How it works. `Frame` is a protobuf message with one `bytes` field, so its wire form is a tag, a
length and the data. The encoders write that prefix themselves and join everything once; the
decoders strip it. Both ends therefore use gRPC without a serializer, and a batch is copied once on
each side at most.

Format. `docs/formats/streams.md`; a test compares its tables with the structs below.

    produce request   8 bytes head, u64 ping number | per batch: u32 length, u32 0, batch, pad to 8
    fetch reply       u32 header length, u32 0, FetchReplyHeader, pad to 8 | stored batches, padded

Between a client and a broker on one machine the batches may be in memory of the client instead.

Invariants
1. `decode_produce(encode_produce(x)) == x` and likewise for pings and fetch replies.
2. A decoder accepts a message only if every byte of it belongs to a known field. Padding is zero.
3. This module checks lengths and never looks into a batch.

Not here: the batch (`batch.py`), the meaning of acknowledgements (`v1/broker.proto`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from semel.protos.errors import CorruptBatch, InvalidRequest
from semel.protos.v1 import broker_pb2

PRODUCE_METHOD: Final = "/semel.protos.v1.BrokerStream/Produce"
FETCH_METHOD: Final = "/semel.protos.v1.BrokerStream/Fetch"

KIND_BATCHES: Final = 1
KIND_PING: Final = 2

PRODUCE_HEAD_STRUCT: Final = struct.Struct("<BBHIQ")
PRODUCE_HEAD_BYTES: Final = 16
PREFIX_STRUCT: Final = struct.Struct("<II")
PREFIX_BYTES: Final = 8

STREAM_MESSAGE_BYTES_MAX: Final = 16 << 20
"""gRPC's limit for one message on these streams, both ways."""
PRODUCE_BATCHES_MAX: Final = 0xFFFF

MEMORY_NAME: Final = "semel-fetch"
"""Name of the memfd that a client offers for the batches of fetch replies."""
MEMORY_SECRET_BYTES: Final = 32
"""Bytes of the secret at its beginning."""
MEMORY_HEAD_BYTES: Final = 4096
"""Byte at which the batches begin; only the secret is in front of it."""

_TAG: Final = 0x0A
_PADDING: Final = tuple(bytes(-n % 8) for n in range(8))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """A question whether the broker lives, which `ProduceReply.pong` answers."""

    number: int
    """1 and up, chosen by the client; u64."""


def frame_prefix(length: int) -> bytes:
    """Returns the bytes in front of `length` bytes of data in the wire form of `Frame`."""
    prefix = bytearray((_TAG,))
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix)


def frame_data(message: bytes | memoryview) -> memoryview:
    """Returns the data of a `Frame` in wire form, as a view. Raises InvalidRequest."""
    view = memoryview(message)
    if len(view) < 2 or view[0] != _TAG:
        raise InvalidRequest("stream message is not a Frame; send Frame.data and nothing else")
    length = shift = 0
    at = 1
    while True:
        if at >= len(view) or shift > 28:
            raise InvalidRequest("stream message is cut inside its length")
        byte = view[at]
        at += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if at + length != len(view):
        raise InvalidRequest(
            f"stream message announces {length} bytes of data and holds {len(view) - at}"
        )
    return view[at:]


def encode_produce(batches: Sequence[bytes]) -> bytes:
    """Returns a produce request with whole client batches, as a `Frame` in wire form.

    Asserts that there is a batch and at most `PRODUCE_BATCHES_MAX`.
    """
    assert 0 < len(batches) <= PRODUCE_BATCHES_MAX, f"{len(batches)} batches in one request"
    head = PRODUCE_HEAD_STRUCT.pack(KIND_BATCHES, 0, len(batches), 0, 0)
    parts: list[bytes] = [b"", head]
    total = PRODUCE_HEAD_BYTES
    for batch in batches:
        length = len(batch)
        parts += (PREFIX_STRUCT.pack(length, 0), batch, _PADDING[length & 7])
        total += PREFIX_BYTES + (length + 7 & ~7)
    parts[0] = frame_prefix(total)
    return b"".join(parts)


def encode_ping(number: int) -> bytes:
    """Returns a ping as a `Frame` in wire form."""
    return frame_prefix(PRODUCE_HEAD_BYTES) + PRODUCE_HEAD_STRUCT.pack(KIND_PING, 0, 0, 0, number)


def decode_produce(message: bytes | memoryview) -> Ping | list[bytes]:
    """Returns a ping, or the batches of a produce request, each as bytes of its own.

    Raises InvalidRequest when the envelope is malformed.
    """
    data = frame_data(message)
    if len(data) < PRODUCE_HEAD_BYTES:
        raise InvalidRequest(f"produce request is cut: {len(data)} bytes")
    kind, zero, count, zeros, number = PRODUCE_HEAD_STRUCT.unpack_from(data)
    if zero or zeros:
        raise InvalidRequest("produce request has a reserved field that is not zero")
    if kind == KIND_PING:
        if count or not number or len(data) != PRODUCE_HEAD_BYTES:
            raise InvalidRequest("ping is malformed: it has a number and nothing else")
        return Ping(number=number)
    if kind != KIND_BATCHES:
        raise InvalidRequest(f"produce request of kind {kind} is unknown")
    if not count or number:
        raise InvalidRequest("produce request without batches, or with a ping's number")
    batches: list[bytes] = []
    at = PRODUCE_HEAD_BYTES
    end = len(data)
    for _ in range(count):
        if end - at < PREFIX_BYTES:
            raise InvalidRequest(f"produce request is cut before batch {len(batches)} of {count}")
        length, zero = PREFIX_STRUCT.unpack_from(data, at)
        start = at + PREFIX_BYTES
        at = start + (length + 7 & ~7)
        if zero or at > end:
            raise InvalidRequest(
                f"batch {len(batches)} of {count} claims {length} bytes, {end - start} are left"
            )
        if data[start + length : at] != _PADDING[length & 7]:
            raise InvalidRequest(f"batch {len(batches)} of {count} is not padded with zeros")
        batches.append(bytes(data[start : start + length]))
    if at != end:
        raise InvalidRequest(f"produce request has {end - at} bytes behind its last batch")
    return batches


def padded(parts: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """Returns stored batches as a fetch reply has them behind its header: each at a multiple of
    8."""
    pieces: list[bytes | memoryview] = []
    for part in parts:
        pieces.append(part)
        if len(part) & 7:
            pieces.append(_PADDING[len(part) & 7])
    return pieces


def padded_bytes(parts: Sequence[bytes | memoryview]) -> int:
    """Returns the length of the same batches with their padding."""
    return sum(len(part) + 7 & ~7 for part in parts)


def encode_fetch_reply(
    header: broker_pb2.FetchReplyHeader, parts: Sequence[bytes | memoryview]
) -> bytes:
    """Returns a fetch reply as a `Frame` in wire form.

    `parts` are the stored batches, in the order of `header.results[].batches`. They must have the
    lengths that the header names (asserted). With `in_memory` the reply does not contain them.
    """
    assert [r.length for result in header.results for r in result.batches] == [
        len(part) for part in parts
    ], "fetch reply: header and batches disagree"
    head = header.SerializeToString()
    pieces = [PREFIX_STRUCT.pack(len(head), 0), *padded([head])]
    total = PREFIX_BYTES + padded_bytes([head])
    if not header.in_memory:
        pieces += padded(parts)
        total += padded_bytes(parts)
    return b"".join((frame_prefix(total), *pieces))


class FetchReplies:
    """Fetch replies with the same batches of one queue, to many readers: what they share is encoded
    once."""

    def __init__(self, result: broker_pb2.FetchResult, parts: Sequence[bytes | memoryview]) -> None:
        """`parts` are the stored batches, in the order of `result.batches` (asserted)."""
        assert [each.length for each in result.batches] == [len(part) for part in parts], (
            "fetch reply: header and batches disagree"
        )
        self._results = broker_pb2.FetchReplyHeader(results=[result]).SerializeToString()
        self._batches = b"".join(padded(parts))

    def to(self, correlation_id: int, *, more: bool) -> bytes:
        """Returns the reply to one request as a `Frame` in wire form."""
        own = broker_pb2.FetchReplyHeader(correlation_id=correlation_id, more=more)
        # Serialized messages one behind the other are the serialized whole.
        head = own.SerializeToString() + self._results
        padding = _PADDING[len(head) & 7]
        length = PREFIX_STRUCT.pack(len(head), 0)
        total = PREFIX_BYTES + len(head) + len(padding) + len(self._batches)
        return b"".join((frame_prefix(total), length, head, padding, self._batches))


def decode_fetch_header(
    message: bytes | memoryview,
) -> tuple[broker_pb2.FetchReplyHeader, memoryview]:
    """Returns the header of a fetch reply and the bytes behind it. Raises CorruptBatch."""
    try:
        data = frame_data(message)
    except InvalidRequest as error:
        raise CorruptBatch(f"fetch reply: {error.message}") from None
    end = len(data)
    if end < PREFIX_BYTES:
        raise CorruptBatch(f"fetch reply is cut: {end} bytes")
    length, zero = PREFIX_STRUCT.unpack_from(data)
    at = PREFIX_BYTES + (length + 7 & ~7)
    if zero or at > end:
        raise CorruptBatch(f"fetch reply's header claims {length} bytes, {end} were sent")
    try:
        header = broker_pb2.FetchReplyHeader.FromString(
            bytes(data[PREFIX_BYTES : PREFIX_BYTES + length])
        )
    except DecodeError:
        raise CorruptBatch("fetch reply's header is not a FetchReplyHeader") from None
    return header, data[at:]


def fetched_batches(
    header: broker_pb2.FetchReplyHeader, rest: memoryview, memory: memoryview | None = None
) -> list[memoryview]:
    """Returns the stored batches of a fetch reply as views of `rest`, the bytes behind its header,
    or with `in_memory` of the memory that its request named. Raises CorruptBatch."""
    data = rest
    if header.in_memory:
        if memory is None or len(rest):
            raise CorruptBatch(
                f"fetch reply says its batches are in shared memory, with {len(rest)} bytes behind"
                f" its header and {'no' if memory is None else 'some'} memory named"
            )
        data = memory
    at, end = 0, len(data)
    parts: list[memoryview] = []
    for result in header.results:
        for batch in result.batches:
            start = at
            at += batch.length + 7 & ~7
            if at > end:
                raise CorruptBatch(
                    f"batch {len(parts)} of the reply claims {batch.length} bytes,"
                    f" {end - start} are left"
                )
            parts.append(data[start : start + batch.length])
    if at != end and not header.in_memory:
        raise CorruptBatch(f"fetch reply has {end - at} bytes that its header does not name")
    return parts
