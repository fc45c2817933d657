"""A broker node, as a real process, on a disk that fails, hangs, fills up or lies on demand.

How it works. The process runs the product's own command with a `FileLayer` between the node and
the operating system. Before every operation it looks at a control file, so that a test changes
what the disk does while the node runs, and appends one line to a file of bites whenever a fault
has bitten: a test without a bite proves nothing.

    with Cluster(tmp_path) as cluster:          # or before it starts: faults_of(node), then start
        node = cluster.slaves()[0]
        cluster.kill(node)
        faults = faults_of(node)                # from its next start on
        cluster.start_node(node)
        faults.set(Rule(operation="sync", path="segment-*", error="EIO"))
        ...
        faults.clear()
        assert faults.bites()

By hand: `python tests/kit/faulty_node.py CONTROL_FILE --data … (flags of semel broker)`;
the control file holds what `Faults.set` writes.

Operations: open, create, lock, read, write, sync, allocate, resize, rename, remove, make_directory,
sync_directory. Rules are tried in their order; the first that fits decides.

Not here: faults of the network and of processes (`cluster.py`), a disk that loses power
(`tests/kit/disk.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fnmatch
import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from semel.broker.dedup.id_store import Writes
from semel.broker.dedup.rocks_store import RocksIdStore
from semel.broker.log import File, FileLayer, OsFiles, Reserve
from semel.broker.log.files import Syncs
from semel.broker.log.kernel_sync import OnDone
from semel.protos.errors import DiskFull

if TYPE_CHECKING:
    from tests.kit.cluster import Node

_LOOK_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The effect of a fault on some operations; without any effect named, nothing changes."""

    operation: str = "*"
    """A pattern of operations (`fnmatch`)."""
    path: str = "*"
    """A pattern of the file's name at that moment, without directories: segment-*, spare-*,
    checkpoint-*, kept-*, hard_state, IDENTITY, CURRENT; temporary files end in .tmp. The whole
    index of message ids is `ids`; its operations are read, write and sync."""
    error: str = ""
    """Name of an errno: EIO, ENOSPC, EROFS … A lack of room raises DiskFull, as the real layer."""
    delay_ms: float = 0
    """Waits for this time, then does what is left of the rule."""
    hang: bool = False
    """Waits until no rule hangs the operation any more."""
    flip: int | None = None
    """The place of the byte that is inverted in a read or a write, counted modulo its length."""
    skip: bool = False
    """Reports a write or a sync as done, and does nothing (a lost write)."""
    after: int = 0
    """Number of fitting operations that pass first, counted since the rules were set."""
    times: int = 0
    """Bites at most so many times; 0: always."""


class Faults:
    """The test's end of the control file: it sets rules and reads bites."""

    def __init__(self, control: Path) -> None:
        self.control = control
        self._rules: tuple[Rule, ...] = ()
        self._boot = 1

    def set(self, *rules: Rule) -> None:
        """From the node's next operation on, these rules and no others count."""
        self._rules = rules
        self._write()

    def power_failed(self) -> None:
        """The node's next start takes its machine for one that has been started anew."""
        self._boot += 1
        self._write()

    def _write(self) -> None:
        text = json.dumps({"boot": self._boot, "rules": [asdict(rule) for rule in self._rules]})
        temporary = self.control.with_suffix(".new")
        temporary.write_text(text)
        temporary.rename(self.control)

    def clear(self) -> None:
        """The disk obeys again; what hangs goes on."""
        self.set()

    def bites(self) -> list[dict[str, Any]]:
        """One entry for each time a rule took effect: {"operation", "path", "rule"}; `rule` counts
        from 0 within the rules of its time."""
        try:
            lines = _bites_file(self.control).read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]

    def forget_bites(self) -> None:
        """Forgets the bites so far."""
        _bites_file(self.control).unlink(missing_ok=True)

    def wait_bite(self, count: int = 1, timeout_s: float = 20.0) -> None:
        """Waits until there were `count` bites since the beginning."""
        deadline = time.monotonic() + timeout_s
        while len(self.bites()) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(self.bites())} of {count} faults bit: {self.control}")
            time.sleep(_LOOK_S)


def faults_of(node: Node) -> Faults:
    """Makes `node` of a Cluster run on a faulty disk whenever it is started from now on."""
    control = node.data.with_suffix(".faults")
    if "-m" in node.command:
        at = node.command.index("-m")
        assert node.command[at + 1] == "semel.broker"
        node.command[at : at + 2] = ["-P", str(Path(__file__).resolve()), str(control)]
    faults = Faults(control)
    faults.clear()
    return faults


def _bites_file(control: Path) -> Path:
    return control.with_suffix(".bites")


class _Rules:
    """The node's end of the control file. Any thread."""

    def __init__(self, control: Path) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._stamp: tuple[int, int] | None = None
        self._boot = 1
        self._rules: list[Rule] = []
        self._seen: list[int] = []
        self._bitten: list[int] = []

    def find(self, operation: str, path: Path) -> Rule | None:
        """The rule that decides; counted, and written down as a bite."""
        with self._lock:
            self._refresh()
            for number, rule in enumerate(self._rules):
                if not fnmatch.fnmatch(operation, rule.operation):
                    continue
                if not fnmatch.fnmatch(path.name, rule.path):
                    continue
                self._seen[number] += 1
                if self._seen[number] <= rule.after:
                    continue
                if rule.times and self._bitten[number] >= rule.times:
                    continue
                self._bitten[number] += 1
                self._write_down(operation, path, number)
                return rule
        return None

    def concerns(self, operation: str, path: Path, *, hang: bool = False) -> bool:
        """Whether a rule is about such an operation; on request only rules that hang count."""
        with self._lock:
            self._refresh()
            return any(
                rule.hang >= hang
                and fnmatch.fnmatch(operation, rule.operation)
                and fnmatch.fnmatch(path.name, rule.path)
                for rule in self._rules
            )

    def boot(self) -> int:
        with self._lock:
            self._refresh()
            return self._boot

    def _refresh(self) -> None:
        try:
            found = self._control.stat()
        except FileNotFoundError:
            return
        stamp = (found.st_mtime_ns, found.st_ino)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        told = json.loads(self._control.read_text())
        self._boot = told["boot"]
        self._rules = [Rule(**rule) for rule in told["rules"]]
        self._seen = [0] * len(self._rules)
        self._bitten = [0] * len(self._rules)

    def _write_down(self, operation: str, path: Path, number: int) -> None:
        line = json.dumps({"operation": operation, "path": str(path), "rule": number}) + "\n"
        descriptor = os.open(
            _bites_file(self._control), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640
        )
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


class FaultyFiles:
    """A `FileLayer` that obeys the rules of a control file, else the operating system."""

    def __init__(self, control: Path, below: FileLayer | None = None) -> None:
        self._rules = _Rules(control)
        self._below = below or OsFiles()
        self._open: weakref.WeakSet[_FaultyFile] = weakref.WeakSet()

    def suffer(self, operation: str, path: Path) -> Rule | None:
        """Waits and raises as the rule says; returns the rule for what is left to be done."""
        rule = self._rules.find(operation, path)
        if rule is None:
            return None
        if rule.delay_ms:
            time.sleep(rule.delay_ms / 1000)
        while rule.hang and self._rules.concerns(operation, path, hang=True):
            time.sleep(_LOOK_S)
        if rule.error:
            number = getattr(errno, rule.error)
            if number in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"no room on the disk for {path}, by a rule of the test")
            raise OSError(number, os.strerror(number), str(path))
        return rule

    def concerns(self, operation: str, path: Path) -> bool:
        """Whether a rule is about the operation, even if it does not bite now."""
        return self._rules.concerns(operation, path)

    def open(self, path: Path, *, create: bool = False, private: bool = False) -> File:
        self.suffer("create" if create else "open", path)
        file = _FaultyFile(self, path, self._below.open(path, create=create, private=private))
        self._open.add(file)
        return file

    def lock(self, path: Path) -> File:
        self.suffer("lock", path)
        return self._below.lock(path)

    def names(self, directory: Path) -> list[str]:
        return self._below.names(directory)

    def rename(self, source: Path, target: Path) -> None:
        self.suffer("rename", target)
        self._below.rename(source, target)
        for file in list(self._open):
            if file.path == source:
                file.path = target

    def remove(self, path: Path) -> None:
        self.suffer("remove", path)
        self._below.remove(path)

    def make_directory(self, path: Path) -> None:
        self.suffer("make_directory", path)
        self._below.make_directory(path)

    def remove_directory(self, path: Path) -> None:
        self._below.remove_directory(path)

    def sync_directory(self, path: Path) -> None:
        self.suffer("sync_directory", path)
        self._below.sync_directory(path)

    def boot(self) -> int:
        return self._rules.boot()

    def syncs(self, loop: asyncio.AbstractEventLoop, file: File) -> Syncs | None:
        below = self._below.syncs(loop, file)
        return None if below is None else _FaultySyncs(loop, below)


class FaultyIdStore(RocksIdStore):
    """An index of message ids that obeys the rules."""

    def __init__(self, files: FaultyFiles, directory: Path) -> None:
        super().__init__(directory)
        self._files = files
        self._path = directory

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._suffer("read")
        return super().get(keys)

    def write(self, writes: Writes) -> None:
        self._suffer("write")
        super().write(writes)

    def sync(self) -> None:
        self._suffer("sync")
        super().sync()

    def _suffer(self, operation: str) -> None:
        try:
            self._files.suffer(operation, self._path)
        except DiskFull as error:
            raise OSError(errno.ENOSPC, str(error)) from error


class _FaultySyncs:
    """The kernel's syncs; a sync that a rule is about is made by a thread, which obeys the rule."""

    def __init__(self, loop: asyncio.AbstractEventLoop, below: Syncs) -> None:
        self._loop = loop
        self._below = below
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None
        self.close = below.close

    def start(self, file: File, on_done: OnDone) -> None:
        assert isinstance(file, _FaultyFile)
        if file.suffers("sync"):
            self._thread = threading.Thread(target=self._sync, args=(file, on_done), daemon=True)
            self._thread.start()
        else:
            self._thread = None
            self._below.start(file.below, on_done)

    def _sync(self, file: File, on_done: OnDone) -> None:
        try:
            file.sync()
            self._error = None
        except OSError as error:
            self._error = error
        except DiskFull as error:
            self._error = OSError(errno.ENOSPC, str(error))
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(on_done, self._error)

    def wait(self) -> OSError | None:
        if self._thread is None:
            return self._below.wait()
        self._thread.join()
        return self._error


class _FaultyFile:
    """An open file; its name follows renames, as that of a spare that becomes a segment."""

    def __init__(self, files: FaultyFiles, path: Path, below: File) -> None:
        self._files = files
        self.path = path
        self.below = below

    def suffers(self, operation: str) -> bool:
        """Whether a rule is about it."""
        return self._files.concerns(operation, self.path)

    def write(self, parts: Sequence[bytes], offset: int) -> None:
        rule = self._files.suffer("write", self.path)
        if rule is not None and rule.skip:
            return
        if rule is not None and rule.flip is not None:
            parts = [_flipped(b"".join(parts), rule.flip)]
        self.below.write(parts, offset)

    def read(self, length: int, offset: int) -> bytes:
        rule = self._files.suffer("read", self.path)
        data = self.below.read(length, offset)
        return data if rule is None or rule.flip is None else _flipped(data, rule.flip)

    def sync(self) -> None:
        rule = self._files.suffer("sync", self.path)
        if rule is None or not rule.skip:
            self.below.sync()

    def drop_cached(self, offset: int, length: int) -> None:
        self.below.drop_cached(offset, length)

    def allocate(self, length: int) -> None:
        self._files.suffer("allocate", self.path)
        self.below.allocate(length)

    def resize(self, length: int) -> None:
        self._files.suffer("resize", self.path)
        self.below.resize(length)

    def size(self) -> int:
        return self.below.size()

    def close(self) -> None:
        self.below.close()


def _flipped(data: bytes, at: int) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    changed[at % len(data)] ^= 0xFF
    return bytes(changed)


def main() -> None:
    """CONTROL_FILE and the flags of `semel broker`."""
    from semel.broker import node
    from semel.broker.__main__ import KEPT_BACK
    from semel.broker.__main__ import main as broker

    files = FaultyFiles(Path(sys.argv[1]), OsFiles(Reserve(KEPT_BACK)))
    patch.object(node, "RocksIdStore", partial(FaultyIdStore, files)).start()
    with contextlib.suppress(BrokenPipeError):
        broker(args=sys.argv[2:], obj=files)


if __name__ == "__main__":
    main()
