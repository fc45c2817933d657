"""Delayed extents that follow one another, in a third of the memory that they have as they are.

How it works. The extents of a block are packed by column: the lowest value, the greatest common
divisor of the distances to it, and for each extent how many times that is, in as few bytes as the
highest one needs. Batches of one message each take 9 to 14 bytes then instead of 36. What is added
to a block waits beside it as it is, and is packed with it when there are ADDED_ROWS_MAX; so a small
block is never packed. What is taken from the front of a packed block is skipped.

Packing is this node's own business: the canonical bytes are those of the extents.

Invariants
1. `first` and `last` are the places of the first and the last extent; no block is empty.
2. Neither packed extents nor those that were added are changed in place, so `frozen` copies
   nothing, and another thread may read what it returns.

Not here: the blocks of a queue (`delayed_queue.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from semel.broker.state.apply.delayed_extent import (
    DELAYED_EXTENT,
    EXTENT,
    DelayedExtent,
    DelayedPlace,
    Rows,
)

ADDED_ROWS_MAX: Final = 128
_AT_ONCE: Final = 64
"""Extents that become objects together."""
_ADDED_BYTES_MAX: Final = ADDED_ROWS_MAX * DELAYED_EXTENT.size
_HEAD: Final = struct.Struct("<I")
_COLUMN: Final = struct.Struct("<QQB")
_NAMES: Final = ("due_us", "ordinal", "entry", "position", "length", "messages")


class FrozenBlock(NamedTuple):
    """The extents of a block as of some moment."""

    packed: bytes
    skipped: int
    added: bytes

    def rows(self) -> Rows:
        """The extents in their order."""
        added = np.frombuffer(self.added, EXTENT)
        if not self.packed:
            return _in_order(added)
        packed = unpacked(self.packed)[self.skipped :]
        return _in_order(np.concatenate([packed, added])) if len(added) else packed

    def data(self) -> bytes:
        """The extents in their order, as in the canonical bytes."""
        return self.rows().tobytes()


class DelayedBlock:
    """Extents of one queue, at least one, in their order."""

    __slots__ = ("_added", "_packed", "_rows", "_skipped", "first", "last", "lowest_entry")

    def __init__(self, rows: Rows) -> None:
        """`rows` are in order; they are copied."""
        self._become(rows)

    def _become(self, rows: Rows) -> None:
        self._rows = len(rows)
        self._skipped = 0
        small = len(rows) <= ADDED_ROWS_MAX
        self._packed = b"" if small else packed(rows)
        self._added = rows.tobytes() if small else b""
        self.first, self.last = place_at(rows, 0), place_at(rows, -1)
        self.lowest_entry = int(rows["entry"].min())
        """Or below that, when extents were taken out since."""

    def __len__(self) -> int:
        return self._rows

    @property
    def memory_bytes(self) -> int:
        """The bytes that its extents take."""
        return len(self._packed) + len(self._added)

    def frozen(self) -> FrozenBlock:
        """The extents as they are now."""
        return FrozenBlock(self._packed, self._skipped, self._added)

    def rows(self) -> Rows:
        """The extents in their order, as an array that does not change with the block."""
        return self.frozen().rows()

    def add(self, extent: DelayedExtent) -> None:
        """Adds an extent, whose place no other one has."""
        self._added += DELAYED_EXTENT.pack(*extent)
        self._rows += 1
        self.lowest_entry = min(self.lowest_entry, extent.entry)
        place = extent.place
        if place < self.first:
            self.first = place
        elif place > self.last:
            self.last = place
        if len(self._added) > _ADDED_BYTES_MAX:
            self._become(self.rows())

    def take_first(self, rows: Rows, count: int) -> None:
        """Takes out the first `count` extents, fewer than there are; `rows` are all of them."""
        if self._packed and not self._added:
            self._skipped += count
            self._rows -= count
            self.first = place_at(rows, count)
        else:
            self._become(rows[count:])

    def keep(self, rows: Rows) -> None:
        """Takes out all extents but these, at least one, in order."""
        self._become(rows)


def place_at(rows: Rows, at: int) -> DelayedPlace:
    """The place of one of the extents."""
    return DelayedPlace(int(rows["due_us"][at]), int(rows["ordinal"][at]))


def behind(rows: Rows, place: DelayedPlace) -> int:
    """How many extents have places that are not behind `place`."""
    dues = rows["due_us"]
    start, end = (int(np.searchsorted(dues, place.due_us, side)) for side in ("left", "right"))
    if start == end or place.ordinal < 0:
        return start
    ordinals = rows["ordinal"][start:end]
    return start + int(np.searchsorted(ordinals, np.uint64(place.ordinal), "right"))


def each_extent(rows: Rows) -> Iterator[DelayedExtent]:
    """The extents one by one, made as they are asked for."""
    for at in range(0, len(rows), _AT_ONCE):
        yield from map(DelayedExtent._make, rows[at : at + _AT_ONCE].tolist())


def thawed(blocks: Sequence[FrozenBlock]) -> Rows:
    """The extents of blocks that follow one another, as an array of their own."""
    return np.concatenate([np.empty(0, EXTENT), *(block.rows() for block in blocks)])


def _in_order(rows: Rows) -> Rows:
    return rows[np.lexsort((rows["ordinal"], rows["due_us"]))] if len(rows) > 1 else rows


def packed(rows: Rows) -> bytes:
    """Extents by column."""
    parts = [_HEAD.pack(len(rows))]
    for name in _NAMES:
        values = rows[name].astype("<u8")
        lowest = values.min()
        values -= lowest
        step = np.gcd.reduce(values)
        if step > 1:
            values //= step
        width = (int(values.max()).bit_length() + 7) // 8
        parts.append(_COLUMN.pack(int(lowest), int(step), width))
        parts.append(values.view(np.uint8).reshape(-1, 8)[:, :width].tobytes())
    return b"".join(parts)


def unpacked(data: bytes) -> Rows:
    """The inverse of `packed`."""
    (count,) = _HEAD.unpack_from(data)
    rows = np.empty(count, EXTENT)
    at = _HEAD.size
    for name in _NAMES:
        lowest, step, width = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        raw = np.zeros((count, 8), np.uint8)
        if width:
            raw[:, :width] = np.frombuffer(data, np.uint8, count * width, at).reshape(count, -1)
        at += count * width
        values = raw.view("<u8").ravel()
        if step > 1:
            values *= np.uint64(step)
        values += np.uint64(lowest)
        rows[name] = values
    return rows
