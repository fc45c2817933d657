"""A controller's copy of all entries in ZooKeeper: refreshed, confirmed, written through.

How it works. `head` names the keys that changed recently, so a copy that is slightly behind reads
only those keys, and one that is far behind reads everything. Others may write during that read, so
it reads `head` again at the end and continues with the keys that changed meanwhile, until none did.
The copy then equals the store at that moment. A write is one `multi` that sets `head` only if
`head` still has the version that the copy knows.

Invariants
1. The copy is of one revision: it changes in one step, after everything was read or written.
2. Only one task at a time calls these methods (`zookeeper_store.py` holds a lock).
3. While `stale`, nothing may be decided by the copy. After a cancelled call or a lost connection it
   is up to the caller to set `stale`.

Not here: what to do when the connection breaks (`zookeeper_store.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from semel.controller.store.base import StoreFailed, Transaction, Versioned
from semel.controller.store.memory import Table
from semel.controller.store.zookeeper.layout import Head, Paths, key_of, pack, unpack
from semel.controller.store.zookeeper.session import Operation, Refused, Session
from semel.protos.errors import DataDirectoryError

READS_AT_ONCE: Final = 256


class Copy:
    """The entries as they were at `table.revision`."""

    def __init__(self, session: Session, paths: Paths, fail: Callable[[str], StoreFailed]) -> None:
        """`fail` records that the store is no longer usable and returns the error to raise."""
        self.table = Table()
        self.head = Head(cluster_id="")
        self.stale = True
        """The copy must be refreshed before use: the connection broke, or there was none yet."""
        self._session = session
        self._paths = paths
        self._fail = fail
        self._version = -1
        """ZooKeeper's version of the node whose content is `head`; -1: nothing was read yet."""

    async def send(self, transaction: Transaction, request: str) -> int:
        """Makes one attempt from the copy's revision, and updates the copy with the result."""
        revision = self.table.next_revision(transaction)
        head = self.head.follow(transaction, revision, request)
        operations = [
            Operation(kind="set", path=self._paths.head, data=head.dump(), version=self._version)
        ]
        for key, value in transaction.puts.items():
            operations.append(
                Operation(
                    kind="set" if key in self.table.entries else "create",
                    path=self._paths.entry(key),
                    data=pack(key, revision, bytes(value)),
                )
            )
        operations += [
            Operation(kind="delete", path=self._paths.entry(key))
            for key in sorted(transaction.deletes)
            if key in self.table.entries
        ]
        results = await self._session.commit(operations)
        self.table.apply(transaction)
        self.head, self._version = head, results[0].version
        return revision

    async def confirm(self) -> bool:
        """Asks the majority whether the copy is the newest, and marks it stale if it is not.

        Returns True in both cases: the majority agreed on the refusal too, and nothing that this
        session reads after it is older.
        """
        check = Operation(kind="check", path=self._paths.head, version=self._version)
        try:
            await self._session.commit([check])
        except Refused:
            self.stale = True
        return True

    async def refresh(self) -> None:
        """Reads what changed, until nothing changes during a read; the copy is then current."""
        await self._session.sync(self._paths.head)
        head, version = await self._read_head()
        if head.revision < self.table.revision:
            raise self._fail(f"it went back from revision {self.table.revision} to {head.revision}")
        fresh: dict[str, Versioned | None] = {}
        changed = None
        if self._version >= 0:
            changed = head.changed_since(self.table.revision)
        whole = changed is None
        while True:
            if changed is None:
                fresh, whole = {}, True
                names = await self._session.children(self._paths.entries) or []
                changed = {key_of(name) for name in names}
            fresh |= await self._read_entries(changed)
            newest, newest_version = await self._read_head()
            if newest_version == version:
                break
            changed = newest.changed_since(head.revision)
            head, version = newest, newest_version
        if whole:
            self.table.entries.clear()
        for key, entry in fresh.items():
            if entry is None:
                self.table.entries.pop(key, None)
            elif entry.version <= head.revision:
                self.table.entries[key] = entry
            else:
                raise self._fail(f"{key} is newer than its head")
        self.table.revision = head.revision
        self.head, self._version = head, version
        self.stale = False

    async def _read_entries(self, keys: Iterable[str]) -> dict[str, Versioned | None]:
        """The present entry of each key; None where there is none."""
        found: dict[str, Versioned | None] = {}
        waiting = sorted(keys)
        while waiting:
            some, waiting = waiting[:READS_AT_ONCE], waiting[READS_AT_ONCE:]
            reads = (self._session.read(self._paths.entry(key)) for key in some)
            nodes = await asyncio.gather(*reads)
            for key, node in zip(some, nodes, strict=True):
                found[key] = None if node is None else self._unpacked(key, node.data)
        return found

    def _unpacked(self, key: str, data: bytes) -> Versioned:
        try:
            return unpack(key, data)
        except DataDirectoryError as error:
            self._fail(error.message)
            raise

    async def _read_head(self) -> tuple[Head, int]:
        node = await self._session.read(self._paths.head)
        if node is None:
            raise self._fail("it was removed")
        try:
            return Head.load(node.data), node.version
        except DataDirectoryError as error:
            self._fail(error.message)
            raise
