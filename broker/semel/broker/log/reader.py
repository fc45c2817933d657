"""Cold reads of frames and records from segment files, with all checks.

How it works. A pool of reader threads calls it. Frames of one segment are read with one `pread`. A
frame is always read and checked whole, because its CRC covers all its records, and stays in a small
cache for reads of its other records. Files are opened on first use and closed when too many are
open; a file in use is neither closed nor recycled.

Invariants
1. Reads return only bytes whose CRC was checked, and only for the requested index.
2. A segment is recycled only when no reader holds its file, and no reader opens it afterwards.

Not here: records of segments that are gone (`log/kept.py`).
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

from semel.broker.log.cache import ReadCache, TailCache
from semel.broker.log.files import File, FileLayer
from semel.broker.log.index import LogIndex
from semel.broker.log.segment import Segment
from semel.broker.log.types import Damage, DamagedEntry, IndexUnavailable
from semel.protos.errors import CorruptFrame, InvalidRequest
from semel.protos.frames import RECORD_HEADER_BYTES, RECORD_HEADER_STRUCT, check_frame


class _Open:
    __slots__ = ("file", "users")

    def __init__(self, file: File) -> None:
        self.file = file
        self.users = 0


class OpenFiles:
    """Files held open for reading, by path. Any thread may use it."""

    def __init__(self, files: FileLayer, open_max: int) -> None:
        self._files = files
        self._open_max = open_max
        self._changed = threading.Condition()
        self._open: OrderedDict[Path, _Open] = OrderedDict()
        self._gone: set[Path] = set()
        """Files that are being taken away under their present names."""
        self._closed = False

    @contextlib.contextmanager
    def use(self, path: Path) -> Iterator[File]:
        """Yields the open file. Raises FileNotFoundError, also in and after `forgetting`, and after
        `close`."""
        with self._changed:
            if self._closed or path in self._gone:
                raise FileNotFoundError(path)
            entry = self._open.get(path)
            if entry is None:
                entry = self._open[path] = _Open(self._files.open(path))
            self._open.move_to_end(path)
            entry.users += 1
            self._close_surplus()
        try:
            yield entry.file
        finally:
            with self._changed:
                entry.users -= 1
                if not entry.users:
                    self._changed.notify_all()

    def _close_surplus(self) -> None:
        surplus = len(self._open) - self._open_max
        if surplus > 0:
            idle = [path for path, entry in self._open.items() if not entry.users]
            for path in idle[:surplus]:
                self._open.pop(path).file.close()

    @contextlib.contextmanager
    def forgetting(self, path: Path) -> Iterator[None]:
        """BLOCKING. Waits until nobody uses the file and closes it; nobody opens it again, while
        the caller removes or renames it or after that. No other file may get its name."""
        with self._changed:
            self._gone.add(path)
            entry = self._open.pop(path, None)
            if entry is not None:
                while entry.users:
                    self._changed.wait()
                entry.file.close()
        yield
        with self._changed:
            self._gone.discard(path)

    def close(self) -> None:
        """BLOCKING. Waits until nobody uses any file and closes all; none is opened any more."""
        with self._changed:
            self._closed = True
            while any(entry.users for entry in self._open.values()):
                self._changed.wait()
            for entry in self._open.values():
                entry.file.close()
            self._open.clear()


class Reader:
    """Reads the segments of one log directory. Any thread may use it; BLOCKING."""

    def __init__(
        self,
        directory: Path,
        index: LogIndex,
        open_files: OpenFiles,
        tail: TailCache,
        read_cache: ReadCache,
        on_damage: Callable[[Segment, int, int, int], bool],
    ) -> None:
        """`on_damage(segment, index, start, length)` hears of every frame that fails its check; it
        returns False if the entry is not at that place any more."""
        self._directory = directory
        self._index = index
        self._open_files = open_files
        self._tail = tail
        self._read_cache = read_cache
        self._on_damage = on_damage

    def frames(self, lo: int, hi: int) -> list[bytes]:
        """The frames [lo, hi). Raises IndexUnavailable, DamagedEntry."""
        found: list[bytes] = []
        while lo < hi:
            frame = self._tail.get(lo)
            if frame is not None:
                found.append(frame)
                lo += 1
                continue
            stop = lo + 1
            while stop < hi and self._tail.get(stop) is None:
                stop += 1
            while lo < stop:
                segment = self._index.locate(lo)
                part = self._read(segment, lo, min(stop, segment.end_index))
                found += part
                lo += len(part)
        return found

    def check(self, segment: Segment, lo: int, hi: int) -> None:
        """Reads the frames [lo, hi) of one segment from the disk. Raises the errors of
        `frames`."""
        self._read(segment, lo, hi)

    def record(self, index: int, position: int, length: int) -> memoryview:
        """The payload of a record, as a view of its frame. Raises IndexUnavailable, DamagedEntry,
        and InvalidRequest when there is no such record."""
        frame = self._tail.get(index)
        if frame is None:
            segment = self._index.locate(index)
            key = (segment.header.sequence, index)
            frame = self._read_cache.get(key)
            if frame is None:
                frame = self._read(segment, index, index + 1)[0]
                self._read_cache.put(key, frame)
        return record_of(frame, position, length)

    def _read(self, segment: Segment, lo: int, hi: int) -> list[bytes]:
        path = self._directory / segment.file_name
        unavailable = IndexUnavailable(lo, self._index.first_index, self._index.last_index)
        try:
            places = [segment.place(index) for index in range(lo, hi)]
            start = places[0][0]
            with self._open_files.use(path) as file:
                data = file.read(places[-1][1] - start, start)
        except (IndexError, FileNotFoundError):
            # The entry was compacted or truncated between the look-up and the read.
            raise unavailable from None
        if hi == lo + 1:
            frames = [data]
        else:
            view = memoryview(data)
            frames = [bytes(view[at - start : end - start]) for at, end in places]
        for index, frame in enumerate(frames, lo):
            self._check(segment, index, frame, places[index - lo])
        return frames

    def _check(self, segment: Segment, index: int, frame: bytes, place: tuple[int, int]) -> None:
        try:
            if check_frame(frame).index == index:
                return
            reason = "another entry lies there"
        except CorruptFrame as error:
            reason = error.message
        # An entry truncated between the look-up and the read may have lost its place in the file.
        if not self._on_damage(segment, index, place[0], place[1] - place[0]):
            raise IndexUnavailable(index, self._index.first_index, self._index.last_index)
        raise DamagedEntry(
            f"entry {index} is damaged in {self._directory / segment.file_name} at {place[0]}: "
            f"{reason}; it is to be fetched from a peer",
            index,
        )

    def repair(self, damage: Damage, frame: bytes) -> None:
        """Durably writes the frame over its damaged copy. Raises FileNotFoundError."""
        with self._open_files.use(self._directory / damage.file_name) as file:
            file.write([frame], damage.position)
            file.sync()


def record_of(frame: bytes, position: int, length: int) -> memoryview:
    """The payload of the record at `position`. Raises InvalidRequest if there is no such record."""
    start = position + RECORD_HEADER_BYTES
    if position >= 0 and start <= len(frame):
        found = RECORD_HEADER_STRUCT.unpack_from(frame, position)[0]
        if found == length and start + length <= len(frame):
            return memoryview(frame)[start : start + length]
    raise InvalidRequest(f"a frame of {len(frame)} bytes has no record of {length} at {position}")
