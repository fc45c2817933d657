"""Bugs of compaction to plant; the simulator must find each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from semel.broker.compaction import newest, runs
from semel.broker.state.apply import compacted
from semel.protos import compacted_rows


@contextmanager
def keeps_the_oldest() -> Iterator[None]:
    """The table has the first offset of each key, so the newer messages seem to be the old ones."""
    of = newest.NewestOffsets.of

    def oldest(self: Any, columns: Any) -> Any:
        found = of(self, columns)
        return np.where(found >= 0, np.iinfo(np.int64).max - found, found)

    with patch.object(newest.NewestOffsets, "of", oldest):
        yield


@contextmanager
def believes_what_is_not_there() -> Iterator[None]:
    """The table has a newer message beyond the end of the pass, which may never be stored."""
    of = newest.NewestOffsets.of

    def later(self: Any, columns: Any) -> Any:
        found = of(self, columns)
        return np.where(found == found.max(initial=0), found + 1, found)

    with patch.object(newest.NewestOffsets, "of", later):
        yield


@contextmanager
def removes_tombstones_at_once() -> Iterator[None]:
    """With the messages that they hide, so a reader between the two never hears of them."""

    def horizon(self: Any, now_us: int, tombstone_ms: int) -> int:
        return int(self.compacted_to)

    with patch.object(compacted.Compaction, "horizon", horizon):
        yield


@contextmanager
def shifts_offsets() -> Iterator[None]:
    """The last message of a batch that is made anew gets the offset of one that goes."""
    encoded = compacted_rows.compact_rows

    def shifted(header: Any, columns: Any, offsets: Any, kept: Any) -> Any:
        rows = np.flatnonzero(kept)
        if len(rows) and rows[-1] + 1 < len(kept) and offsets[rows[-1] + 1] >= 0:
            offsets = offsets.copy()
            offsets[rows[-1]] += 1
        return encoded(header, columns, offsets, kept)

    with patch.object(runs, "compact_rows", shifted):
        yield
