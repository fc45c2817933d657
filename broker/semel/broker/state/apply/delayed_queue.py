"""The delayed batches of one queue, in the order in which they are due.

How it works. The extents of a queue are in blocks, in their order. Blocks pack what is in them
(`delayed_block.py`): ten million batches of one message each take 90 to 140 MB.

Invariants
1. The extents rise strictly by (due_us, ordinal); an ordinal is used only once.
2. `bytes`, `messages` and `batches` are the sums over all extents; cancelled messages do not count.
3. Where blocks are cut never shows in the bytes.

Format. docs/formats/state.md.

Not here: the queues of a broker group (`delays.py`), cancelled rows (`cancelled_rows.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import Final

import numpy as np

from semel.broker.state.apply.cancelled_rows import CancelledRows
from semel.broker.state.apply.codec import Part, Reader
from semel.broker.state.apply.delayed_block import (
    DelayedBlock,
    FrozenBlock,
    behind,
    each_extent,
    place_at,
    thawed,
)
from semel.broker.state.apply.delayed_extent import (
    DELAYED_EXTENT,
    EXTENT,
    DelayedExtent,
    DelayedPlace,
    Rows,
)
from semel.broker.state.apply.due_seconds import Numbers
from semel.broker.state.apply.extents import I64, add_lengths
from semel.protos.errors import CorruptSegment

BLOCK_ROWS: Final = 2_048
I8: Final = np.int64
_READ_ROWS: Final = 1 << 20
"""Extents that are in memory unpacked together, when many are read or summed up."""


class DelayedQueue:
    """The delayed batches of one queue, at least one."""

    __slots__ = ("_blocks", "batches", "bytes", "cancelled", "messages")

    def __init__(self) -> None:
        self._blocks: list[DelayedBlock] = []
        """In their order."""
        self.cancelled = CancelledRows()
        self.batches = 0
        self.messages = 0
        self.bytes = 0

    @property
    def first_due_us(self) -> int:
        """When the first batch is due."""
        return self._blocks[0].first.due_us

    @property
    def first_place(self) -> DelayedPlace:
        """The place of the first batch."""
        return self._blocks[0].first

    @property
    def last(self) -> DelayedPlace:
        """The place of the last batch."""
        return self._blocks[-1].last

    @property
    def last_due_us(self) -> int:
        """When the last batch is due."""
        return self.last.due_us

    @property
    def memory_bytes(self) -> int:
        """The bytes that the extents take in memory."""
        return sum(block.memory_bytes for block in self._blocks)

    def add(self, extent: DelayedExtent) -> None:
        """Adds an extent; its ordinal must be the highest so far."""
        self._put(extent)

    def insert(self, extent: DelayedExtent) -> None:
        """Adds an extent, whose ordinal no other one has."""
        self._put(extent)

    def _put(self, extent: DelayedExtent) -> None:
        blocks, place = self._blocks, extent.place
        at = self._block_of(place)
        if not blocks or (len(blocks[at]) >= BLOCK_ROWS and place > self.last):
            blocks.append(DelayedBlock(np.array([tuple(extent)], EXTENT)))
        else:
            blocks[at].add(extent)
            if len(blocks[at]) > BLOCK_ROWS:
                rows = blocks[at].rows()
                half = len(rows) // 2
                blocks[at : at + 1] = DelayedBlock(rows[:half]), DelayedBlock(rows[half:])
        self._count(extent, 1)

    def _block_of(self, place: DelayedPlace) -> int:
        """The block in which a place is, or belongs."""
        return max(0, bisect_right(self._blocks, place, key=_first) - 1)

    def left(self, extent: DelayedExtent) -> int:
        """How many messages of an extent are not cancelled."""
        return extent.messages - self.cancelled.count(extent.ordinal)

    def find(self, place: DelayedPlace) -> DelayedExtent | None:
        """The extent at a place; None if there is none."""
        if not self._blocks:
            return None
        rows = self._blocks[self._block_of(place)].rows()
        at = behind(rows, place) - 1
        return _extent_at(rows, at) if at >= 0 and place_at(rows, at) == place else None

    def due_at(self, due_us: int, entry: int, mask: int) -> Iterator[DelayedExtent]:
        """The extents that are due at a time, and whose entry agrees with `entry` in the bits of
        `mask`. A million that are due at once take some ten milliseconds."""
        for extents in self._rows_behind(DelayedPlace(due_us, -1)):
            agree = (extents["due_us"] == due_us) & ((extents["entry"] & mask) == entry & mask)
            for at in np.flatnonzero(agree).tolist():
                yield _extent_at(extents, at)
            if extents["due_us"][-1] > due_us:
                return

    def cancel(self, extent: DelayedExtent, row: int) -> bool:
        """Cancels a row that is not cancelled yet; True if it was the last one of the extent, which
        is gone then."""
        if self.left(extent) > 1:
            self.cancelled.add(extent.ordinal, row)
            self.messages -= 1
            return False
        at = self._block_of(extent.place)
        rows = self._blocks[at].rows()
        if len(rows) == 1:
            del self._blocks[at]
        else:
            self._blocks[at].keep(np.delete(rows, behind(rows, extent.place) - 1))
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
            if before is not None and extent.place >= before:
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

    def columns(self) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
        """Due time, messages that are not cancelled and length of each extent, in order, a million
        at a time."""
        blocks = iter(self._blocks)
        while some := list(islice(blocks, _READ_ROWS // BLOCK_ROWS)):
            extents = np.concatenate([block.rows() for block in some])
            yield extents["due_us"], self._messages_left(extents), extents["length"].astype(I8)

    def _messages_left(self, extents: Rows) -> Numbers:
        messages = extents["messages"].astype(I8)
        if self.cancelled.batches:
            concerned = np.isin(extents["ordinal"], self.cancelled.ordinals())
            for at in np.flatnonzero(concerned).tolist():
                messages[at] -= self.cancelled.count(int(extents["ordinal"][at]))
        return messages

    def packed(self, after: DelayedPlace | None, blocks_max: int) -> bytes:
        """The extents behind `after`, of at most so many blocks, as in the canonical bytes; empty
        at the end."""
        return b"".join(rows.tobytes() for rows in islice(self._rows_behind(after), blocks_max))

    def _behind(self, after: DelayedPlace | None) -> Iterator[DelayedExtent]:
        for rows in self._rows_behind(after):
            yield from each_extent(rows)

    def _rows_behind(self, after: DelayedPlace | None) -> Iterator[Rows]:
        """Extents behind `after`: the rest of the first block, if any, then those of whole ones."""
        start = 0 if after is None else self._block_of(after)
        for at in range(start, len(self._blocks)):
            rows = self._blocks[at].rows()
            if after is not None and at == start:
                rows = rows[behind(rows, after) :]
            if len(rows):
                yield rows

    def remove(self, extents: list[DelayedExtent]) -> None:
        """Removes extents that `first` has returned."""
        for extent in extents:
            self._count(extent, -1)
            self.cancelled.forget(extent.ordinal)
        gone = np.array([extent.ordinal for extent in extents], np.uint64)
        at = 0
        while len(gone):
            block = self._blocks[at]
            rows = block.rows()
            # All that come before the last one are gone, but for those that are newer than the
            # master knew.
            count = min(len(rows), len(gone))
            leading = bool((rows["ordinal"][:count] == gone[:count]).all())
            kept = rows[count:] if leading else rows[~np.isin(rows["ordinal"], gone)]
            gone = gone[len(rows) - len(kept) :]
            if not len(kept):
                del self._blocks[at]
                continue
            if leading:
                block.take_first(rows, count)
            elif len(kept) < len(rows):
                block.keep(kept)
            at += 1

    def add_live_bytes(self, bounds: I64, sums: I64) -> None:
        """Adds to `sums[k]` the lengths of records in entries `[bounds[k], bounds[k + 1])`."""
        for block in self._blocks:
            if block.lowest_entry < bounds[-1]:
                extents = block.rows()
                add_lengths(extents["entry"], extents["length"], bounds, sums)

    def in_entries(self, lo_index: int, hi_index: int) -> Iterator[Rows]:
        """The extents of batches in entries `[lo_index, hi_index)`, in order, block by block."""
        for block in self._blocks:
            if block.lowest_entry < hi_index:
                extents = block.rows()
                entries = extents["entry"]
                yield extents[(entries >= lo_index) & (entries < hi_index)]

    def _count(self, extent: DelayedExtent, sign: int) -> None:
        self.batches += sign
        self.messages += sign * self.left(extent)
        self.bytes += sign * extent.length

    def __iter__(self) -> Iterator[DelayedExtent]:
        return self._behind(None)

    def table(self) -> Rows:
        """All extents in their order, as an array of EXTENT that does not change with the queue."""
        return thawed(self.frozen())

    def frozen(self) -> list[FrozenBlock]:
        """All extents as they are now, which are unpacked by whoever needs them."""
        return [block.frozen() for block in self._blocks]

    def parts(self, *, cancelled: bool) -> list[Part]:
        """Canonical bytes; `cancelled` adds the cancelled rows."""
        rows = self.cancelled.parts() if cancelled else []
        return [*self.frozen(), *rows]

    @classmethod
    def read_parts(cls, reader: Reader, batches: int, *, cancelled: bool) -> DelayedQueue:
        """The inverse of `parts`. Raises CorruptSegment."""
        data = reader.take(batches * DELAYED_EXTENT.size)
        return cls.of(data, CancelledRows.read_parts(reader) if cancelled else CancelledRows())

    @classmethod
    def of(cls, data: bytes | memoryview, cancelled: CancelledRows) -> DelayedQueue:
        """The queue with these extents, as in the canonical bytes, and cancelled rows, which it
        takes over. A million extents take a tenth of a second. Raises CorruptSegment."""
        queue = cls()
        queue.cancelled = cancelled
        every = np.frombuffer(data, EXTENT)
        sizes: dict[int, int] = {}
        for start in range(0, len(every), _READ_ROWS):
            extents = every[start : start + _READ_ROWS]
            before = queue.last if queue._blocks else DelayedPlace(-1, 1 << 64)
            if place_at(extents, 0) <= before or not _rise(extents):
                raise CorruptSegment("state holds delayed batches in another order")
            cuts = range(0, len(extents), BLOCK_ROWS)
            queue._blocks += [DelayedBlock(extents[cut : cut + BLOCK_ROWS]) for cut in cuts]
            queue.messages += int(extents["messages"].sum(dtype=I8))
            queue.bytes += int(extents["length"].sum(dtype=I8))
            if cancelled.batches:
                chosen = extents[np.isin(extents["ordinal"], cancelled.ordinals())]
                sizes |= zip(chosen["ordinal"].tolist(), chosen["messages"].tolist(), strict=True)
        queue.batches = len(every)
        queue.messages -= cancelled.counted(sizes)
        return queue


def _rise(extents: Rows) -> bool:
    dues, ordinals = extents["due_us"], extents["ordinal"]
    rise = (dues[1:] > dues[:-1]) | ((dues[1:] == dues[:-1]) & (ordinals[1:] > ordinals[:-1]))
    return bool(rise.all())


def _first(block: DelayedBlock) -> DelayedPlace:
    return block.first


def _extent_at(rows: Rows, at: int) -> DelayedExtent:
    return DelayedExtent(*rows[at].tolist())
