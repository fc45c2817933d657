"""The seam between a controller and the place where its metadata is durable.

How it works. A store is a small ordered map from paths (`/topics/orders`) to bytes. All writing
is one operation, `transact`: an atomic compare-and-set over any number of keys. That is the most
that SQLite, a replicated state machine and ZooKeeper's `multi` offer alike, and enough for the
controller: every decision of its is one transaction that names the versions it was made from, so
a controller that lost its office without knowing it cannot write over its successor.

Invariants
1. The revision rises by at least one with every transaction, also across restarts, and never falls.
2. A key's version is the revision that wrote it last, so no version of a key ever comes again, not
   even after a delete.
3. `transact` returns after the change is durable; a transaction that raises VersionConflict has
   changed nothing.
4. `watch` misses nothing: it begins with all there is, and every later state of every key is
   covered by a later `Change` (several may be folded into one).
5. `mastership` is a hint: two controllers may believe for a moment that they are master. Which of
   them may write is decided by compare-and-set alone (`epoch.py`).

Not here: what the keys mean (`records.py`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import grpc.aio

from semel.protos.errors import Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Versioned:
    """A value and the revision that wrote it."""

    value: bytes
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """What must hold, and what changes when it does."""

    checks: Mapping[str, int | None] = field(default_factory=dict)
    """Expected version of each key; None expects it to be absent."""
    puts: Mapping[str, bytes] = field(default_factory=dict)
    deletes: frozenset[str] = frozenset()
    """Deleting an absent key changes nothing. No key is both put and deleted."""
    revision_min: int = 0
    """The transaction's revision is at least this: what is moved from another store must not begin
    below what that one gave out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What became of a watched prefix up to and including a revision."""

    revision: int
    puts: Mapping[str, Versioned]
    deletes: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerAddress:
    """One controller of the group."""

    controller_id: int
    address: str
    """HOST:PORT under which clients, brokers and other controllers reach it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mastership:
    """Who should be in office, as the store sees it."""

    master: ControllerAddress | None
    """None while nobody is, or nobody is known."""
    mine: bool
    """This controller should take office, or stay in it."""


class VersionConflict(Unavailable):
    """A check failed and nothing was changed; read again and decide again."""


class StoreFailed(Unavailable):
    """The store cannot write any more; whether its last transaction is durable is unknown."""


class MetadataStore(Protocol):
    """A durable map with compare-and-set. Keys are paths, values opaque bytes."""

    async def get(self, key: str) -> Versioned | None:
        """The key's newest durable value."""
        ...

    async def scan(self, prefix: str) -> dict[str, Versioned]:
        """All keys that begin with `prefix`, in order, of one revision."""
        ...

    async def revision(self) -> int:
        """The newest durable revision; 0 in an empty store."""
        ...

    async def transact(self, transaction: Transaction) -> int:
        """Applies the transaction whole and returns its revision.

        Raises VersionConflict when a check fails, DiskFull when there is no room (nothing was
        changed in both cases) and StoreFailed when the store is beyond use. A cancelled call may
        still take effect.
        """
        ...

    def watch(self, prefix: str) -> AsyncGenerator[Change]:
        """All keys under `prefix` at once, then what changes; ends when the store is closed."""
        ...

    def attach(self, server: grpc.aio.Server) -> None:
        """Adds what the store itself serves to the controller's port, before the server starts."""
        ...

    async def start(self, me: ControllerAddress) -> None:
        """Enters the group under the address that others reach; called once, after `attach`.

        Returns as soon as the store may be asked; reads and transactions then wait for a majority,
        and raise Unavailable when there is none in time.
        """
        ...

    def mastership(self) -> AsyncGenerator[Mastership]:
        """Who should be in office, at once and after each change; ends when the store is closed."""
        ...

    async def controllers(self) -> dict[ControllerAddress, bool]:
        """All controllers of the group, and whether each was heard of lately.

        May be asked before `start`: whoever does not take part can see who does.
        """
        ...

    async def wait_failed(self) -> StoreFailed:
        """Returns once the store is beyond use; the process must end then."""
        ...

    async def close(self) -> None:
        """Ends all watches and gives the files back; idempotent."""
        ...
