"""Rows of stored batches as one Arrow table, whatever batches they come from.

How it works. Each batch is decoded into columns over its own bytes, and its rows are sliced out, so
nothing here touches a single message. A batch may be compressed, carry source positions that jump,
lack rows that were dropped because of their ids, be one of a transaction or a delayed one: its rows
say all that readers get, and the extent says which rows have which offsets. A compacted batch says
itself which offsets its rows have; some of those that it stands for have no row.

Not here: files (`files.py`), batches made of rows again (`cold_batches.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semel.protos.arrays import header_buffers, numbers_of, offsets_of
from semel.protos.arrow_records import REPEATED_INT64, Repeater, record_arrays
from semel.protos.batch import (
    BROKER_HEADER_BYTES,
    BatchFlags,
    check_batch,
    decode_broker_header,
)
from semel.protos.columns import decode_columns
from semel.protos.errors import CorruptBatch
from semel.tier.schema import SCHEMA, TIMESTAMP

ROW_FIXED_BYTES: Final = 32
"""What a row is taken to need beside key, value, headers and id."""

_NO_IDS: Final = Repeater(pa.binary())


class StoredRows(NamedTuple):
    """Rows of one stored batch, as a queue's extent names them."""

    stored: bytes | memoryview
    """Broker header, client header and body."""
    base_offset: int
    """Offset of row `row_start`."""
    row_start: int
    row_end: int
    """If the batch was compacted, those rows count whose offsets lie in
    `[base_offset, base_offset + row_end - row_start)`."""
    append_time_us: int
    """Log time at which the rows got their offsets. Of a batch that was produced plainly it is the
    broker header's; a delayed batch, or one of a transaction, was stored earlier than that."""


def rows_of(pieces: Iterable[StoredRows]) -> pa.Table:
    """Returns the rows of all pieces, with SCHEMA, each chunk over the bytes of its batch.

    The pieces must follow each other without a gap, in the order of their offsets. Raises
    CorruptBatch for a batch that is damaged, or has fewer rows than its piece names.
    """
    batches: list[pa.RecordBatch] = []
    expected: int | None = None
    append_time_us = 0
    for piece in pieces:
        assert expected in (None, piece.base_offset), (
            f"rows begin at offset {piece.base_offset}, not at {expected}"
        )
        assert append_time_us <= piece.append_time_us, "append times of a queue never fall"
        batches += _rows(piece)
        expected = piece.base_offset + piece.row_end - piece.row_start
        append_time_us = piece.append_time_us
    return pa.Table.from_batches(batches, SCHEMA)


def _rows(piece: StoredRows) -> list[pa.RecordBatch]:
    """The rows of a piece; none of a compacted batch that only stands for a gap."""
    stored = memoryview(piece.stored)
    arrival_us = decode_broker_header(stored).append_time_us
    batch = stored[BROKER_HEADER_BYTES:]
    header = check_batch(batch)
    start, end = piece.row_start, piece.row_end
    if header.flags & BatchFlags.OFFSET:
        if not header.count:
            return []
        columns = decode_columns(batch, header)
        assert columns.offsets is not None, "the flag says so"
        within = (piece.base_offset, piece.base_offset + end - start)
        start, end = np.searchsorted(numbers_of(columns.offsets, np.int64), within).tolist()
        if start == end:
            return []
    elif 0 <= start < end <= header.count:
        columns = decode_columns(batch, header)
    else:
        raise CorruptBatch(f"batch has {header.count} rows, an extent names {start} to {end}")
    columns = columns.slice(start, end)
    key, value, offset, timestamp, headers, producer, sequence = record_arrays(
        columns, header, start, piece.base_offset
    )
    count, ids = len(columns), columns.message_ids
    rows = pa.RecordBatch.from_arrays(
        [
            key,
            value,
            headers,
            offset,
            timestamp,
            producer,
            REPEATED_INT64(header.epoch, count),
            REPEATED_INT64(header.session, count),
            sequence,
            _NO_IDS(None, count) if ids is None else ids,
            REPEATED_INT64(piece.append_time_us, count).view(TIMESTAMP),
            REPEATED_INT64(arrival_us, count).view(TIMESTAMP),
        ],
        schema=SCHEMA,
    )
    return [rows]


def row_bytes(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Returns about how many bytes each row takes before compression."""
    return np.concatenate([np.zeros(0, np.int64), *map(_row_bytes, rows.to_batches())])


def _row_bytes(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    sizes = np.full(batch.num_rows, ROW_FIXED_BYTES, np.int64)
    for name in ("key", "value", "message_id"):
        sizes += np.diff(offsets_of(batch.column(name)))
    lists, names, _, values, _ = header_buffers(batch.column("headers"))
    sizes += np.diff(names[lists]) + np.diff(values[lists])
    return sizes


def cuts(sizes: npt.NDArray[np.int64], bytes_max: int) -> list[int]:
    """Returns the ends of pieces of at most `bytes_max` each, but of at least one row."""
    ends: list[int] = []
    sums = np.cumsum(sizes)
    done = start = 0
    while start < len(sizes):
        end = max(start + 1, int(np.searchsorted(sums, done + bytes_max, side="right")))
        ends.append(end)
        done, start = int(sums[end - 1]), end
    return ends
