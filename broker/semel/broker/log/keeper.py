"""The life of segment files: made before they are needed, then sealed, removed or kept as spares.

How it works. One background thread keeps one allocated spare ready. So a roll costs the writer only
a header and a rename, and a full disk is known before a frame is accepted that needs the room. Old
segments come back as spares through `give`. While a spare waits, the thread prepares it at a
limited rate. It fills a fresh spare with zeros, because a sync of blocks that were written before
needs no journal. It reads a spare that was used before, because a write that begins or ends within
a page that is not in the page cache waits until the page was read. When there is no room, the
thread tries again every second and whenever a segment is given back: the broker stops accepting
messages and resumes by itself. A segment for whose seal there is no room stays without one.

Invariants
1. A spare is renamed to a segment only after its header is durable.
2. A segment is sealed only after its frames are durable, and a void segment is removed only after
   the segment that makes it void is durable.

Not here: which segments are needed (`log/index.py`), which are old (`log/cleaner.py`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from semel.broker.log.files import File, FileLayer
from semel.broker.log.index import Retired
from semel.broker.log.log_config import LogConfig
from semel.broker.log.segment import HEADER_PAGES, PAGE, Segment, ids_hold, spare_name, write_seal
from semel.protos.errors import Closed, DiskFull

_log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1.0
_FILL_BYTES: Final = 1 << 20
_ZEROS: Final = bytes(_FILL_BYTES)
_TRIM_ABOVE: Final = 1 << 20
"""A sealed segment gives back its unused space when that is more than this."""


@dataclass(slots=True)
class _Spare:
    """An allocated file that is ready to become a segment."""

    path: Path
    file: File
    fresh: bool
    """True: its blocks were never written."""
    unfilled_at: int
    """The range from here to the end of a segment is not filled yet."""
    being_filled: bool = False


class Keeper:
    """Owns the spares of one log directory. Any thread may call its methods."""

    def __init__(
        self,
        files: FileLayer,
        directory: Path,
        config: LogConfig,
        spares: list[str],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._files = files
        self._directory = directory
        self._config = config
        self._on_failure = on_failure
        self._changed = threading.Condition()
        self._spares = deque(spares)
        self._next_spare = 1 + max((int(name.rpartition("-")[2]) for name in spares), default=0)
        self._ready: _Spare | None = None
        self._work: deque[Callable[[], None]] = deque()
        self._shortage: DiskFull | None = None
        self._wanted_bytes = 0
        self._retry = False
        self._retry_due = 0.0
        self._fill_due = 0.0
        self._giving_up = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="semel-log-keeper", daemon=True)

    @property
    def shortage(self) -> DiskFull | None:
        """The error, while there is neither a spare nor room for one; else None."""
        return self._shortage

    @property
    def spare_count(self) -> int:
        return len(self._spares) + (self._ready is not None)

    def start(self) -> None:
        self._thread.start()

    def give_up(self) -> None:
        """Makes a shortage from now on fail the waiting writer."""
        with self._changed:
            self._giving_up = True
            self._changed.notify_all()

    def close(self) -> None:
        """Finishes the queued work and stops the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        if self._ready is not None:
            self._ready.file.close()
            self._ready = None

    def activate(self, segment: Segment) -> File:
        """Turns a spare into the segment's file, with a durable header, under the segment's name.

        Waits while the disk is full. Raises Closed when the log is closed meanwhile, and DiskFull
        when it is closed during a shortage.
        """
        path, file = self._take(segment.bytes_limit)
        page = segment.header.encode()
        file.write([page] * HEADER_PAGES, 0)
        file.sync()
        self._files.rename(path, self._directory / segment.file_name)
        self._files.sync_directory(self._directory)
        segment.on_disk = True
        return file

    def _take(self, size: int) -> tuple[Path, File]:
        with self._changed:
            while True:
                spare = self._ready
                if spare is not None and not spare.being_filled:
                    if size <= self._config.segment_bytes or spare.file.size() >= size:
                        self._ready = None
                        self._changed.notify_all()
                        return spare.path, spare.file
                    self._wanted_bytes = size
                    self._changed.notify_all()
                if self._stopping or (self._giving_up and self._shortage is not None):
                    raise self._shortage or Closed("the log is closed")
                self._changed.wait()

    def retire(self, file: File | None, retired: Retired | None, void: tuple[Segment, ...]) -> None:
        """Queues the sealing of a segment, whose open `file` it takes over, and the removal of
        the `void` segments."""
        self._queue(lambda: self._retire(file, retired, void))

    def give(self, path: Path) -> None:
        """BLOCKING. Takes a segment file that nobody needs or reads any more, and makes it a spare
        or removes it."""
        with self._changed:
            reuse = len(self._spares) < self._config.recycle_max
            if reuse:
                name = spare_name(self._next_spare)
                self._next_spare += 1
        if reuse:
            self._files.rename(path, self._directory / name)
        else:
            self._files.remove(path)
        self._files.sync_directory(self._directory)
        with self._changed:
            if reuse:
                self._spares.append(name)
            self._retry = True
            self._changed.notify_all()

    def drain(self) -> None:
        """BLOCKING. Returns when all work that is queued now is done."""
        done = threading.Event()
        self._queue(done.set)
        while not done.wait(0.1) and self._thread.is_alive():
            pass

    def _queue(self, work: Callable[[], None]) -> None:
        with self._changed:
            self._work.append(work)
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    while not (self._work or self._wants_spare()):
                        if self._stopping:
                            return
                        if self._wants_filling():
                            break
                        self._changed.wait(self._pause())
                        if self._shortage is not None and time.monotonic() >= self._retry_due:
                            self._retry = True
                    work = self._work.popleft() if self._work else None
                if work is not None:
                    work()
                elif self._wants_spare():
                    self._prepare()
                else:
                    self._fill()
        except BaseException as error:
            self._on_failure(error)  # Before the writer fails for want of a segment.
            with self._changed:
                self._stopping = True
                self._changed.notify_all()

    def _wants_spare(self) -> bool:
        if self._stopping or (self._shortage is not None and not self._retry):
            return False
        return self._ready is None or self._wanted_bytes > 0

    def _unfilled(self) -> _Spare | None:
        spare = self._ready
        if spare is None or spare.unfilled_at >= self._config.segment_bytes:
            return None
        return spare

    def _wants_filling(self) -> bool:
        return self._unfilled() is not None and time.monotonic() >= self._fill_due

    def _pause(self) -> float | None:
        """The longest time for which the thread may wait; None for no limit."""
        if self._shortage is not None:
            return max(0.0, self._retry_due - time.monotonic())
        if self._unfilled() is not None:
            return max(0.0, self._fill_due - time.monotonic())
        return None

    def _fill(self) -> None:
        """Fills the next piece of the waiting spare; the writer never waits for more than that."""
        with self._changed:
            spare = self._unfilled()
            if spare is None:
                return
            spare.being_filled = True
        length = min(_FILL_BYTES, self._config.segment_bytes - spare.unfilled_at)
        try:
            if spare.fresh:
                spare.file.write([_ZEROS[:length]], spare.unfilled_at)
                spare.file.sync()
            else:
                spare.file.read(length, spare.unfilled_at)
        except DiskFull as error:  # Its space was only promised.
            with self._changed:
                self._ready = None
            self._let_go(spare, error)
            return
        with self._changed:
            spare.unfilled_at += length
            spare.being_filled = False
            self._fill_due = time.monotonic() + length / self._config.fill_bytes_per_second
            self._changed.notify_all()

    def _prepare(self) -> None:
        """Makes a spare ready, or enlarges the ready one."""
        with self._changed:
            spare, self._ready = self._ready, None
            self._retry = False
            size = max(self._config.segment_bytes, self._wanted_bytes)
            recycled = self._spares.popleft() if spare is None and self._spares else None
            name = recycled or spare_name(self._next_spare)
            self._next_spare += recycled is None
        path = self._directory / name
        if spare is None:
            try:
                file = self._files.open(path, create=recycled is None)
            except DiskFull as error:
                self._report_shortage(error)
                return
            fills = self._config.fill_bytes_per_second > 0
            spare = _Spare(path, file, recycled is None, 0 if fills else size)
        try:
            spare.file.allocate(size)
        except DiskFull as error:
            self._let_go(spare, error)
            return
        with self._changed:
            self._ready = spare
            was_full, self._shortage = self._shortage is not None, None
            self._wanted_bytes = 0
            self._changed.notify_all()
        if was_full:
            _log.info("disk has room again directory=%s", self._directory)

    def _let_go(self, spare: _Spare, error: DiskFull) -> None:
        """Removes a spare for which there is no room, and reports the shortage."""
        spare.file.close()
        self._files.remove(spare.path)
        self._report_shortage(error)

    def _report_shortage(self, error: DiskFull) -> None:
        with self._changed:
            is_news = self._shortage is None
            self._shortage = error
            self._retry_due = time.monotonic() + _RETRY_SECONDS
            self._changed.notify_all()
        if is_news:
            _log.error("disk full directory=%s action=%s", self._directory, "free some room")

    def _retire(
        self, file: File | None, retired: Retired | None, void: tuple[Segment, ...]
    ) -> None:
        try:
            if retired is not None and retired.segment not in void:
                self._seal(file, retired)
        except DiskFull as error:
            # On a file system that writes nothing in place. A crash in the middle would leave the
            # same bytes, and the next start does without a seal.
            _log.error("segment not sealed error=%s", error)
        finally:
            if file is not None:
                file.close()
        for segment in void:
            with contextlib.suppress(FileNotFoundError):
                self._files.remove(self._directory / segment.file_name)
        if void:
            self._files.sync_directory(self._directory)

    def _seal(self, file: File | None, retired: Retired) -> None:
        segment = retired.segment
        opened = None
        if file is None:
            try:
                opened = file = self._files.open(self._directory / segment.file_name)
            except FileNotFoundError:
                return
        try:
            if segment.bytes_limit - retired.end > _TRIM_ABOVE:
                file.resize((retired.end + PAGE - 1) // PAGE * PAGE)
            if not ids_hold(file, segment, retired.count):
                # A seal would declare rotten IDs to be the written ones. Without a seal, the next
                # start checks the IDs one by one and makes bad ones again from their frames.
                _log.error("segment not sealed, its IDs are damaged file=%s", segment.file_name)
                return
            write_seal(file, segment, retired.count, retired.end, retired.last_term)
        finally:
            if opened is not None:
                opened.close()
