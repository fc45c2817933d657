"""A disk in memory that forgets, tears, fails, fills up and dies at a chosen operation.

How it works. Every file has a durable image and a list of changes since its last sync, which are in
the page cache; names have the same. `copy` gives the disk to the next process after one was killed:
the page cache outlives it, synced or not. `restart` gives the disk as it may be found after a power
failure: of the unsynced changes of each file any subset of 512-byte sectors is there, of the
unsynced names a prefix. A sync that fails leaves the file's changes in the page cache and calls
them clean, as Linux does: changes that are not on the disk by then do not get there by another
sync, but only when they are written again. Operations that change the disk are counted; from
`crash_at` on they all raise PowerCut.
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Sequence
from pathlib import Path

from semel.broker.log.files import File
from semel.broker.log.kernel_sync import OnDone
from semel.protos.errors import DataDirectoryError, DiskFull

SECTOR = 512


class PowerCut(Exception):
    """The machine is off."""


Change = tuple[int, bytes] | int
"""A write (offset, bytes), or a new size."""


class _Inode:
    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.pending: list[Change] = []

    def apply(self, change: Change, to: bytearray) -> None:
        if isinstance(change, int):
            if change < len(to):
                del to[change:]
            else:
                to.extend(bytes(change - len(to)))
            return
        offset, data = change
        if len(to) < offset + len(data):
            to.extend(bytes(offset + len(data) - len(to)))
        to[offset : offset + len(data)] = data

    def sync(self) -> None:
        for change in self.pending:
            self.apply(change, self.durable)
        self.pending.clear()

    def fail(self, chance: random.Random, survives: float) -> None:
        """A sync fails: any sectors are on the disk, and all changes are called clean."""
        self.durable = self.after_power_cut(chance, survives).durable
        self.pending.clear()

    def copy(self) -> _Inode:
        inode = _Inode()
        inode.data = bytearray(self.data)
        inode.durable = bytearray(self.durable)
        inode.pending = list(self.pending)
        return inode

    def after_power_cut(self, chance: random.Random, survives: float) -> _Inode:
        found = bytearray(self.durable)
        for change in self.pending:
            if isinstance(change, int):
                if chance.random() < survives:
                    self.apply(change, found)
                continue
            offset, data = change
            at = 0
            while at < len(data):
                stop = min(len(data), at + SECTOR - (offset + at) % SECTOR)
                if chance.random() < survives:
                    self.apply((offset + at, data[at:stop]), found)
                at = stop
        inode = _Inode()
        inode.data = found
        inode.durable = bytearray(found)
        return inode


NameChange = tuple[Path, _Inode | None, bool]
"""(path, inode, there or gone)"""


class SimFile:
    """An open file of a SimFiles."""

    def __init__(self, disk: SimFiles, inode: _Inode, lock: Path | None = None) -> None:
        self._disk = disk
        self._inode = inode
        self._lock = lock
        self._own: list[Change] = []
        """Changes by this handle since its last sync."""

    def _change(self, change: Change) -> None:
        inode = self._inode
        inode.pending.append(change)
        self._own.append(change)
        inode.apply(change, inode.data)

    def write(self, parts: Sequence[bytes], offset: int) -> None:
        with self._disk.operation("write"):
            self._disk.needs_room(self._inode, "write")
            self._change((offset, b"".join(parts)))

    def read(self, length: int, offset: int) -> bytes:
        with self._disk.mutex:
            return bytes(self._inode.data[offset : offset + length])

    def sync(self) -> None:
        try:
            with self._disk.operation("sync"):
                self._disk.needs_room(self._inode, "sync")
                self._inode.sync()
                self._own.clear()
        except (OSError, DiskFull):
            self.fail_sync()
            raise

    def fail_sync(self, chance: random.Random | None = None, survives: float = 0.0) -> None:
        """Fails a sync of this file; `survives` is the share of the changes that is on the disk."""
        with self._disk.mutex:
            self._inode.fail(chance or random.Random(0), survives)

    def drop_cached(self, offset: int, length: int) -> None:
        with self._disk.mutex:
            # What others wrote stays, as on Linux: a repair, or a write that was misdirected.
            pending = {id(change) for change in self._inode.pending}
            own = any(id(change) in pending for change in self._own)
            assert not own, "what is not synced is dropped"
            self._disk.dropped.append((offset, length))

    def allocate(self, length: int) -> None:
        with self._disk.operation("allocate"):
            grown = length - len(self._inode.data)
            if grown > 0:
                self._disk.needs_room(self._inode, "write")
                self._disk.take(grown)
                self._change(length)

    def resize(self, length: int) -> None:
        with self._disk.operation("resize"):
            self._change(length)

    def size(self) -> int:
        return len(self._inode.data)

    def close(self) -> None:
        if self._lock is not None:
            self._disk.locked.discard(self._lock)


class SimSyncs:
    """`Syncs` of a SimFiles: the test says when the kernel is done, and when the loop learns it."""

    def __init__(self, disk: SimFiles) -> None:
        self._disk = disk
        self._file: File | None = None
        self._on_done: OnDone | None = None
        self._error: OSError | None = None
        self._mutex = threading.Lock()
        self.started = 0
        self.closed = False

    @property
    def under_way(self) -> bool:
        """True until the loop has learned of the sync's end."""
        return self._on_done is not None

    def start(self, file: File, on_done: OnDone) -> None:
        assert not self.under_way, "one is under way"
        with self._disk.operation("start a sync"):
            self._file, self._on_done = file, on_done
            self.started += 1

    def complete(self) -> None:
        """Ends the sync in the kernel; the loop does not know yet."""
        with self._mutex:
            file, self._file = self._file, None
            if file is not None:
                self._error = None
                try:
                    file.sync()
                except (OSError, PowerCut) as error:
                    self._error = error  # type: ignore[assignment]

    def tell(self) -> None:
        """Tells the loop that the sync has ended."""
        self.complete()
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done(self._error)

    def wait(self) -> OSError | None:
        self.complete()
        return self._error

    def close(self) -> None:
        assert self._file is None, "a sync is under way"
        self.closed = True


class _Operation:
    def __init__(self, disk: SimFiles, kind: str) -> None:
        self._disk = disk
        self._kind = kind

    def __enter__(self) -> None:
        self._disk.mutex.acquire()
        try:
            self._disk.count(self._kind)
        except BaseException:
            self._disk.mutex.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._disk.mutex.release()


class SimFiles:
    """A file system in memory; a `FileLayer`."""

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        self.names_now: dict[Path, _Inode | None] = {}
        # None for a directory.
        self.names_durable: dict[Path, _Inode | None] = {}
        self.pending_names: list[tuple[NameChange, ...]] = []
        # Each element is one step of the file system's journal.
        self.locked: set[Path] = set()
        self.operations = 0
        self.crash_at: int | None = None
        self.syncs_left: int | None = None
        """When it reaches 0, the power fails instead of a sync."""
        self.sync_error_in: int | None = None
        """Syncs until one fails with EIO."""
        self.failing: dict[str, Exception] = {}
        """The error of all operations of a kind."""
        self.room: int | None = None
        """Bytes that may still be allocated; None for no limit."""
        self.full: tuple[str, str] | None = None
        """(begin of a file's name, "write" or "sync"): these operations find no room, as on file
        systems that write nothing in place, and on volumes that promise more room than they
        have."""
        self.dropped: list[tuple[int, int]] = []
        """Offset and length of each range that was dropped from the page cache."""
        self.boots = 1
        """Rises when the power fails."""
        self.kernel: SimSyncs | None = None
        """The kernel's syncs for the loop to which a log is attached; None without them."""

    def operation(self, kind: str) -> _Operation:
        return _Operation(self, kind)

    def count(self, kind: str) -> None:
        if kind == "sync" and self.syncs_left is not None:
            self.syncs_left -= 1
            if self.syncs_left < 0:
                self.crash_at = 0
        if self.crash_at is not None and self.operations >= self.crash_at:
            raise PowerCut(f"operation {self.operations}: {kind}")
        self.operations += 1
        if kind == "sync" and self.sync_error_in is not None:
            self.sync_error_in -= 1
            if self.sync_error_in < 0:
                self.sync_error_in = None
                raise OSError(errno.EIO, "input/output error (simulated)")
        if kind in self.failing:
            raise self.failing[kind]

    def take(self, length: int) -> None:
        if self.room is not None:
            if length > self.room:
                raise DiskFull("no room on the simulated disk")
            self.room -= length

    def needs_room(self, file: _Inode | Path, kind: str) -> None:
        if self.full is None or kind != self.full[1]:
            return
        paths = [file] if isinstance(file, Path) else self.paths_of(file)
        if any(path.name.startswith(self.full[0]) for path in paths):
            raise DiskFull(f"no room on the simulated disk for {paths[0]}")

    def paths_of(self, inode: _Inode) -> list[Path]:
        """The names of an inode."""
        return [path for path, one in self.names_now.items() if one is inode]

    def power_cut(self) -> None:
        """Lets all further operations fail."""
        with self.mutex:
            self.crash_at = 0

    def restart(self, chance: random.Random | None = None, survives: float = 0.5) -> SimFiles:
        """The disk after a power failure, in a state that a real one may be in."""
        chance = chance or random.Random(0)
        with self.mutex:
            names = dict(self.names_durable)
            kept = 0
            while kept < len(self.pending_names) and chance.random() < survives:
                _apply_names(self.pending_names[kept], names)
                kept += 1
            disk = SimFiles()
            inodes = {
                id(inode): inode.after_power_cut(chance, survives)
                for inode in names.values()
                if inode is not None
            }
            for path, inode in names.items():
                disk.names_now[path] = None if inode is None else inodes[id(inode)]
            disk.names_durable = dict(disk.names_now)
            disk.boots = self.boots + 1
            return disk

    def copy(self) -> SimFiles:
        """The disk after the process was killed: all that was written is there, and unsynced
        changes are in the page cache, where a power failure may still take them."""
        with self.mutex:
            twins: dict[int, _Inode] = {}

            def twin(inode: _Inode | None) -> _Inode | None:
                if inode is None:
                    return None
                if id(inode) not in twins:
                    twins[id(inode)] = inode.copy()
                return twins[id(inode)]

            disk = SimFiles()
            disk.names_now = {path: twin(one) for path, one in self.names_now.items()}
            disk.names_durable = {path: twin(one) for path, one in self.names_durable.items()}
            disk.pending_names = [
                tuple((path, twin(one), there) for path, one, there in step)
                for step in self.pending_names
            ]
            disk.boots = self.boots
            return disk

    def image(self, path: Path) -> bytearray:
        """The file's bytes, to be damaged."""
        inode = self.names_now[path]
        assert inode is not None
        return inode.data

    def find(self, part: str) -> list[Path]:
        """Paths of the files whose name begins so."""
        return sorted(path for path in self.names_now if path.name.startswith(part))

    # FileLayer

    def boot(self) -> int:
        return self.boots

    def syncs(self, loop: object, file: File) -> SimSyncs | None:
        return self.kernel

    def _set(self, path: Path, inode: _Inode | None) -> None:
        self.names_now[path] = inode
        self.pending_names.append(((path, inode, True),))

    def _drop(self, path: Path) -> None:
        if path not in self.names_now:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        inode = self.names_now.pop(path)
        self.pending_names.append(((path, None, False),))
        if self.room is not None and inode is not None:
            self.room += len(inode.data)

    def open(self, path: Path, *, create: bool = False, private: bool = False) -> SimFile:
        if not create:
            with self.mutex:
                inode = self.names_now.get(path)
                if inode is None:
                    raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
                return SimFile(self, inode)
        with self.operation("create"):
            if path in self.names_now:
                raise FileExistsError(errno.EEXIST, "exists", str(path))
            self.needs_room(path, "write")
            inode = _Inode()
            self._set(path, inode)
            return SimFile(self, inode)

    def lock(self, path: Path) -> SimFile:
        with self.mutex:
            if path in self.locked:
                raise DataDirectoryError(f"{path} is locked")
            self.locked.add(path)
            return SimFile(self, _Inode(), path)

    def names(self, directory: Path) -> list[str]:
        with self.mutex:
            return sorted(path.name for path in self.names_now if path.parent == directory)

    def rename(self, source: Path, target: Path) -> None:
        with self.operation("rename"):
            inode = self.names_now.get(source)
            if inode is None and source in self.names_now:
                self._rename_directory(source, target)
                return
            if inode is None:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(source))
            del self.names_now[source]
            self.names_now[target] = inode
            self.pending_names.append(((source, None, False), (target, inode, True)))

    def _rename_directory(self, source: Path, target: Path) -> None:
        """Removes a directory with all that is in it, in one step of the journal."""
        step: list[NameChange] = []
        for path in [one for one in self.names_now if one == source or source in one.parents]:
            inode = self.names_now.pop(path)
            moved = target / path.relative_to(source)
            self.names_now[moved] = inode
            step += [(path, None, False), (moved, inode, True)]
        self.pending_names.append(tuple(step))

    def remove(self, path: Path) -> None:
        with self.operation("remove"):
            self._drop(path)

    def make_directory(self, path: Path) -> None:
        with self.operation("mkdir"):
            for directory in (*reversed(path.parents), path):
                self.names_now[directory] = self.names_durable[directory] = None
            self._sync_names(path)

    def remove_directory(self, path: Path) -> None:
        with self.operation("rmdir"):
            if self.names(path):
                raise OSError(errno.ENOTEMPTY, "not empty", str(path))
            self._drop(path)

    def sync_directory(self, path: Path) -> None:
        with self.operation("syncdir"):
            self._sync_names(path)

    def _sync_names(self, directory: Path) -> None:
        rest = [step for step in self.pending_names if step[0][0].parent != directory]
        for step in self.pending_names:
            if step[0][0].parent == directory:
                _apply_names(step, self.names_durable)
        self.pending_names = rest


def _apply_names(step: tuple[NameChange, ...], names: dict[Path, _Inode | None]) -> None:
    for path, inode, there in step:
        if there:
            names[path] = inode
        else:
            names.pop(path, None)
