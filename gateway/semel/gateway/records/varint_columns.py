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
_ONE: Final = np.uint64(1)


def read(
    data: npt.NDArray[np.uint8], starts: Numbers, bytes_max: int = INT_BYTES_MAX
) -> tuple[Numbers, Numbers]:
    """Returns the number at each of `starts`, and where it ends.

    A start, or the end of a number, that lies behind the data gives any number: so the caller
    checks where its last field ends. Raises CorruptRecords for a number with too many bits.
    """
    first = data.take(starts, mode="clip")
    if first.max() < 0x80:
        small = first.astype(np.int64)
        return (small >> 1) ^ -(small & 1), starts + 1
    codes = first.astype(np.uint64) & _LOW
    more = first > 0x7F
    ends = starts + 1
    for place in range(1, bytes_max):
        byte = data.take(ends, mode="clip")
        byte[~more] = 0
        codes |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * place)
        ends += more
        more = byte > 0x7F
        if not more.any():
            if place == bytes_max - 1 and byte.max() >> _bits_left(bytes_max):
                break
            return ((codes >> _ONE) ^ (~(codes & _ONE) + _ONE)).view(np.int64), ends
    raise CorruptRecords("a number has too many bits")


def _bits_left(bytes_max: int) -> int:
    """Returns how many bits of the last byte belong to a number of 32 or 64 bits."""
    return 4 if bytes_max == INT_BYTES_MAX else 1


def written(*columns: Numbers | int) -> pa.Array:
    """Returns for each row a binary of its numbers, one behind the other.

    At least one of the columns is an array; a plain number is the same in each row.
    """
    places: list[Any] = []
    kept: list[Any] = []
    count = 0
    for column in columns:
        if isinstance(column, int):
            places += written_one(column)
            kept += [True] * (len(places) - len(kept))
            continue
        count = len(column)
        codes = (column << 1 ^ column >> 63).view(np.uint64)
        needed: Any = True
        while (more := codes > _LOW).any():
            places.append(codes & _LOW | more.astype(np.uint64) << _SEVEN)
            kept.append(needed)
            needed = more
            codes = codes >> _SEVEN
        places.append(codes)
        kept.append(needed)
    matrix = np.empty((count, len(places)), np.uint8)
    for place, byte in enumerate(places):
        matrix[:, place] = byte
    offsets = np.zeros(count + 1, np.int32)
    if all(each is True for each in kept):
        offsets[1:] = np.arange(1, count + 1) * len(places)
    else:
        mask = np.empty(matrix.shape, np.bool_)
        for place, needed in enumerate(kept):
            mask[:, place] = needed
        np.cumsum(mask.sum(axis=1), out=offsets[1:])
        matrix = matrix[mask]
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(matrix)]
    )


def written_one(number: int) -> bytes:
    """Returns one number as a varint."""
    code = number << 1 ^ number >> 63
    found = bytearray()
    while code > 0x7F:
        found.append(code & 0x7F | 0x80)
        code >>= 7
    found.append(code)
    return bytes(found)


def sizes(numbers: Numbers) -> Numbers:
    """Returns how many bytes each number takes."""
    found = np.ones(len(numbers), np.int64)
    codes = numbers << 1 ^ numbers >> 63
    limit = 0x80
    top = int(codes.view(np.uint64).max())
    while top >= limit:
        found += codes.view(np.uint64) >= limit
        limit <<= 7
    return found
