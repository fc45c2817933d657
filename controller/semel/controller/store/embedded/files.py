"""The seam to one controller's directory: the few file operations that the store uses.

How it works. The embedded store does all its file access through `Files`, so tests can substitute a
simulated disk that forgets unsynced data, tears writes and fails. Names are file names in the one
directory. Nothing here retries: a failed write or sync raises OSError, and the store then ends.

Invariants
1. Data that was created or appended is durable after `sync` of that name, and not before. Data that
   was read may be in the page cache only, where `sync` does not always find it.
2. A name that was created or renamed is durable after `sync_directory`, and not before; a name that
   was found at start is durable.
3. One process at a time has the directory open.

Not here: formats (`journal.py`, `hard_state.py`, `dump.py`, `identity.py`).
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final, Protocol

from semel.protos.errors import DataDirectoryError

LOCK_NAME: Final = "lock"
_TEMPORARY: Final = ".tmp"
_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC


class Files(Protocol):
    """One directory. Blocking; a second thread may use it for other names."""

    def where(self, name: str) -> str:
        """The path at which an operator finds the file."""
        ...

    def names(self) -> list[str]:
        """All names, sorted."""
        ...

    def read(self, name: str) -> bytes | None:
        """The whole file; None when there is none."""
        ...

    def create(self, name: str, data: bytes) -> None:
        """Creates or truncates the file and writes `data`, which is not durable yet."""
        ...

    def append(self, name: str, data: bytes) -> None:
        """Writes at the end of an existing file."""
        ...

    def sync(self, name: str) -> None:
        """Makes the file's content durable."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Replaces `target`."""
        ...

    def sync_directory(self) -> None:
        """Makes created and renamed names durable."""
        ...

    def free_bytes(self) -> int:
        """Free bytes on the file system."""
        ...

    def close(self) -> None:
        """Closes all files and releases the lock; idempotent."""
        ...


def replace_file(files: Files, name: str, data: bytes) -> None:
    """Replaces the file `name` durably, and either whole or not at all."""
    temporary = name + _TEMPORARY
    files.create(temporary, data)
    files.sync(temporary)
    files.rename(temporary, name)
    files.sync_directory()


def is_temporary(name: str) -> bool:
    """True for a file that a crash in `replace_file` left behind."""
    return name.endswith(_TEMPORARY)


class OsFiles:
    """A directory of the operating system, locked by this process."""

    def __init__(self, directory: Path) -> None:
        """Creates the directory when it is missing.

        Raises DataDirectoryError when it cannot be used or is in use.
        """
        self._directory = directory
        self._open: dict[str, int] = {}
        self._lock = -1
        try:
            _make_directory(directory)
            self._lock = os.open(directory / LOCK_NAME, _FLAGS | os.O_CREAT, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
            _sync_directory(directory)
        except BlockingIOError:
            owner = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip()
            self.close()
            raise DataDirectoryError(
                f"the data directory {directory} is in use by process {owner or '?'}. "
                "Stop that one, or choose another directory"
            ) from None
        except OSError as error:
            self.close()
            raise DataDirectoryError(
                f"cannot use the data directory {directory}: {error.strerror or error}"
            ) from error

    def where(self, name: str) -> str:
        return str(self._directory / name)

    def names(self) -> list[str]:
        return sorted(path.name for path in self._directory.iterdir())

    def read(self, name: str) -> bytes | None:
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None

    def create(self, name: str, data: bytes) -> None:
        self._forget(name)
        flags = _FLAGS | os.O_CREAT | os.O_TRUNC
        self._open[name] = os.open(self._directory / name, flags, 0o640)
        self.append(name, data)

    def append(self, name: str, data: bytes) -> None:
        descriptor = self._descriptor(name)
        end = os.lseek(descriptor, 0, os.SEEK_END)
        view = memoryview(data)
        written = 0
        while written < len(view):  # a short write is legal
            written += os.pwrite(descriptor, view[written:], end + written)

    def sync(self, name: str) -> None:
        os.fdatasync(self._descriptor(name))

    def rename(self, source: str, target: str) -> None:
        self._forget(target)
        (self._directory / source).rename(self._directory / target)
        if source in self._open:
            self._open[target] = self._open.pop(source)

    def sync_directory(self) -> None:
        _sync_directory(self._directory)

    def free_bytes(self) -> int:
        room = os.statvfs(self._directory)
        return room.f_bavail * room.f_frsize

    def close(self) -> None:
        for name in list(self._open):
            self._forget(name)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _descriptor(self, name: str) -> int:
        if name not in self._open:
            self._open[name] = os.open(self._directory / name, _FLAGS)
        return self._open[name]

    def _forget(self, name: str) -> None:
        descriptor = self._open.pop(name, -1)
        if descriptor >= 0:
            os.close(descriptor)


def _make_directory(path: Path) -> None:
    """Creates the directory and its parents where they are missing, and makes their names durable,
    including those that a killed process left unsynced."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True)
    changed = {path, *(one.parent for one in missing)}
    for directory in (path, *path.parents):
        try:
            _sync_directory(directory)
        except PermissionError:
            if directory in changed:
                raise
            break  # this process did not create a directory that its user may not read
        if directory.is_mount():
            break


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
