"""The response to Fetch as bytes, versions 4 to 11. Written by hand: record batches are large, and
travel as they are.

Format. int32 throttle time, from version 7 int16 error and int32 session, then an array of topics:
name, array of partitions: int32 index, int16 error, int64 high watermark, int64 last stable offset
(the same: what is not committed is not seen), from version 5 int64 log start offset, an array of
aborted transactions (empty: they leave nothing), from version 11 int32 preferred replica (-1: the
leader), and int32 length and bytes of the record batches.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from semel.gateway.wire import Raw

_COUNT: Final = struct.Struct(">i")
_HEAD_7: Final = struct.Struct(">ihi")
_PARTITION_4: Final = struct.Struct(">ihqqii")
_PARTITION_5: Final = struct.Struct(">ihqqqii")
_PARTITION_11: Final = struct.Struct(">ihqqqiii")


class Fetched(NamedTuple):
    """What one partition is answered."""

    partition: int
    error: ErrorCode = ErrorCode.none
    high_watermark: int = -1
    log_start_offset: int = -1
    batches: Sequence[bytes] = ()


def encode_fetched(
    topics: Sequence[tuple[str, Sequence[Fetched]]],
    *,
    version: int,
    throttle_ms: int = 0,
    error: ErrorCode = ErrorCode.none,
    session_id: int = 0,
) -> Raw:
    """Returns the response. Session 0 is none: the next request is a full one."""
    head = _COUNT.pack(throttle_ms)
    if version >= 7:
        head = _HEAD_7.pack(throttle_ms, error, session_id)
    parts = [head + _COUNT.pack(len(topics))]
    for name, partitions in topics:
        data = name.encode()
        parts.append(struct.pack(">h", len(data)) + data + _COUNT.pack(len(partitions)))
        for each in partitions:
            parts.append(_partition(each, version))
            parts += each.batches
    return Raw(parts)


def _partition(each: Fetched, version: int) -> bytes:
    size = sum(map(len, each.batches))
    head = each.partition, int(each.error), each.high_watermark, each.high_watermark
    if version < 5:
        return _PARTITION_4.pack(*head, 0, size)
    if version < 11:
        return _PARTITION_5.pack(*head, each.log_start_offset, 0, size)
    return _PARTITION_11.pack(*head, each.log_start_offset, 0, -1, size)
