"""Copies of runs: a node that has lost ids gets them from the runs of a peer, piece by piece.

How it works. A peer's run is read as *pieces*: first the ids, many chunks at a time, then their
places. The node that lacks ids takes from them what it lacks, and makes a run of its own. The run
covers the arrivals from the first missing one to the end of the peer's run, or of the gap.

Invariants
1. A copy belongs to the index only once it is whole: each arrival that the peer still has is there.
2. Pieces of ids come in the order of their keys, and no key is in two of them.

Not here: the calls between nodes (`snapshots/id_pull.py`, `snapshots/snapshot_service.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from semel.broker.dedup.id_index import READ_CHUNKS, IdIndex, level_of
from semel.broker.dedup.id_places import PLACE_BYTES, PLACE_COLUMNS, Places
from semel.broker.dedup.id_runs import IdRun
from semel.broker.dedup.id_store import CorruptIndex
from semel.broker.dedup.sorted_ids import ID_BYTES, ID_COLUMNS, SortedIds

PIECE_CHUNKS: Final = READ_CHUNKS
PIECE_PARTS: Final = 128


class Piece(NamedTuple):
    """Part of a run; either has bytes."""

    ids: bytes
    places: bytes


def pieces(run: IdRun, first_arrival: int) -> Iterator[Piece]:
    """Reads a run, of whose places only those from `first_arrival` on. BLOCKING.

    Raises CorruptIndex and OSError.
    """
    for start in range(0, run.info.chunks, PIECE_CHUNKS):
        chunks = range(start, min(start + PIECE_CHUNKS, run.info.chunks))
        yield Piece(run.block(chunks).columns.tobytes(), b"")
    parts = run.parts_since(first_arrival)
    for start in range(parts.start, parts.stop, PIECE_PARTS):
        some = range(start, min(start + PIECE_PARTS, parts.stop))
        yield Piece(b"", run.places(some).columns.tobytes())


class RunCopy:
    """A run in the making, of which a peer gives the pieces. All methods may block."""

    def __init__(self, index: IdIndex, missing: range, *, ids: int, held: range) -> None:
        """Begins a copy of a peer's run with `ids` ids, for the arrivals that the index lacks.

        The peer has those of `held`: its window or its run may begin above the first missing one.
        """
        self._index = index
        self._arrivals = range(missing.start, min(missing.stop, held.stop))
        self._held_first = max(held.start, missing.start)
        self._held = 0
        self.ids = 0
        """Ids that were taken so far."""
        self._writer = index.begin_copy(min(ids, len(self._arrivals)))

    def add(self, piece: Piece) -> None:
        """Takes what is missing. Raises CorruptIndex and OSError."""
        self._check()
        if len(piece.ids) % ID_BYTES or len(piece.places) % PLACE_BYTES:
            raise CorruptIndex(f"a piece has {len(piece.ids)} and {len(piece.places)} bytes")
        if piece.ids:
            columns = np.frombuffer(piece.ids, "<u8").reshape(ID_COLUMNS, -1)
            arrivals = columns[3]
            wanted = (arrivals >= np.uint64(self._arrivals.start)) & (
                arrivals < np.uint64(self._arrivals.stop)
            )
            self._held += int(np.count_nonzero(wanted & (arrivals >= np.uint64(self._held_first))))
            block = SortedIds(np.compress(wanted, columns, axis=1))
            self.ids += len(block)
            self._writer.add(block)
        if piece.places:
            columns = np.frombuffer(piece.places, "<u8").reshape(PLACE_COLUMNS, -1)
            self._writer.add_places(Places(columns).cut(self._arrivals))

    def finish(self) -> None:
        """Gives the run to the index. Raises CorruptIndex if ids are missing in it, and OSError."""
        self._check()
        wanted = self._arrivals.stop - self._held_first
        if self._held != wanted:
            raise CorruptIndex(f"a peer gave {self._held} ids of {wanted}")
        run = self._writer.finish(level_of(self.ids), self._arrivals.start, self._arrivals.stop)
        self._index.adopt(run)

    def _check(self) -> None:
        """Raises CorruptIndex if the index is abandoned: another one may have a run of that number
        by now."""
        if self._index.is_abandoned:
            raise CorruptIndex("the index that lacked the ids is no longer used")
