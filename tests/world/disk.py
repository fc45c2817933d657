"""A node's disk: it forgets what was not synced, tears, stalls, fails, fills up, rots, misdirects
writes, and lets its process die at any operation.

How it works. The bytes lie in the log's own simulated file system (`tests/kit/disk.py`),
which keeps a durable image of every file and name beside the present one. A process sees it through
a `NodeFiles`, which makes each operation take its time: a thread sleeps, the event loop stands
still, a sync of the kernel ends later, unless the process is dead by then. Between the product and
an open file stand the product's own file layer and the system calls of `kernel.py`. A crash is
planned for the n-th operation of a kind: the process dies in it, and the operation is done, or not,
or (a write) in part. A misdirected write is planned likewise: it succeeds, and its bytes lie
elsewhere in the file or in another file of the node.

Not here: which faults happen when (`plan.py`, `disk_faults.py`).
"""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from semel.broker.log.files import File, OsFile, Syncs, _OsSyncs
from semel.broker.log.hard_state import BLOCK_BYTES
from semel.broker.log.kernel_sync import KernelSyncs
from semel.protos.errors import DiskFull
from tests.kit.disk import SECTOR, SimFile, SimFiles
from tests.world.kernel import SimAio, SimOs
from tests.world.loop import Killed, Process

if TYPE_CHECKING:
    from tests.world.world import World

_FAIL = ("write", "sync")
SLOW_KINDS = frozenset({"sync", "syncdir"})
_FIRST_VOTE = "hard_state.tmp"
_LASTING = frozenset(
    {"segment", "checkpoint", "kept", "hard_state", "CURRENT", "IDENTITY", "IDENTITY.copy"}
)


class Disk:
    """One node's disk, which outlives its processes."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.files = SimFiles()
        self.random = Random(world.random.getrandbits(64))
        self.stalled_until = 0.0
        self.sync_max_s = 0.006
        self.remove_max_s = 0.0
        """How long it takes to remove a file of the log, at most."""
        self.system: SimOs | None = None
        """The system calls by which files are reached; without them only the layer is simulated."""
        self.system_calls_vary = False
        """System calls do a part of what was asked for, and the loop hears late of syncs."""
        self.kernel_syncs = True
        """The kernel syncs for the event loop; else threads do."""
        self.crash_in: int | None = None
        """Operations of `crash_kind` until the process dies in one."""
        self.crash_kind = ""
        self.strike_file = ""
        """Only operations on files whose names begin so count for crashes and failures."""
        self.fail_in: int | None = None
        """Operations of `fail_kind` until one fails with EIO."""
        self.fail_kind = ""
        self.misdirect_in: int | None = None
        """Writes to the node's lasting files until one lands elsewhere."""
        self.misdirect_file = ""
        """Only writes to files whose names begin so count."""
        self.on_misdirected: Callable[[], None] = lambda: None
        self.vote_struck = False
        """A block of `hard_state` was damaged or not written: the format survives one."""
        self.first_vote_lost = False
        """The first write of `hard_state` was lost with all its copies: until the next write the
        node stands by a vote that it would not find if it started again."""
        self._lose_first_vote = False
        self.seen: Counter[str] = Counter()

    def mount(self, process: Process) -> NodeFiles:
        """The file layer of a new process."""
        return NodeFiles(self, process)

    def after_kill(self) -> None:
        """The process was killed; what it had written is in the page cache or on the disk."""
        self._put_in(self.files.copy())

    def after_power_cut(self) -> None:
        """The power failed: any subset of what was not synced is there."""
        survives = self.random.choice([0.0, 0.3, 0.7, 1.0])
        self._put_in(self.files.restart(self.random, survives))

    def _put_in(self, files: SimFiles) -> None:
        """Exchanges the files for those that the next process finds. A full disk stays full."""
        files.room, files.full = self.files.room, self.files.full
        self.files = files
        self._calm()

    def lose_first_vote(self) -> None:
        """The first write of `hard_state` on this empty disk will succeed and be lost."""
        self._lose_first_vote = True

    def loses(self, file: File) -> bool:
        """Whether this write is the one that is to be lost."""
        if not self._lose_first_vote:
            return False
        inode = next(
            (one for path, one in self.files.names_now.items() if path.name == _FIRST_VOTE), None
        )
        if inode is None or inode is not file._inode:  # type: ignore[attr-defined]
            return False
        self._lose_first_vote = False
        self.first_vote_lost = self.vote_struck = True
        self.on_misdirected()
        self.world.fault("lost write of the first vote")
        return True

    def has_room(self) -> None:
        """Ends the lack of room."""
        self.files.room = self.files.full = None

    def _calm(self) -> None:
        self.crash_in = self.fail_in = self.misdirect_in = None
        self.strike_file = ""
        self.stalled_until = 0.0

    def latency(self, kind: str, path: Path | None = None) -> float:
        """How long an operation takes, s."""
        now = self.world.loop.now
        wait = max(0.0, self.stalled_until - now)
        if kind == "remove" and self.remove_max_s and path is not None and _lasting(path.name):
            wait += self.random.uniform(0.0, self.remove_max_s)
        if kind in SLOW_KINDS:
            return wait + self.random.uniform(0.0002, self.sync_max_s)
        if self.random.random() < 0.1:
            return wait + self.random.uniform(0.0001, 0.002)
        return wait

    def damage(self, path: Path, offset: int, data: bytes) -> None:
        """Overwrites bytes behind everybody's back, durably."""
        inode = self.files.names_now.get(path)
        if inode is None or offset + len(data) > len(inode.data):
            return
        inode.data[offset : offset + len(data)] = data
        durable = inode.durable
        if offset + len(data) <= len(durable):
            durable[offset : offset + len(data)] = data
        self.world.count("damage: " + path.name.split("-")[0])

    def misdirects(self, file: File, data: bytes, offset: int) -> bool:
        """Whether this write has landed elsewhere instead.

        Never where it strikes both places of one entry, frame and ID: one fault that finds both is
        more than the format survives.
        """
        source = next(
            (path for path, inode in self.files.names_now.items() if inode is file._inode),  # type: ignore[attr-defined]
            None,
        )
        kind = "" if source is None else _lasting(source.name.removesuffix(".tmp"))
        if source is None or not kind.startswith(self.misdirect_file) or not kind:
            return False
        assert self.misdirect_in is not None
        self.misdirect_in -= 1
        if self.misdirect_in >= 0 or (kind == "hard_state" and self.vote_struck):
            return False
        others = [path for path in sorted(self.files.names_now) if self._may_take(path, data)]
        inside = self.random.random() < 0.5 or not others
        target = source if inside else self.random.choice(others)
        inode = self.files.names_now[target]
        assert inode is not None
        at = self.random.randrange(0, max(1, len(inode.data) - len(data))) // SECTOR * SECTOR
        landing = data[: max(0, len(inode.data) - at)]
        if (
            file.read(len(data), offset) == data
            or bytes(inode.data[at : at + len(landing)]) == landing
            or (_lasting(target.name) == "segment" and _strikes_both(inode.data, at, landing))
            or (inside and kind == "segment" and offset < _frames_at(inode.data) <= at)
        ):
            return False  # another write will do
        self.misdirect_in = None
        self.vote_struck |= "hard_state" in (kind, _lasting(target.name))
        self.first_vote_lost |= source.name == _FIRST_VOTE
        self.files.open(target).write([landing], at)
        self.on_misdirected()
        self.world.fault(f"misdirected write of {kind}")
        self.world.count("misdirected write " + ("within a file" if inside else "to another file"))
        return True

    def _may_take(self, path: Path, data: bytes) -> bool:
        """Whether a write may land in this file."""
        kind = _lasting(path.name)
        if kind == "hard_state":
            return not self.vote_struck and len(data) <= BLOCK_BYTES - SECTOR
        return kind != ""


def _lasting(name: str) -> str:
    """What kind of file it is; empty for one that is not there to last."""
    kind = name.partition("-")[0]
    return kind if kind in _LASTING else ""


def _frames_at(segment: bytearray) -> int:
    """Where the first frame begins; IDs lie before it."""
    return int.from_bytes(segment[44:48], "little")


def _strikes_both(segment: bytearray, at: int, landing: bytes) -> bool:
    return at < _frames_at(segment) < at + len(landing)


class NodeFiles:
    """A `FileLayer` of one process."""

    def __init__(self, disk: Disk, process: Process) -> None:
        self.disk = disk
        self.process = process

    def before(self, kind: str, path: Path | None = None) -> None:
        """Takes time, and may kill. Raises Killed, OSError."""
        disk, process = self.disk, self.process
        if not process.alive:
            raise Killed
        world = disk.world
        delay = disk.latency(kind, path)
        if delay > 0:
            thread = world.threads.current
            if thread is not None:
                thread.sleep(delay)
            else:
                world.loop.stop_process(process, world.loop.now + delay)
        self.meets_its_fate(kind, path)

    def meets_its_fate(self, kind: str, path: Path | None = None) -> None:
        """The moment at which the operation is done, or not. Raises Killed, OSError."""
        disk, process, world = self.disk, self.process, self.disk.world
        disk.seen[kind] += 1
        if disk.strike_file and (path is None or not path.name.startswith(disk.strike_file)):
            return
        if disk.fail_in is not None and kind in ((disk.fail_kind,) if disk.fail_kind else _FAIL):
            disk.fail_in -= 1
            if disk.fail_in < 0:
                disk.fail_in = None
                world.count(f"disk error in {kind}")
                raise OSError(errno.EIO, "input/output error (simulated)")
        if disk.crash_in is not None and disk.crash_kind in ("", kind):
            disk.crash_in -= 1
            if disk.crash_in < 0:
                disk.crash_in = None
                world.count(f"crash in {kind}")
                world.crash(process.host, "in " + kind)
                raise Killed

    def dying(self) -> bool:
        """Whether the operation in which the process died was done all the same."""
        return self.disk.random.random() < 0.5

    def open(self, path: Path, *, create: bool = False, private: bool = False) -> File:
        file = self._open(path, create=create)
        system = self.disk.system
        return file if system is None else OsFile(path, system.adopt(file), system)  # type: ignore[arg-type]

    def _open(self, path: Path, *, create: bool) -> _NodeFile:
        if not create:
            if not self.process.alive:
                raise Killed
            return _NodeFile(self, self.disk.files.open(path), path)
        files = self.disk.files
        try:
            self.before("create", path)
        except Killed:
            if self.dying() and path not in files.names_now:
                files.open(path, create=True)
            raise
        return _NodeFile(self, files.open(path, create=True), path)

    def lock(self, path: Path) -> File:
        return self.disk.files.lock(path)

    def names(self, directory: Path) -> list[str]:
        return self.disk.files.names(directory)

    def rename(self, source: Path, target: Path) -> None:
        files = self.disk.files
        try:
            self.before("rename", target)
        except Killed:
            if self.dying() and source in files.names_now:
                files.rename(source, target)
            raise
        files.rename(source, target)

    def remove(self, path: Path) -> None:
        if path not in self.disk.files.names_now:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        self.before("remove", path)
        self.disk.files.remove(path)

    def make_directory(self, path: Path) -> None:
        self.before("mkdir")
        self.disk.files.make_directory(path)

    def remove_directory(self, path: Path) -> None:
        self.before("rmdir")
        self.disk.files.remove_directory(path)

    def sync_directory(self, path: Path) -> None:
        self.before("syncdir")
        self.disk.files.sync_directory(path)

    def boot(self) -> int:
        return self.disk.files.boot()

    def syncs(self, loop: asyncio.AbstractEventLoop, file: File) -> Syncs | None:
        """What `OsFiles.syncs` gives when its trial has gone well."""
        system = self.disk.system
        if system is None or not self.disk.kernel_syncs:
            return None
        below = KernelSyncs(SimAio(self, system), loop)
        loop.add_reader(below._context.fileno, below._on_readable)
        return _OsSyncs(below)


class _NodeFile:
    """An open file of one process."""

    def __init__(self, layer: NodeFiles, file: SimFile, path: Path) -> None:
        self._layer = layer
        self.disk = layer.disk
        self._file = file
        self.path = path
        """When it was opened; a spare is renamed later."""
        self.size = file.size
        self.close = file.close

    def write(self, parts: Sequence[bytes], offset: int) -> None:
        try:
            self._layer.before("write", self.path)
        except Killed:
            if self._layer.dying():
                data = b"".join(parts)
                torn = self._layer.disk.random.randrange(0, len(data) + SECTOR)
                if data[:torn]:
                    self._file.write([data[:torn]], offset)
            raise
        disk = self._layer.disk
        if disk.loses(self._file):
            return
        if disk.misdirect_in is not None:
            data = b"".join(parts)
            if disk.misdirects(self._file, data, offset):
                return
        with self._meeting_no_room():
            self._file.write(parts, offset)

    def read(self, length: int, offset: int) -> bytes:
        return self._file.read(length, offset)

    def sync(self) -> None:
        with self._failing():
            self._layer.before("sync", self.path)
            self._file.sync()

    def sync_by_kernel(self) -> None:
        """The same, when its time has passed already."""
        with self._failing():
            try:
                self._layer.meets_its_fate("sync", self.path)
            except Killed:
                if self._layer.dying():
                    self._file.sync()
                raise
            self._file.sync()

    @contextmanager
    def _meeting_no_room(self) -> Iterator[None]:
        """Counts when a full disk bites."""
        try:
            yield
        except DiskFull:
            kind = self.path.name.partition("-")[0]
            self._layer.disk.world.count(f"refused for want of room: {kind}")
            raise

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """After a sync that failed the kernel calls the pages clean, wherever they are."""
        disk = self._layer.disk
        try:
            with self._meeting_no_room():
                yield
        except (OSError, DiskFull):
            self._file.fail_sync(disk.random, disk.random.choice((0.0, 0.5)))
            raise

    def drop_cached(self, offset: int, length: int) -> None:
        self._file.drop_cached(offset, length)

    def allocate(self, length: int) -> None:
        self._layer.before("allocate", self.path)
        self._file.allocate(length)

    def resize(self, length: int) -> None:
        self._layer.before("resize", self.path)
        self._file.resize(length)
