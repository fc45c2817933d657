"""The seam between the index of message ids and the place where its runs are kept.

How it works. A store is a map from bytes to bytes. A write is atomic, and becomes durable with the
next `sync`, together with all writes before it: after a crash the map is as it was after some
write. The index may lose its newest writes, because the log has what they were made from.

Not here: RocksDB (`rocks_store.py`), keys and values (`id_runs.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from semel.protos.errors import CorruptSegment

PREFIX_BYTES: Final = 13
"""Keys that are kept apart begin with the same so many bytes: topic, "r" and run."""


class CorruptIndex(CorruptSegment):
    """The index of message ids is damaged; it has to be built anew."""


@dataclass(slots=True)
class Writes:
    """Changes that are made all at once; ranges are dropped before pairs are put."""

    puts: list[tuple[bytes, bytes]] = field(default_factory=list)
    dropped: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Half-open ranges of keys."""


class IdStore(Protocol):
    """All methods may block, and may be called from several threads, but only one of them writes.

    They raise CorruptIndex for damage, and OSError when the disk refuses.
    """

    @property
    def failures(self) -> int:
        """How many changes the disk has refused; all writes since the last sync are lost then."""
        ...

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of keys, None for those that are not there."""
        ...

    def keep_apart(self, prefix: bytes) -> None:
        """Has the keys with a prefix of PREFIX_BYTES, which will be many, kept where all of them
        are dropped at no cost, before the first one is written."""
        ...

    def write(self, writes: Writes) -> None:
        """Makes the changes, in memory at least. A range that is dropped has all keys with a
        prefix that are kept apart, or none."""
        ...

    def sync(self) -> None:
        """Returns once everything that was written is durable."""
        ...

    def drop(self, begin: bytes, end: bytes) -> None:
        """Drops a half-open range of keys and gives its space back; it may sync."""
        ...

    def wipe(self) -> None:
        """Loses everything, and goes on empty. It is the way out of damage."""
        ...

    def close(self) -> None:
        """Ends the use of the store; what was not synced may be lost."""
        ...


class MemoryIdStore:
    """A store in memory, for simulations; `crash` loses what was not synced."""

    failures = 0

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._durable: dict[bytes, bytes] = {}

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of keys."""
        return [self._values.get(key) for key in keys]

    def keep_apart(self, prefix: bytes) -> None:
        """Does nothing: all is dropped at little cost."""

    def write(self, writes: Writes) -> None:
        """Makes the changes."""
        for begin, end in writes.dropped:
            for key in [key for key in self._values if begin <= key < end]:
                del self._values[key]
        self._values.update(writes.puts)

    def sync(self) -> None:
        """Keeps everything over a crash."""
        self._durable = dict(self._values)

    def drop(self, begin: bytes, end: bytes) -> None:
        """Drops a half-open range of keys."""
        self.write(Writes(dropped=[(begin, end)]))

    def crash(self) -> None:
        """Loses what was not synced."""
        self._values = dict(self._durable)

    def wipe(self) -> None:
        """Loses everything."""
        self._values = {}
        self._durable = {}

    def close(self) -> None:
        """Does nothing."""
