"""Columns as Arrow arrays: see `arrays.py`, which says what they are for.

Arrays that a caller gives may be of any related type (large, view, string, dictionary, chunked,
sliced); they are made binary, int64, uint16 or HEADERS_TYPE once, and stay so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semel.protos.errors import CorruptBatch, InvalidRequest

HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_HEADERS_MAP: Final = pa.map_(pa.string(), pa.binary())
_BINARY: Final = pa.binary()
_TYPES: Final = {np.int64: pa.int64(), np.uint16: pa.uint16()}

# --- arrays of what a caller has ----------------------------------------------------------------


def is_array(column: object) -> bool:
    """Whether `column` is an array, and not one in chunks."""
    return isinstance(column, pa.Array)


def binary_array(pieces: Sequence[bytes | None]) -> pa.Array:
    return pa.array(pieces, _BINARY)


def number_array(numbers: Any, dtype: Any = np.int64) -> pa.Array:
    """Returns an array of a list, or of a numpy array of this type, without a copy."""
    return pa.array(numbers, _TYPES[dtype])


def as_binary(name: str, column: Any) -> pa.Array | None:
    """Returns what a caller gave as a column of bytes. Raises InvalidRequest, like the next two."""
    return _cast(name, column, _BINARY)


def as_numbers(name: str, column: Any, dtype: Any = np.int64) -> pa.Array | None:
    """Returns what a caller gave as a column of numbers."""
    return _cast(name, column, _TYPES[dtype])


def as_headers(headers: Any) -> pa.Array | None:
    """Returns `headers` as one HEADERS_TYPE array; lists of pairs and map arrays become lists."""
    if headers is None:
        return None
    if not isinstance(headers, pa.Array | pa.ChunkedArray):
        try:
            pairs = [_header_pairs(each) for each in headers]
        except TypeError as error:
            raise InvalidRequest(f"header column has what are no pairs: {error}") from error
        headers = _cast("header", pairs, _HEADERS_MAP)
    column = _one_array(headers)
    if not pa.types.is_map(column.type):
        return _cast("header", column, HEADERS_TYPE)
    if column.null_count:
        column = column.take(pa.array(np.arange(len(column))))
    names = _cast("header name", column.keys, pa.string())
    values = _cast("header value", column.items, pa.binary())
    pairs = pa.StructArray.from_arrays([names, values], ["key", "value"])
    return pa.ListArray.from_arrays(column.offsets, pairs)


def _header_pairs(headers: Mapping[str, bytes] | Iterable[tuple[str, bytes]] | None) -> Any:
    if headers is None:
        return ()
    if isinstance(headers, Mapping):
        return list(headers.items())
    pairs = list(headers)
    if None in pairs:  # Arrow ends the process
        raise InvalidRequest("a header is null: it is a pair of name and value")
    return pairs


def _one_array(column: Any) -> pa.Array:
    """Returns an array or chunked array as one array, which may be a slice."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    chunks = column.chunks
    return (
        chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks or [pa.array([], column.type)])
    )


def _cast(name: str, column: Any, wanted: pa.DataType) -> pa.Array | None:
    """Returns `column` as one array of type `wanted`. Raises InvalidRequest if that would lose
    anything."""
    if column is None:
        return None
    try:
        if not isinstance(column, pa.Array | pa.ChunkedArray):
            return _one_array(pa.array(column, wanted))  # chunked beyond 2 GiB
        if isinstance(column, pa.ChunkedArray) and column.type != wanted:
            # Chunk by chunk: chunks of a dictionary array may have different dictionaries.
            column = pa.chunked_array([_cast(name, each, wanted) for each in column.chunks], wanted)
        column = _one_array(column)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", column.type.tz))
        return column if column.type == wanted else column.cast(wanted)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"{name} column cannot be stored as {wanted}: {error}") from error


def row_numbers(rows: npt.NDArray[np.int64]) -> pa.Array:
    """Returns rows as `take` needs them, for callers that take them from several columns."""
    return pa.array(rows)


# --- what is in an array ------------------------------------------------------------------------


def numbers_of(column: pa.Array, dtype: Any) -> npt.NDArray[Any]:
    """Returns the numbers of a column without nulls, without a copy."""
    size = np.dtype(dtype).itemsize
    return np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * size)


def offsets_of(column: pa.Array) -> npt.NDArray[np.int32]:
    """Returns the count + 1 offsets of a column of bytes, text or headers."""
    if not len(column):
        return np.zeros(1, np.int32)  # Arrow lets an empty array have no buffer at all
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)


def data_of(column: pa.Array) -> Any:
    """Returns the buffer into which the offsets of a column of bytes point."""
    return column.buffers()[2]


def valid_of(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Returns of each row whether it is not null."""
    valid: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def coalesce(first: pa.Array, second: pa.Array) -> pa.Array:
    """Returns the first column, with the bytes of the second where it is null."""
    return pc.coalesce(first, second)


def pieces_of(column: pa.Array) -> list[bytes | None]:
    """Returns the values of a column of bytes, without nulls several times faster than
    `to_pylist`."""
    if column.null_count:
        found: list[bytes | None] = column.to_pylist()
        return found
    data = column.buffers()[2]
    if data is None:
        return [b""] * len(column)
    offsets = offsets_of(column).tolist()
    start = offsets[0]
    whole = data.slice(start, offsets[-1] - start).to_pybytes()
    if start:
        offsets = [offset - start for offset in offsets]
    return [whole[a:b] for a, b in pairwise(offsets)]


def pairs_of(headers: pa.Array) -> list[list[tuple[str, bytes]]]:
    """Returns the names and values of each message's headers."""
    return [[(pair["key"], pair["value"]) for pair in pairs or ()] for pairs in headers.to_pylist()]


def places_in(column: pa.Array, piece: bytes) -> npt.NDArray[np.int64]:
    """Returns where `piece` is first in each row of a column of bytes without nulls, or -1."""
    places: npt.NDArray[np.int64] = pc.find_substring(column, piece).to_numpy(zero_copy_only=False)
    return places


# --- buffers that are written -------------------------------------------------------------------


def binary_buffers(column: pa.Array) -> list[Any]:
    """Returns offsets from 0 on, and the data that they span."""
    offsets, data = offsets_of(column), column.buffers()[2]
    start, end = int(offsets[0]), int(offsets[-1])
    if start:
        offsets = offsets - np.int32(start)
    return [offsets, b"" if start == end else data.slice(start, end - start)]


def nullable_buffers(column: pa.Array) -> list[Any]:
    """Returns a bitmap, offsets and data; a null has no bytes."""
    if not column.null_count:
        valid = np.ones(len(column), np.bool_)
    else:
        # Arrow allows a null to have bytes, which the content's CRC would cover; take() drops them.
        column = column.take(pa.array(np.arange(len(column))))
        valid = valid_of(column)
    return [np.packbits(valid, bitorder="little"), *binary_buffers(column)]


def header_buffers(column: pa.Array) -> list[Any]:
    """Returns the offsets of messages, then offsets and data of names and of values. Raises
    InvalidRequest for a name or value that is null."""
    if column.null_count:
        column = column.take(pa.array(np.arange(len(column))))
    lists = offsets_of(column)
    start, end = int(lists[0]), int(lists[-1])
    pairs = column.values.slice(start, end - start)
    names, values = pairs.field(0), pairs.field(1)
    if pairs.null_count or names.null_count or values.null_count:
        raise InvalidRequest("a header's name or value is null")
    return [lists - np.int32(start), *binary_buffers(names), *binary_buffers(values)]


# --- arrays over buffers ------------------------------------------------------------------------


def buffer_over(data: Any, start: int = 0) -> pa.Buffer:
    """Returns bytes, or a numpy array, as a buffer from `start` on, without a copy."""
    return pa.py_buffer(data).slice(start)


def cut(body: pa.Buffer, places: list[tuple[int, int]]) -> list[pa.Buffer]:
    """Returns the buffers at these starts, of these lengths."""
    return [body.slice(start, length) for start, length in places]


def aligned(buffer: pa.Buffer, size: int) -> pa.Buffer:
    """Returns a buffer of numbers of `size` bytes, copied if it is not at an aligned address."""
    return pa.py_buffer(buffer.to_pybytes()) if buffer.address % size else buffer


def binary_over(count: int, validity: Any, offsets: Any, data: Any) -> pa.Array:
    """Returns a column of bytes over buffers: a bitmap (None: no row is null), int32 offsets, and
    data."""
    return pa.Array.from_buffers(_BINARY, count, [validity, offsets, data])


def numbers_over(count: int, dtype: Any, buffer: pa.Buffer) -> pa.Array:
    return pa.Array.from_buffers(_TYPES[dtype], count, [None, buffer])


def headers_over(count: int, lists: Any, names: pa.Array, values: pa.Array) -> pa.Array:
    """Returns the headers of `count` messages. Raises CorruptBatch for a name that is not
    UTF-8."""
    names = pa.Array.from_buffers(pa.string(), len(names), names.buffers())
    try:
        names.validate(full=True)  # a cast checks the same, and takes six times as long
    except pa.ArrowException as error:
        raise CorruptBatch("a header's name is not UTF-8") from error
    pairs = pa.StructArray.from_arrays([names, values], ["key", "value"])
    return pa.Array.from_buffers(HEADERS_TYPE, count, [None, lists], children=[pairs])
