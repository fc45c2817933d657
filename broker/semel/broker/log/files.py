"""The seam to the file system: the few file operations that the log needs.

How it works. All of the log's I/O goes through a `FileLayer`, so that tests can put a simulated
disk in its place, one that forgets what was not synced, tears writes, fails and fills up. Nothing
here retries: a failed write or sync is reported as it is.

Invariants
1. Written bytes are durable after a `sync` of the same file, and not before.
2. A created, renamed or removed name is durable after `sync_directory`, and not before.
3. A full disk raises DiskFull; every other fault raises OSError, except for blocks that cannot be
   read, which `File.read` returns as zeros.
4. Invariant 1 also holds for a sync of `Syncs`, once its result is there.

Not here: formats (`log/segment.py`, `log/kept.py`, `log/checkpoint.py`), how the kernel is asked to
sync (`log/kernel_sync.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from semel.broker.log.descriptors import Reserve
from semel.broker.log.kernel_sync import KernelSyncs, OnDone
from semel.protos.errors import DataDirectoryError, DiskFull

_log = logging.getLogger(__name__)

_IOV_MAX = 1024
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_BLOCK = 4096
_FULL = (errno.ENOSPC, errno.EDQUOT)


class File(Protocol):
    """An open file. Several threads may call `read` and `write`."""

    def write(self, parts: Sequence[bytes], offset: int) -> None:
        """Writes all of `parts`, one after the other, from `offset` on."""

    def read(self, length: int, offset: int) -> bytes:
        """Reads `length` bytes; fewer only at the end of the file. Blocks that the disk cannot read
        are returned as zeros, which the CRCs of all formats tell from data, so they are handled
        like any other damage."""

    def sync(self) -> None:
        """Makes the data and the size durable (fdatasync)."""

    def drop_cached(self, offset: int, length: int) -> None:
        """Hints that the synced part of these bytes need not stay in memory, because nobody will
        read it soon."""

    def allocate(self, length: int) -> None:
        """Makes the file at least `length` bytes long, with disk space reserved for all of it."""

    def resize(self, length: int) -> None:
        """Cuts the file, or extends it with zeros that take no disk space."""

    def size(self) -> int: ...

    def close(self) -> None: ...


class Syncs(Protocol):
    """Syncs that need no thread, one at a time, for one event loop and one log."""

    def start(self, file: File, on_done: OnDone) -> None:
        """Called on the loop. Starts a sync of a file of the same layer; the loop calls
        `on_done(error)` later. When it raises OSError, no sync was started."""

    def wait(self) -> OSError | None:
        """BLOCKING, in another thread. Waits for the newest sync and returns its result. The caller
        must ignore `on_done`, which may or may not be called."""

    def close(self) -> None:
        """Any thread may call it, once no sync is under way."""


class FileLayer(Protocol):
    """A file system."""

    def open(self, path: Path, *, create: bool = False, private: bool = False) -> File:
        """Opens a file for reading and writing; a new one that is `private` is for its owner alone.
        Raises FileNotFoundError, or, with `create`, FileExistsError."""

    def lock(self, path: Path) -> File:
        """Creates the file and locks it until it is closed. Raises DataDirectoryError when another
        process holds the lock."""

    def names(self, directory: Path) -> list[str]:
        """The sorted names in the directory; empty when the directory does not exist."""

    def rename(self, source: Path, target: Path) -> None: ...

    def remove(self, path: Path) -> None: ...

    def make_directory(self, path: Path) -> None:
        """Creates the directory and its parents; an existing one is fine. On return the directory
        and all names in it are durable, including those that a killed process left unsynced."""

    def remove_directory(self, path: Path) -> None: ...

    def sync_directory(self, path: Path) -> None: ...

    def boot(self) -> int:
        """A number that identifies the machine's present boot; 0 when it is unknown. While it is
        the same, everything that a killed process had written is still there, synced or not."""

    def syncs(self, loop: asyncio.AbstractEventLoop, file: File) -> Syncs | None:
        """BLOCKING for one sync of `file`, on the loop's thread. None when only `File.sync`
        works."""


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFull(
                f"no room on the disk for {path}; free some, the node goes on"
            ) from error
        raise


class OsFile:
    """A file on the operating system's file system."""

    def __init__(self, path: Path, descriptor: int, reserve: Reserve) -> None:
        self._path = path
        self.descriptor = descriptor
        self._reserve = reserve

    def write(self, parts: Sequence[bytes], offset: int) -> None:
        with _translated(self._path):
            for start in range(0, len(parts), _IOV_MAX):
                chunk = parts[start : start + _IOV_MAX]
                wanted = sum(map(len, chunk))
                written = os.pwritev(self.descriptor, chunk, offset)
                if written < wanted:
                    self._write_rest(b"".join(chunk), written, offset)
                offset += wanted

    def _write_rest(self, data: bytes, written: int, offset: int) -> None:
        """Completes a short write, which is legal (2 GiB limit, signals, a nearly full disk)."""
        view = memoryview(data)
        while written < len(data):
            written += os.pwrite(self.descriptor, view[written:], offset + written)

    def read(self, length: int, offset: int) -> bytes:
        try:
            return self._read(length, offset)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        return self._read_blocks(length, offset)

    def _read_blocks(self, length: int, offset: int) -> bytes:
        """Reads block by block and returns zeros for the blocks that cannot be read."""
        end = min(offset + length, self.size())
        parts = []
        unreadable = 0
        while offset < end:
            size = min(end, (offset // _BLOCK + 1) * _BLOCK) - offset
            try:
                parts.append(self._read(size, offset))
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                parts.append(bytes(size))
                unreadable += 1
            offset += size
        _log.error("the disk cannot read blocks=%d path=%s before=%d", unreadable, self._path, end)
        return b"".join(parts)

    def _read(self, length: int, offset: int) -> bytes:
        data = os.pread(self.descriptor, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        got = len(data)
        while got < length:
            data = os.pread(self.descriptor, length - got, offset + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def sync(self) -> None:
        with _translated(self._path):
            os.fdatasync(self.descriptor)

    def drop_cached(self, offset: int, length: int) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.descriptor, offset, length, os.POSIX_FADV_DONTNEED)

    def allocate(self, length: int) -> None:
        with _translated(self._path):
            os.posix_fallocate(self.descriptor, 0, length)

    def resize(self, length: int) -> None:
        with _translated(self._path):
            os.ftruncate(self.descriptor, length)

    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def close(self) -> None:
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            self._reserve.close(descriptor)


class _OsSyncs:
    """`Syncs` for files of the operating system."""

    def __init__(self, below: KernelSyncs) -> None:
        self._below = below
        self.wait = below.wait
        self.close = below.close

    def start(self, file: File, on_done: OnDone) -> None:
        assert isinstance(file, OsFile), "a layer that wraps files also wraps their syncs"
        self._below.start(file.descriptor, on_done)


class OsFiles:
    """The operating system's file system."""

    def __init__(self, reserve: Reserve | None = None) -> None:
        """`reserve` holds descriptors that stay free for files; by default there are none."""
        self._reserve = reserve or Reserve()

    def open(self, path: Path, *, create: bool = False, private: bool = False) -> OsFile:
        flags = os.O_RDWR | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        with _translated(path):
            descriptor = self._reserve.open(path, flags, 0o600 if private else 0o640)
            return OsFile(path, descriptor, self._reserve)

    def lock(self, path: Path) -> OsFile:
        with _translated(path):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = self._reserve.open(path, flags, 0o640)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            self._reserve.close(descriptor)
            raise DataDirectoryError(
                f"{path.parent} is in use by another process (pid {holder or 'unknown'}); "
                "stop it, or give this node a directory of its own"
            ) from None
        with contextlib.suppress(OSError):  # the pid only tells an operator who holds the lock
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return OsFile(path, descriptor, self._reserve)

    def names(self, directory: Path) -> list[str]:
        try:
            return sorted(entry.name for entry in directory.iterdir())
        except FileNotFoundError:
            return []

    def rename(self, source: Path, target: Path) -> None:
        with _translated(target):
            source.rename(target)

    def remove(self, path: Path) -> None:
        with _translated(path):
            path.unlink()

    def make_directory(self, path: Path) -> None:
        missing = [one for one in (path, *path.parents) if not one.exists()]
        for directory in reversed(missing):
            with _translated(directory):
                directory.mkdir(exist_ok=True)
        changed = {path, *(one.parent for one in missing)}
        for directory in (path, *path.parents):
            try:
                self.sync_directory(directory)
            except PermissionError:
                if directory in changed:
                    raise
                break  # This process did not create a directory that its user may not read.
            if directory.is_mount():
                break

    def remove_directory(self, path: Path) -> None:
        with _translated(path):
            path.rmdir()

    def sync_directory(self, path: Path) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        descriptor = self._reserve.open(path, flags)
        try:
            with _translated(path):
                os.fsync(descriptor)
        finally:
            self._reserve.close(descriptor)

    def boot(self) -> int:
        try:
            text = _BOOT_ID.read_text(encoding="ascii").strip()
        except OSError:
            return 0
        return int(text.replace("-", "")[:16] or "0", 16)

    def syncs(self, loop: asyncio.AbstractEventLoop, file: File) -> Syncs | None:
        assert isinstance(file, OsFile)
        below = KernelSyncs.open(loop, file.descriptor)
        return None if below is None else _OsSyncs(below)


def replace_file(
    files: FileLayer, path: Path, parts: Sequence[bytes], *, private: bool = False
) -> None:
    """Replaces the file at `path` by one that consists of `parts`, durably and atomically; one that
    is `private` is for its owner alone.

    Crash cases: either a temporary file is left, which the next call replaces, or the new file is
    in place.
    """
    temporary = path.with_name(path.name + ".tmp")
    write_file(files, temporary, parts, private=private)
    files.rename(temporary, path)
    files.sync_directory(path.parent)


def write_file(
    files: FileLayer, path: Path, parts: Sequence[bytes], *, private: bool = False
) -> None:
    """Makes a new file of `parts` and syncs its content, not its name. An older one goes first."""
    with contextlib.suppress(FileNotFoundError):
        files.remove(path)
    file = files.open(path, create=True, private=private)
    try:
        file.write(parts, 0)
        file.sync()
    finally:
        file.close()


def read_file(files: FileLayer, path: Path) -> bytes | None:
    """All bytes of the file; None when the file does not exist."""
    try:
        file = files.open(path)
    except FileNotFoundError:
        return None
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()
