"""The uncompressed body of a record batch: a table of lengths, then buffers.

How it works. The writing side takes the buffers out of Arrow arrays, sliced or not, and makes them
canonical. The reading side checks one buffer after the other and makes arrays over them.

Format. `docs/formats/batch.md`, "Body".

Invariants
1. A buffer that is returned lies inside the body, and every offset inside its data.
2. Written offsets start at 0, bitmaps end in zero bits, and a null has no bytes in the data.

Not here: the order of the columns (`columns.py`).
"""

from __future__ import annotations

import struct
from operator import gt
from typing import Any, Final

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semel.protos.batch import (
    CONTEXT_BYTES_MAX,
    HEADER_BYTES,
    BatchFlags,
    BatchHeader,
    Codec,
)
from semel.protos.codecs import unpack
from semel.protos.errors import CorruptBatch, InvalidRequest

Buffer = Any
"""bytes, pyarrow.Buffer or a contiguous numpy array: join and crc32c take these without a copy."""

HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

FEW_OFFSETS_MAX: Final = 32
"""Up to this number of messages a loop in Python takes less time than a call of numpy."""
_PADDING: Final = tuple(bytes(-n % 8) for n in range(8))


def chain_crc(buffers: list[Buffer]) -> int:
    """Returns the CRC32C over all of `buffers`, one behind the other."""
    crc = 0
    for buffer in buffers:
        crc = google_crc32c.extend(crc, buffer)
    return crc


def numbers_of(column: pa.Array, dtype: Any) -> npt.NDArray[Any]:
    """Returns the numbers of a column without nulls, without a copy."""
    size = np.dtype(dtype).itemsize
    return np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * size)


def _rebased(offsets: npt.NDArray[np.int32], data: Any) -> list[Buffer]:
    """Returns the offsets, made to start at 0, and the data that they span."""
    start, end = int(offsets[0]), int(offsets[-1])
    if start:
        offsets = offsets - np.int32(start)
    return [offsets, b"" if start == end else data.slice(start, end - start)]


def offsets_of(column: pa.Array) -> npt.NDArray[np.int32]:
    """Returns the count + 1 offsets of a binary, string or list array."""
    if not len(column):
        return np.zeros(1, np.int32)  # Arrow lets an empty array have no buffer at all
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)


def binary_buffers(column: pa.Array) -> list[Buffer]:
    return _rebased(offsets_of(column), column.buffers()[2])


def nullable_buffers(column: pa.Array) -> list[Buffer]:
    if not column.null_count:
        valid = np.ones(len(column), np.bool_)
    else:
        # Arrow allows a null to have bytes, which the content's CRC would cover; take() drops them.
        column = column.take(pa.array(np.arange(len(column))))
        valid = column.is_valid().to_numpy(zero_copy_only=False)
    return [np.packbits(valid, bitorder="little"), *binary_buffers(column)]


def header_buffers(column: pa.Array) -> list[Buffer]:
    if column.null_count:
        column = column.take(pa.array(np.arange(len(column))))
    lists = offsets_of(column)
    start, end = int(lists[0]), int(lists[-1])
    pairs = column.values.slice(start, end - start)
    names, values = pairs.field(0), pairs.field(1)
    if pairs.null_count or names.null_count or values.null_count:
        raise InvalidRequest("a header's name or value is null")
    return [lists - np.int32(start), *binary_buffers(names), *binary_buffers(values)]


def lay_out(buffers: list[Buffer]) -> list[Buffer]:
    """Returns the parts that, joined, are the uncompressed body."""
    lengths = [memoryview(buffer).nbytes for buffer in buffers]
    table = struct.pack(f"<{len(buffers) + 1}I", len(buffers), *lengths)
    parts: list[Buffer] = [table + _PADDING[len(table) & 7]]
    for buffer, length in zip(buffers, lengths, strict=True):
        if length:
            parts.append(buffer)
            if length & 7:
                parts.append(_PADDING[length & 7])
    return parts


def unpack_body(batch: bytes | bytearray | memoryview, header: BatchHeader) -> pa.Buffer:
    """Returns the uncompressed body, over the same memory if it is stored without a codec."""
    if header.flags & BatchFlags.POSITION_MARK:
        raise CorruptBatch("a position mark has no columns")
    if len(batch) != header.batch_length:
        raise CorruptBatch(f"batch is {header.batch_length} bytes long, {len(batch)} were given")
    body = pa.py_buffer(batch).slice(HEADER_BYTES)
    if header.codec is not Codec.NONE:
        return pa.py_buffer(unpack(body, header.codec, header.uncompressed_length))
    if body.size != header.uncompressed_length:
        raise CorruptBatch(f"batch body has {body.size} bytes, not {header.uncompressed_length}")
    return body


BUFFER_COUNTS: Final = (
    (BatchFlags.NULL_VALUES, 1),
    (BatchFlags.KEY, 3),
    (BatchFlags.HEADERS, 5),
    (BatchFlags.TIMESTAMP, 1),
    (BatchFlags.MESSAGE_ID, 3),
    (BatchFlags.SLOT, 1),
    (BatchFlags.SEQUENCE, 1),
    (BatchFlags.DELIVER_AT, 1),
    (BatchFlags.OFFSET, 1),
    (BatchFlags.CONTEXT, 1),
)


def buffer_places(body: Buffer, expected: int) -> list[tuple[int, int]]:
    """Returns start and length of each buffer of an uncompressed body.

    Raises CorruptBatch unless its length table names `expected` buffers, and they fill the body.
    """
    size = len(body)
    position = 4 * (expected + 1)
    if size < position:
        raise CorruptBatch(f"batch body of {size} bytes has no room for its lengths")
    number, *lengths = struct.unpack_from(f"<{expected + 1}I", body)
    if number != expected:
        raise CorruptBatch(f"batch body has {number} buffers, its flags ask for {expected}")
    places: list[tuple[int, int]] = []
    for length in lengths:
        position = position + 7 & ~7
        if position + length > size:
            raise CorruptBatch(f"batch body has a buffer of {length} bytes that leads out")
        places.append((position, length))
        position += length
    if position + 7 & ~7 != size:
        raise CorruptBatch(f"batch body has {size} bytes, its buffers need {position}")
    return places


def check_context_size(size: int) -> None:
    """Raises CorruptBatch."""
    if not 0 < size <= CONTEXT_BYTES_MAX:
        raise CorruptBatch(f"batch has a context of {size} bytes")


def rise_from_0(offsets: tuple[int, ...]) -> bool:
    """Whether offsets start at 0 and never fall."""
    return not (offsets[0] or any(map(gt, offsets, offsets[1:])))


class BodyReader:
    """Takes one buffer after the other out of an uncompressed body, each checked."""

    def __init__(self, body: pa.Buffer, header: BatchHeader) -> None:
        """Raises CorruptBatch unless the length table matches the flags and fills the body."""
        self.flags = header.flags
        expected = 2 + sum(count for flag, count in BUFFER_COUNTS if flag & self.flags)
        self.buffers: list[pa.Buffer] = [
            body.slice(start, length) for start, length in buffer_places(body, expected)
        ]
        self.taken = 0

    def _next(self, length: int | None = None) -> pa.Buffer:
        buffer = self.buffers[self.taken]
        self.taken += 1
        if length is not None and buffer.size != length:
            raise CorruptBatch(f"batch buffer has {buffer.size} bytes, not {length}")
        return buffer

    def _aligned(self, length: int, to: int) -> pa.Buffer:
        """Returns a buffer of numbers, copied if the batch does not start at an aligned address."""
        buffer = self._next(length)
        return pa.py_buffer(buffer.to_pybytes()) if buffer.address % to else buffer

    def _offsets(self, count: int) -> tuple[pa.Buffer, int]:
        """Returns `count + 1` offsets that start at 0 and never fall, and the last of them."""
        buffer = self._aligned(4 * (count + 1), 4)
        if count <= FEW_OFFSETS_MAX:
            few = struct.unpack(f"<{count + 1}i", buffer)
            if not rise_from_0(few):
                raise CorruptBatch("batch offsets do not rise from 0")
            return buffer, few[-1]
        offsets = np.frombuffer(buffer, np.int32)
        if offsets[0] or (offsets[1:] < offsets[:-1]).any():
            raise CorruptBatch("batch offsets do not rise from 0")
        return buffer, int(offsets[-1])

    def binary(self, count: int, validity: pa.Buffer | None = None) -> pa.Array:
        offsets, end = self._offsets(count)
        return pa.Array.from_buffers(pa.binary(), count, [validity, offsets, self._next(end)])

    def nullable(self, count: int) -> pa.Array:
        validity = self._next((count + 7) // 8)
        return self.binary(count, validity)

    def numbers(self, count: int, wanted: pa.DataType) -> pa.Array:
        size = wanted.bit_width // 8
        return pa.Array.from_buffers(wanted, count, [None, self._aligned(size * count, size)])

    def context(self) -> bytes:
        buffer = self._next()
        check_context_size(buffer.size)
        return bytes(buffer)

    def headers(self, count: int) -> pa.Array:
        lists, pair_count = self._offsets(count)
        names = self.binary(pair_count)
        values = self.binary(pair_count)
        names = pa.Array.from_buffers(pa.string(), pair_count, names.buffers())
        try:
            names.validate(full=True)  # a cast checks the same, and takes six times as long
        except pa.ArrowException as error:
            raise CorruptBatch("a header's name is not UTF-8") from error
        pairs = pa.StructArray.from_arrays([names, values], ["key", "value"])
        return pa.Array.from_buffers(HEADERS_TYPE, count, [None, lists], children=[pairs])
