"""The seam between a controller and the store that makes its metadata durable.

How it works. A store is a small ordered map from paths (`/topics/orders`) to bytes. The only write
operation is `transact`: an atomic compare-and-set over any number of keys. SQLite, a replicated
state machine and ZooKeeper's `multi` can all offer this and no more, and it is enough for the
controller: each of its decisions is one transaction that names the versions that the decision was
based on, so a controller that unknowingly lost its mastership cannot overwrite its successor.

Invariants
1. The revision rises by at least one with every transaction, also across restarts, and never falls.
2. A key's version is the revision that last wrote it, so a version of a key never repeats, not even
   after a delete.
3. `transact` returns after the change is durable; a transaction that raises one of NOTHING_CHANGED
   has changed nothing and never will. After any other error, and when the call is cancelled, it is
   unknown whether it took effect, or will.
4. `mastership` is a hint: two controllers may believe for a moment that they are master. Only
   compare-and-set decides which of them may write (`epoch.py`).

Not here: what the keys mean (`records.py`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import grpc.aio

from semel.protos.errors import DiskFull, MessageTooLarge, Throttled, Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Versioned:
    """A value and the revision that wrote it."""

    value: bytes
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """Checks, and the changes that are made if all of them hold."""

    checks: Mapping[str, int | None] = field(default_factory=dict)
    """Expected version of each key; None expects it to be absent."""
    puts: Mapping[str, bytes] = field(default_factory=dict)
    deletes: frozenset[str] = frozenset()
    """Deleting an absent key changes nothing. No key is both put and deleted."""
    revision_min: int = 0
    """The transaction's revision is at least this: metadata moved from another store must not begin
    below the revisions which that store gave out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerAddress:
    """One controller of the group."""

    controller_id: int
    address: str
    """HOST:PORT at which clients, brokers and other controllers reach it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mastership:
    """Which controller should be the active one, as the store sees it."""

    master: ControllerAddress | None
    """None while there is no active controller, or none is known."""
    mine: bool
    """This controller should become the active one, or remain it."""


class VersionConflict(Unavailable):
    """A check failed and nothing was changed; read again and decide again."""


class StoreFailed(Unavailable):
    """The store can no longer write; it is unknown whether its last transaction is durable."""


NOTHING_CHANGED: Final = (VersionConflict, DiskFull, Throttled, MessageTooLarge)
"""What `transact` raises when it is known that nothing was changed."""


class MetadataStore(Protocol):
    """A durable map with compare-and-set. Keys are paths, values opaque bytes."""

    async def get(self, key: str) -> Versioned | None:
        """The key's newest durable value."""
        ...

    async def scan(self, prefix: str) -> dict[str, Versioned]:
        """All keys that begin with `prefix`, in order, as of one revision."""
        ...

    async def revision(self) -> int:
        """The newest durable revision; 0 in an empty store."""
        ...

    async def transact(self, transaction: Transaction) -> int:
        """Applies the whole transaction and returns its revision.

        Raises VersionConflict when a check fails, DiskFull when there is no room, Throttled when
        too many calls are under way, MessageTooLarge (in these cases nothing was changed);
        Unavailable when the outcome is unknown, and StoreFailed when the store is no longer usable.
        A cancelled call may still take effect.
        """
        ...

    def attach(self, server: grpc.aio.Server) -> None:
        """Adds the store's own service to the controller's server, before the server starts."""
        ...

    async def start(self, me: ControllerAddress) -> None:
        """Joins the group under the address at which others reach it; called once, after `attach`.

        Returns as soon as the store accepts calls; reads and transactions then wait for a majority,
        and raise Unavailable when there is none in time.
        """
        ...

    def mastership(self) -> AsyncGenerator[Mastership]:
        """Yields the mastership at once and after each change; ends when the store is closed."""
        ...

    def resign(self) -> None:
        """Gives up the mastership, if this controller has it, so that another one can have it.

        The store yields a mastership that is not `mine` next. Without another controller that can
        be master, this one becomes master again after a while; a store that has only one controller
        does nothing.
        """
        ...

    async def controllers(self) -> dict[ControllerAddress, bool]:
        """All controllers of the group, and whether each was heard from recently.

        May be called before `start`, so that a process outside the group can list its members.
        """
        ...

    async def wait_failed(self) -> StoreFailed:
        """Returns once the store is no longer usable; the process must end then."""
        ...

    async def close(self) -> None:
        """Closes the files; idempotent."""
        ...
