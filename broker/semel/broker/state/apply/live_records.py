"""Which records are live, for whoever needs very many of them: 16 bytes each, and no objects.

How it works. What numpy can take out of the packed extents of queues and of delayed batches becomes
columns at once. `State.live_records` yields the same records one by one.

Not here: whose they are (`State.live_table`), what the log does with them (`semel.broker.log`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from semel.broker.state.apply.delayed_extent import Rows
from semel.broker.state.apply.extents import I64
from semel.broker.state.apply.lost_offsets import RECORD_BYTES
from semel.broker.state.apply.queues import QueueState

_AT_ONCE: Final = 4_096
_LENGTH_MASK: Final = 0xFFFFFFFF

Column = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class LiveRecords:
    """Some live records, by index and position."""

    indexes: I64
    positions: Column
    lengths: Column
    """Lengths of the payloads."""

    def __len__(self) -> int:
        return len(self.indexes)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """(index, position, length) of each, made as they are asked for."""
        for at in range(0, len(self), _AT_ONCE):
            columns = (self.indexes, self.positions, self.lengths)
            yield from zip(*(each[at : at + _AT_ONCE].tolist() for each in columns), strict=True)

    def between(self, lo_index: int, hi_index: int) -> LiveRecords:
        """Those in entries `[lo_index, hi_index)`."""
        lo, hi = np.searchsorted(self.indexes, [lo_index, hi_index])
        return LiveRecords(self.indexes[lo:hi], self.positions[lo:hi], self.lengths[lo:hi])

    def holds(self, index: int, position: int) -> bool:
        """Whether the record at that place is one of them."""
        there = self.between(index, index + 1).positions
        at = int(np.searchsorted(there, position))
        return at < len(there) and int(there[at]) == position

    @classmethod
    def of(
        cls,
        queues: Iterable[QueueState],
        staged: Iterable[tuple[int, int, int]],
        delayed: Iterable[Rows],
        lo_index: int,
        hi_index: int,
    ) -> LiveRecords:
        """Those of queues in entries `[lo_index, hi_index)`, and those of other batches, all of
        which are in such entries."""
        found: list[tuple[Column, Column, Column]] = [_columns(np.empty((0, 3), np.int64))]
        for queue in queues:
            indexes, places = queue.extents.live_places(lo_index, hi_index)
            lengths = places & _LENGTH_MASK
            if queue.in_memory:
                lengths = np.full_like(lengths, RECORD_BYTES)
            found.append(_columns(np.stack([indexes, places >> 32, lengths], axis=1)))
        found.append(_columns(np.array(list(staged), np.int64).reshape(-1, 3)))
        found += [(rows["entry"], rows["position"], rows["length"]) for rows in delayed]
        columns = [np.concatenate(column) for column in zip(*found, strict=True)]
        order = np.lexsort((columns[1], columns[0]))
        return cls(*(column[order] for column in columns))


def _columns(table: I64) -> tuple[Column, Column, Column]:
    return table[:, 0], table[:, 1].astype(np.uint32), table[:, 2].astype(np.uint32)
