"""Places of messages whose ids are in the index: in which queue, and at which offset.

How it works. The messages of a batch arrive one after the other and get one offset after the other.
So one *place* serves a stretch of arrivals: the first arrival, the queue, and the offset of the
first message. A stretch ends where the next one begins. Messages that were delayed have no offset
when they arrive; the place of such a stretch says when they are due, and in which entry of the log
they are: the message can be found by both, before it is delivered and after.

Invariants
1. Arrivals rise strictly within a block, and from block to block.

Not here: places on disk (`id_runs.py`).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from semel.broker.dedup.fingerprints import U64
from semel.broker.dedup.id_store import CorruptIndex

PLACE_COLUMNS: Final = 3
"""First arrival; queue; offset. Without an offset: first arrival; queue, DELAYED and the entry in
one number; due time."""
PLACE_BYTES: Final = 8 * PLACE_COLUMNS
DELAYED: Final = 1 << 32
ENTRY_AT: Final = DELAYED << 1
ENTRY_MASK: Final = (1 << 31) - 1
"""The part of an entry's number that is kept: what is found by it has to be compared anyway."""


class Found(NamedTuple):
    """Where messages are, one row for each."""

    queues: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    """-1 for messages that were delayed."""
    dues: npt.NDArray[np.int64]
    """Microseconds; 0 for messages that were not delayed."""
    entries: npt.NDArray[np.int64]
    """ENTRY_MASK of the number of the entry that holds a delayed message; 0 for others."""

    @classmethod
    def none(cls) -> Found:
        """No message."""
        return _NOT_FOUND

    def take(self, chosen: Any) -> Found:
        """Those that `chosen` names, places or one truth for each."""
        return Found(*(column[chosen] for column in self))

    def then(self, others: Found) -> Found:
        """These, and then others."""
        return Found(*(np.concatenate(pair) for pair in zip(self, others, strict=True)))


_NOT_FOUND: Final = Found(*(np.zeros(0, np.int64) for _ in Found._fields))


class Places:
    """An immutable block of stretches."""

    __slots__ = ("columns",)

    def __init__(self, columns: U64) -> None:
        """Takes a matrix of PLACE_COLUMNS by stretches, in the order of the first column."""
        self.columns = columns

    def __len__(self) -> int:
        return int(self.columns.shape[1])

    @classmethod
    def none(cls) -> Places:
        """No stretch."""
        return cls(np.zeros((PLACE_COLUMNS, 0), np.uint64))

    @classmethod
    def of(
        cls,
        first_arrival: int,
        queue_id: int,
        base_offset: int,
        rows: npt.NDArray[np.int64],
        due_us: int = 0,
        entry: int = 0,
    ) -> Places:
        """The stretches of a batch's messages with ids.

        `rows` are their rows among those of the batch that are stored, in rising order; others
        have no ids. The message of row 0 has the offset `base_offset`, or is due at `due_us` and
        stored in the log's entry `entry`.
        """
        queue = queue_id + (DELAYED + (entry & ENTRY_MASK) * ENTRY_AT if due_us else 0)
        count = len(rows)
        if count and (first := int(rows[0])) + count - 1 == int(rows[-1]):  # as nearly always
            number = due_us or first + base_offset
            return cls(np.array([[first_arrival], [queue], [number]], np.uint64))
        starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
        columns = np.empty((PLACE_COLUMNS, len(starts)), np.uint64)
        columns[0] = starts.astype(np.uint64) + np.uint64(first_arrival)
        columns[1] = queue
        columns[2] = due_us or (rows[starts] + base_offset).astype(np.uint64)
        return cls(columns)

    @classmethod
    def joined(cls, blocks: list[Places]) -> Places:
        """One block of all, which follow each other."""
        return cls(np.concatenate([block.columns for block in blocks], axis=1))

    def below(self, arrival: int) -> Places:
        """Those that begin below `arrival`."""
        at = int(np.searchsorted(self.columns[0], np.uint64(arrival)))
        return Places(self.columns[:, :at])

    def since(self, arrival: int) -> Places:
        """Those that are needed for arrivals from `arrival` on."""
        at = int(np.searchsorted(self.columns[0], np.uint64(arrival), side="right"))
        return Places(self.columns[:, max(0, at - 1) :])

    def cut(self, arrivals: range) -> Places:
        """The stretches of these arrivals alone."""
        columns = self.below(arrivals.stop).since(arrivals.start).columns.copy()
        start = np.uint64(arrivals.start)
        if columns.shape[1] and columns[0, 0] < start:
            if columns[1, 0] < DELAYED:
                columns[2, 0] += start - columns[0, 0]
            columns[0, 0] = start
        return Places(columns)

    def find(self, arrivals: U64) -> Found:
        """Where the messages with these arrivals are. Raises CorruptIndex for one before all."""
        at = np.searchsorted(self.columns[0], arrivals, side="right") - 1
        if len(at) and at.min() < 0:
            raise CorruptIndex(f"no place is known for the id that arrived as {arrivals.min()}")
        first, queues, numbers = self.columns[:, at]
        delayed = queues >= np.uint64(DELAYED)
        values = numbers.astype(np.int64)
        offsets = values + (arrivals - first).astype(np.int64)
        return Found(
            (queues & np.uint64(DELAYED - 1)).astype(np.int64),
            np.where(delayed, -1, offsets),
            np.where(delayed, values, 0),
            (queues // np.uint64(ENTRY_AT)).astype(np.int64),
        )
