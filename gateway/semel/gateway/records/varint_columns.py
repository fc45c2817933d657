"""Columns of numbers as zigzag varints, and back, for all records at once.

A varint has seven bits a byte, the lowest first; the highest bit of a byte says that another one
follows. Zigzag puts the sign into the lowest bit: 0, -1, 1, -2 become 0, 1, 2, 3.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semel.gateway.records.field_places import Numbers
from semel.gateway.records.record_errors import CorruptRecords

INT_BYTES_MAX: Final = 5
LONG_BYTES_MAX: Final = 10

_SEVEN: Final = np.uint64(7)
_LOW: Final = np.uint64(0x7F)
_HIGH: Final = np.uint64(0x80)
_ONE: Final = np.uint64(1)
_CONTINUED: Final = np.uint8(0x80)

_SINGLE: Final = [bytes([code]) for code in range(0x80)]


def read(
    data: npt.NDArray[np.uint8], starts: Numbers, bytes_max: int = INT_BYTES_MAX
) -> tuple[Numbers, Numbers]:
    """Returns the number at each of `starts`, and where it ends.

    A start, or the end of a number, that lies behind the data counts as the last byte again: so the
    caller checks where its last field ends. Raises CorruptRecords for a number with too many bits.
    """
    first = data.take(starts, mode="clip")
    if is_single(first):
        few = first.astype(np.int64)
        return (few >> 1) ^ -(few & 1), starts + 1
    byte = data.take(starts + 1, mode="clip")
    if is_single(first ^ _CONTINUED) and is_single(byte):
        few = first.astype(np.int64) & 0x7F | byte.astype(np.int64) << 7
        return (few >> 1) ^ -(few & 1), starts + 2
    more = first > 0x7F
    codes = first.astype(np.uint64) & _LOW
    ends = starts + 1
    for place in range(1, bytes_max):
        byte = data.take(ends, mode="clip") * more
        codes |= (byte.astype(np.uint64) & _LOW) << np.uint64(7 * place)
        ends += more
        more = byte > 0x7F
        if not more.any():
            if place == bytes_max - 1 and byte.max() >> _bits_left(bytes_max):
                break
            return ((codes >> _ONE) ^ (~(codes & _ONE) + _ONE)).view(np.int64), ends
    raise CorruptRecords("a number has too many bits")


def is_single(first: npt.NDArray[np.uint8]) -> bool:
    """Whether each of these first bytes is a whole number."""
    return first.tobytes().isascii()  # an eighth of the time of numpy's max()


def _bits_left(bytes_max: int) -> int:
    """Returns how many bits of the last byte belong to a number of 32 or 64 bits."""
    return 4 if bytes_max == INT_BYTES_MAX else 1


def written(*columns: Numbers | int) -> pa.Array:
    """Returns for each row a binary of its numbers, one behind the other.

    At least one of the columns is an array; a plain number is the same in each row.
    """
    places: list[Any] = []
    kept: list[Any] = []
    """The rows that have a byte at each place. None: all of them."""
    count = 0
    for column in columns:
        if isinstance(column, int):
            places += written_one(column)
            kept += [None] * (len(places) - len(kept))
            continue
        count = len(column)
        codes = (column << 1 ^ column >> 63).view(np.uint64)
        least, most = int(codes.min()), int(codes.max())
        if least == most:
            places += _bytes_of(most)
            kept += [None] * (len(places) - len(kept))
            continue
        needed: Any = None
        while most > 0x7F:
            kept.append(needed)
            if least > 0x7F:
                places.append(codes | _HIGH)
            else:
                needed = codes > _LOW
                places.append(codes & _LOW | needed.astype(np.uint64) << _SEVEN)
            codes = codes >> _SEVEN
            least, most = least >> 7, most >> 7
        places.append(codes)
        kept.append(needed)
    matrix = np.empty((count, len(places)), np.uint8)
    for place, byte in enumerate(places):
        matrix[:, place] = byte
    some = [needed for needed in kept if needed is not None]
    offsets = np.zeros(count + 1, np.int32)
    if not some:
        offsets[1:] = np.arange(1, count + 1) * len(places)
    else:
        mask = np.ones(matrix.shape, np.bool_)
        widths = np.full(count, len(places) - len(some), np.int32)
        for place, needed in enumerate(kept):
            if needed is not None:
                mask[:, place] = needed
                widths += needed
        np.cumsum(widths, out=offsets[1:])
        matrix = matrix[mask]
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(matrix)]
    )


def written_one(number: int) -> bytes:
    """Returns one number as a varint."""
    return _bytes_of(number << 1 ^ number >> 63)


def _bytes_of(code: int) -> bytes:
    if code < 0x80:
        return _SINGLE[code]
    found = bytearray()
    while code > 0x7F:
        found.append(code & 0x7F | 0x80)
        code >>= 7
    found.append(code)
    return bytes(found)


def size_of(number: int) -> int:
    """Returns how many bytes a number takes."""
    return max(1, -(-(number << 1 ^ number >> 63).bit_length() // 7))


def sizes(numbers: Numbers | int) -> Numbers | int:
    """Returns how many bytes each number takes; one number if all take the same."""
    if isinstance(numbers, int):
        return size_of(numbers)
    least, most = int(numbers.min()), int(numbers.max())
    if least >= 0 and size_of(least) == size_of(most):
        return size_of(most)
    codes = (numbers << 1 ^ numbers >> 63).view(np.uint64)
    found = np.ones(len(numbers), np.int64)
    limit, top = 0x80, int(codes.max())
    while top >= limit:
        found += codes >= limit
        limit <<= 7
    return found
