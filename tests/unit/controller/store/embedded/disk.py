"""A directory that forgets what was not synced, tears writes, and ends the process when told.

What `Files` promises and no more: after `crash` each name is the one before or after a rename that
was not made durable, and of unsynced bytes any beginning is left, possibly with holes.
"""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass, field


class Crash(BaseException):
    """The process ends here."""


@dataclass
class Inode:
    """A file's bytes, and how many of them are safe."""

    data: bytearray = field(default_factory=bytearray)
    synced: int = 0


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
        if self.fail_at is not None and self.operations >= self.fail_at:
            raise OSError(errno.EIO, "Input/output error")
        inode = self._names[name]
        inode.synced = len(inode.data)
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

    def crash(self, rng: random.Random) -> None:
        """What the next process finds."""
        names = sorted(self._names.keys() | self._durable.keys())
        kept: dict[str, Inode] = {}
        for name in names:
            choice = rng.choice((self._names, self._durable)).get(name)
            if choice is not None:
                kept[name] = choice
        for inode in kept.values():
            _tear(inode, rng)
        self._names = kept
        self.restart()

    def power_off(self) -> None:
        """The disk keeps what is certain, and nothing else."""
        self._names = dict(self._durable)
        for inode in self._names.values():
            del inode.data[inode.synced :]
        self.restart()

    def restart(self) -> None:
        """The next process may begin."""
        self._durable = dict(self._names)
        for inode in self._names.values():
            inode.synced = len(inode.data)
        self.crash_at = self.fail_at = None
        self.dead = False

    def lose(self) -> None:
        """An empty disk."""
        self._names = {}
        self.restart()

    def write(self, name: str, data: bytes) -> None:
        """Puts bytes there, as damage does."""
        self._names[name] = Inode(bytearray(data), len(data))
        self._durable = dict(self._names)

    def _step(self) -> None:
        self.operations += 1
        if self.crash_at is not None and self.operations >= self.crash_at:
            self.dead = True
        if self.dead:
            raise Crash


def _tear(inode: Inode, rng: random.Random) -> None:
    loose = len(inode.data) - inode.synced
    if loose <= 0:
        return
    kept = rng.randint(0, loose)
    del inode.data[inode.synced + kept :]
    if kept and rng.random() < 0.5:
        start = inode.synced + rng.randrange(kept)
        end = min(len(inode.data), start + rng.randint(1, 64))
        inode.data[start:end] = bytes(end - start)
