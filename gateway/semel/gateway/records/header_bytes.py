"""The headers of messages as the last bytes of Kafka's records.

How it works. Each header becomes one binary; those of one record lie behind each other, so that
only the offsets change from headers to records. Semel's own fields follow as headers of their own
(`own_headers.py`).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.gateway.records.field_places import NO_FIELD, Numbers
from semel.gateway.records.own_headers import DELIVER_AT, MESSAGE_ID, NULL_HEADERS, put_back_nulls
from semel.gateway.records.varint_columns import sizes, written, written_one
from semel.protos.arrays import header_buffers, offsets_of

_NO_BYTES: Final = pa.scalar(b"", pa.binary())
_NULLS_NAME: Final = pa.scalar(NULL_HEADERS.encode(), pa.binary())


class ShownHeaders(NamedTuple):
    """The end of each record: the number of its headers, and those."""

    parts: list[Any]
    """Binary arrays and scalars, to be joined behind the record's value."""
    sizes: Numbers | int
    """Bytes of all parts together."""


def lengths_of(column: pa.Array) -> Numbers:
    """Returns the length of each binary, NO_FIELD for a null."""
    lengths = np.diff(offsets_of(column)).astype(np.int64)
    if column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = NO_FIELD
    return lengths


def joined(parts: list[Any]) -> pa.Buffer:
    """Returns the bytes of all parts, row by row."""
    whole = joined_rows(parts)
    _, _, data = whole.buffers()
    return data.slice(0, int(offsets_of(whole)[-1]))


def joined_rows(parts: list[Any]) -> pa.Array:
    """Returns the parts joined to one binary for each row; a null counts as empty."""
    return pc.binary_join_element_wise(
        *parts, _NO_BYTES, null_handling="replace", null_replacement=""
    )


def shown_headers(
    headers: pa.Array | None, message_ids: pa.Array | None, deliver_at_us: int, count: int
) -> ShownHeaders:
    """Returns the ends of `count` records. `headers` and `message_ids` are columns of a batch,
    whole or sliced."""
    if message_ids is not None and message_ids.null_count == count:
        message_ids = None
    numbers: Numbers | int = 0
    parts: list[Any] = []
    size: Numbers | int = 0
    if headers is not None and len(headers.flatten()):
        blobs, numbers = _headers(headers)
        parts.append(blobs)
        size = size + np.diff(offsets_of(blobs)).astype(np.int64)
    if message_ids is not None:
        ids, has_id = _ids(message_ids)
        numbers = numbers + has_id
        parts.append(ids)
        size = size + np.diff(offsets_of(ids)).astype(np.int64)
    if deliver_at_us:
        due = due_header(deliver_at_us)
        numbers = numbers + 1
        parts.append(pa.scalar(due, pa.binary()))
        size = size + len(due)
    if isinstance(numbers, int):
        number = written_one(numbers)
        return ShownHeaders([pa.scalar(number, pa.binary()), *parts], size + len(number))
    return ShownHeaders([written(numbers), *parts], size + sizes(numbers))


def due_header(deliver_at_us: int) -> bytes:
    """Returns the header with the time at which messages are due."""
    return _field(DELIVER_AT.encode()) + _field(str(deliver_at_us // 1000).encode())


def _headers(column: pa.Array) -> tuple[pa.Array, Numbers]:
    """Returns the headers of each message as one binary, and how many they are."""
    lists, name_offsets, name_data, value_offsets, value_data = header_buffers(column)
    names = _binary(name_offsets, name_data)
    values = _binary(value_offsets, value_data)
    if pc.index(names, _NULLS_NAME).as_py() >= 0:
        lists, names, values = _with_nulls(column)
    pieces = joined_rows([written(lengths_of(names)), names, written(lengths_of(values)), values])
    blobs = _binary(offsets_of(pieces)[lists], pieces.buffers()[2])
    return blobs, np.diff(lists).astype(np.int64)


def _with_nulls(column: pa.Array) -> tuple[Any, pa.Array, pa.Array]:
    """Returns the offsets, names and values of headers some of whose values were null."""
    found = put_back_nulls(
        [[(pair["key"], pair["value"]) for pair in each or ()] for each in column.to_pylist()]
    )
    counts = [len(each) for each in found]
    flat = [pair for each in found for pair in each]
    names = pa.array([name.encode() for name, _ in flat], pa.binary())
    values = pa.array([value for _, value in flat], pa.binary())
    return np.cumsum([0, *counts]), names, values


def _binary(offsets: Any, data: Any) -> pa.Array:
    return pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _ids(column: pa.Array) -> tuple[pa.Array, Numbers]:
    """Returns the header of each message's id, empty without one, and how many it has: 0 or 1."""
    has_id = column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
    name = pa.scalar(_field(MESSAGE_ID.encode()), pa.binary())
    found = pc.binary_join_element_wise(name, written(lengths_of(column)), column, _NO_BYTES)
    return found, has_id


def _field(data: bytes) -> bytes:
    return written_one(len(data)) + data
