"""A few messages as Python's own bytes objects, encoded and decoded without Arrow.

How it works. Arrow's arrays and buffers cost the same for one message as for a hundred: 6 µs of the
13 that a batch of values takes, 11 of 21 with keys, and several times that when the processor's
caches are cold. A program that waits for each `send()` makes a batch of every message, and a reader
that keeps up gets such batches. So `struct` and `join` write the buffers of a few values, keys and
message ids, with exactly the same bytes, and such batches are decoded in the same way.

Invariants
1. `cut_few` returns the same messages as `decode_columns`. It raises nothing: for a batch that is
   malformed it returns None, and `decode_columns` says what is wrong.

Not here: every other column (`columns.py`).
"""

from __future__ import annotations

import struct
from itertools import accumulate, pairwise
from typing import ClassVar, Final

from semel.protos.batch import HEADER_BYTES, BatchFlags, BatchHeader, Codec
from semel.protos.body import Buffer, buffer_places, rise_from_0
from semel.protos.errors import CorruptBatch
from semel.protos.values import value

FEW_ROWS_MAX: Final = 64
"""Arrow is faster from about 150 messages on."""


@value
class FewRows:
    """The messages of one batch, with values, keys and message ids alone."""

    values: list[bytes]
    keys: list[bytes] | None = None
    message_ids: list[bytes] | None = None
    timestamps: ClassVar[None] = None
    sequences: ClassVar[None] = None
    deliver_at: ClassVar[None] = None

    def __len__(self) -> int:
        return len(self.values)

    def buffers(self) -> tuple[int, list[Buffer]]:
        """Returns the flags of the columns, and the buffers of the body in their order."""
        flags, buffers = 0, _binary(self.values)
        for name, flag, column in (
            ("keys", BatchFlags.KEY, self.keys),
            ("ids", BatchFlags.MESSAGE_ID, self.message_ids),
        ):
            if column is not None:
                count = len(column)
                assert count == len(self.values), f"{count} {name} for {len(self.values)} values"
                valid = ((1 << count) - 1).to_bytes((count + 7) // 8, "little")
                flags |= flag
                buffers += [valid, *_binary(column)]
        return int(flags), buffers


def _binary(pieces: list[bytes]) -> list[Buffer]:
    """Returns offsets and data, as `body.binary_buffers` does."""
    offsets = struct.pack(f"<{len(pieces) + 1}i", 0, *accumulate(map(len, pieces)))
    return [offsets, b"".join(pieces)]


def cut_few(
    batch: bytes | memoryview, header: BatchHeader
) -> tuple[list[bytes], list[bytes | None]] | None:
    """Returns the values and keys of a batch that has nothing else; the key of a message without
    one is None.

    `header` must be the result of `check_batch`. Returns None for a batch of many messages, with a
    codec, null values or other columns, and if its lengths or offsets contradict each other.
    """
    if header.flags & ~BatchFlags.KEY:
        return None
    found = _cut(batch, header)
    return None if found is None else found[:2]


def cut_few_with_ids(
    batch: bytes | memoryview, header: BatchHeader
) -> tuple[list[bytes], list[bytes | None], list[bytes | None]] | None:
    """Returns the values, keys and message ids of a batch that has nothing else; like `cut_few`."""
    if header.flags & ~BatchFlags.KEY != BatchFlags.MESSAGE_ID:
        return None
    return _cut(batch, header)


def _cut(
    batch: bytes | memoryview, header: BatchHeader
) -> tuple[list[bytes], list[bytes | None], list[bytes | None]] | None:
    count, flags = header.count, header.flags
    if count > FEW_ROWS_MAX or header.codec is not Codec.NONE:
        return None
    body = memoryview(batch)[HEADER_BYTES:]
    if len(body) != header.uncompressed_length:
        return None
    nullable = [bool(flags & BatchFlags.KEY), bool(flags & BatchFlags.MESSAGE_ID)]
    try:
        places = buffer_places(body, 2 + 3 * sum(nullable))
    except CorruptBatch:
        return None
    buffers = [body[start : start + length] for start, length in places]
    values = _pieces(count, *buffers[:2])
    if values is None:
        return None
    found: list[list[bytes | None]] = []
    taken = 2
    for present in nullable:
        column: list[bytes | None] | None = [None] * count
        if present:
            column = _nullable(count, *buffers[taken : taken + 3])
            taken += 3
        if column is None:
            return None
        found.append(column)
    return values, found[0], found[1]


def _nullable(
    count: int, validity: memoryview, offsets: memoryview, data: memoryview
) -> list[bytes | None] | None:
    pieces = _pieces(count, offsets, data)
    if pieces is None or len(validity) != (count + 7) // 8:
        return None
    valid = int.from_bytes(validity, "little")
    return [piece if valid >> row & 1 else None for row, piece in enumerate(pieces)]


def _pieces(count: int, offsets: memoryview, data: memoryview) -> list[bytes] | None:
    """Returns the pieces of the data between offsets, or None unless there are `count + 1` offsets
    that rise from 0 to the end of the data."""
    if len(offsets) != 4 * (count + 1):
        return None
    places = struct.unpack(f"<{count + 1}i", offsets)
    if places[-1] != len(data) or not rise_from_0(places):
        return None
    whole = bytes(data)
    return [whole[start:end] for start, end in pairwise(places)]
