"""The response to Produce as bytes, versions 3 to 8. Written by hand, since it is sent so often.

Format. An array of topics: name, array of partitions: int32 index, int16 error, int64 base offset,
int64 append time (-1: times are the producer's), from version 5 int64 log start offset (-1: not
known), from version 8 an array of record errors (empty here) and a nullable message. Then int32
throttle time.

The log start offset has one reader: a client whose producer is unknown. Java's sends the same batch
again until it is told one, and compares it with what it has stored: if the log begins later,
nothing was lost. So it is told the lowest there is, which claims nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from semel.gateway.wire import Raw

_COUNT: Final = struct.Struct(">i")
_PARTITION: Final = struct.Struct(">ihqq")
_PARTITION_5: Final = struct.Struct(">ihqqq")
_PARTITION_8: Final = struct.Struct(">ihqqqi")
LOG_START_LEAST: Final = 0
_MESSAGE_MAX: Final = 1_024
"""Characters."""


class Produced(NamedTuple):
    """What became of one partition."""

    error: ErrorCode = ErrorCode.none
    base_offset: int = -1
    message: str = ""


def encode_produced(
    topics: Sequence[tuple[str, Mapping[int, Produced]]], *, throttle_ms: int, version: int
) -> Raw:
    """Returns the response; outcomes are by topic and partition, in the order of the request."""
    parts = [_COUNT.pack(len(topics))]
    for name, partitions in topics:
        parts += [_text(name), _COUNT.pack(len(partitions))]
        for index, each in partitions.items():
            parts.append(_partition(index, each, version))
    parts.append(_COUNT.pack(throttle_ms))
    return Raw((b"".join(parts),))


def _partition(index: int, each: Produced, version: int) -> bytes:
    if version < 5:
        return _PARTITION.pack(index, each.error, each.base_offset, -1)
    log_start = LOG_START_LEAST if each.error is ErrorCode.unknown_producer_id else -1
    if version < 8:
        return _PARTITION_5.pack(index, each.error, each.base_offset, -1, log_start)
    head = _PARTITION_8.pack(index, each.error, each.base_offset, -1, log_start, 0)
    return head + (_text(each.message[:_MESSAGE_MAX]) if each.message else b"\xff\xff")


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data
