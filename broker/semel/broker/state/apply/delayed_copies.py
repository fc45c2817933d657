"""Delayed batches of a queue that is on its way here: copies that nobody can release yet.

How it works. The source's delayed batches come by their ordinals, each as a COPY record, and are
kept under the same ordinals. Some are released or cancelled at the source after they were copied;
the slice of the sealed queue says which are left, and which of their rows. Exactly those become
delayed batches of this broker group when the queue is activated, in the order that they had.

A copy has no offset. Its broker header says -1, as that of the batch at the source does, and has
the ordinal in place of the term, which would say nothing in another group.

Invariants
1. Ordinals rise from copy to copy. So extents of one due time keep their order.
2. Copies are live records until the queue is activated or the move is given up.

Format. docs/formats/state.md, "Moves".

The source lists its delayed batches by ordinal once, as they are at that moment, and looks at each
again when it is its turn: `NumberedDelays`.

Not here: the steps of a move (`moves.py`), the order of delayed batches (`delays.py`).
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from semel.broker.state.apply.cancelled_rows import CancelledRows
from semel.broker.state.apply.codec import Part, Reader
from semel.broker.state.apply.delayed_extent import (
    DELAYED_EXTENT,
    EXTENT,
    DelayedExtent,
    DelayedPlace,
)
from semel.broker.state.apply.delayed_queue import DelayedQueue
from semel.broker.state.apply.moved_origins import Origins, origins_after
from semel.protos.batch import BrokerHeader
from semel.protos.errors import InvalidRequest
from semel.protos.ids import Offset, QueueKey, Term

COPIES: Final = struct.Struct("<QI")
_LOOKS_MAX: Final = 500
"""Batches that one page looks at, which takes some 30 ms."""
_SAME: Final = ("due_us", "ordinal", "length", "messages")


def header_of_copy(head: BrokerHeader, ordinal: int) -> BrokerHeader:
    """The broker header of the copy of a delayed batch."""
    return replace(head, base_offset=Offset(-1), term=Term(ordinal))


def ordinal_of_copy(head: BrokerHeader) -> int | None:
    """The ordinal in the header of a copy; None if it is the copy of a batch with offsets."""
    return head.term if head.base_offset == -1 else None


class DelayedCopies:
    """The copies of one queue."""

    __slots__ = ("_arrived", "below_ordinal", "queue")

    def __init__(self) -> None:
        self._arrived: tuple[DelayedQueue, Origins] | None = None
        """The answer of `arrived`, which is asked twice; it follows from the rest."""
        self.below_ordinal = 0
        """Batches with lower ordinals are here, unless they were gone when it was their turn."""
        self.queue = DelayedQueue()
        """May be empty."""

    def add(self, extent: DelayedExtent) -> InvalidRequest | None:
        """Adds the next copy. Returns why not, and changes nothing, if it came before."""
        if extent.ordinal < self.below_ordinal:
            return InvalidRequest(
                f"the copy of delayed batch {extent.ordinal} does not follow those below"
                f" {self.below_ordinal}"
            )
        self.queue.add(extent)
        self.below_ordinal = extent.ordinal + 1
        return None

    def arrived(
        self, wanted: DelayedQueue, origins: Origins
    ) -> tuple[DelayedQueue, Origins] | None:
        """What goes on to wait here if `wanted` waits at the source, and its origins; None if some
        of it is not here. `origins` are those that the source knows.

        Once it is not None, it is always asked about the same, and no more copies come.
        """
        if self._arrived is None and (left := self.left(wanted)) is not None:
            entries = wanted.table()["entry"], left.table()["entry"]
            self._arrived = left, origins_after(origins, *entries)
        return self._arrived

    def left(self, wanted: DelayedQueue) -> DelayedQueue | None:
        """The copies of the batches in `wanted`, with the rows cancelled that are cancelled there.

        None if some of them are not here. It takes over the cancelled rows of `wanted`.
        """
        theirs, mine = wanted.table(), self.queue.table()
        mine = mine[np.isin(mine["ordinal"], theirs["ordinal"])]
        if len(mine) != len(theirs) or any((mine[name] != theirs[name]).any() for name in _SAME):
            return None
        return DelayedQueue.of(mine.tobytes(), wanted.cancelled)

    def drop_below(self, ordinal_to: int, waiting: npt.NDArray[np.uint64]) -> None:
        """Drops the copies with ordinals below `ordinal_to` that are not among `waiting`."""
        table = self.queue.table()
        kept = (table["ordinal"] >= ordinal_to) | np.isin(table["ordinal"], waiting)
        if not kept.all():
            self.queue = DelayedQueue.of(table[kept].tobytes(), CancelledRows())

    def parts(self) -> list[Part]:
        """Canonical bytes."""
        head = COPIES.pack(self.below_ordinal, self.queue.batches)
        return [head, *self.queue.parts(cancelled=False)]

    @classmethod
    def read_parts(cls, reader: Reader) -> DelayedCopies:
        """The inverse of `parts`. Raises CorruptSegment."""
        copies = cls()
        copies.below_ordinal, batches = reader.unpack(COPIES)
        data = reader.take(batches * DELAYED_EXTENT.size)
        copies.queue = DelayedQueue.of(data, CancelledRows())
        return copies


class NumberedPage(NamedTuple):
    """Some delayed batches by rising ordinal."""

    extents: list[DelayedExtent]
    ordinal_to: int
    """The lowest ordinal that is not covered; the one asked for if there are no more."""
    bytes_left: int
    """Bytes of the batches from there on."""


class NumberedDelays(NamedTuple):
    """The delayed batches of a queue by rising ordinal, as of some moment."""

    key: QueueKey
    table: npt.NDArray[np.void]

    @classmethod
    def of(cls, key: QueueKey, table: npt.NDArray[np.void] | None) -> NumberedDelays:
        """Sorts the extents of a queue, which take a tenth of a second if they are a million."""
        if table is None:
            return cls(key, np.zeros(0, EXTENT))
        return cls(key, table[np.argsort(table["ordinal"])])

    def reaches(self, ordinal: int) -> bool:
        """Whether it has a batch with this ordinal or a higher one."""
        return len(self.table) > 0 and int(self.table["ordinal"][-1]) >= ordinal

    def page(self, queue: DelayedQueue | None, ordinal: int, bytes_max: int) -> NumberedPage:
        """The batches from `ordinal` on that `queue` still has, with at most `bytes_max` bytes, or
        one batch."""
        ordinals, found, size = self.table["ordinal"], list[DelayedExtent](), 0
        start = at = int(np.searchsorted(ordinals, np.uint64(ordinal)))
        while at < min(len(ordinals), start + _LOOKS_MAX):
            extent = DelayedExtent(*self.table[at].tolist())
            place = DelayedPlace(extent.due_us, extent.ordinal)
            if queue is not None and queue.find(place) is not None:
                size += extent.length
                if found and size > bytes_max:
                    break
                found.append(extent)
            at += 1
        covered = int(ordinals[at - 1]) + 1 if at > start else ordinal
        return NumberedPage(found, covered, int(self.table["length"][at:].sum(dtype=np.int64)))
