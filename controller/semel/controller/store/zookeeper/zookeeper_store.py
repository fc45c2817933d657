"""The metadata store of a group of controllers, kept in the operator's own ZooKeeper ensemble.

How it works. ZooKeeper counts versions per node, and forgets them with the node; the seam needs one
revision for all keys. So every transaction is one `multi` that also sets the node `head`, and only
if `head` still has the version that the transaction was made from. That puts all transactions into
one order; `head` counts revisions, and each entry holds the revision that wrote it.

Every controller keeps a copy of all entries (`Table`), and updates it with the help of `head`,
which names the keys that changed recently. Each decision made from the copy is confirmed: a
transaction by its own check of `head`, a read by a `multi` that only checks `head`. ZooKeeper's
majority agrees on both; plain reads, and even `sync`, do not have that property, and an old leader
may answer them.

When the connection breaks under a transaction, nobody knows whether it was done. It is sent again
with the same check of `head`: only one of the two can be done, never both. If that check fails,
`head` says whether it was ours that changed it (each transaction has an id of its own).

Invariants
1. Only the owner of `_turn` reads or changes the copy over the wire.
2. VersionConflict is raised only for a state that a majority confirmed after the call began, and
   only when the transaction is known not to have been done.
3. When a call ends without knowing whether its transaction was done, this controller first gives up
   the mastership: a controller that becomes active again reads everything again.

Not here: reading and writing entries (`copy.py`), bytes and paths (`layout.py`), threads and
connections (`session.py`), the election (`election.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, TypeVar

import grpc.aio

from semel.controller.store.base import (
    ControllerAddress,
    Mastership,
    StoreFailed,
    Transaction,
    VersionConflict,
    Versioned,
)
from semel.controller.store.zookeeper.copy import Copy
from semel.controller.store.zookeeper.election import Election, candidates_of
from semel.controller.store.zookeeper.layout import Head, Paths, check_size
from semel.controller.store.zookeeper.session import (
    ConnectionLost,
    NodeExists,
    NodeMissing,
    Operation,
    Refused,
    Session,
)
from semel.controller.store.zookeeper.zookeeper_tls import ZooKeeperTls
from semel.protos import compat
from semel.protos.errors import Closed, DataDirectoryError, Unavailable

T = TypeVar("T")

log = logging.getLogger(__name__)

SESSION_MS: Final = 2_000
"""How long ZooKeeper waits for a silent controller, if its tickTime allows so little: short enough
for a fail-over within 3 s, long enough to outlast a garbage collection."""
REQUEST_S: Final = 5.0
"""How long a call waits for a connection and a majority: longer than a lease, so that when a call
fails for lack of them, its controller is no longer master."""


class ZooKeeperStore:
    """A MetadataStore under a chroot of a ZooKeeper ensemble; made by `open`."""

    def __init__(
        self,
        hosts: tuple[str, ...],
        chroot: str,
        *,
        auth: str = "",
        tls: ZooKeeperTls | None = None,
        session_ms: int = SESSION_MS,
        request_s: float = REQUEST_S,
    ) -> None:
        self._paths = Paths(chroot=chroot)
        self._request_s = request_s
        self._session = Session(
            hosts, session_ms=session_ms, auth=auth, on_state=self._on_state, tls=tls
        )
        self._turn = asyncio.Lock()
        self._next_confirmation: asyncio.Future[None] | None = None
        """The confirmation that waits for its turn; reads that begin now share it."""
        self._copy = Copy(self._session, self._paths, self._fail)
        self._failed: asyncio.Future[StoreFailed] = asyncio.get_running_loop().create_future()
        self._closed = False
        self._me: ControllerAddress | None = None
        self._election: Election | None = None
        self._candidacy: asyncio.Future[None] | None = None

    @classmethod
    async def open(
        cls,
        hosts: tuple[str, ...],
        chroot: str,
        *,
        cluster_id: str = "",
        auth: str = "",
        tls: ZooKeeperTls | None = None,
        make: bool = True,
        session_ms: int = SESSION_MS,
        request_s: float = REQUEST_S,
    ) -> ZooKeeperStore:
        """Connects to the servers (HOST:PORT each) and opens or makes the store at `chroot`.

        `auth` is USER:PASSWORD: only this user may access a store made here. `tls` is None for
        plain connections. Only the last part of `chroot` is made when it is missing; without `make`
        nothing is made.

        Raises Unavailable when no server can be used, DataDirectoryError when the chroot cannot be
        used or holds something else or another cluster, and PermissionDenied.
        """
        store = cls(hosts, chroot, auth=auth, tls=tls, session_ms=session_ms, request_s=request_s)
        try:
            await store._session.connect(request_s)
            await store._in_time(
                lambda: store._make(cluster_id) if make else store._find(), "opening the store"
            )
            await store._confirmed()
            found = store._copy.head.cluster_id
            if cluster_id and found not in ("", cluster_id):
                raise DataDirectoryError(
                    f"the store {chroot} in ZooKeeper belongs to cluster {found}, "
                    f"not to {cluster_id}. Choose another chroot"
                )
        except BaseException:
            await store.close()
            raise
        return store

    async def get(self, key: str) -> Versioned | None:
        await self._confirmed()
        return self._copy.table.entries.get(key)

    async def scan(self, prefix: str) -> dict[str, Versioned]:
        await self._confirmed()
        return self._copy.table.scan(prefix)

    async def revision(self) -> int:
        await self._confirmed()
        return self._copy.table.revision

    async def transact(self, transaction: Transaction) -> int:
        """Also raises MessageTooLarge above ZooKeeper's limit of 1 MB a change."""
        check_size(transaction)
        # Shielded: a request that was sent may be done, and the copy must be updated then.
        writing = asyncio.ensure_future(self._transact(transaction))
        writing.add_done_callback(_look_at)
        return await asyncio.shield(writing)

    def attach(self, server: grpc.aio.Server) -> None:
        """A no-op: the controllers meet only in ZooKeeper."""

    async def start(self, me: ControllerAddress) -> None:
        assert self._me is None
        self._me = me
        await self._in_time(lambda: self._enter(me), "entering the group")
        log.info(
            "in the group controller=%d chroot=%s hosts=%s session_s=%.1f",
            me.controller_id,
            self._paths.chroot,
            ",".join(self._session.hosts),
            self._session.session_s,
        )
        self._election = Election(self._session, self._paths, me)
        self._candidacy = asyncio.ensure_future(self._stand(self._election))

    async def mastership(self) -> AsyncGenerator[Mastership]:
        assert self._election is not None
        election, queue = self._election, self._election.subscribe()
        try:
            while not self._closed and (mastership := await queue.get()) is not None:
                yield mastership
        finally:
            election.unsubscribe(queue)

    def resign(self) -> None:
        if self._election is not None:
            self._election.renounce()

    async def controllers(self) -> dict[ControllerAddress, bool]:
        return await self._in_time(self._controllers, "asking who is there")

    async def wait_failed(self) -> StoreFailed:
        return await asyncio.shield(self._failed)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._candidacy is not None:
            self._candidacy.cancel()
            await asyncio.gather(self._candidacy, return_exceptions=True)
        if self._election is not None:
            self._election.close()
        await self._session.close()

    # Transactions and confirmed reads.

    async def _transact(self, transaction: Transaction) -> int:
        request = secrets.token_hex(8)
        self._check_open()
        try:
            async with compat.timeout(self._request_s), self._turn:
                self._check_open()
                return await self._commit(transaction, request)
        except TimeoutError:
            raise self._no_answer("the change") from None

    async def _commit(self, transaction: Transaction, request: str) -> int:
        sent_at: int | None = None
        """Revision that an attempt was made from, if that attempt was done or may still be done."""
        broken = False
        """True when the connection broke after such an attempt."""
        confirmed = False
        try:
            while True:
                try:
                    if self._copy.stale:
                        await self._copy.refresh()
                    if sent_at is not None and self._copy.head.revision != sent_at:
                        found = self._copy.head.revision_of(request)
                        if found is not None:
                            return found
                        if not self._copy.head.tells_all_since(sent_at):
                            raise self._fail("nobody can tell whether the last change was done")
                        sent_at, broken = None, False  # another came first: it can never be done
                    try:
                        self._copy.table.check(transaction)
                    except VersionConflict:
                        if confirmed:
                            raise
                        confirmed = await self._copy.confirm()
                        continue
                    sent_at = self._copy.head.revision
                    return await self._copy.send(transaction, request)
                except Refused as error:
                    if error.index:  # the check of `head` held, so no controller made that change
                        raise self._fail(f"somebody else changed its entries: {error}") from error
                    self._copy.stale, confirmed = True, True
                    sent_at = sent_at if broken else None
                except ConnectionLost:
                    self._copy.stale, confirmed = True, False
                    broken = sent_at is not None
                    await self._session.wait_connected()
        except BaseException:
            if sent_at is not None:
                self._copy.stale = True
                if self._election is not None:
                    self._election.renounce()
            raise

    async def _confirmed(self) -> None:
        """Returns when the copy is as new as the store was at some moment since this call."""
        self._check_open()
        if self._next_confirmation is None:
            self._next_confirmation = asyncio.ensure_future(self._confirm_in_turn())
            self._next_confirmation.add_done_callback(_look_at)
        await asyncio.shield(self._next_confirmation)

    async def _confirm_in_turn(self) -> None:
        try:
            async with compat.timeout(self._request_s), self._turn:
                self._next_confirmation = None  # reads that begin from now on need a later one
                self._check_open()
                confirmed = False
                while self._copy.stale or not confirmed:
                    try:
                        if self._copy.stale:
                            await self._copy.refresh()
                        confirmed = confirmed or await self._copy.confirm()
                    except ConnectionLost:
                        self._copy.stale, confirmed = True, False
                        await self._session.wait_connected()
        except TimeoutError:
            raise self._no_answer("reading") from None
        finally:
            if self._next_confirmation is asyncio.current_task():
                self._next_confirmation = None

    # The group.

    async def _find(self) -> None:
        """Raises DataDirectoryError where there is no store."""
        await self._session.sync(self._paths.chroot)
        if await self._session.read(self._paths.head) is None:
            raise DataDirectoryError(
                f"there is no store of Semel's at {self._paths.chroot} in ZooKeeper. Check the "
                "address"
            )

    async def _make(self, cluster_id: str) -> None:
        """Makes the chroot and the nodes that the store needs in it, unless they exist."""
        session, paths = self._session, self._paths
        await session.sync(paths.chroot)
        if await session.read(paths.head) is not None:
            return
        found = await session.children(paths.chroot)
        if found is None:
            try:
                with contextlib.suppress(NodeExists):
                    await session.create(paths.chroot)
            except NodeMissing:
                raise DataDirectoryError(
                    f"there is no {paths.chroot.rpartition('/')[0]} in ZooKeeper, so "
                    f"{paths.chroot} cannot be made. Check the spelling, or make it first"
                ) from None
        elif found:
            if await session.read(paths.head) is None:
                raise DataDirectoryError(
                    f"{paths.chroot} in ZooKeeper is not a store of Semel's: it holds "
                    f"{min(found)} and no head. Choose another chroot"
                )
            return  # another controller was faster
        nodes = {
            paths.head: Head(cluster_id=cluster_id).dump(),
            paths.entries: b"",
            paths.members: b"",
            paths.election: b"",
        }
        with contextlib.suppress(Refused):  # another controller was faster
            await session.commit(
                [Operation(kind="create", path=path, data=data) for path, data in nodes.items()]
            )

    async def _enter(self, me: ControllerAddress) -> None:
        """Records the address at which this controller can be reached."""
        path = f"{self._paths.members}/{me.controller_id}"
        with contextlib.suppress(NodeExists):
            await self._session.create(path, me.address.encode())
            return
        await self._session.set(path, me.address.encode())

    async def _controllers(self) -> dict[ControllerAddress, bool]:
        names = await self._session.children(self._paths.members) or []
        candidates = await self._session.children(self._paths.election) or []
        alive = {candidate.controller_id for candidate in candidates_of(candidates)}
        found = {}
        for controller_id in sorted(int(name) for name in names if name.isdigit()):
            node = await self._session.read(f"{self._paths.members}/{controller_id}")
            if node is not None:
                address = ControllerAddress(controller_id=controller_id, address=node.data.decode())
                found[address] = controller_id in alive
        return found

    async def _stand(self, election: Election) -> None:
        try:
            await election.run()
        except Closed:
            return
        except Exception as error:
            log.exception("the election must end")
            self._fail(str(error))

    async def _in_time(self, work: Callable[[], Awaitable[T]], what: str) -> T:
        """Runs `work`, again after each loss of the connection; raises Unavailable on time-out."""
        self._check_open()
        try:
            async with compat.timeout(self._request_s):
                while True:
                    await self._session.wait_connected()
                    with contextlib.suppress(ConnectionLost):
                        return await work()
        except TimeoutError:
            raise self._no_answer(what) from None

    def _on_state(self) -> None:
        if self._session.dead:
            self._fail("its client has ended by itself")
        if self._election is not None:
            self._election.on_state()

    def _check_open(self) -> None:
        if self._failed.done():
            raise self._failed.result()
        if self._closed:
            raise Closed("the metadata store is closed")

    def _fail(self, reason: str) -> StoreFailed:
        error = StoreFailed(
            f"the store {self._paths.chroot} in ZooKeeper is of no more use: {reason}. The "
            "controller must end"
        )
        if not self._failed.done():
            self._failed.set_result(error)
        return error

    def _no_answer(self, what: str) -> Unavailable:
        return Unavailable(
            f"ZooKeeper at {','.join(self._session.hosts)} did not answer for "
            f"{self._request_s:g} s ({what}). Check that most of its servers run"
        )


def _look_at(task: asyncio.Future[Any]) -> None:
    """Retrieves the error: asyncio would log it as unhandled when all callers were cancelled."""
    if not task.cancelled():
        task.exception()
