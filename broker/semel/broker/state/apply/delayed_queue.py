"""The delayed batches of one queue, in the order in which they are due.

How it works. The extents of a queue are packed in blocks, in their order: a million of them take
36 MB, and a checkpoint takes them as they are.

Invariants
1. The extents rise strictly by (due_us, ordinal); an ordinal is used only once.
2. `bytes`, `messages` and `batches` are the sums over all extents; cancelled messages do not count.
3. Where blocks are cut never shows in the bytes.

Format. docs/formats/state.md.

Not here: the queues of a broker group (`delays.py`), cancelled rows (`cancelled_rows.py`).
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from semel.broker.state.apply.cancelled_rows import CancelledRows
from semel.broker.state.apply.codec import Reader
from semel.broker.state.apply.due_seconds import Numbers
from semel.broker.state.apply.extents import I64, add_lengths
from semel.protos.errors import CorruptSegment

DELAYED_EXTENT: Final = struct.Struct("<qQqIII")
EXTENT: Final = np.dtype(
    [
        ("due_us", "<i8"),
        ("ordinal", "<u8"),
        ("entry", "<i8"),
        ("position", "<u4"),
        ("length", "<u4"),
        ("messages", "<u4"),
    ]
)
assert EXTENT.itemsize == DELAYED_EXTENT.size
_BLOCK_BYTES: Final = 512 * DELAYED_EXTENT.size
_DUE: Final = struct.Struct("<q")
_PLACE: Final = struct.Struct("<qQ")


class DelayedPlace(NamedTuple):
    """The place of a delayed extent in the order of its queue."""

    due_us: int
    ordinal: int


class DelayedExtent(NamedTuple):
    """One delayed batch: in the log, and without offsets."""

    due_us: int
    ordinal: int
    """Its number. The batches of a queue have rising ones, as they were delayed."""
    entry: int
    """Index of the entry that holds it."""
    position: int
    length: int
    """Length of the record's payload: broker header and batch."""
    messages: int
    """Rows of the batch, cancelled ones as well."""


class DelayedQueue:
    """The delayed batches of one queue, at least one."""

    __slots__ = ("_blocks", "batches", "bytes", "cancelled", "messages")

    def __init__(self) -> None:
        self._blocks: list[bytearray] = []
        """Packed extents in order; no block is empty."""
        self.cancelled = CancelledRows()
        self.batches = 0
        self.messages = 0
        self.bytes = 0

    @property
    def first_due_us(self) -> int:
        """When the first batch is due."""
        return _due(self._blocks[0])

    @property
    def first_place(self) -> DelayedPlace:
        """The place of the first batch."""
        return _place(self._blocks[0])

    @property
    def last(self) -> DelayedPlace:
        """The place of the last batch."""
        block = self._blocks[-1]
        return _place(block, len(block) // DELAYED_EXTENT.size - 1)

    @property
    def last_due_us(self) -> int:
        """When the last batch is due."""
        return self.last.due_us

    def add(self, extent: DelayedExtent) -> None:
        """Adds an extent; its ordinal must be the highest so far."""
        self._put(extent, extent.due_us, _due)

    def insert(self, extent: DelayedExtent) -> None:
        """Adds an extent, whose ordinal no other one has."""
        self._put(extent, (extent.due_us, extent.ordinal), _place_numbers)

    def _put(self, extent: DelayedExtent, own: Any, key: Callable[..., Any]) -> None:
        """Adds an extent behind those whose `key` is not above `own`."""
        blocks = self._blocks
        if not blocks:
            blocks.append(bytearray())
            at = place = 0
        else:
            at = max(0, bisect_right(blocks, own, key=key) - 1)
            block = blocks[at]
            ordinals = range(len(block) // DELAYED_EXTENT.size)
            place = bisect_right(ordinals, own, key=lambda each: key(block, each))
        block, cut = blocks[at], place * DELAYED_EXTENT.size
        block[cut:cut] = DELAYED_EXTENT.pack(*extent)
        if len(block) > _BLOCK_BYTES:
            half = len(block) // DELAYED_EXTENT.size // 2 * DELAYED_EXTENT.size
            blocks.insert(at + 1, block[half:])
            del block[half:]
        self._count(extent, 1)

    def left(self, extent: DelayedExtent) -> int:
        """How many messages of an extent are not cancelled."""
        return extent.messages - self.cancelled.count(extent.ordinal)

    def find(self, place: DelayedPlace) -> DelayedExtent | None:
        """The extent at a place; None if there is none."""
        extent = next(self._behind(DelayedPlace(place.due_us, place.ordinal - 1)), None)
        return extent if extent is not None and extent[:2] == place else None

    def due_at(self, due_us: int, entry: int, mask: int) -> Iterator[DelayedExtent]:
        """The extents that are due at a time, and whose entry agrees with `entry` in the bits of
        `mask`. A million that are due at once take some ten milliseconds."""
        for block in self._blocks_behind(DelayedPlace(due_us, -1)):
            extents = np.frombuffer(bytes(block), EXTENT)
            agree = (extents["due_us"] == due_us) & ((extents["entry"] & mask) == entry & mask)
            for at in np.flatnonzero(agree).tolist():
                yield DelayedExtent(*extents[at].tolist())
            if extents["due_us"][-1] > due_us:
                return

    def cancel(self, extent: DelayedExtent, row: int) -> bool:
        """Cancels a row that is not cancelled yet; True if it was the last one of the extent, which
        is gone then."""
        if self.left(extent) > 1:
            self.cancelled.add(extent.ordinal, row)
            self.messages -= 1
            return False
        place = DelayedPlace(extent.due_us, extent.ordinal)
        at = bisect_right(self._blocks, place, key=_place) - 1
        block = self._blocks[at]
        ordinals = range(len(block) // DELAYED_EXTENT.size)
        cut = bisect_left(ordinals, place, key=lambda each: _place(block, each))
        del block[cut * DELAYED_EXTENT.size : (cut + 1) * DELAYED_EXTENT.size]
        if not block:
            del self._blocks[at]
        self._count(extent, -1)
        self.cancelled.forget(extent.ordinal)
        return True

    def first(
        self,
        until_us: int,
        below_ordinal: int,
        batches_max: int,
        before: DelayedPlace | None = None,
    ) -> list[DelayedExtent]:
        """The first `batches_max` extents below the ordinal that are due at `until_us`, and whose
        places are before one, if it is given."""
        found: list[DelayedExtent] = []
        for extent in self:
            if extent.due_us > until_us or len(found) >= batches_max:
                break
            if before is not None and extent[:2] >= before:
                break
            if extent.ordinal < below_ordinal:
                found.append(extent)
        return found

    def page(
        self, after: DelayedPlace | None, before_us: int | None, messages_max: int, bytes_max: int
    ) -> tuple[list[DelayedExtent], bool]:
        """The extents behind `after` that are due before `before_us`, and whether there are more.

        The last one brings them to `messages_max` messages. All together have at most `bytes_max`
        bytes, unless the first one alone has more.
        """
        found: list[DelayedExtent] = []
        messages = length = 0
        for extent in self._behind(after):
            if before_us is not None and extent.due_us >= before_us:
                break
            length += extent.length
            if found and (messages >= messages_max or length > bytes_max):
                return found, True
            found.append(extent)
            messages += self.left(extent)
        return found, False

    def columns(self) -> tuple[Numbers, Numbers, Numbers]:
        """Due time, messages that are not cancelled and length of each extent, in order."""
        extents = self.table()
        messages = extents["messages"].astype(np.int64)
        if self.cancelled.batches:
            concerned = np.isin(extents["ordinal"], self.cancelled.ordinals())
            for at in np.flatnonzero(concerned).tolist():
                messages[at] -= self.cancelled.count(int(extents["ordinal"][at]))
        return extents["due_us"], messages, extents["length"].astype(np.int64)

    def packed(self, after: DelayedPlace | None, blocks_max: int) -> bytes:
        """The packed extents behind `after`, of at most so many blocks; empty at the end."""
        return b"".join(islice(self._blocks_behind(after), blocks_max))

    def _behind(self, after: DelayedPlace | None) -> Iterator[DelayedExtent]:
        for block in self._blocks_behind(after):
            yield from map(DelayedExtent._make, DELAYED_EXTENT.iter_unpack(block))

    def _blocks_behind(self, after: DelayedPlace | None) -> Iterator[bytearray]:
        """Blocks of extents behind `after`: the rest of the first one, if any, then whole ones."""
        if after is None:
            yield from self._blocks
            return
        at = max(0, bisect_right(self._blocks, after, key=_place) - 1)
        block = self._blocks[at]
        ordinals = range(len(block) // DELAYED_EXTENT.size)
        start = bisect_right(ordinals, after, key=lambda each: _place(block, each))
        if start < len(ordinals):
            yield block[start * DELAYED_EXTENT.size :]
        yield from islice(self._blocks, at + 1, None)

    def remove(self, extents: list[DelayedExtent]) -> None:
        """Removes extents that `first` has returned."""
        gone = {extent.ordinal for extent in extents}
        while gone:
            block = self._blocks[0]
            kept = bytearray()
            end = 0
            for extent in map(DelayedExtent._make, DELAYED_EXTENT.iter_unpack(block)):
                end += DELAYED_EXTENT.size
                if extent.ordinal in gone:
                    gone.discard(extent.ordinal)
                    self._count(extent, -1)
                    self.cancelled.forget(extent.ordinal)
                    if not gone:
                        break
                else:
                    kept += DELAYED_EXTENT.pack(*extent)
            kept += block[end:]
            if gone and kept:  # a newer extent than the master knew precedes the rest
                del self._blocks[0]
                self._blocks[0][:0] = kept
            elif kept:
                self._blocks[0] = kept
            else:
                del self._blocks[0]

    def add_live_bytes(self, bounds: I64, sums: I64) -> None:
        """Adds to `sums[k]` the lengths of records in entries `[bounds[k], bounds[k + 1])`."""
        for block in self._blocks:
            extents = np.frombuffer(block, EXTENT)
            add_lengths(extents["entry"], extents["length"], bounds, sums)

    def _count(self, extent: DelayedExtent, sign: int) -> None:
        self.batches += sign
        self.messages += sign * self.left(extent)
        self.bytes += sign * extent.length

    def __iter__(self) -> Iterator[DelayedExtent]:
        for block in self._blocks:
            yield from map(DelayedExtent._make, DELAYED_EXTENT.iter_unpack(block))

    def table(self) -> npt.NDArray[np.void]:
        """All extents in their order, as an array of EXTENT that does not change with the queue."""
        return np.frombuffer(b"".join(self._blocks), EXTENT)

    def parts(self, *, cancelled: bool) -> list[bytes]:
        """Canonical bytes; `cancelled` adds the cancelled rows."""
        rows = self.cancelled.parts() if cancelled else []
        return [*(bytes(block) for block in self._blocks), *rows]

    @classmethod
    def read_parts(cls, reader: Reader, batches: int, *, cancelled: bool) -> DelayedQueue:
        """The inverse of `parts`. Raises CorruptSegment."""
        data = bytes(reader.take(batches * DELAYED_EXTENT.size))
        return cls.of(data, CancelledRows.read_parts(reader) if cancelled else CancelledRows())

    @classmethod
    def of(cls, packed: bytes, cancelled: CancelledRows) -> DelayedQueue:
        """The queue with these packed extents and cancelled rows, which it takes over. A million
        extents take some ten milliseconds. Raises CorruptSegment."""
        queue = cls()
        queue.cancelled = cancelled
        queue._blocks = [
            bytearray(packed[at : at + _BLOCK_BYTES]) for at in range(0, len(packed), _BLOCK_BYTES)
        ]
        extents = np.frombuffer(packed, EXTENT)
        dues, ordinals = extents["due_us"], extents["ordinal"]
        rise = (dues[1:] > dues[:-1]) | ((dues[1:] == dues[:-1]) & (ordinals[1:] > ordinals[:-1]))
        if not rise.all() or (len(dues) and dues[0] < 0):
            raise CorruptSegment("state holds delayed batches in another order")
        chosen = np.isin(ordinals, cancelled.ordinals())
        sizes = zip(ordinals[chosen].tolist(), extents["messages"][chosen].tolist(), strict=True)
        queue.batches = len(extents)
        queue.messages = int(extents["messages"].sum(dtype=np.int64))
        queue.messages -= cancelled.counted(dict(sizes))
        queue.bytes = int(extents["length"].sum(dtype=np.int64))
        return queue


def _due(block: bytearray, at: int = 0) -> int:
    return int(_DUE.unpack_from(block, at * DELAYED_EXTENT.size)[0])


def _place_numbers(block: bytearray, at: int = 0) -> tuple[int, int]:
    return _PLACE.unpack_from(block, at * DELAYED_EXTENT.size)


def _place(block: bytearray, at: int = 0) -> DelayedPlace:
    return DelayedPlace._make(_PLACE.unpack_from(block, at * DELAYED_EXTENT.size))
