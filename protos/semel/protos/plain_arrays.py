"""Columns over numpy, where Arrow is not installed: see `arrays.py`, which says what they are for.

How it works. Runs of bytes have Arrow's layout: int32 offsets into one piece of data, which several
columns may share, and truths for rows that are not null. Rows are taken by numpy where all are of
one length, else cut out of the data one by one and joined; rows that stay neighbours are one cut.

Invariants
1. A column never changes, nor does the memory under it.
2. A null may have bytes in the data, but none where it is written, or taken to another column.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from semel.protos.arrow import missing
from semel.protos.errors import CorruptBatch, InvalidRequest

Rows = npt.NDArray[np.integer[Any]]
Truths = npt.NDArray[np.bool_]
Offsets = npt.NDArray[np.int32]
Octets = npt.NDArray[np.uint8]

_SPEAKS_ARROW: Final = ("__arrow_c_array__", "__arrow_c_stream__", "__arrow_array__")
_OFFSET_MAX: Final = (1 << 31) - 1
_NOT_A_START: Final = 0x80
"""The upper two bits of a byte of UTF-8 that continues a character."""


class Binary:
    """A column of bytes."""

    __slots__ = ("data", "null_count", "offsets", "valid")

    def __init__(self, offsets: Offsets, data: bytes | Octets, valid: Truths | None = None) -> None:
        self.offsets = offsets
        self.data = data
        self.null_count = 0 if valid is None else len(valid) - int(np.count_nonzero(valid))
        self.valid = valid if self.null_count else None
        """None: no row is null."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def slice(self, start: int, length: int | None = None) -> Binary:
        end = len(self) if length is None else min(start + length, len(self))
        valid = None if self.valid is None else self.valid[start:end]
        return Binary(self.offsets[start : end + 1], self.data, valid)

    def take(self, rows: Rows) -> Binary:
        starts, ends = self.offsets[:-1][rows], self.offsets[1:][rows]
        valid = None
        if self.valid is not None:
            valid = self.valid[rows]
            ends = np.where(valid, ends, starts)
        return Binary(*_gathered(self.data, starts, ends), valid)

    def filter(self, kept: Truths) -> Binary:
        return self.take(np.flatnonzero(kept))

    def to_pylist(self) -> list[bytes | None]:
        offsets = self.offsets.tolist()
        start = offsets[0]
        whole = bytes(self.data[start : offsets[-1]])
        if start:
            offsets = [offset - start for offset in offsets]
        found: list[bytes | None] = [whole[a:b] for a, b in pairwise(offsets)]
        if self.valid is not None:
            for row in np.flatnonzero(~self.valid).tolist():
                found[row] = None
        return found


class Numbers:
    """A column of numbers."""

    __slots__ = ("null_count", "numbers")

    def __init__(self, numbers: npt.NDArray[Any], null_count: int = 0) -> None:
        self.numbers = numbers
        self.null_count = null_count
        """Number of nulls that a caller gave, who is told; no batch has any."""

    def __len__(self) -> int:
        return len(self.numbers)

    def slice(self, start: int, length: int | None = None) -> Numbers:
        return Numbers(self.numbers[start : None if length is None else start + length])

    def take(self, rows: Rows) -> Numbers:
        return Numbers(self.numbers[rows])

    def filter(self, kept: Truths) -> Numbers:
        return Numbers(self.numbers[kept])

    def to_pylist(self) -> list[int]:
        found: list[int] = self.numbers.tolist()
        return found


class Headers:
    """A column of headers: offsets into names and values, which are as many."""

    __slots__ = ("lists", "names", "values")
    null_count: Final = 0

    def __init__(self, lists: Offsets, names: Binary, values: Binary) -> None:
        self.lists = lists
        self.names = names
        self.values = values

    def __len__(self) -> int:
        return len(self.lists) - 1

    def slice(self, start: int, length: int | None = None) -> Headers:
        end = len(self) if length is None else min(start + length, len(self))
        return Headers(self.lists[start : end + 1], self.names, self.values)

    def take(self, rows: Rows) -> Headers:
        starts = self.lists[:-1][rows]
        counts = self.lists[1:][rows] - starts
        lists = _offsets(counts)
        pairs = np.repeat(starts - lists[:-1], counts) + np.arange(lists[-1])
        return Headers(lists, self.names.take(pairs), self.values.take(pairs))

    def filter(self, kept: Truths) -> Headers:
        return self.take(np.flatnonzero(kept))

    def to_pylist(self) -> list[list[dict[str, Any]]]:
        """Returns what Arrow's list of structs does."""
        return [[{"key": name, "value": value} for name, value in row] for row in pairs_of(self)]


def _offsets(lengths: Any) -> Offsets:
    """Returns the offsets of runs of these lengths. Raises ValueError beyond 2 GiB."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > _OFFSET_MAX:
        raise ValueError("more than 2 GiB in one column")
    return offsets.astype(np.int32)


def _gathered(data: bytes | Octets, starts: Offsets, ends: Offsets) -> tuple[Offsets, bytes]:
    """Returns the runs of `data` between `starts` and `ends`, one behind the other."""
    lengths = ends - starts
    offsets = _offsets(lengths)
    if not offsets[-1]:
        return offsets, b""
    width = int(lengths[0])
    if (lengths == width).all():
        first = int(starts.min())
        steps, odd = np.divmod(starts - first, width)
        if not odd.any():
            count = int(steps.max()) + 1
            table = np.frombuffer(data, np.uint8, count * width, first).reshape(count, width)
            return offsets, table[steps].tobytes()
    apart = ends[:-1] != starts[1:]
    begins = starts[np.concatenate(([True], apart))].tolist()
    stops = ends[np.concatenate((apart, [True]))].tolist()
    whole = data if isinstance(data, bytes) else data.data  # slices of bytes cost least
    return offsets, b"".join([whole[begin:stop] for begin, stop in zip(begins, stops, strict=True)])


# --- arrays of what a caller has ----------------------------------------------------------------


def is_array(column: object) -> bool:
    return isinstance(column, Binary | Numbers | Headers)


def binary_array(pieces: Sequence[Any]) -> Binary:
    """Raises TypeError or ValueError for what has no bytes."""
    valid = None
    if not set(map(type, pieces)) <= {bytes}:
        valid = np.array([piece is not None for piece in pieces], np.bool_)
        pieces = [b"" if piece is None else _as_bytes(piece) for piece in pieces]
    lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
    return Binary(_offsets(lengths), b"".join(pieces), valid)


def _as_bytes(piece: Any) -> bytes:
    if isinstance(piece, str):
        return piece.encode()
    if isinstance(piece, bytes | bytearray | memoryview):
        return bytes(piece)
    raise TypeError(f"expected bytes, got a {type(piece).__name__!r} object")


def number_array(numbers: Any, dtype: Any = np.int64) -> Numbers:
    return Numbers(np.asarray(numbers, dtype))


def as_binary(name: str, column: Any) -> Binary | None:
    """Raises InvalidRequest, like the next two."""
    if column is None or isinstance(column, Binary):
        return column
    try:
        return binary_array(listed(name, column))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{name} column cannot be stored as binary: {error}") from error


def as_numbers(name: str, column: Any, dtype: Any = np.int64) -> Numbers | None:
    if column is None:
        return None
    limits = np.iinfo(dtype)
    try:
        numbers, nulls = _numbers(name, column)
        if len(numbers) and (numbers.min() < limits.min or numbers.max() > limits.max):
            raise ValueError(f"a number is not in the range {limits.min} to {limits.max}")
        return Numbers(numbers.astype(dtype), nulls)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"{name} column cannot be stored as {np.dtype(dtype)}: {error}"
        ) from error


def as_headers(headers: Any) -> Headers | None:
    if headers is None or isinstance(headers, Headers):
        return headers
    names: list[bytes] = []
    values: list[bytes] = []
    counts: list[int] = []
    try:
        for row in listed("header", headers):
            before = len(names)
            for name, value in _header_pairs(row):
                names.append(_as_bytes(name))
                values.append(_as_bytes(value))
            counts.append(len(names) - before)
        b"\n".join(names).decode()
        return Headers(_offsets(counts), binary_array(names), binary_array(values))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"header column cannot be stored as pairs: {error}") from error


def _header_pairs(
    headers: Mapping[str, bytes] | Iterable[tuple[str, bytes]] | None,
) -> Iterable[tuple[str, bytes]]:
    """Raises TypeError for what has no pairs."""
    if headers is None:
        return ()
    if isinstance(headers, Mapping):
        return headers.items()
    pairs = list(headers)
    for pair in pairs:
        if not isinstance(pair, tuple):
            raise TypeError(f"expected a pair, got a {type(pair).__name__!r} object")
    return pairs


def listed(name: str, column: Any) -> list[Any]:
    """Returns what a caller gave as a list. Raises InvalidRequest for a column of Arrow."""
    if type(column) is list:
        return column
    if any(hasattr(column, each) for each in _SPEAKS_ARROW):
        raise missing(f"a {name} column of Arrow")
    if isinstance(column, np.ndarray):
        column = column.tolist()
    return list(column)


def _numbers(name: str, column: Any) -> tuple[npt.NDArray[Any], int]:
    """Returns whole numbers, with zeros for nulls, and how many are null."""
    if isinstance(column, Numbers):
        return column.numbers, column.null_count
    if isinstance(column, np.ndarray) and column.dtype.kind in "iu" and column.ndim == 1:
        return column, 0
    items = [None if each is None else _whole(each) for each in listed(name, column)]
    nulls = items.count(None)
    return np.array([each or 0 for each in items], np.int64), nulls


def _whole(number: Any) -> int:
    if isinstance(number, bool):
        raise TypeError("expected a whole number, got a bool")
    return int(number) if isinstance(number, float) else operator.index(number)


def row_numbers(rows: Rows) -> Rows:
    return rows


# --- what is in an array ------------------------------------------------------------------------


def numbers_of(column: Numbers, dtype: Any) -> npt.NDArray[Any]:
    assert column.numbers.dtype == dtype, "a column has one type"
    return column.numbers


def offsets_of(column: Binary | Headers) -> Offsets:
    return column.lists if isinstance(column, Headers) else column.offsets


def data_of(column: Binary) -> Any:
    return column.data


def valid_of(column: Binary) -> Truths:
    return np.ones(len(column), np.bool_) if column.valid is None else column.valid


def coalesce(first: Binary, second: Binary) -> Binary:
    if first.valid is None:
        return first
    pieces = zip(first.to_pylist(), second.to_pylist(), strict=True)
    return binary_array([other if piece is None else piece for piece, other in pieces])


def pieces_of(column: Binary) -> list[bytes | None]:
    return column.to_pylist()


def pairs_of(headers: Headers) -> list[list[tuple[str, bytes]]]:
    lists = headers.lists.tolist()
    start, length = lists[0], lists[-1] - lists[0]
    names = [str(name or b"", "utf-8") for name in headers.names.slice(start, length).to_pylist()]
    values: list[Any] = headers.values.slice(start, length).to_pylist()
    pairs = list(zip(names, values, strict=True))
    return [pairs[a - start : b - start] for a, b in pairwise(lists)]


def places_in(column: Binary, piece: bytes) -> npt.NDArray[np.int64]:
    found = [(each or b"").find(piece) for each in column.to_pylist()]
    return np.array(found, np.int64)


# --- buffers that are written -------------------------------------------------------------------


def binary_buffers(column: Binary) -> list[Any]:
    offsets = column.offsets
    start, end = int(offsets[0]), int(offsets[-1])
    if start:
        offsets = offsets - np.int32(start)
    return [offsets, column.data[start:end]]


def nullable_buffers(column: Binary) -> list[Any]:
    valid = valid_of(column)
    if column.valid is not None:
        column = column.take(np.arange(len(column)))
    return [np.packbits(valid, bitorder="little"), *binary_buffers(column)]


def header_buffers(column: Headers) -> list[Any]:
    lists = column.lists
    start, count = int(lists[0]), int(lists[-1] - lists[0])
    names, values = column.names.slice(start, count), column.values.slice(start, count)
    return [lists - np.int32(start), *binary_buffers(names), *binary_buffers(values)]


# --- arrays over buffers ------------------------------------------------------------------------


def buffer_over(data: Any, start: int = 0) -> Octets:
    return np.frombuffer(data, np.uint8)[start:]


def cut(body: Octets, places: list[tuple[int, int]]) -> list[Octets]:
    return [body[start : start + length] for start, length in places]


def aligned(buffer: Octets, size: int) -> Octets:
    return buffer  # numpy reads numbers at any address


def binary_over(count: int, validity: Any, offsets: Any, data: Any) -> Binary:
    valid = None
    if validity is not None:
        bits = np.frombuffer(validity, np.uint8)
        valid = np.unpackbits(bits, count=count, bitorder="little").view(np.bool_)
    return Binary(np.frombuffer(offsets, np.int32, count + 1), data, valid)


def numbers_over(count: int, dtype: Any, buffer: Any) -> Numbers:
    return Numbers(np.frombuffer(buffer, dtype, count))


def headers_over(count: int, lists: Any, names: Binary, values: Binary) -> Headers:
    text = np.frombuffer(names.data, np.uint8)
    starts = names.offsets[names.offsets < len(text)]
    try:
        str(text.data, "utf-8")
    except UnicodeDecodeError:
        raise CorruptBatch("a header's name is not UTF-8") from None
    if (text[starts] & 0xC0 == _NOT_A_START).any():
        raise CorruptBatch("a header's name is not UTF-8")
    return Headers(np.frombuffer(lists, np.int32, count + 1), names, values)
