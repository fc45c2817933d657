"""Whether the columns of a batch can be decoded, without decoding them.

How it works. A broker asks this once about each batch that comes in. It looks at the lengths and
offsets in the body, as `columns.decode_columns` does, and makes no arrays: that would cost several
times as much, and be thrown away.

Invariants
1. `check_columns` accepts a batch if and only if `decode_columns` decodes it, and no message of it
   has neither value nor key or is over the hard limit. So everybody can read what is stored, and
   brokers can make batches of some of its rows.

Not here: the headers and CRCs (`batch.py`), decoding (`columns.py`, `few_rows.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from semel.protos.batch import (
    COPY_BYTES_MAX,
    HEADER_BYTES,
    MESSAGE_BYTES_MAX,
    BatchFlags,
    BatchHeader,
    Codec,
)
from semel.protos.body import (
    BUFFER_COUNTS,
    FEW_OFFSETS_MAX,
    buffer_places,
    check_context_size,
    rise_from_0,
    unpack_body,
)
from semel.protos.columns import NO_VALUE_NO_KEY, check_message_sizes, decode_columns
from semel.protos.errors import CorruptBatch, InvalidRequest

_STORED_BYTES_MAX: Final = MESSAGE_BYTES_MAX + COPY_BYTES_MAX
_NOT_A_START: Final = 0x80
"""The upper two bits of a byte of UTF-8 that continues a character."""


def check_columns(batch: bytes | memoryview, header: BatchHeader) -> None:
    """Checks what is inside of a batch; `header` must be the result of `check_batch`.

    Raises CorruptBatch as `decode_columns` does, InvalidRequest for a message with neither value
    nor key, and MessageTooLarge for one over the hard limit.
    """
    flags, count = header.flags, header.count
    if flags & BatchFlags.POSITION_MARK:
        return
    body = memoryview(batch)[HEADER_BYTES:]
    if header.codec is not Codec.NONE:
        body = memoryview(unpack_body(batch, header))
    buffers = _Buffers(body, flags)
    valued = buffers.nullable(count) if flags & BatchFlags.NULL_VALUES else None
    if valued is None:
        buffers.binary(count)
    keyed = buffers.nullable(count) if flags & BatchFlags.KEY else 0
    if valued is not None:
        whole = (1 << count) - 1
        if (valued | keyed) & whole != whole:
            raise InvalidRequest(NO_VALUE_NO_KEY)
    if flags & BatchFlags.HEADERS:
        buffers.headers(count)
    if flags & BatchFlags.TIMESTAMP:
        buffers.numbers(count, 8)
    if flags & BatchFlags.MESSAGE_ID:
        buffers.nullable(count)
    if flags & BatchFlags.SLOT:
        buffers.numbers(count, 2)
    if flags & BatchFlags.SEQUENCE:
        buffers.rising(count, header.base_sequence, header.last_sequence)
    if flags & BatchFlags.DELIVER_AT:
        buffers.numbers(count, 8)
    if flags & BatchFlags.OFFSET:
        buffers.rising(count, 0, (1 << 63) - 1)
    if flags & BatchFlags.CONTEXT:
        buffers.context()
    if header.uncompressed_length > _STORED_BYTES_MAX:
        check_message_sizes(decode_columns(batch, header), _STORED_BYTES_MAX)


class _Buffers:
    """Looks at one buffer of a body after the other. Every method raises CorruptBatch."""

    def __init__(self, body: memoryview, flags: int) -> None:
        self._body = body
        expected = 2 + sum([count for flag, count in BUFFER_COUNTS if flag & flags])
        self._places: Iterator[tuple[int, int]] = iter(buffer_places(body, expected))

    def numbers(self, count: int, size: int) -> int:
        """Numbers of `size` bytes; returns where they begin."""
        start, length = next(self._places)
        if length != size * count:
            raise CorruptBatch(f"batch buffer has {length} bytes, not {size * count}")
        return start

    def rising(self, count: int, least: int, most: int) -> None:
        """Numbers that rise from `least` or above to `most` or below."""
        numbers = np.frombuffer(self._body, np.int64, count, self.numbers(count, 8))
        if numbers[0] < least or numbers[-1] > most or (numbers[1:] <= numbers[:-1]).any():
            raise CorruptBatch("batch sequences or offsets do not rise in the range they may have")

    def offsets(self, count: int) -> Any:
        """Returns `count + 1` offsets that rise from 0."""
        start = self.numbers(count + 1, 4)
        if count <= FEW_OFFSETS_MAX:
            few = struct.unpack_from(f"<{count + 1}i", self._body, start)
            if not rise_from_0(few):
                raise CorruptBatch("batch offsets do not rise from 0")
            return few
        offsets = np.frombuffer(self._body, np.int32, count + 1, start)
        if offsets[0] or (offsets[1:] < offsets[:-1]).any():
            raise CorruptBatch("batch offsets do not rise from 0")
        return offsets

    def binary(self, count: int) -> tuple[Any, memoryview]:
        """Returns the offsets of runs of bytes, and their data."""
        offsets = self.offsets(count)
        end = int(offsets[-1])
        start, length = next(self._places)
        if length != end:
            raise CorruptBatch(f"batch buffer has {length} bytes, not {end}")
        return offsets, self._body[start : start + end]

    def context(self) -> None:
        _, length = next(self._places)
        check_context_size(length)

    def nullable(self, count: int) -> int:
        """Returns the bitmap of a column with nulls, as a number."""
        size = (count + 7) // 8
        start, length = next(self._places)
        if length != size:
            raise CorruptBatch(f"batch buffer has {length} bytes, not {size}")
        self.binary(count)
        return int.from_bytes(self._body[start : start + size], "little")

    def headers(self, count: int) -> None:
        pairs = int(self.offsets(count)[-1])
        offsets, names = self.binary(pairs)
        try:
            str(names, "utf-8")
        except UnicodeDecodeError:
            raise CorruptBatch("a header's name is not UTF-8") from None
        starts = np.asarray(offsets, np.int64)
        starts = starts[starts < len(names)]
        if (np.frombuffer(names, np.uint8)[starts] & 0xC0 == _NOT_A_START).any():
            raise CorruptBatch("a header's name is not UTF-8")
        self.binary(pairs)
