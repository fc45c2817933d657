"""The asynchronous interface of the metadata store that the controllers replicate among themselves.

How it works. Every member has a thread on which its consensus runs (`ticker.py`) and streams to
the others (`links.py`). The changes that the log makes to the map arrive here in order and are
applied to a copy that the event loop owns, so reads never touch the thread.

* *Writing.* A transaction is a command with this controller's number, its incarnation and a
  sequence. It is sent to the master, and sent again whenever the master changes, until its result
  comes back through the log. It is applied at most once (`machine.py`), so sending it again is
  safe: a reported conflict is a real conflict. Without a result in time the call raises
  Unavailable, and the transaction may still be applied.
* *Reading.* `get`, `scan` and `revision` first put a barrier into the log and wait until it is
  applied here. A majority has then confirmed it after the call began, so the read is not older than
  any transaction that had returned anywhere before the call. That holds on a slave, and on a master
  that does not know yet that it was replaced. Reads that arrive while a barrier is under way share
  the next one.
* *Mastership* is told from the event loop, with a lease that ends there (`hints.py`): a thread that
  hangs with its disk cannot keep it.
* *Watching* shows what this controller has applied, in order and without a gap: never less than it
  has itself read or written, and on a slave possibly a moment behind.

Invariants
1. `transact` returns after a majority has synced the entry and this controller has applied it.
2. The master that `mastership` names is master only in the order of the log; compare-and-set fences
   writes (`epoch.py`).

A disk that is full or fails ends this store, and the other members go on. Before the disk is quite
full, transactions are refused with DiskFull.

Not here: consensus (`consensus.py`), who is a voter (`member.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
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
from semel.controller.store.embedded.files import Files, OsFiles
from semel.controller.store.embedded.hints import Hints
from semel.controller.store.embedded.identity import Identity
from semel.controller.store.embedded.links import Links
from semel.controller.store.embedded.machine import (
    Applied,
    Result,
    State,
    barrier_command,
    transaction_command,
)
from semel.controller.store.embedded.member import Happened, Member
from semel.controller.store.embedded.ticker import Ticker
from semel.controller.store.memory import MemoryStore
from semel.protos import compat
from semel.protos.errors import (
    Closed,
    DataDirectoryError,
    DiskFull,
    InvalidRequest,
    SemelError,
    Throttled,
    Unavailable,
)
from semel.protos.security.credentials import Security
from semel.protos.v1.metadata_store_pb2 import CONTROLLER_MEMBERSHIP_VOTER

log = logging.getLogger(__name__)

T = TypeVar("T")

TIMEOUT_S: Final = 5.0
"""Enough for several elections: a call without a majority in that time gives up."""
UNDER_WAY_MAX: Final = 1_000
FREE_BYTES_MIN: Final = 64 << 20
"""Transactions are refused below this much space: the log and two dumps must still fit."""
GROUP_SIZES: Final = (1, 3, 5)


class EmbeddedStore(MemoryStore):
    """A MetadataStore on 1, 3 or 5 controllers; made by `open`."""

    def __init__(self, identity: Identity, peers: Mapping[int, str], timeout_s: float) -> None:
        super().__init__()
        self._identity = identity
        self._peers = dict(peers)
        self._timeout_s = timeout_s
        self._aside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metadata-dump")
        self._files: Files | None = None
        self._member: Member | None = None
        self._ticker: Ticker | None = None
        self._links: Links | None = None
        self._running: asyncio.Future[None] | None = None
        self._voter = asyncio.Event()
        self._incarnation = 0
        self._next_sequence = 1
        self._transactions: dict[int, asyncio.Future[Result]] = {}
        self._barriers: dict[bytes, asyncio.Future[None]] = {}
        self._next_read: asyncio.Future[None] | None = None
        self._reading = asyncio.Lock()
        self._hints = Hints(identity.controller_id, self._address)

    @classmethod
    async def open(
        cls,
        directory: Path,
        controller_id: int,
        peers: Mapping[int, str],
        *,
        cluster_id: str = "",
        timeout_s: float = TIMEOUT_S,
        security: Security | None = None,
    ) -> EmbeddedStore:
        """Opens or creates one controller's part of the store.

        `peers` has HOST:PORT by controller id and may include this controller. A group of several
        controllers needs a `cluster_id`.

        Raises DataDirectoryError when the directory cannot be used, is in use, belongs to another
        controller or cluster, is damaged or was written by a newer program, and InvalidRequest for
        an impossible group.
        """
        others = {peer: address for peer, address in peers.items() if peer != controller_id}
        members = tuple(sorted({controller_id, *peers}))
        if len(members) not in GROUP_SIZES or members[0] < 1:
            raise InvalidRequest(
                f"a group of controllers {list(members)} is not possible: it has 1, 3 or 5 members"
            )
        if others and not cluster_id:
            raise InvalidRequest("several controllers must be told the id of their cluster")
        identity = Identity(cluster_id=cluster_id, controller_id=controller_id, members=members)
        store = cls(identity, others, timeout_s)
        loop = asyncio.get_running_loop()
        links = Links(
            identity,
            others,
            post=lambda action: store._post_to_member(action),
            post_message=lambda action: store._post_message(action),
            describe=lambda: store._opened().describe(),
            must_ask=lambda: store._opened().must_ask,
            security=security,
        )
        store._links = links
        try:
            await loop.run_in_executor(None, store._open, directory, links)
        except BaseException:
            await store.close()
            raise
        store._ticker = Ticker(
            store._opened(),
            happened=lambda happened: _call_soon(loop, store._on_happened, happened),
            failed=lambda error: _call_soon(loop, store._on_failed, error),
        )
        return store

    # --- the contract ---------------------------------------------------------------------------

    async def get(self, key: str) -> Versioned | None:
        await self._confirm()
        return await super().get(key)

    async def scan(self, prefix: str) -> dict[str, Versioned]:
        await self._confirm()
        return await super().scan(prefix)

    async def revision(self) -> int:
        await self._confirm()
        return await super().revision()

    async def transact(self, transaction: Transaction) -> int:
        self._check_open()
        assert self._files is not None
        if self._files.free_bytes() < FREE_BYTES_MIN:
            raise DiskFull(
                f"less than {FREE_BYTES_MIN >> 20} MiB are free at {self._files.where('')}; "
                "nothing was changed. Free some disk space"
            )
        if len(self._transactions) >= UNDER_WAY_MAX:
            raise Throttled("too many changes of the metadata are under way", retry_after_ms=100)
        async with self._in_time("whether the change took effect is unknown"):
            await self._voter.wait()
            self._check_open()
            result = await self._ask(transaction)
        if result.conflict:
            raise VersionConflict(result.conflict)
        return result.revision

    def attach(self, server: grpc.aio.Server) -> None:
        assert self._links is not None
        self._links.attach(server)

    async def start(self, me: ControllerAddress) -> None:
        assert self._ticker is not None
        assert self._links is not None
        assert me.controller_id == self._identity.controller_id
        await super().start(me)
        self._ticker.start()
        self._running = asyncio.ensure_future(self._links.run())
        self._running.add_done_callback(self._on_links_ended)

    async def mastership(self) -> AsyncGenerator[Mastership]:
        async with contextlib.aclosing(self._hints.follow()) as hints:
            async for hint in hints:
                yield hint

    def resign(self) -> None:
        if len(self._identity.members) > 1:
            self._hints.resign()
            self._post_to_member(lambda member: member.resign())

    async def controllers(self) -> dict[ControllerAddress, bool]:
        assert self._links is not None
        return {
            self._address(controller_id): controller_id == self._identity.controller_id
            or self._links.is_heard(controller_id)
            for controller_id in self._identity.members
        }

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._closing.set()
        self._give_up(Closed("the metadata store is closed"))
        self._hints.close()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    # --- requests -------------------------------------------------------------------------------

    async def _ask(self, transaction: Transaction) -> Result:
        sequence = self._next_sequence
        command = transaction_command(
            transaction,
            controller_id=self._identity.controller_id,
            incarnation=self._incarnation,
            sequence=sequence,
            resolved_below=min(self._transactions, default=sequence),
        )
        self._next_sequence += 1
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._transactions[sequence] = answer
        self._post_to_member(lambda member: member.submit(sequence, command))
        try:
            return await answer
        finally:
            del self._transactions[sequence]
            self._post_to_member(lambda member: member.resolved(sequence))

    async def _confirm(self) -> None:
        """Returns when all transactions that had returned before the call are applied here."""
        self._check_open()
        async with self._in_time("nothing was read"):
            if self._next_read is None:
                self._next_read = asyncio.ensure_future(self._confirm_next())
                self._next_read.add_done_callback(_look_at)
            await asyncio.shield(self._next_read)

    async def _confirm_next(self) -> None:
        """Sends one barrier for all reads that began before; one at a time is under way."""
        async with self._reading:
            await self._voter.wait()
            self._next_read = None  # reads that begin from now on need a later one
            self._check_open()
            nonce = secrets.token_bytes(16)
            answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._barriers[nonce] = answer
            self._post_to_member(lambda member: member.submit(nonce, barrier_command(nonce)))
            try:
                await answer
            finally:
                del self._barriers[nonce]
                self._post_to_member(lambda member: member.resolved(nonce))

    @contextlib.asynccontextmanager
    async def _in_time(self, consequence: str) -> AsyncIterator[None]:
        try:
            async with compat.timeout(self._timeout_s):
                yield
        except TimeoutError:
            assert self._links is not None
            reasons = "; ".join(
                f"controller {peer}: {reason}" for peer, reason in self._links.refused.items()
            )
            raise Unavailable(
                f"no majority of the controllers {list(self._identity.members)} within "
                f"{self._timeout_s:g} s; {consequence}" + (f". {reasons}" if reasons else "")
            ) from None

    # --- called from the member's thread --------------------------------------------------------

    def _on_happened(self, happened: Happened) -> None:
        assert self._links is not None
        self._incarnation = happened.incarnation
        for event in happened.events:
            if isinstance(event, State):
                self._on_state(event)
            else:
                self._on_applied(event)
        self._links.on_membership(happened.membership)
        if happened.membership == CONTROLLER_MEMBERSHIP_VOTER:
            self._voter.set()
        self._hints.on_tick(happened)

    def _on_state(self, state: State) -> None:
        self._table.revision = state.revision
        self._table.entries = dict(state.entries)
        session = state.sessions.get(self._identity.controller_id)
        if session is not None and session.incarnation == self._incarnation:
            for sequence, result in session.results.items():
                self._resolve(sequence, result)

    def _on_applied(self, applied: Applied) -> None:
        self._table.revision = applied.revision
        self._table.entries.update(applied.puts)
        for key in applied.deletes:
            self._table.entries.pop(key, None)
        mine = (self._identity.controller_id, self._incarnation)
        if applied.result is not None and (applied.controller_id, applied.incarnation) == mine:
            self._resolve(applied.sequence, applied.result)
        waiting = self._barriers.get(applied.barrier)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _resolve(self, sequence: int, result: Result) -> None:
        waiting = self._transactions.get(sequence)
        if waiting is not None and not waiting.done():
            waiting.set_result(result)

    def _on_failed(self, error: BaseException) -> None:
        where = "" if self._files is None else self._files.where("")
        failure = StoreFailed(
            f"the metadata at {where} cannot be kept any more: {error}. The controller must end"
        )
        self._fail(failure)
        self._hints.resign()
        self._give_up(failure)

    def _on_links_ended(self, running: asyncio.Future[None]) -> None:
        """Fails the store: a controller that cannot send must not stay and look alive."""
        if not running.cancelled() and (error := running.exception()) is not None:
            log.critical("the links to the other controllers have ended", exc_info=error)
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            self._on_failed(error)

    # --- helpers --------------------------------------------------------------------------------

    def _open(self, directory: Path, links: Links) -> None:
        """Blocking."""
        self._files = OsFiles(directory)
        try:
            self._member = Member(
                self._files, self._identity, send=links.send, run_aside=self._run_aside
            )
        except OSError as error:
            raise DataDirectoryError(
                f"cannot use the data directory {directory}: {error.strerror or error}"
            ) from error

    def _close(self) -> None:
        """Blocking."""
        if self._ticker is not None and not self._ticker.stop():
            log.error("the disk hangs; the directory stays locked until the process ends")
            return
        if self._member is not None:
            self._member.close()
        self._aside.shutdown()
        if self._files is not None:
            self._files.close()

    def _run_aside(self, function: Callable[[], None]) -> None:
        self._aside.submit(function)

    def _post_to_member(self, action: Callable[[Member], None]) -> None:
        if self._ticker is not None:
            self._ticker.post(action)

    def _post_message(self, action: Callable[[Member], None]) -> None:
        if self._ticker is not None:
            self._ticker.post_message(action)

    def _opened(self) -> Member:
        assert self._member is not None
        return self._member

    def _give_up(self, error: SemelError) -> None:
        waiting: list[asyncio.Future[Any]] = [
            *self._transactions.values(),
            *self._barriers.values(),
        ]
        for answer in waiting:
            if not answer.done():
                answer.set_exception(error)
        self._voter.set()  # wakes the waiters, which then check whether the store is open

    def _address(self, controller_id: int) -> ControllerAddress:
        if controller_id == self._identity.controller_id:
            assert self._me is not None
            return self._me
        return ControllerAddress(controller_id=controller_id, address=self._peers[controller_id])


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[T], None], value: T) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: so is the store
        loop.call_soon_threadsafe(function, value)


def _look_at(task: asyncio.Future[None]) -> None:
    """Retrieves the error: a read for which nobody waits any more may fail silently."""
    if not task.cancelled():
        task.exception()
