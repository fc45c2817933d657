"""Writes records that are alike: no headers but a common due time, keys of one length, values of
one length.

How it works. As long as the numbers of records have the same number of bytes, the records have one
length, and are the rows of a table of bytes. Each field is a range of its columns, and is written
by one assignment. That takes a quarter of the time of Arrow's join (`encoding.py`), which writes
the same bytes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semel.gateway.records.field_places import NO_FIELD, Numbers
from semel.gateway.records.header_bytes import due_header
from semel.gateway.records.varint_columns import size_of, sizes, written_one
from semel.protos.arrays import offsets_of
from semel.protos.columns import Columns

EVEN_RECORDS: Final = 12
"""Up to this number of records one after the other takes less time."""
_TABLES_MAX: Final = 8
"""More tables than this cost more than they save."""

_Table: TypeAlias = npt.NDArray[np.uint8]


def write_even(
    columns: Columns, deltas: Numbers, times: Numbers | int, deliver_at_us: int
) -> bytes | None:
    """Returns all records, one behind the other, or None if they are not alike."""
    if columns.headers is not None or columns.message_ids is not None:
        return None
    values = _table(columns.values)
    keys = None if columns.keys is None else _table(columns.keys)
    bounds = _bounds(sizes(deltas), sizes(times), len(deltas))
    if values is None or (keys is None and columns.keys is not None) or bounds is None:
        return None
    end = written_one(0)
    if deliver_at_us:
        end = written_one(1) + due_header(deliver_at_us)
    found = []
    for start, stop in pairwise(bounds):
        stamps = written_one(times) if isinstance(times, int) else _varints(times[start:stop])
        parts: list[bytes | _Table] = [b"\0", stamps, _varints(deltas[start:stop])]
        if keys is None:
            parts.append(written_one(NO_FIELD))
        else:
            parts += (written_one(keys.shape[1]), keys[start:stop])
        parts += (written_one(values.shape[1]), values[start:stop], end)
        found.append(_joined(parts, stop - start))
    return b"".join(table.data for table in found)


def _table(column: pa.Array) -> _Table | None:
    """Returns the bytes of a column as a table, or None if its fields have several lengths."""
    if column.null_count:
        return None
    offsets, count = offsets_of(column), len(column)
    first, size = int(offsets[0]), int(offsets[1] - offsets[0])
    if (np.diff(offsets) != size).any():
        return None
    if not size:
        return np.empty((count, 0), np.uint8)
    return np.frombuffer(column.buffers()[2], np.uint8, count * size, first).reshape(count, size)


def _bounds(of_deltas: Numbers | int, of_times: Numbers | int, count: int) -> list[int] | None:
    """Returns the rows from which on numbers have other sizes, 0 and the end included; None if
    there are many."""
    if isinstance(of_deltas, int) and isinstance(of_times, int):
        return [0, count]
    both: Any = of_deltas * 16 + of_times
    changes = np.flatnonzero(both[1:] != both[:-1]) + 1
    return [0, *changes.tolist(), count] if len(changes) < _TABLES_MAX else None


def _varints(numbers: Numbers) -> _Table:
    """Returns numbers that have one size as a table."""
    codes = (numbers << 1 ^ numbers >> 63).view(np.uint64)
    width = size_of(int(numbers[0]))
    found = np.empty((len(numbers), width), np.uint8)
    for place in range(width - 1):
        found[:, place] = codes & np.uint64(0x7F) | np.uint64(0x80)
        codes = codes >> np.uint64(7)
    found[:, width - 1] = codes
    return found


def _joined(parts: list[bytes | _Table], rows: int) -> _Table:
    """Returns records of these parts, each behind its length. Bytes are the same in each row."""
    tables = [
        np.frombuffer(part, np.uint8)[np.newaxis] if isinstance(part, bytes) else part
        for part in parts
    ]
    length = written_one(sum(table.shape[1] for table in tables))
    tables.insert(0, np.frombuffer(length, np.uint8)[np.newaxis])
    found = np.empty((rows, sum(table.shape[1] for table in tables)), np.uint8)
    at = 0
    for table in tables:
        width = table.shape[1]
        found[:, at : at + width] = table
        at += width
    return found
