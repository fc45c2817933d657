"""Ids of messages in the order of their keys: an immutable block, and how blocks are merged.

An id is four numbers: both halves of its key, the digest of its message, and its *arrival*, the
number of the message among all that the window of the topic has ever taken in. Arrivals rise with
the log, so a window that begins at an arrival says of each id whether it is inside.

Invariants
1. The first halves of the keys never fall within a block.
2. Two ids of one key that are both in the window do not exist; an older one is outside of it.

Not here: blocks on disk (`id_runs.py`).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from semel.broker.dedup.fingerprints import U64

ID_COLUMNS: Final = 4
"""First half of the key, second half, digest, arrival."""
ID_BYTES: Final = 8 * ID_COLUMNS


_AT_ONCE: Final = 1 << 16
_EQUAL_MAX: Final = 64
"""Neighbours whose upper bits are equal, beyond which all rows are sorted again."""


def order_of(first: U64) -> npt.NDArray[np.int64]:
    """The rows of `first` in the order of their numbers, which are spread evenly over 64 bits.

    Numbers are sorted with their rows in place of their lowest bits, in a quarter of the time that
    argsort() takes; the few that differ only in these bits are put in order then.
    """
    rows: npt.NDArray[np.int64]
    mask = np.uint64((1 << max(1, (len(first) - 1).bit_length())) - 1)
    packed = first & ~mask
    for start in range(0, len(first), _AT_ONCE):
        part = packed[start : start + _AT_ONCE]
        part |= np.arange(start, start + len(part), dtype=np.uint64)
    packed.sort()
    equal = []
    for start in range(0, len(first), _AT_ONCE):
        part = packed[start : start + _AT_ONCE + 1] | mask
        equal += (np.flatnonzero(part[1:] == part[:-1]) + start).tolist()
        if len(equal) > _EQUAL_MAX:
            return np.argsort(first)
    packed &= mask
    rows = packed.view(np.int64)
    while equal:  # a stretch of rows whose upper bits are equal
        start = end = equal.pop(0)
        while equal and equal[0] == end + 1:
            end = equal.pop(0)
        some = rows[start : end + 2]
        some[:] = some[np.argsort(first[some])]
    return rows


class Hits(NamedTuple):
    """Rows of a look-up that were found, by rising row, with what the index knows of them."""

    rows: npt.NDArray[np.int64]
    digests: U64
    arrivals: U64

    @classmethod
    def none(cls) -> Hits:
        """No row was found."""
        return _NO_HITS

    def take(self, chosen: Any) -> Hits:
        """Those that `chosen` names, places or one truth for each."""
        return Hits(self.rows[chosen], self.digests[chosen], self.arrivals[chosen])

    def then(self, others: Hits) -> Hits:
        """These, and then others."""
        return Hits(
            np.concatenate([self.rows, others.rows]),
            np.concatenate([self.digests, others.digests]),
            np.concatenate([self.arrivals, others.arrivals]),
        )

    @classmethod
    def joined(cls, parts: list[Hits]) -> Hits:
        """All parts as one; of a row that several have found, the latest arrival counts."""
        parts = [part for part in parts if len(part.rows)]
        if len(parts) < 2:
            return parts[0] if parts else cls.none()
        return cls.newest(parts)

    @classmethod
    def newest(cls, parts: list[Hits]) -> Hits:
        """The same of parts whose rows need not rise, or may occur more than once."""
        rows, digests, arrivals = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        order = np.lexsort((arrivals, rows))
        rows = rows[order]
        last = np.append(rows[1:] != rows[:-1], True)[: len(rows)]
        order = order[last]
        return cls(rows[last], digests[order], arrivals[order])


_NO_HITS: Final = Hits(np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.uint64))


class SortedIds:
    """One block of ids."""

    __slots__ = ("columns",)

    def __init__(self, columns: U64) -> None:
        """Takes a matrix of ID_COLUMNS by ids, in the order of the first column."""
        self.columns = columns

    def __len__(self) -> int:
        return int(self.columns.shape[1])

    @classmethod
    def merged(cls, blocks: list[SortedIds], first_arrival: int) -> SortedIds:
        """One block of the ids that arrived at `first_arrival` or later."""
        columns = np.concatenate([block.columns for block in blocks], axis=1)
        alive = columns[3] >= np.uint64(first_arrival)
        if not alive.all():
            columns = np.compress(alive, columns, axis=1)
        # Unlike columns[:, order], take() copies row by row: seven times as fast.
        return cls(np.take(columns, order_of(columns[0]), axis=1))

    def cut(self, key_end: int) -> tuple[SortedIds, SortedIds]:
        """The ids whose first half is below `key_end`, and the others."""
        if key_end >= 1 << 64:
            return self, SortedIds(self.columns[:, :0])
        at = int(np.searchsorted(self.columns[0], np.uint64(key_end)))
        return SortedIds(self.columns[:, :at]), SortedIds(self.columns[:, at:])

    def find(self, keys: U64, first_arrival: int) -> Hits:
        """The rows of `keys` that the block has, if they arrived at `first_arrival` or later."""
        rows, places = np.arange(len(keys)), np.searchsorted(self.columns[0], keys[:, 0])
        # Equal first halves of different keys stand side by side, and hardly ever are there any.
        parts = []
        first, second, digests, arrivals = self.columns
        while len(rows):
            inside = places < len(first)
            rows, places = rows[inside], places[inside]
            equal = first[places] == keys[rows, 0]
            rows, places = rows[equal], places[equal]
            found = (second[places] == keys[rows, 1]) & (
                arrivals[places] >= np.uint64(first_arrival)
            )
            parts.append(Hits(rows[found], digests[places[found]], arrivals[places[found]]))
            places = places + 1
        return Hits.joined(parts)
