"""Several controllers of one simulated cluster, and the store that they share.

How it works. The store is a machine of its own, as ZooKeeper's servers are: it orders transactions,
and every controller talks to it over the simulated network. A controller that sends heartbeats
keeps a session; the oldest one that is alive is told to be master. A controller learns that it was
replaced only when it asks, so one that is stopped, cut off or slow may take itself for the master
for a while; `lease_s` says how long it trusts the store's last answer. Its requests may arrive when
others have long been active.

A controller that cannot tell whether its transaction was done hears so and nothing else; it is
master as before. It has to end its epoch by itself and read everything again.

Invariants checked here
1. Controller epochs are counted up one by one; each is begun by one process.
2. Once another process has begun an epoch, no transaction of an older epoch is stored.

Not here: what brokers accept from controllers (`invariants.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextvars import copy_context
from pathlib import Path
from typing import Any, Final

import grpc.aio

from semel.controller import records
from semel.controller.config import ControllerConfig
from semel.controller.node import ControllerNode
from semel.controller.store import (
    ControllerAddress,
    Mastership,
    StoreFailed,
    Transaction,
    VersionConflict,
    Versioned,
)
from semel.controller.store.memory import Table
from semel.protos import compat
from semel.protos.errors import Closed, SemelError, Unavailable
from semel.protos.v1.metadata_pb2 import ClusterRecord
from tests.world.loop import PROCESS, Killed, Process
from tests.world.nodes import CLUSTER, ControllerHost
from tests.world.world import World

STORE: Final = "z1"
"""The store's host."""
BEAT_S: Final = 0.1
SESSION_S: Final = 0.5
ANSWER_S: Final = 1.0


class Ensemble:
    """The store itself, which never fails; its network does."""

    def __init__(self, world: World, demand: Callable[[bool, str], None]) -> None:
        self.world = world
        self.table = Table()
        self.epoch = 0
        """The newest controller epoch."""
        self._holder: Process | None = None
        """The process that has taken the epoch."""
        self._demand = demand
        self._sessions: dict[object, tuple[ControllerAddress, float]] = {}
        """The controller of each session and the time when it ends, the oldest session first."""
        self._known: set[ControllerAddress] = set()

    def beat(self, session: object, me: ControllerAddress) -> Mastership:
        """Notes that `me` is alive."""
        now = self.world.now
        self._known.add(me)
        self._sessions[session] = me, now + SESSION_S
        for one in [one for one, (_, ends_s) in self._sessions.items() if ends_s < now]:
            del self._sessions[one]
        first, (master, _) = next(iter(self._sessions.items()))
        return Mastership(master=master, mine=first is session)

    def controllers(self) -> dict[ControllerAddress, bool]:
        now = self.world.now
        alive = {me for me, ends_s in self._sessions.values() if ends_s >= now}
        return {me: me in alive for me in sorted(self._known, key=lambda me: me.controller_id)}

    def transact(self, process: Process, transaction: Transaction) -> int:
        """Raises VersionConflict."""
        self.table.check(transaction)
        cluster = transaction.puts.get(records.CLUSTER)
        if cluster is None:
            self._demand(
                process is self._holder,
                f"{process} stores {sorted(transaction.puts)}, but {self._holder} has epoch "
                f"{self.epoch}",
            )
        else:
            number = ClusterRecord.FromString(cluster).controller_epoch
            self._demand(
                number == self.epoch + 1, f"{process} begins epoch {number} after {self.epoch}"
            )
            if self._holder is not None and self._holder.alive and self._holder is not process:
                self.world.count("epoch taken from a living controller")
            self.world.count("epoch begun")
            self.epoch, self._holder = number, process
        return self.table.apply(transaction)

    @property
    def holder(self) -> str:
        """The host whose process began the newest epoch; empty before the first."""
        return "" if self._holder is None else self._holder.host


class GroupStore:
    """The store as one process of a controller has it."""

    def __init__(self, host: GroupControllerHost) -> None:
        self._host = host
        self._world = host.world
        self._ensemble = host.ensemble
        self._process = PROCESS.get()
        network = host.world.network
        self._out = network.pipe(host.name, STORE)
        self._back = network.pipe(STORE, host.name)
        self._session = object()
        self._word = Mastership(master=None, mine=False)
        self._news = asyncio.Event()
        self._closed = False
        self._me: ControllerAddress | None = None
        self._beating: asyncio.Task[None] | None = None

    async def _ask(self, work: Callable[[], Any], *, answered: bool = True) -> Any:
        """Returns or raises what `work` does at the store.

        Raises Unavailable when no answer comes: the work may be done then, or still to come.
        """
        if self._closed:
            raise Closed("the metadata store is closed")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        context = copy_context()

        def settle(result: Any, error: Exception | None) -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        def at_store() -> None:
            result, error = None, None
            try:
                result = work()
            except VersionConflict as conflict:
                error = conflict

            def arrive() -> None:
                loop.call_soon(settle, result, error, context=context)

            if answered:
                self._back.send(arrive)

        self._out.send(at_store)
        try:
            async with compat.timeout(ANSWER_S):
                return await answer
        except TimeoutError:
            raise Unavailable("the metadata store does not answer") from None

    async def get(self, key: str) -> Versioned | None:
        found: Versioned | None = await self._ask(lambda: self._ensemble.table.entries.get(key))
        return found

    async def scan(self, prefix: str) -> dict[str, Versioned]:
        found: dict[str, Versioned] = await self._ask(lambda: self._ensemble.table.scan(prefix))
        return found

    async def revision(self) -> int:
        return int(await self._ask(lambda: self._ensemble.table.revision))

    async def transact(self, transaction: Transaction) -> int:
        # Shielded: it is on its way, and its outcome decides whether the epoch goes on.
        return await asyncio.shield(asyncio.ensure_future(self._transact(transaction)))

    async def _transact(self, transaction: Transaction) -> int:
        host = self._host
        host.crash_in = None if host.crash_in is None else host.crash_in - 1
        dies = host.crash_in is not None and host.crash_in < 0
        answered = not (dies and host.answer_lost)
        if not answered:
            self._world.fault("answer of the store lost")
            dies, host.crash_in = False, None
        if dies and not host.crash_after:
            host.die("controller crash before a write")

        def work() -> int:
            revision = self._ensemble.transact(self._process, transaction)
            if dies and self._process.alive:
                self._world.fault("controller crash after a write")
                self._world.crash(host.name, "kill")
            return revision

        try:
            return int(await self._ask(work, answered=answered))
        except VersionConflict:
            raise
        except Unavailable:
            self._world.count("outcome unknown")
            raise

    def attach(self, server: grpc.aio.Server) -> None:
        """The controllers meet in the store only."""

    async def start(self, me: ControllerAddress) -> None:
        self._me = me
        await self._beat(me)
        self._beating = asyncio.ensure_future(self._stand(me))

    async def _beat(self, me: ControllerAddress) -> None:
        session = self._session
        word = await self._ask(lambda: self._ensemble.beat(session, me))
        if session is self._session:
            self._say(word)

    async def _stand(self, me: ControllerAddress) -> None:
        loop = asyncio.get_running_loop()
        heard_s = loop.time()
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                await self._beat(me)
                heard_s = loop.time()
            except Unavailable:
                if loop.time() - heard_s > self._host.lease_s:
                    self._say(Mastership(master=None, mine=False))

    def _say(self, word: Mastership) -> None:
        if word != self._word:
            self._word = word
            self._news.set()

    async def mastership(self) -> AsyncGenerator[Mastership]:
        while not self._closed:
            self._news.clear()
            yield self._word
            await self._news.wait()

    def resign(self) -> None:
        """A no-op: the store's disk is never full."""

    async def controllers(self) -> dict[ControllerAddress, bool]:
        found: dict[ControllerAddress, bool] = await self._ask(self._ensemble.controllers)
        return found

    async def wait_failed(self) -> StoreFailed:
        never: asyncio.Future[StoreFailed] = asyncio.get_running_loop().create_future()
        return await never

    async def close(self) -> None:
        self._closed = True
        self._news.set()
        if self._beating is not None:
            self._beating.cancel()


class GroupControllerHost(ControllerHost):
    """One of several controllers' machines; it keeps nothing of its own."""

    def __init__(self, world: World, number: int, ensemble: Ensemble, lease_s: float) -> None:
        super().__init__(world, f"c{number}")
        self.number = number
        self.ensemble = ensemble
        self.lease_s = lease_s
        """How long it believes the store's last answer when no other comes."""

    @property
    def address(self) -> str:
        return f"{self.name}:7070"

    async def _main(self) -> None:
        config = ControllerConfig(
            data=Path(f"/sim/{self.name}"),
            listen=self.address,
            controller_id=self.number,
            cluster_id=CLUSTER,
            level_max=self.level_max,
        )
        node = ControllerNode(config, store=GroupStore(self))
        try:
            await node.__aenter__()
        except SemelError as refused:
            self.world.crash(self.name, f"cannot start: {refused.message}")
            raise Killed from None
        self.world.tell("controller serves")
        error = await node.failed()
        self.world.crash(self.name, str(error))
