"""The segment that takes what is written: its file, how far it is written, how far durable.

How it works. Frames for one segment become one vectored write, their IDs another; a sync makes both
durable. Either the writer's thread does all that, or the event loop writes and the kernel syncs: it
is the same file and the same count, which one of them has at a time (`writer.py`).

Invariants
1. Frames are written before their IDs, so that a killed process leaves no ID without its frame.
2. A roll first syncs the old segment, then gives the new one its file, so that a segment's
   existence proves that everything before it is durable.
3. What a node writes that serves nobody does not stay in the page cache (`page_cached`).

Not here: who writes and when (`writer.py`), where frames go (`index.py`), files (`keeper.py`).
"""

from __future__ import annotations

import time
from typing import Final, Protocol

from semel.broker.log.files import File
from semel.broker.log.index import Retired, Roll, Write
from semel.broker.log.segment import ID_BYTES, IDS_AT, LAG_MAX, Segment, encode_id
from semel.protos.metrics import Histogram

_DROP_BYTES: Final = 4 << 20
"""So much is written between two hints to the page cache."""


class SegmentFiles(Protocol):
    """What is needed of the keeper."""

    def activate(self, segment: Segment) -> File: ...

    def retire(
        self, file: File | None, retired: Retired | None, void: tuple[Segment, ...]
    ) -> None: ...


class ActiveSegment:
    """Whoever may write calls it, one at a time."""

    def __init__(self, keeper: SegmentFiles, durable_index: int) -> None:
        self._keeper = keeper
        self.segment: Segment | None = None
        """None, like `file`, before the first roll."""
        self.file: File | None = None
        self.durable_index = durable_index
        self.written_index = durable_index
        self.dirty_since: float | None = None
        """When the oldest write was made that is not synced."""
        self.page_cached = True
        """Whether what is written from now on is left in the page cache; any thread may set it."""
        self._written_to = self._dropped_to = 0
        """Of the file: the end of the last write, and of what was dropped from the page cache."""
        self.syncs = 0
        self.sync_seconds = Histogram()
        """Of the syncs that succeeded."""
        self.rolls = 0
        self.written_bytes = 0

    def write(self, writes: list[Write]) -> None:
        """Writes of this segment: a truncation or a full segment has put a roll in between."""
        if not writes:
            return
        file, segment = self.file, self.segment
        assert file is not None and segment is not None
        seed = segment.seed
        position = writes[0].position
        index = writes[0].first_index
        durable = self.durable_index
        parts: list[bytes] = []
        ids: list[bytes] = []
        at = position
        first = index
        for write in writes:
            assert write.segment is segment
            assert (write.first_index, write.position) == (index, at)
            for frame, term in zip(write.frames, write.terms, strict=True):
                length = len(frame)
                ids.append(encode_id(index, term, at, length, min(index - durable, LAG_MAX), seed))
                index += 1
                at += length
            parts += write.frames
        file.write(parts, position)
        file.write([b"".join(ids)], IDS_AT + (first - segment.first_index) * ID_BYTES)
        self.written_bytes += at - position
        self._written_to = at
        self.written_index = index - 1
        if self.dirty_since is None:
            self.dirty_since = time.monotonic()

    def sync(self) -> None:
        """BLOCKING. Makes durable what is written."""
        if self.dirty_since is not None:
            assert self.file is not None
            began = time.monotonic()
            self.file.sync()
            self.on_synced(began)
        if self.drop_due:
            self._drop()

    def on_synced(self, began: float) -> None:
        """A sync that began then, after the last write, has succeeded."""
        self.sync_seconds.observe(time.monotonic() - began)
        self.syncs += 1
        self.dirty_since = None
        self.durable_index = self.written_index

    @property
    def drop_due(self) -> bool:
        """The page cache is to get a hint with the next sync."""
        return self._written_to - self._dropped_to >= _DROP_BYTES

    def _drop(self) -> None:
        """Takes what is durable out of the page cache, unless somebody reads here."""
        if not self.page_cached and self.file is not None:
            self.file.drop_cached(self._dropped_to, self._written_to - self._dropped_to)
        self._dropped_to = self._written_to

    def roll(self, roll: Roll) -> None:
        """BLOCKING. Syncs, and goes on in the next segment."""
        self.sync()
        self._drop()
        old = self.file
        self.file = self._keeper.activate(roll.segment)
        self.segment = roll.segment
        self.durable_index = self.written_index = roll.segment.first_index - 1
        self._written_to = self._dropped_to = roll.segment.header.frames_at
        self._keeper.retire(old, roll.retired, roll.void)
        self.rolls += 1

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
