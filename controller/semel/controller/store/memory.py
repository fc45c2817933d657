"""The in-memory map behind every store: versions and checks.

How it works. `Table` is the pure part: it checks and applies transactions. `MemoryStore` adds the
asynchronous contract, and is a complete store for tests. The durable stores derive from it or use
its table: they first write a transaction to their medium and then apply it here, so reads never
wait for a disk.

Invariants
1. A transaction is applied to the table only after `_persist` has returned, so nobody reads a value
   that is not durable.
2. At most one transaction at a time is between its check and its application.

Not here: bytes on disk (`sqlite.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import grpc.aio

from semel.controller.store.base import (
    ControllerAddress,
    Mastership,
    StoreFailed,
    Transaction,
    VersionConflict,
    Versioned,
)
from semel.protos.errors import Closed


class Table:
    """The keys, values and versions as of one revision."""

    def __init__(self) -> None:
        self.revision = 0
        self.entries: dict[str, Versioned] = {}

    def check(self, transaction: Transaction) -> None:
        """Raises VersionConflict when a version is not the expected one."""
        assert not transaction.puts.keys() & transaction.deletes
        for key, expected in transaction.checks.items():
            entry = self.entries.get(key)
            found = None if entry is None else entry.version
            if found != expected:
                raise VersionConflict(f"{key} is at version {found}, expected {expected}")

    def next_revision(self, transaction: Transaction) -> int:
        """The revision that the transaction gets if it is applied now."""
        return max(self.revision + 1, transaction.revision_min)

    def apply(self, transaction: Transaction) -> int:
        """Applies a checked transaction; returns the new revision."""
        self.revision = self.next_revision(transaction)
        for key, value in transaction.puts.items():
            self.entries[key] = Versioned(value=bytes(value), version=self.revision)
        for key in transaction.deletes:
            self.entries.pop(key, None)
        return self.revision

    def scan(self, prefix: str) -> dict[str, Versioned]:
        """All entries under `prefix`, by key."""
        return {key: self.entries[key] for key in sorted(self.entries) if key.startswith(prefix)}


class MemoryStore:
    """A MetadataStore that forgets everything when it is closed."""

    def __init__(self) -> None:
        self._table = Table()
        self._writing = asyncio.Lock()
        self._failed: asyncio.Future[StoreFailed] | None = None
        self._closed = False
        self._closing = asyncio.Event()
        self._me: ControllerAddress | None = None

    async def get(self, key: str) -> Versioned | None:
        self._check_open()
        return self._table.entries.get(key)

    async def scan(self, prefix: str) -> dict[str, Versioned]:
        self._check_open()
        return self._table.scan(prefix)

    async def revision(self) -> int:
        self._check_open()
        return self._table.revision

    async def transact(self, transaction: Transaction) -> int:
        # Shielded: once the medium was asked to write, the table must be updated as well.
        return await asyncio.shield(asyncio.ensure_future(self._transact(transaction)))

    async def _transact(self, transaction: Transaction) -> int:
        async with self._writing:
            self._check_open()
            self._table.check(transaction)
            await self._persist(transaction, self._table.next_revision(transaction))
            return self._table.apply(transaction)

    async def _persist(self, transaction: Transaction, revision: int) -> None:
        """Makes the transaction durable. Durable stores override this; here it is a no-op."""

    def attach(self, server: grpc.aio.Server) -> None:
        """A no-op: no other process needs to reach this store."""

    async def start(self, me: ControllerAddress) -> None:
        self._me = me

    async def mastership(self) -> AsyncGenerator[Mastership]:
        """Yields once: the only controller is master until it ends."""
        assert self._me is not None
        yield Mastership(master=self._me, mine=True)
        await self._closing.wait()

    def resign(self) -> None:
        """A no-op: there is no other controller."""

    async def controllers(self) -> dict[ControllerAddress, bool]:
        return {} if self._me is None else {self._me: True}

    async def wait_failed(self) -> StoreFailed:
        if self._failed is None:
            self._failed = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._failed)

    async def close(self) -> None:
        async with self._writing:
            self._closed = True
        self._closing.set()

    def _fail(self, error: StoreFailed) -> None:
        if self._failed is None:
            self._failed = asyncio.get_running_loop().create_future()
        if not self._failed.done():
            self._failed.set_result(error)

    def _check_open(self) -> None:
        if self._failed is not None and self._failed.done():
            raise self._failed.result()
        if self._closed:
            raise Closed("the metadata store is closed")
