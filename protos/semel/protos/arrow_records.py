"""Arrow record batches for readers, which all have one schema, whatever columns a batch has.

How it works. The arrays of `columns.py` go into the record batch as they are, over the batch's own
bytes. A column that the batch leaves out has the same value in every row, or rises by one. Such a
column is a slice of an array that is kept, or numpy makes it in one call.

Not here: the batch's checks and columns (`columns.py`), objects of messages (the client's
`message.py`).
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
import pyarrow as pa

from semel.protos.arrow_arrays import HEADERS_TYPE
from semel.protos.batch import (
    BatchHeader,
)
from semel.protos.columns import Columns

_TIMESTAMP_TYPE: Final = pa.timestamp("us", "UTC")

RECORD_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("offset", pa.int64()),
        ("timestamp", _TIMESTAMP_TYPE),
        ("headers", HEADERS_TYPE),
        ("producer", pa.int64()),
        ("sequence", pa.int64()),
    ]
)
"""The columns that readers get, whatever columns a batch has."""


class Repeater:
    """Makes arrays of one value, as slices of arrays that it keeps, since batches repeat each
    other."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._block = functools.lru_cache(maxsize=16)(self._make)

    def _make(self, value: object, size: int) -> pa.Array:
        return pa.repeat(pa.scalar(value, self._kind), size)

    def __call__(self, value: object, count: int) -> pa.Array:
        """Returns `count` times `value`."""
        return self._block(value, 1 << max(count - 1, 0).bit_length()).slice(0, count)


REPEATED_INT64: Final = Repeater(pa.int64())
REPEATED_STRING: Final = Repeater(pa.string())
_NO_KEYS: Final = Repeater(pa.binary())
_NO_HEADERS: Final = Repeater(HEADERS_TYPE)


def record_arrays(
    columns: Columns, header: BatchHeader, row_start: int, base_offset: int
) -> list[pa.Array]:
    """Returns the arrays of RECORD_SCHEMA for decoded columns. The first of their rows is row
    `row_start` of the batch and has offset `base_offset`, unless the columns have offsets."""
    count = len(columns)
    keys, stamps, headers, sequences = (
        columns.keys,
        columns.timestamps,
        columns.headers,
        columns.sequences,
    )
    if keys is None:
        keys = _NO_KEYS(None, count)
    if stamps is None:
        stamps = _numbers(np.full(count, header.first_timestamp_us, np.int64))
    if headers is None:
        headers = _NO_HEADERS((), count)
    if sequences is None:
        sequences = _rising(header.base_sequence + row_start, count)
    return [
        keys,
        columns.values,
        _rising(base_offset, count) if columns.offsets is None else columns.offsets,
        stamps.view(_TIMESTAMP_TYPE),
        headers,
        REPEATED_INT64(header.producer_id, count),
        sequences,
    ]


def _rising(first: int, count: int) -> pa.Array:
    return _numbers(np.arange(first, first + count, dtype=np.int64))


def _numbers(numbers: np.ndarray) -> pa.Array:
    """Returns an array over the same memory."""
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])
