"""Kept files, which hold the live records of segments that were recycled.

How it works. Before the cleaner takes a segment away, it copies the records that are still needed
(long retention, unreleased messages) byte for byte into a kept file. A kept file is written under a
temporary name, synced and renamed. After that it never changes, except that a damaged record is
repaired in place, until none of its records is live. Records are found by (index, position), as in
the segment, in a table of each file: 28 bytes a record, so that millions of small batches may
outlive their segments. If several files have a record, the newest counts.

Format. `docs/formats/segment.md`; a test compares its tables with the structs below. A 64-byte
header; the records, each after a 32-byte header of its own, padded to 8; a table of all records; a
32-byte trailer. When the table or the trailer is damaged, the record headers replace it, and the
reverse.

Crash cases. Either a temporary file is left, which the next start removes, or the file exists
whole; then its records may exist in a segment too, with the same bytes.

Invariants
1. A record is in the index only when its file is durable.
2. Reads return only bytes whose CRC was checked.

Not here: which records are live (the state machine tells through `keep` and `live`).
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import google_crc32c
import numpy as np

from semel.broker.log.files import File, FileLayer
from semel.broker.log.reader import OpenFiles
from semel.broker.log.types import DamagedEntry, IndexUnavailable, RecordRef
from semel.protos.errors import CorruptSegment, DataDirectoryError, InvalidRequest

HEADER_STRUCT: Final = struct.Struct("<4sHHQQQQQQII")
HEADER_BYTES: Final = HEADER_STRUCT.size
MAGIC: Final = b"SMKP"
VERSION: Final = 1
RECORD_STRUCT: Final = struct.Struct("<QIIIIII")
RECORD_BYTES: Final = RECORD_STRUCT.size
ENTRY_STRUCT: Final = struct.Struct("<QIIQII")
TRAILER_STRUCT: Final = struct.Struct("<4sIQIIII")
TRAILER_BYTES: Final = TRAILER_STRUCT.size
TRAILER_MAGIC: Final = b"SMKT"
_PREFIX: Final = "kept-"
_WRITE_BYTES: Final = 4 << 20


_ENTRY: Final = np.dtype(
    [
        ("index", "<u8"),
        ("position", "<u4"),
        ("length", "<u4"),
        ("offset", "<u8"),
        ("crc", "<u4"),
        ("", "<u4"),
    ]
)
assert _ENTRY.itemsize == ENTRY_STRUCT.size
_AT_ONCE: Final = 4_096


class _Place(NamedTuple):
    path: Path
    offset: int
    length: int
    crc: int


class _KeptFile:
    """One file and where its records are. It does not change."""

    __slots__ = ("_columns", "_first", "_indexes", "_last", "path", "payload_bytes", "size")

    def __init__(self, path: Path, size: int, table: bytes) -> None:
        """`table` has packed entries in any order."""
        entries = np.frombuffer(table, _ENTRY)
        order = np.lexsort((entries["position"], entries["index"]))
        names = ("position", "length", "offset", "crc")
        self._indexes = entries["index"][order]
        self._columns = tuple(entries[name][order] for name in names)
        self._first = int(self._indexes[0]) if len(order) else 1
        self._last = int(self._indexes[-1]) if len(order) else 0
        self.path = path
        self.size = size
        self.payload_bytes = int(entries["length"].sum(dtype=np.int64))

    def __len__(self) -> int:
        return len(self._indexes)

    def find(self, index: int, position: int) -> _Place | None:
        """Where a record is; None if it is not here."""
        if not self._first <= index <= self._last:
            return None
        start, end = np.searchsorted(self._indexes, np.array([index, index + 1], np.uint64))
        positions, lengths, offsets, crcs = self._columns
        at = int(start + np.searchsorted(positions[start:end], position, "right")) - 1
        if at < start or positions[at] != position:
            return None
        return _Place(self.path, int(offsets[at]), int(lengths[at]), int(crcs[at]))

    def refs(self) -> Iterator[RecordRef]:
        """All records, made as they are asked for."""
        for at in range(0, len(self), _AT_ONCE):
            columns = (self._indexes, *self._columns[:2])
            rows = zip(*(each[at : at + _AT_ONCE].tolist() for each in columns), strict=True)
            yield from (RecordRef(*row) for row in rows)


class KeptStore:
    """The kept files of one log directory. Any thread may read; one thread changes them."""

    def __init__(
        self, files: FileLayer, directory: Path, open_files: OpenFiles, file_bytes_max: int
    ) -> None:
        self._files = files
        self._directory = directory
        self._open_files = open_files
        self._file_bytes_max = file_bytes_max
        self._lock = threading.Lock()
        self._kept: tuple[_KeptFile, ...] = ()
        """Oldest first. Replaced under the lock, never changed."""
        self._next_number = 1
        self.damaged: set[RecordRef] = set()
        """Records that failed their check or are missing, and were not repaired since. The set is
        replaced, never changed."""

    @property
    def file_count(self) -> int:
        return len(self._kept)

    @property
    def record_count(self) -> int:
        return sum(map(len, self._kept))

    @property
    def total_bytes(self) -> int:
        return sum(kept.size for kept in self._kept)

    def load(self) -> None:
        """Finds all records. Raises CorruptSegment, DataDirectoryError."""
        for name in self._files.names(self._directory):
            if not name.startswith(_PREFIX) or name.endswith(".tmp"):
                continue
            path = self._directory / name
            file = self._files.open(path)
            try:
                kept = _KeptFile(path, file.size(), _load(file, path))
            finally:
                file.close()
            self._adopt(kept)
            self._next_number = int(name.removeprefix(_PREFIX)) + 1

    def _adopt(self, kept: _KeptFile) -> None:
        with self._lock:
            self._kept = (*self._kept, kept)

    def refs(self) -> Iterator[RecordRef]:
        """All records that are here at this moment; one that is in two files comes twice."""
        kept = self._kept
        return (ref for each in kept for ref in each.refs())

    def has(self, index: int, position: int) -> bool:
        return self._find(index, position) is not None

    def _find(self, index: int, position: int) -> _Place | None:
        found = (kept.find(index, position) for kept in reversed(self._kept))
        return next((place for place in found if place is not None), None)

    def read(self, index: int, position: int, length: int) -> bytes:
        """BLOCKING. The record's payload, checked. Raises IndexUnavailable, DamagedEntry, and
        InvalidRequest when the record has another length."""
        for _ in range(3):
            place = self._find(index, position)
            if place is None:
                break
            if place.length != length:
                raise InvalidRequest(
                    f"the record at {position} of entry {index} has {place.length} bytes, "
                    f"not {length}"
                )
            try:
                with self._open_files.use(place.path) as file:
                    data = file.read(length, place.offset)
            except FileNotFoundError:
                continue  # The record moved to another kept file meanwhile.
            if len(data) != length or google_crc32c.value(data) != place.crc:
                with self._lock:
                    self.damaged = self.damaged | {RecordRef(index, position, length)}
                raise DamagedEntry(
                    f"the record at {position} of entry {index} is damaged in {place.path}; it is "
                    "to be fetched from a peer",
                    index,
                )
            return data
        raise IndexUnavailable(index, 0, 0)

    def note_missing(self, refs: Iterable[RecordRef]) -> None:
        """Takes the refs of live records; those that are not here were in a file that is damaged
        beyond reading, and count as damaged."""
        with self._lock:
            missing = {ref for ref in refs if not self.has(ref.index, ref.position)}
            self.damaged = self.damaged | missing

    def repair(self, ref: RecordRef, payload: bytes) -> None:
        """BLOCKING. Repairs a damaged record: writes its payload, as a peer has it, back in place.

        Raises IndexUnavailable, and InvalidRequest when the payload is not the record's."""
        place = self._find(ref.index, ref.position)
        if place is None:
            raise IndexUnavailable(ref.index, 0, 0)
        if len(payload) != place.length or google_crc32c.value(payload) != place.crc:
            raise InvalidRequest(f"these are not the bytes of {ref}")
        with self._open_files.use(place.path) as file:
            file.write([payload], place.offset)
            file.sync()
        with self._lock:
            self.damaged = self.damaged - {ref}

    def forget(self, ref: RecordRef) -> None:
        """Drops a damaged record from `damaged`: it is not live any more and nobody needs it."""
        with self._lock:
            self.damaged = self.damaged - {ref}

    def add(self, records: Iterable[tuple[RecordRef, bytes]]) -> None:
        """BLOCKING. Stores the records durably."""
        writer: _KeptWriter | None = None
        try:
            for ref, payload in records:
                assert len(payload) == ref.length, f"{ref} with {len(payload)} bytes"
                if writer is None:
                    path = self._directory / f"{_PREFIX}{self._next_number:020d}"
                    self._next_number += 1
                    writer = _KeptWriter(self._files, path)
                writer.add(ref, payload)
                if writer.size >= self._file_bytes_max:
                    self._adopt(writer.finish())
                    writer = None
            if writer is not None:
                self._adopt(writer.finish())
                writer = None
        finally:
            if writer is not None:
                writer.abandon()

    def drop(self, live: Callable[[int, int], bool]) -> int:
        """BLOCKING. Removes files without live records, and moves the live records out of files
        that are mostly dead. Returns how many files were removed."""
        removed = 0
        for kept in self._kept:
            alive = [
                ref
                for ref in kept.refs()
                if self._is_at(ref, kept.path) and live(ref.index, ref.position)
            ]
            wanted = sum(ref.length for ref in alive)
            if alive and wanted * 2 >= kept.payload_bytes:
                continue
            self.add((ref, self.read(ref.index, ref.position, ref.length)) for ref in alive)
            with self._lock:
                self.damaged = {ref for ref in self.damaged if not self._is_at(ref, kept.path)}
                self._kept = tuple(each for each in self._kept if each is not kept)
            with self._open_files.forgetting(kept.path):
                self._files.remove(kept.path)
            removed += 1
        if removed:
            self._files.sync_directory(self._directory)
        return removed

    def _is_at(self, ref: RecordRef, path: Path) -> bool:
        place = self._find(ref.index, ref.position)
        return place is not None and place.path == path


class _KeptWriter:
    """One kept file in the making."""

    def __init__(self, files: FileLayer, path: Path) -> None:
        self._files = files
        self._path = path
        self._temporary = path.with_name(path.name + ".tmp")
        with contextlib.suppress(FileNotFoundError):
            files.remove(self._temporary)
        self._file = files.open(self._temporary, create=True)
        self._entries: list[bytes] = []
        self._parts: list[bytes] = [_with_crc(HEADER_STRUCT, MAGIC, VERSION, *[0] * 8)]
        self._parts_at = 0
        self.size = HEADER_BYTES

    def add(self, ref: RecordRef, payload: bytes | memoryview) -> None:
        payload = bytes(payload)  # A view would keep its whole frame in memory.
        crc = google_crc32c.value(payload)
        header = _with_crc(RECORD_STRUCT, ref.index, ref.position, ref.length, crc, 0, 0)
        offset = self.size + RECORD_BYTES
        self._parts += (header, payload, bytes(-ref.length % 8))
        self.size = offset + (ref.length + 7 & ~7)
        self._entries.append(ENTRY_STRUCT.pack(ref.index, ref.position, ref.length, offset, crc, 0))
        if self.size - self._parts_at >= _WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._file.write(self._parts, self._parts_at)
        self._parts = []
        self._parts_at = self.size

    def finish(self) -> _KeptFile:
        """Makes the file durable under its name."""
        table = b"".join(self._entries)
        trailer = _with_crc(
            TRAILER_STRUCT,
            TRAILER_MAGIC,
            len(self._entries),
            self.size,
            google_crc32c.value(table),
            0,
            0,
        )
        self._parts += (table, trailer)
        self.size += len(table) + len(trailer)
        self._flush()
        self._file.sync()
        self._file.close()
        self._files.rename(self._temporary, self._path)
        self._files.sync_directory(self._path.parent)
        return _KeptFile(self._path, self.size, table)

    def abandon(self) -> None:
        self._file.close()
        with contextlib.suppress(OSError):
            self._files.remove(self._temporary)


def _with_crc(layout: struct.Struct, *values: object) -> bytes:
    """Packs `values`, with the CRC of all bytes before it in the last field."""
    body = layout.pack(*values, 0)[:-4]
    return body + int(google_crc32c.value(body)).to_bytes(4, "little")


def _crc_holds(raw: bytes) -> bool:
    return int(google_crc32c.value(raw[:-4])) == int.from_bytes(raw[-4:], "little")


def _load(file: File, path: Path) -> bytes:
    """The packed entries of all records. Raises CorruptSegment, DataDirectoryError."""
    header = file.read(HEADER_BYTES, 0)
    if len(header) == HEADER_BYTES and _crc_holds(header):
        magic, version = HEADER_STRUCT.unpack(header)[:2]
        if magic == MAGIC and version != VERSION:
            raise DataDirectoryError(
                f"{path} has format version {version}, this program knows {VERSION}; run the "
                "newer program, or give this node an empty directory"
            )
    table = _table(file)
    return b"".join(_walk(file, path)) if table is None else table


def _table(file: File) -> bytes | None:
    """The bytes of the record table; None when the table or the trailer is damaged."""
    size = file.size()
    trailer = file.read(TRAILER_BYTES, max(0, size - TRAILER_BYTES))
    if len(trailer) < TRAILER_BYTES or not _crc_holds(trailer):
        return None
    magic, count, table_at, crc, _, _, _ = TRAILER_STRUCT.unpack(trailer)
    table = file.read(count * ENTRY_STRUCT.size, table_at)
    whole = len(table) == count * ENTRY_STRUCT.size
    if magic != TRAILER_MAGIC or not whole or google_crc32c.value(table) != crc:
        return None
    return table


def _walk(file: File, path: Path) -> Iterator[bytes]:
    """Yields the packed entries of the records by their own headers, up to the table."""
    at = HEADER_BYTES
    size = file.size()
    count = 0
    table_bytes = TRAILER_BYTES
    while at + table_bytes < size:
        raw = file.read(RECORD_BYTES, at)
        if len(raw) < RECORD_BYTES or not _crc_holds(raw):
            raise CorruptSegment(
                f"{path} is damaged in its table and at {at}; restore it from a copy, or give "
                "this node an empty directory and let it fetch everything from its peers"
            )
        index, position, length, crc, _, _, _ = RECORD_STRUCT.unpack(raw)
        yield ENTRY_STRUCT.pack(index, position, length, at + RECORD_BYTES, crc, 0)
        at += RECORD_BYTES + (length + 7 & ~7)
        count += 1
        table_bytes += ENTRY_STRUCT.size
