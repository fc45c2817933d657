"""Checkpoint files, which hold the replicated state at one index.

Format. `docs/formats/checkpoint.md`; a test compares its table with the struct below. A file is a
64-byte header and the payload, which only the state machine interprets.

Crash cases. A checkpoint is written under a temporary name, synced and renamed, and then its
directory is synced: the file exists whole or not at all. Older checkpoints are removed only after
that.

Invariants
1. The newest `keep` checkpoints are kept, so that damage to the newest one costs only a longer
   replay; the log is never compacted beyond the oldest of them.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import google_crc32c

from semel.broker.log.files import File, FileLayer
from semel.protos.crc import crc32c
from semel.protos.errors import CorruptSegment, DataDirectoryError

HEADER_STRUCT: Final = struct.Struct("<4sHHQQQIIQQII")
HEADER_BYTES: Final = HEADER_STRUCT.size
MAGIC: Final = b"SMCP"
VERSION: Final = 1
_PREFIX: Final = "checkpoint-"
_BODY_BYTES: Final = HEADER_BYTES - 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint file that passed its checks."""

    index: int
    term: int
    length: int
    """Size of the payload in bytes."""
    path: Path
    _files: FileLayer = field(repr=False, compare=False)

    @property
    def payload(self) -> bytes:
        """BLOCKING. The payload; each access reads and checks it again, so that no copy stays in
        memory.

        Raises CorruptSegment, also when newer checkpoints have replaced this one.
        """
        try:
            file = self._files.open(self.path)
        except FileNotFoundError:
            raise CorruptSegment(f"{self.path} is gone: newer checkpoints replaced it") from None
        try:
            return _read(file, self.path)[2]
        finally:
            file.close()


class Checkpoints:
    """The checkpoints of one log directory."""

    def __init__(self, files: FileLayer, directory: Path, keep: int) -> None:
        self._files = files
        self._directory = directory
        self._keep = keep
        self._good: list[Checkpoint] = []
        self.damaged: list[Path] = []

    def load(self) -> None:
        """Checks every checkpoint. Raises DataDirectoryError when one has a newer version."""
        for name in self._files.names(self._directory):
            if not name.startswith(_PREFIX) or name.endswith(".tmp"):
                continue
            path = self._directory / name
            file = self._files.open(path)
            try:
                index, term, payload = _read(file, path)
            except CorruptSegment:
                self.damaged.append(path)
                continue
            finally:
                file.close()
            self._good.append(self._checkpoint(index, term, len(payload), path))
        self._good.sort(key=lambda checkpoint: checkpoint.index)

    def _checkpoint(self, index: int, term: int, length: int, path: Path) -> Checkpoint:
        return Checkpoint(index=index, term=term, length=length, path=path, _files=self._files)

    @property
    def newest(self) -> Checkpoint | None:
        return self._good[-1] if self._good else None

    def all(self) -> list[Checkpoint]:
        """All checkpoints that are not known to be damaged, oldest first."""
        return list(self._good)

    def discard(self, checkpoint: Checkpoint) -> None:
        """Marks a checkpoint that was read and found damaged: it no longer counts, and the next
        `save` removes it."""
        if checkpoint in self._good:
            self._good = [one for one in self._good if one != checkpoint]
            self.damaged = [*self.damaged, checkpoint.path]

    @property
    def count(self) -> int:
        return len(self._good)

    @property
    def compact_limit(self) -> int:
        """Highest index that compaction may pass: every kept checkpoint covers the entries up to
        here, so damage to a newer one can fall back to an older one. 0 while there are fewer than
        `keep` checkpoints."""
        return self._good[0].index if len(self._good) >= self._keep else 0

    def save(self, index: int, term: int, parts: Iterable[bytes]) -> Checkpoint:
        """BLOCKING. Writes a checkpoint durably, then removes the old and the damaged ones."""
        path = self._directory / f"{_PREFIX}{index:020d}"
        temporary = path.with_name(path.name + ".tmp")
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(temporary)
        file = self._files.open(temporary, create=True)
        try:
            length = _write(file, index, term, parts)
        except BaseException:
            file.close()
            with contextlib.suppress(OSError):
                self._files.remove(temporary)
            raise
        file.close()
        self._files.rename(temporary, path)
        self._files.sync_directory(self._directory)
        checkpoint = self._checkpoint(index, term, length, path)
        good = [one for one in self._good if one.path != path]
        good.append(checkpoint)
        good.sort(key=lambda one: one.index)
        old = [one.path for one in good[: -self._keep]]
        self._good = good[-self._keep :]
        old += [path for path in self.damaged if path != checkpoint.path]
        self.damaged = []
        for path in old:
            with contextlib.suppress(FileNotFoundError):
                self._files.remove(path)
        if old:
            self._files.sync_directory(self._directory)
        return checkpoint


def _write(file: File, index: int, term: int, parts: Iterable[bytes]) -> int:
    length = 0
    crc = 0
    for part in parts:
        file.write([part], HEADER_BYTES + length)
        length += len(part)
        crc = crc32c(part, crc)
    body = HEADER_STRUCT.pack(MAGIC, VERSION, 0, index, term, length, crc, 0, 0, 0, 0, 0)
    body = body[:_BODY_BYTES]
    file.write([body + google_crc32c.value(body).to_bytes(4, "little")], 0)
    file.sync()
    return length


def _read(file: File, path: Path) -> tuple[int, int, bytes]:
    """The index, term and payload. Raises CorruptSegment, DataDirectoryError."""
    raw = file.read(HEADER_BYTES, 0)
    if (
        len(raw) < HEADER_BYTES
        or google_crc32c.value(raw[:_BODY_BYTES]).to_bytes(4, "little") != raw[_BODY_BYTES:]
    ):
        raise CorruptSegment(f"{path} is damaged: its header's CRC does not match")
    magic, version, _, index, term, length, crc, _, _, _, _, _ = HEADER_STRUCT.unpack(raw)
    if magic != MAGIC:
        raise CorruptSegment(f"{path} is no checkpoint: it starts with {magic!r}")
    if version != VERSION:
        raise DataDirectoryError(
            f"{path} has format version {version}, this program knows {VERSION}; run the newer "
            "program, or give this node an empty directory"
        )
    payload = file.read(length, HEADER_BYTES)
    if len(payload) != length or google_crc32c.value(payload) != crc:
        raise CorruptSegment(f"{path} is damaged: its payload's CRC does not match")
    return index, term, payload
