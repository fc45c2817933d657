"""Stored batches as Kafka's record batches. No I/O."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from semel.gateway.records import RecordCodec, encode, encode_gap
from semel.protos.arrays import numbers_of
from semel.protos.batch import (
    BROKER_HEADER_BYTES,
    BatchFlags,
    check_batch,
    decode_broker_header,
)
from semel.protos.columns import decode_columns
from semel.protos.errors import CorruptBatch

_OFFSET: Final = struct.Struct(">q")
"""What a record batch begins with; no checksum covers it."""


def kafka_batch(
    stored: memoryview,
    base_offset: int,
    row_start: int,
    row_end: int,
    codec: RecordCodec,
    shift: int = 0,
) -> bytes:
    """Returns rows of a stored batch as a record batch for the offsets from `base_offset` on, which
    its partition has `shift` higher.

    It is compressed by `codec`, however it is stored: not every consumer knows every codec. Of a
    compacted batch it has the messages that are left of these offsets. Raises CorruptBatch.
    """
    batch = _encoded(stored, base_offset, row_start, row_end, codec)
    return batch if not shift else _OFFSET.pack(base_offset + shift) + batch[_OFFSET.size :]


def _encoded(
    stored: memoryview, base_offset: int, row_start: int, row_end: int, codec: RecordCodec
) -> bytes:
    decode_broker_header(stored)
    batch = stored[BROKER_HEADER_BYTES:]
    header = check_batch(batch)
    next_offset = base_offset + row_end - row_start
    if not header.count:
        return encode_gap(base_offset, next_offset)
    columns = decode_columns(batch, header)
    if header.flags & BatchFlags.OFFSET:
        assert columns.offsets is not None, "the flag says so"
        numbers = numbers_of(columns.offsets, np.int64)
        row_start, row_end = np.searchsorted(numbers, (base_offset, next_offset)).tolist()
    elif not 0 <= row_start <= row_end <= header.count:
        raise CorruptBatch(f"batch of {header.count} has no messages {row_start} to {row_end}")
    if row_end - row_start < header.count:
        columns = columns.slice(row_start, row_end)
    return encode(
        columns,
        base_offset=base_offset,
        next_offset=next_offset,
        timestamp_us=header.first_timestamp_us,
        deliver_at_us=header.deliver_at_us,
        codec=codec,
    )
