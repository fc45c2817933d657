"""The uncompressed body of a record batch: a table of lengths, then buffers.

How it works. The writing side lays out the buffers that `arrays.py` takes out of columns, sliced or
not, and makes canonical. The reading side checks one buffer after the other and makes arrays over
them.

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

from semel.protos.arrays import (
    Array,
    aligned,
    binary_over,
    buffer_over,
    cut,
    headers_over,
    numbers_over,
)
from semel.protos.batch import (
    CONTEXT_BYTES_MAX,
    HEADER_BYTES,
    BatchFlags,
    BatchHeader,
    Codec,
)
from semel.protos.codecs import unpack
from semel.protos.errors import CorruptBatch

Buffer = Any
"""bytes, a memoryview, pyarrow.Buffer or a contiguous numpy array: join and crc32c take these as
they are."""

FEW_OFFSETS_MAX: Final = 32
"""Up to this number of messages a loop in Python takes less time than a call of numpy."""
_PADDING: Final = tuple(bytes(-n % 8) for n in range(8))


def chain_crc(buffers: list[Buffer]) -> int:
    """Returns the CRC32C over all of `buffers`, one behind the other."""
    crc = 0
    for buffer in buffers:
        crc = google_crc32c.extend(crc, buffer)
    return crc


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


def unpack_body(batch: bytes | bytearray | memoryview, header: BatchHeader) -> Buffer:
    """Returns the uncompressed body, over the same memory if it is stored without a codec."""
    if header.flags & BatchFlags.POSITION_MARK:
        raise CorruptBatch("a position mark has no columns")
    if len(batch) != header.batch_length:
        raise CorruptBatch(f"batch is {header.batch_length} bytes long, {len(batch)} were given")
    body = buffer_over(batch, HEADER_BYTES)
    if header.codec is not Codec.NONE:
        return buffer_over(unpack(body, header.codec, header.uncompressed_length))
    if len(body) != header.uncompressed_length:
        raise CorruptBatch(f"batch body has {len(body)} bytes, not {header.uncompressed_length}")
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

    def __init__(self, body: Buffer, header: BatchHeader) -> None:
        """`body` comes from `unpack_body`. Raises CorruptBatch unless the length table matches the
        flags and fills the body."""
        self.flags = header.flags
        expected = 2 + sum(count for flag, count in BUFFER_COUNTS if flag & self.flags)
        self.buffers: list[Buffer] = cut(body, buffer_places(body, expected))
        self.taken = 0

    def _next(self, length: int | None = None) -> Buffer:
        buffer = self.buffers[self.taken]
        self.taken += 1
        if length is not None and len(buffer) != length:
            raise CorruptBatch(f"batch buffer has {len(buffer)} bytes, not {length}")
        return buffer

    def _offsets(self, count: int) -> tuple[Buffer, int]:
        """Returns `count + 1` offsets that start at 0 and never fall, and the last of them."""
        buffer = aligned(self._next(4 * (count + 1)), 4)
        if count <= FEW_OFFSETS_MAX:
            few = struct.unpack(f"<{count + 1}i", buffer)
            if not rise_from_0(few):
                raise CorruptBatch("batch offsets do not rise from 0")
            return buffer, few[-1]
        offsets = np.frombuffer(buffer, np.int32)
        if offsets[0] or (offsets[1:] < offsets[:-1]).any():
            raise CorruptBatch("batch offsets do not rise from 0")
        return buffer, int(offsets[-1])

    def binary(self, count: int, validity: Buffer | None = None) -> Array:
        offsets, end = self._offsets(count)
        return binary_over(count, validity, offsets, self._next(end))

    def nullable(self, count: int) -> Array:
        validity = self._next((count + 7) // 8)
        return self.binary(count, validity)

    def numbers(self, count: int, dtype: Any) -> Array:
        size = np.dtype(dtype).itemsize
        return numbers_over(count, dtype, aligned(self._next(size * count), size))

    def context(self) -> bytes:
        buffer = self._next()
        check_context_size(len(buffer))
        return bytes(buffer)

    def headers(self, count: int) -> Array:
        lists, pair_count = self._offsets(count)
        names = self.binary(pair_count)
        return headers_over(count, lists, names, self.binary(pair_count))
