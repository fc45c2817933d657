"""Columns of Semel's batches as Kafka's record batches, for consumers.

How it works. A record is a few numbers, the key, the value's length, the value, and the headers.
Each of these is an Arrow array over all records, and Arrow joins them record by record: so the
joined array's bytes are the records, one behind the other. A few records are written one by one
(`few_written.py`), and those that are alike as a table (`even_written.py`).

Invariants
1. Each record has its own offset: removed ones and other rows are gaps, and the batch reaches up to
   `next_offset`, so that a consumer passes a gap at its end, too.
2. What `decode` took out of the headers is in them again.

Format. `docs/formats/kafka-records.md`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from semel.gateway.records.even_written import EVEN_RECORDS, write_even
from semel.gateway.records.few_written import FEW_RECORDS, write_few
from semel.gateway.records.field_places import NO_FIELD, Numbers
from semel.gateway.records.header_bytes import joined, lengths_of, shown_headers
from semel.gateway.records.record_batch import (
    CRC_AT,
    CRC_FROM,
    HEAD_BYTES,
    HEAD_STRUCT,
    LENGTH_ENDS_AT,
    MAGIC,
    NO_PRODUCER,
    RecordCodec,
)
from semel.gateway.records.record_codecs import compress
from semel.gateway.records.varint_columns import sizes, written
from semel.protos.arrays import numbers_of
from semel.protos.columns import Columns
from semel.protos.crc import crc32c

NO_EPOCH: Final = -1
"""The leader epoch of a batch that names none."""
_SPAN_MAX: Final = 1 << 31
"""The offsets that a batch can stand for."""
_ATTRIBUTES: Final = 0
"""One byte; as a varint it is the same."""


def encode(
    columns: Columns,
    *,
    base_offset: int,
    next_offset: int,
    timestamp_us: int,
    deliver_at_us: int = 0,
    leader_epoch: int = NO_EPOCH,
    codec: RecordCodec = RecordCodec.NONE,
) -> bytes:
    """Returns one record batch with the rows of `columns`, which may be a slice.

    It stands for the offsets `[base_offset, next_offset)`. Rows have the offsets of their column,
    if there is one, else `base_offset` and up. `timestamp_us` is the time of rows without a
    column of times. With `deliver_at_us`, or message ids, the records have Semel's headers.
    """
    count = len(columns)
    if not count:
        return encode_gap(base_offset, next_offset, leader_epoch=leader_epoch)
    deltas = np.arange(count)
    if columns.offsets is not None:
        deltas = numbers_of(columns.offsets, np.int64) - base_offset
    assert deltas[0] >= 0, "a row in front of its batch"
    assert base_offset + deltas[-1] < next_offset, "a row behind its batch"
    records: Any
    times: Numbers | int
    base_ms, max_ms, times = timestamp_us // 1000, timestamp_us // 1000, 0
    if columns.timestamps is not None:
        stamps = numbers_of(columns.timestamps, np.int64) // 1000
        base_ms, max_ms = int(stamps[0]), int(stamps.max())
        times = stamps - base_ms
    fields = (columns, deltas, times, deliver_at_us)
    records = None if count <= EVEN_RECORDS else write_even(*fields)
    if records is None:
        records = write_few(*fields) if count <= FEW_RECORDS else _records(*fields)
    return _framed(
        compress(records, codec),
        base_offset=base_offset,
        next_offset=next_offset,
        leader_epoch=leader_epoch,
        codec=codec,
        base_ms=base_ms,
        max_ms=max_ms,
        count=count,
    )


def encode_gap(base_offset: int, next_offset: int, *, leader_epoch: int = NO_EPOCH) -> bytes:
    """Returns a record batch without records, which brings consumers to `next_offset`."""
    return _framed(
        b"",
        base_offset=base_offset,
        next_offset=next_offset,
        leader_epoch=leader_epoch,
        codec=RecordCodec.NONE,
        base_ms=-1,
        max_ms=-1,
        count=0,
    )


def _records(
    columns: Columns, deltas: Numbers, times: Numbers | int, deliver_at_us: int
) -> pa.Buffer:
    """Returns all records, one behind the other."""
    values, value_lengths = columns.values, lengths_of(columns.values)
    headers = shown_headers(columns.headers, columns.message_ids, deliver_at_us, len(columns))
    body = 1 + sizes(times) + sizes(deltas) + _field_sizes(value_lengths) + headers.sizes
    if columns.keys is None:
        body = body + 1
        parts = [written(body, _ATTRIBUTES, times, deltas, NO_FIELD, value_lengths), values]
    else:
        key_lengths = lengths_of(columns.keys)
        body = body + _field_sizes(key_lengths)
        head = written(body, _ATTRIBUTES, times, deltas, key_lengths)
        parts = [head, columns.keys, written(value_lengths), values]
    return joined([*parts, *headers.parts])


def _field_sizes(lengths: Numbers) -> Numbers:
    """Returns how many bytes a field and its length take."""
    return sizes(lengths) + np.maximum(lengths, 0)


def _framed(
    records: Any,
    *,
    base_offset: int,
    next_offset: int,
    leader_epoch: int,
    codec: RecordCodec,
    base_ms: int,
    max_ms: int,
    count: int,
) -> bytes:
    """Returns a batch of these records, which are compressed already."""
    size = memoryview(records).nbytes
    # A wider gap than one batch can tell: the consumer asks again at the end of this one.
    span = min(next_offset - base_offset, _SPAN_MAX)
    fields = (codec, span - 1, base_ms, max_ms)
    nobody = (NO_PRODUCER, NO_PRODUCER, NO_PRODUCER)
    length = HEAD_BYTES - LENGTH_ENDS_AT + size
    head = HEAD_STRUCT.pack(base_offset, length, leader_epoch, MAGIC, 0, *fields, *nobody, count)
    crc = crc32c(records, crc32c(head[CRC_FROM:]))
    crc_bytes = crc.to_bytes(CRC_FROM - CRC_AT, "big")
    return b"".join((head[:CRC_AT], crc_bytes, head[CRC_FROM:], records))
