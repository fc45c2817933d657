"""The place where a node keeps its index of message ids: it loses what was not synced, is deleted,
fills up and rots.

How it works. The store is a map in memory, beside a durable image of it. It has no write-ahead log,
as RocksDB has none there: whenever a process ends, in peace or not, the map falls back to what it
was after some write since the last sync. So it does when the disk has refused a write and the store
is opened again. A value that rots is noticed when it is read, by the checksum of its block.

Not here: the disk with all else (`disk.py`), which of these things happens when (`parts/ids.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from semel.broker.dedup.id_store import CorruptIndex, Writes
from tests.world.disk import NodeFiles
from tests.world.loop import Killed

_KIND: Final = 13
"""Where a key says of what kind it is (`dedup/id_runs.py`)."""


class IdDisk:
    """One node's index of message ids, which outlives its processes."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.values: dict[bytes, bytes] = {}
        self.full = False
        """The disk has no room."""
        self.refused = 0
        """Changes that it has refused since it was full last."""
        self.damaged: set[bytes] = set()
        """Keys of values that have rotted."""
        self.losses = 0
        """How often ids may have been lost by damage or deletion."""
        self._durable: dict[bytes, bytes] = {}
        self._unsynced: list[Writes] = []

    def mount(self, files: NodeFiles) -> SimIdStore:
        """The store of a new process, whose other files are `files`."""
        return SimIdStore(self, files)

    def write(self, writes: Writes) -> None:
        """Makes the changes, in memory."""
        self._unsynced.append(writes)
        _change(self.values, writes)
        self.damaged -= {key for key, _ in writes.puts}
        self.damaged &= self.values.keys()

    def sync(self) -> None:
        """Makes all changes durable."""
        for writes in self._unsynced:
            _change(self._durable, writes)
        self._unsynced.clear()

    def reopen(self) -> None:
        """Falls back to what it was after some write since the last sync."""
        kept = self.random.choice((0, 0, self.random.randint(0, len(self._unsynced))))
        del self._unsynced[kept:]
        self.sync()
        self.values = dict(self._durable)
        self.damaged &= self.values.keys()

    def wipe(self) -> None:
        """Loses everything."""
        self.values, self._durable = {}, {}
        self._unsynced.clear()
        self.damaged.clear()

    def lose(self) -> bool:
        """Somebody deletes the directory while the node is down; False if it was empty."""
        held = bool(self.values)
        self.losses += held
        self.wipe()
        return held

    def rot(self) -> bool:
        """Damages a value; False if there is none."""
        if not self.values:
            return False
        keys = sorted(self.values)
        chunks = [key for key in keys if key[_KIND:].startswith(b"c")] or keys
        self.damaged.add(self.random.choice(self.random.choice((keys, chunks))))
        self.losses += 1
        return True


def _change(values: dict[bytes, bytes], writes: Writes) -> None:
    for begin, end in writes.dropped:
        for key in [key for key in values if begin <= key < end]:
            del values[key]
    values.update(writes.puts)


class SimIdStore:
    """An `IdStore` of one process."""

    def __init__(self, disk: IdDisk, files: NodeFiles) -> None:
        self._disk = disk
        self._files = files
        self._failed = False
        self.failures = 0

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of keys."""
        disk = self._disk
        self._pass("read")
        if not disk.damaged.isdisjoint(keys):
            self._files.disk.world.count("damage of an index noticed")
            raise CorruptIndex("block checksum mismatch (simulated)")
        return [disk.values.get(key) for key in keys]

    def keep_apart(self, prefix: bytes) -> None:
        """Does nothing: all is dropped at little cost."""

    def write(self, writes: Writes) -> None:
        """Makes the changes in memory."""
        self._before_change("write")
        self._disk.write(writes)

    def sync(self) -> None:
        """Makes all changes durable."""
        self._before_change("sync")
        self._disk.sync()

    def drop(self, begin: bytes, end: bytes) -> None:
        """Drops a half-open range of keys; sometimes everything is durable then."""
        self.write(Writes(dropped=[(begin, end)]))
        if self._disk.random.random() < 0.3:
            self.sync()

    def _before_change(self, kind: str) -> None:
        """Raises OSError while the disk is full."""
        if self._failed:
            self._disk.reopen()
            self._failed = False
        try:
            self._pass(kind)
            if self._disk.full:
                self._disk.refused += 1
                self._files.disk.world.count("index refused for want of room")
                raise OSError("no space left on the device (simulated)")
        except OSError:
            self._failed = True
            self.failures += 1
            raise

    def wipe(self) -> None:
        """Loses everything."""
        self._pass("remove")
        self._disk.wipe()

    def close(self) -> None:
        """Does nothing: `reopen` follows."""

    def _pass(self, kind: str) -> None:
        """Takes time, and may kill. Raises Killed and OSError."""
        files = self._files
        if not files.process.alive:
            raise Killed
        thread = files.disk.world.threads.current
        if thread is not None:
            delay = files.disk.latency(kind)
            if delay > 0:
                thread.sleep(delay)
            if kind != "read":
                files.meets_its_fate(kind)
