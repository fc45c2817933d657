"""A run of extents with the batches that take the places of some of them.

How it works. The stored batches of a queue come one after the other, each with the extent that it
belongs to. Of each the messages go of whose keys there are newer ones, and old tombstones. A batch
that loses nothing stays where it is, without a copy. One that loses some is made anew; one that
loses all goes, and the batch before stands for its offsets, too, if that is made anew. Otherwise a
mark without messages takes its place.

Invariants
1. The batches and spans of a run cover exactly its offsets, in their order.
2. Only a batch that the run makes anew gets a larger span: what stays is not touched.

Not here: how a run is applied (`state/apply/compacted.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from semel.broker.compaction.newest import NewestOffsets, valued
from semel.broker.state import GONE, STAYS, Extent
from semel.protos.batch import BROKER_HEADER_BYTES, BatchFlags, check_batch
from semel.protos.columns import decode_columns
from semel.protos.compacted_rows import compact_rows, gap_mark, offsets_of_rows

SPAN_MAX: Final = (1 << 32) - 1
PIECES_MAX: Final = STAYS - 1
NO_OFFSET: Final = -1


@dataclass(frozen=True, slots=True)
class CompactedBatch:
    """A batch that takes the place of another one, or of a part of it."""

    base_offset: int
    span: int
    append_time_us: int
    batch: bytes


@dataclass(frozen=True, slots=True)
class CompactedRun:
    """What a COMPACT record says of a run, and the batches in front of it."""

    from_offset: int
    to_offset: int
    fates: bytes
    batches: tuple[CompactedBatch, ...]

    @property
    def changes(self) -> bool:
        """Whether anything goes."""
        return bool(self.fates.strip(bytes([STAYS])))


class RunBuilder:
    """Takes the extents of a run in their order."""

    def __init__(self, newest: NewestOffsets, tombstones_below: int) -> None:
        """`newest` has the keys of all messages from where the last pass ended to where this one
        ends; tombstones below an offset go."""
        self._newest = newest
        self._tombstones_below = tombstones_below
        self._fates = bytearray()
        self._made: list[tuple[int, int, bytes]] = []
        """Base offset, append time and bytes of each batch that is made anew."""
        self._starts: list[int] = []
        """Where the extents of the new run begin."""
        self._mark: tuple[Extent, bytes] | None = None
        """The last extent if it is a mark that stays, so far."""
        self._from = self._to = NO_OFFSET
        self.made_bytes = 0
        self.tombstones = 0
        """How many tombstones stay."""

    def add(self, extent: Extent, stored: bytes) -> None:
        """Takes the next extent with its stored batch. Raises CorruptBatch."""
        if self._from == NO_OFFSET:
            self._from = extent.base_offset
        self._to = extent.base_offset + extent.count
        data = stored[BROKER_HEADER_BYTES:]
        header = check_batch(data)
        if header.flags & BatchFlags.POSITION_MARK:
            if not self._goes(extent):
                self._stays(extent)
                self._mark = extent, stored
            return
        columns = decode_columns(data, header)
        offsets = offsets_of_rows(columns, extent.base_offset, extent.first_row, extent.count)
        inside = offsets >= 0
        has_value = valued(columns)
        kept = inside & (self._newest.of(columns) <= offsets)
        kept &= has_value | (offsets >= self._tombstones_below)
        self.tombstones += int(np.count_nonzero(kept & ~has_value))
        if kept.any() and (kept == inside).all():
            self._stays(extent)
            return
        pieces = compact_rows(header, columns, offsets, kept)
        if not pieces and self._goes(extent):
            return
        self._mark = None
        assert len(pieces) <= PIECES_MAX, "a batch of at most 8 MiB is not halved so often"
        made = pieces or [(extent.base_offset, gap_mark(header))]
        self._fates.append(len(made))
        for number, (first_offset, batch) in enumerate(made):
            base = first_offset if number else extent.base_offset
            self._starts.append(base)
            self._made.append((base, extent.append_time_us, batch))
            self.made_bytes += len(batch)

    def _goes(self, extent: Extent) -> bool:
        """Lets the batch before stand for the offsets of this one; False if that stays as it is.

        A mark that would stay is made anew for it, so marks do not stand side by side.
        """
        base = self._starts[-1] if self._starts else NO_OFFSET
        if base == NO_OFFSET or extent.base_offset + extent.count - base > SPAN_MAX:
            return False
        if self._mark is not None:
            mark, stored = self._mark
            self._made.append((base, mark.append_time_us, stored[BROKER_HEADER_BYTES:]))
            self._fates[-1], self._mark = 1, None
        elif not self._made or self._made[-1][0] != base:
            return False
        self._fates.append(GONE)
        return True

    def _stays(self, extent: Extent) -> None:
        self._mark = None
        self._fates.append(STAYS)
        self._starts.append(extent.base_offset)

    def __len__(self) -> int:
        return len(self._fates)

    def finish(self) -> CompactedRun:
        """The run of all extents that were added."""
        ends = dict(zip(self._starts, [*self._starts[1:], self._to], strict=True))
        batches = tuple(
            CompactedBatch(base, ends[base] - base, time_us, batch)
            for base, time_us, batch in self._made
        )
        return CompactedRun(self._from, self._to, bytes(self._fates), batches)
