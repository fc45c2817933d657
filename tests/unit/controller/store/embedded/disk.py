"""A directory on a disk behind a page cache, which tears writes and fails, and ends the process.

What `Files` promises and no more. A process that was killed (`kill`) leaves everything in the page
cache, and the next process reads it as if it were on the disk. A sync that fails with EIO leaves it
there too, and marks it clean: no later sync writes it (fsyncgate). Only when the power fails
(`crash`, `power_off`) the truth comes out: each name is the one before or after a rename that was
not made durable, and of bytes that no sync has written any beginning is left, possibly with holes.
"""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass, field


class Crash(BaseException):
    """The process ends here."""


@dataclass
class Inode:
    """A file's bytes as processes read them, and which of them the disk has."""

    data: bytearray = field(default_factory=bytearray)
    clean: int = 0
    """The next sync writes the bytes from here on."""
    lost: list[tuple[int, int]] = field(default_factory=list)
    """Half-open ranges below `clean` that a failed sync has not written."""

    @property
    def safe(self) -> int:
        """Number of bytes at the beginning that outlive a power failure."""
        return min([self.clean, *(start for start, _ in self.lost)])


class SimDisk:
    """One directory over all lives of a process."""

    def __init__(self) -> None:
        self._names: dict[str, Inode] = {}
        self._durable: dict[str, Inode] = {}
        self.operations = 0
        self.crash_at: int | None = None
        """The process ends in the operation of that number."""
        self.fail_at: int | None = None
        """That operation, if it is a sync, and every later one fails."""
        self.dead = False

    def where(self, name: str) -> str:
        return f"disk/{name}"

    def names(self) -> list[str]:
        return sorted(self._names)

    def read(self, name: str) -> bytes | None:
        inode = self._names.get(name)
        return None if inode is None else bytes(inode.data)

    def create(self, name: str, data: bytes) -> None:
        self._step()
        self._names[name] = Inode()
        self.append(name, data)

    def append(self, name: str, data: bytes) -> None:
        self._names[name].data += data
        self._step()

    def sync(self, name: str) -> None:
        self._step()
        inode = self._names[name]
        if self.fail_at is not None and self.operations >= self.fail_at:
            if inode.clean < len(inode.data):
                inode.lost.append((inode.clean, len(inode.data)))
                inode.clean = len(inode.data)
            raise OSError(errno.EIO, "Input/output error")
        inode.clean = len(inode.data)
        self._step()

    def rename(self, source: str, target: str) -> None:
        self._step()
        self._names[target] = self._names.pop(source)
        self._step()

    def remove(self, name: str) -> None:
        self._step()
        del self._names[name]

    def sync_directory(self) -> None:
        self._step()
        self._durable = dict(self._names)
        self._step()

    def free_bytes(self) -> int:
        return 1 << 40

    def close(self) -> None:
        """Nothing is open."""

    def open(self) -> None:
        """The next process begins, and syncs the names, as `OsFiles` does."""
        self.restart()
        self._durable = dict(self._names)

    def kill(self) -> None:
        """The process ends; the next one finds what it wrote, on the disk or not."""
        self.restart()

    def crash(self, rng: random.Random) -> None:
        """The power fails: the disk keeps what it must, and of the rest anything."""
        names = sorted(self._names.keys() | self._durable.keys())
        kept: dict[str, Inode] = {}
        for name in names:
            choice = rng.choice((self._names, self._durable)).get(name)
            if choice is not None:
                kept[name] = choice
        for inode in kept.values():
            _tear(inode, rng)
        self._names = kept
        self._settle()

    def power_off(self) -> None:
        """The power fails, and the disk keeps what is certain, and nothing else."""
        self._names = dict(self._durable)
        for inode in self._names.values():
            del inode.data[inode.safe :]
        self._settle()

    def restart(self) -> None:
        """The next process may begin."""
        self.crash_at = self.fail_at = None
        self.dead = False

    def lose(self) -> None:
        """An empty disk."""
        self._names = {}
        self._settle()

    def write(self, name: str, data: bytes) -> None:
        """Puts bytes there, as damage does."""
        self._names[name] = Inode(bytearray(data), len(data))
        self._durable = dict(self._names)

    def is_certain(self, name: str) -> bool:
        """True when a power failure would change nothing in the file."""
        inode = self._names.get(name)
        return inode is self._durable.get(name) and (inode is None or inode.safe == len(inode.data))

    def _settle(self) -> None:
        """Makes durable what is there now."""
        self._durable = dict(self._names)
        for inode in self._names.values():
            inode.clean = len(inode.data)
            inode.lost.clear()
        self.restart()

    def _step(self) -> None:
        self.operations += 1
        if self.crash_at is not None and self.operations >= self.crash_at:
            self.dead = True
        if self.dead:
            raise Crash


def _tear(inode: Inode, rng: random.Random) -> None:
    for start, end in inode.lost:
        if rng.random() < 0.5:
            inode.data[start:end] = bytes(end - start)
    if inode.safe < inode.clean == len(inode.data) and rng.random() < 0.5:
        del inode.data[inode.safe :]  # the file's length was not written either
        return
    loose = len(inode.data) - inode.clean
    if loose <= 0:
        return
    kept = rng.randint(0, loose)
    del inode.data[inode.clean + kept :]
    if kept and rng.random() < 0.5:
        start = inode.clean + rng.randrange(kept)
        end = min(len(inode.data), start + rng.randint(1, 64))
        inode.data[start:end] = bytes(end - start)
