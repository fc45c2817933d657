"""The writer: the one thread that puts frames on disk, in order, many with one sync.

How it works. It takes all that is queued: frames for one segment become one vectored write, their
IDs another, and one fdatasync makes them durable (group commit: while a sync runs, the next group
gathers). Then it reports the last (index, term). A roll first syncs the old segment, then gives the
new one its file, so that a segment's existence proves that everything before it is durable.

Invariants
1. Completions are reported in the order of the queue, each with (index, term, era): an entry that
   was truncated meanwhile is not mistaken for its successor at the same index.
2. A failed write or sync ends the thread and is reported once; it is never tried again, because the
   kernel may have dropped the pages (fsyncgate).
3. Frames are written before their IDs, so that a killed process leaves no ID without its frame.
4. What a node writes that serves nobody does not stay in the page cache (`page_cached`).

Not here: where frames go (`index.py`), files (`keeper.py`).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from semel.broker.log.files import File
from semel.broker.log.index import Retired, Roll, Write
from semel.broker.log.segment import ID_BYTES, IDS_AT, LAG_MAX, Segment, encode_id
from semel.protos.metrics import Histogram


class SegmentFiles(Protocol):
    """What the writer needs of the keeper."""

    def activate(self, segment: Segment) -> File: ...

    def retire(
        self, file: File | None, retired: Retired | None, void: tuple[Segment, ...]
    ) -> None: ...


class _Stop:
    pass


_STOP: Final = _Stop()
_DROP_BYTES: Final = 4 << 20
"""So much is written between two hints to the page cache."""


class Writer:
    """Runs from `start` to `close`; `put` is called by the owner's thread."""

    def __init__(
        self,
        keeper: SegmentFiles,
        *,
        durable_index: int,
        sync_interval_ms: int,
        on_durable: Callable[[int, int, int, int], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """In the thread: `on_durable(index, term, era, number of writes)`, `on_failure(error)`."""
        self._keeper = keeper
        self._interval_s = sync_interval_ms / 1000
        self._on_durable = on_durable
        self._on_failure = on_failure
        self._queue: queue.SimpleQueue[Roll | Write | _Stop] = queue.SimpleQueue()
        self._durable_index = durable_index
        self._written_index = durable_index
        self._file: File | None = None
        self._dirty = False
        self._sync_due = 0.0
        self.page_cached = True
        """Whether what is written from now on is left in the page cache; any thread may set it."""
        self._written_to = self._dropped_to = 0
        """Of the file: the end of the last write, and of what was dropped from the page cache."""
        self.failed = False
        self.syncs = 0
        self.sync_seconds = Histogram()
        """Of the syncs that succeeded; counted by this thread alone."""
        self.rolls = 0
        self.written_bytes = 0
        self._thread = threading.Thread(target=self._run, name="semel-log-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, step: Roll | Write) -> None:
        self._queue.put(step)

    def close(self) -> None:
        """BLOCKING. Writes and syncs what is queued, then ends."""
        self._queue.put(_STOP)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._perform(self._gather()):
                pass
        except BaseException as error:
            self.failed = True
            self._on_failure(error)
        finally:
            if self._file is not None:
                self._file.close()

    def _gather(self) -> list[Roll | Write | _Stop]:
        """All that is queued; waits for the first step, or until a delayed sync is due."""
        take = self._queue.get
        try:
            if self._dirty:
                steps = [take(timeout=max(0.0, self._sync_due - time.monotonic()))]
            else:
                steps = [take()]
        except queue.Empty:
            self._sync()
            return []
        try:
            while True:
                steps.append(take(block=False))
        except queue.Empty:
            return steps

    def _perform(self, steps: list[Roll | Write | _Stop]) -> bool:
        """Carries the steps out, as few writes as possible; False when it is time to stop."""
        writes: list[Write] = []
        last: Write | None = None
        count = 0
        stop = False
        for step in steps:
            if isinstance(step, Write):
                writes.append(step)
                last = step
                count += 1
            elif isinstance(step, Roll):
                self._write(writes)
                writes = []
                self._roll(step)
            else:
                stop = True
        self._write(writes)
        if not self._interval_s or stop or time.monotonic() >= self._sync_due:
            self._sync()
        if last is not None:
            self._on_durable(last.last_index, last.terms[-1], last.era, count)
        return not stop

    def _write(self, writes: list[Write]) -> None:
        """Writes of one segment: a truncation or a full segment has put a roll in between."""
        if not writes:
            return
        file = self._file
        assert file is not None
        segment = writes[0].segment
        seed = segment.seed
        position = writes[0].position
        index = writes[0].first_index
        durable = self._durable_index
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
        self._written_index = index - 1
        if not self._dirty:
            self._dirty = True
            self._sync_due = time.monotonic() + self._interval_s

    def _sync(self) -> None:
        if self._dirty:
            assert self._file is not None
            began = time.monotonic()
            self._file.sync()
            self.sync_seconds.observe(time.monotonic() - began)
            self.syncs += 1
            self._dirty = False
            self._durable_index = self._written_index
        if self._written_to - self._dropped_to >= _DROP_BYTES:
            self._drop()

    def _drop(self) -> None:
        """Takes what is durable out of the page cache, unless somebody reads here."""
        if not self.page_cached and self._file is not None:
            self._file.drop_cached(self._dropped_to, self._written_to - self._dropped_to)
        self._dropped_to = self._written_to

    def _roll(self, roll: Roll) -> None:
        self._sync()
        self._drop()
        old = self._file
        self._file = self._keeper.activate(roll.segment)
        self._written_to = self._dropped_to = roll.segment.header.frames_at
        self._keeper.retire(old, roll.retired, roll.void)
        self.rolls += 1
        self._durable_index = self._written_index = roll.segment.first_index - 1
