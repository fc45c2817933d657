"""Segment files around their use: made ahead of need, sealed after it, removed or kept as spares.

How it works. One background thread keeps one allocated spare ready, so that a roll costs the writer
a header and a rename, and a full disk is known before a frame is accepted that needs the room. Old
segments come back as spares through `give`. A spare is filled while it waits, at a limited rate: a
fresh one with zeros, because a sync of blocks that were written before needs no journal; one that
was used before is read, because a write that begins or ends within a page which is not in the page
cache waits until that was read. When there is no room it tries again every second, and whenever a
segment is given back: the broker stops accepting and goes on by itself.

Invariants
1. A spare is renamed to a segment only after its header is durable.
2. A segment is sealed only after its frames are durable, and a void one is removed only after the
   segment that makes it void is.

Not here: which segments are needed (`index.py`), which are old (`cleaner.py`).
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

from semel.broker.log.config import LogConfig
from semel.broker.log.files import File, FileLayer
from semel.broker.log.index import Retired
from semel.broker.log.segment import HEADER_PAGES, PAGE, Segment, ids_hold, spare_name, write_seal
from semel.protos.errors import Closed, DiskFull

_log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1.0
_FILL_BYTES: Final = 1 << 20
_ZEROS: Final = bytes(_FILL_BYTES)
_TRIM_ABOVE: Final = 1 << 20
"""A sealed segment gives back its unused room when it is more than this."""


@dataclass(slots=True)
class _Spare:
    """An allocated file that is ready to become a segment."""

    path: Path
    file: File
    fresh: bool
    """Its blocks were never written."""
    unfilled_at: int
    """From here to the end of a segment it is still to be filled."""
    being_filled: bool = False


class Keeper:
    """Owns the spares of one log directory. Methods may be called from any thread."""

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
        """Set while there is neither a spare nor room for one."""
        return self._shortage

    @property
    def spare_count(self) -> int:
        return len(self._spares) + (self._ready is not None)

    def start(self) -> None:
        self._thread.start()

    def give_up(self) -> None:
        """From now on a shortage fails the waiting writer."""
        with self._changed:
            self._giving_up = True
            self._changed.notify_all()

    def close(self) -> None:
        """Finishes what is queued and stops the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        if self._ready is not None:
            self._ready.file.close()
            self._ready = None

    def activate(self, segment: Segment) -> File:
        """Gives the segment its file, with a durable header, under its name.

        Waits while the disk is full; raises Closed when the log is closed meanwhile.
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
        """Queues the sealing of a segment (whose open `file` it takes) and removal of `void`."""
        self._queue(lambda: self._retire(file, retired, void))

    def give(self, path: Path) -> None:
        """BLOCKING. Takes a segment file that is no longer needed or read: a spare, or removed."""
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
        """BLOCKING. Returns when all that is queued now is done."""
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
        """How long there is nothing to do, at most."""
        if self._shortage is not None:
            return max(0.0, self._retry_due - time.monotonic())
        if self._unfilled() is not None:
            return max(0.0, self._fill_due - time.monotonic())
        return None

    def _fill(self) -> None:
        """Fills the next piece of the spare that waits; the writer never waits for more."""
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
        except DiskFull as error:  # its room was promised only
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
        """Makes a spare ready, or the ready one larger."""
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
            self._shortage = None
            self._wanted_bytes = 0
            self._changed.notify_all()

    def _let_go(self, spare: _Spare, error: DiskFull) -> None:
        """There is no room for what it is to hold."""
        spare.file.close()
        self._files.remove(spare.path)
        self._report_shortage(error)

    def _report_shortage(self, error: DiskFull) -> None:
        with self._changed:
            self._shortage = error
            self._retry_due = time.monotonic() + _RETRY_SECONDS
            self._changed.notify_all()
        _log.error("disk full directory=%s action=%s", self._directory, "free some room")

    def _retire(
        self, file: File | None, retired: Retired | None, void: tuple[Segment, ...]
    ) -> None:
        try:
            if retired is not None and retired.segment not in void:
                self._seal(file, retired)
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
                # A seal would take what is rotten for what was written. Without one the IDs are
                # judged one by one at the next start, and made anew from their frames.
                _log.error("segment not sealed, its IDs are damaged file=%s", segment.file_name)
                return
            write_seal(file, segment, retired.count, retired.end, retired.last_term)
        finally:
            if opened is not None:
                opened.close()
