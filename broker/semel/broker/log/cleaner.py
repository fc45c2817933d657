"""Cleaning (what the Raft paper calls log compaction): old segments go, live records stay.

How it works. The cleaner takes one segment at a time, oldest first. It copies the live records to a
kept file and makes that durable; only then does the log's first index advance past the segment (in
the owner's thread, which reads the index without a lock) and the segment's file become a spare.

Crash cases. After the copy and before the rename, a record exists twice, with the same bytes: in
the kept file and in the segment, which is still the oldest one and is compacted again.

Invariants
1. A live record is readable at every moment, from its segment or from a kept file.
2. The remaining segments are always consecutive: each removal is durable before the next.

Not here: which records are live, and how far compaction goes (the node's retention).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby

from semel.broker.log.owner import Owner
from semel.broker.log.reader import record_of
from semel.broker.log.segment import Segment
from semel.broker.log.store import Store
from semel.broker.log.types import RecordRef

Keep = Callable[[int, int], Iterable[RecordRef]]


class Cleaner:
    """Compacts one log directory. Callers make one call at a time."""

    def __init__(self, store: Store, owner: Owner) -> None:
        self._store = store
        self._owner = owner

    def compact(self, upto_index: int, keep: Keep) -> int:
        """BLOCKING. Removes whole segments with last index < upto_index; returns the new first
        index.

        Raises DiskFull, and DamagedEntry when a live record cannot be read. In both cases the work
        done so far stands.
        """
        store = self._store
        index = store.index
        upto_index = min(upto_index, store.checkpoints.compact_limit + 1)
        store.keeper.drain()  # No seal may be written into a file that becomes a spare.
        while len(index.segments) > 1 and index.segments[0].end_index <= upto_index:
            segment = index.segments[0]
            assert segment.sealed
            store.kept.add(self._live(keep(segment.first_index, segment.end_index)))
            self._owner.run(partial(self._drop, segment))
            path = store.directory / segment.file_name
            with store.open_files.forgetting(path):
                store.keeper.give(path)
        return index.first_index

    def _drop(self, segment: Segment) -> None:
        """The log begins after `segment` from now on."""
        store = self._store
        with store.lock:
            store.index.drop_before(segment)
            for one in [one for one in store.damaged if one < store.index.first_index]:
                del store.damaged[one]

    def _live(self, refs: Iterable[RecordRef]) -> Iterator[tuple[RecordRef, bytes]]:
        """Yields the records that are not in a kept file yet, frame by frame."""
        kept = self._store.kept
        missing = sorted(ref for ref in refs if not kept.has(ref.index, ref.position))
        for index, group in groupby(missing, key=lambda ref: ref.index):
            frame = self._store.reader.frames(index, index + 1)[0]
            for ref in group:
                yield ref, bytes(record_of(frame, ref.position, ref.length))
