"""The active segment, which takes new frames: its file, and how far it is written and durable.

How it works. The frames for one segment are written by one vectored write, and their IDs by
another; one sync makes both durable. Either the writer's thread does all of this, or the event loop
writes and the kernel syncs. Both use the same file and the same counts, one of them at a time
(`writer.py`).

Invariants
1. Frames are written before their IDs, so that a killed process leaves no ID without its frame.
2. A roll first syncs the old segment and then gives the new one its file, so that the existence of
   a segment proves that everything before it is durable.
3. While no reader on this node uses the written bytes (`page_cached` is false), they do not stay in
   the page cache.

Not here: who writes and when (`log/writer.py`), where frames go (`log/index.py`), files
(`log/keeper.py`).
"""

from __future__ import annotations

import time
from typing import Final, Protocol

from semel.broker.log.files import File
from semel.broker.log.index import Retired, Roll, Write
from semel.broker.log.segment import ID_BYTES, IDS_AT, LAG_MAX, Segment, encode_id
from semel.protos.metrics import Histogram

_DROP_BYTES: Final = 4 << 20
"""Bytes that are written between two hints to the page cache."""


class SegmentFiles(Protocol):
    """The part of the keeper that the active segment uses."""

    def activate(self, segment: Segment) -> File: ...

    def retire(
        self, file: File | None, retired: Retired | None, void: tuple[Segment, ...]
    ) -> None: ...


class ActiveSegment:
    """Not thread-safe: its callers take turns (`writer.py`)."""

    def __init__(self, keeper: SegmentFiles, durable_index: int) -> None:
        self._keeper = keeper
        self.segment: Segment | None = None
        """The active segment. Like `file`, it is None before the first roll."""
        self.file: File | None = None
        self.durable_index = durable_index
        self.written_index = durable_index
        self.dirty_since: float | None = None
        """Time of the oldest write that is not synced; None when everything is synced."""
        self.page_cached = True
        """True: bytes written from now on stay in the page cache. Any thread may set it."""
        self._written_to = self._dropped_to = 0
        """File offsets: the end of the last write, and the end of the part that was dropped from
        the page cache."""
        self.syncs = 0
        self.sync_seconds = Histogram()
        """Durations of the syncs that succeeded."""
        self.rolls = 0
        self.written_bytes = 0

    def write(self, writes: list[Write]) -> None:
        """Writes frames and IDs. All `writes` are for the active segment and follow one another: a
        truncation or a full segment puts a roll in between."""
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
        """BLOCKING. Makes everything written so far durable."""
        if self.dirty_since is not None:
            assert self.file is not None
            began = time.monotonic()
            self.file.sync()
            self.on_synced(began)
        if self.drop_due:
            self._drop()

    def on_synced(self, began: float) -> None:
        """Records the success of a sync that began at `began`, after the last write."""
        self.sync_seconds.observe(time.monotonic() - began)
        self.syncs += 1
        self.dirty_since = None
        self.durable_index = self.written_index

    @property
    def drop_due(self) -> bool:
        """True when the next sync should also give the page cache a hint."""
        return self._written_to - self._dropped_to >= _DROP_BYTES

    def _drop(self) -> None:
        """Drops the durable bytes from the page cache, unless `page_cached` keeps them there."""
        if not self.page_cached and self.file is not None:
            self.file.drop_cached(self._dropped_to, self._written_to - self._dropped_to)
        self._dropped_to = self._written_to

    def roll(self, roll: Roll) -> None:
        """BLOCKING. Syncs the active segment and continues in the next one."""
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
