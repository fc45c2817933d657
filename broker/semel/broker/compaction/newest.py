"""The newest offset of each key in the part of a queue that is compacted next.

How it works. A key is represented by a fingerprint of 128 bits under a secret seed
(`dedup/fingerprints.py`): two different keys have the same one with a probability of 2^-128.
Batches are added in the order of their offsets, and sorted with numpy when enough have come; of
each fingerprint the highest offset stays. 24 bytes a key, and nothing is done for a single message.

Invariants
1. `of` never returns an offset of another key, but for a collision.

Not here: what becomes of the messages (`runs.py`).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semel.broker.dedup.fingerprints import U64, Fingerprints
from semel.protos.columns import Columns

Offsets = npt.NDArray[np.int64]

PENDING_MAX: Final = 1 << 18
"""Messages that are added before they are sorted in."""
NONE: Final = -1


class NewestOffsets:
    """A table from keys to offsets."""

    def __init__(self, seed: bytes, keys_max: int) -> None:
        """`seed` are 16 random bytes. The table is full when it has `keys_max` keys."""
        self._prints = Fingerprints(seed)
        self._keys_max = keys_max
        self._upper: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._lower: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._offsets: Offsets = np.zeros(0, np.int64)
        self._pending: list[tuple[U64, Offsets]] = []
        self._pending_rows = 0
        self._added = 0

    @property
    def older(self) -> int:
        """How many of the messages that were added have a newer one of their key."""
        self._settle()
        return self._added - len(self._offsets)

    @property
    def full(self) -> bool:
        """No more may be added."""
        if len(self._offsets) + self._pending_rows >= self._keys_max:
            self._settle()
        return len(self._offsets) >= self._keys_max

    def add(self, columns: Columns, offsets: Offsets) -> None:
        """Adds the messages of a batch that have keys and an offset of 0 or above."""
        if columns.keys is None:
            return
        chosen = (offsets >= 0) & keyed(columns)
        if not chosen.any():
            return
        prints = self._prints.any_keys(columns.keys)[chosen]
        self._pending.append((prints, offsets[chosen]))
        self._pending_rows += len(prints)
        self._added += len(prints)
        if self._pending_rows >= PENDING_MAX:
            self._settle()

    def _settle(self) -> None:
        if not self._pending:
            return
        prints = np.concatenate([each for each, _ in self._pending])
        upper = np.concatenate([self._upper, prints[:, 0]])
        lower = np.concatenate([self._lower, prints[:, 1]])
        offsets = np.concatenate([self._offsets, *(each for _, each in self._pending)])
        self._pending, self._pending_rows = [], 0
        order = np.lexsort((offsets, lower, upper))
        upper, lower, offsets = upper[order], lower[order], offsets[order]
        # The last of each key has its highest offset.
        last = np.ones(len(order), np.bool_)
        last[:-1] = (upper[1:] != upper[:-1]) | (lower[1:] != lower[:-1])
        self._upper, self._lower, self._offsets = upper[last], lower[last], offsets[last]

    def of(self, columns: Columns) -> Offsets:
        """The newest offset of each message's key; -1 without a key, or for one that was not
        added."""
        self._settle()
        found = np.full(len(columns), NONE, np.int64)
        if columns.keys is None or not len(self._offsets):
            return found
        prints = self._prints.any_keys(columns.keys)
        upper, lower = prints[:, 0], prints[:, 1]
        start = np.searchsorted(self._upper, upper, side="left")
        end = np.searchsorted(self._upper, upper, side="right")
        # Keys that agree in the upper half stand side by side; there is hardly ever more than one.
        for step in range(int((end - start).max(initial=0))):
            at = np.minimum(start + step, len(self._offsets) - 1)
            hit: Any = (start + step < end) & (self._lower[at] == lower)
            found[hit] = self._offsets[at[hit]]
        found[~keyed(columns)] = NONE
        return found


def keyed(columns: Columns) -> npt.NDArray[np.bool_]:
    """Which messages have a key."""
    return _valid(columns.keys, len(columns))


def valued(columns: Columns) -> npt.NDArray[np.bool_]:
    """Which messages have a value; the others are tombstones."""
    return _valid(columns.values, len(columns))


def _valid(column: pa.Array | None, count: int) -> npt.NDArray[np.bool_]:
    if column is None:
        return np.zeros(count, np.bool_)
    if not column.null_count:
        return np.ones(count, np.bool_)
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)
