"""One metadata store for several controllers; the test decides which of them is told to be
master."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

import grpc.aio

from semel.controller.store import (
    ControllerAddress,
    Mastership,
    MemoryStore,
    StoreFailed,
    Transaction,
    Versioned,
)
from semel.protos.errors import Unavailable


class Group:
    """The things that the controllers share: the data, and the members of the group."""

    def __init__(self) -> None:
        self.data = MemoryStore()
        self.present: dict[int, ControllerStore] = {}

    def elect(self, *controller_ids: int) -> None:
        """Tells each of these controllers that it is master, and the others that the first one
        is."""
        first = self.present.get(controller_ids[0]) if controller_ids else None
        for controller_id, store in self.present.items():
            mine = controller_id in controller_ids
            master = store if mine else first
            store.say(Mastership(master=None if master is None else master.me, mine=mine))


class ControllerStore:
    """One controller's way to the shared data; it hears about the mastership from the test."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._data = group.data
        self._address: ControllerAddress | None = None
        self._word = Mastership(master=None, mine=False)
        self._news = asyncio.Event()
        self._closing = False
        self.before: Callable[[str], Awaitable[None]] | None = None
        """Awaited before each operation, with its name; may raise."""
        self.transactions = 0
        self.resigned = 0
        self.on_resign: Callable[[], None] = lambda: None

    @property
    def me(self) -> ControllerAddress:
        assert self._address is not None
        return self._address

    def say(self, word: Mastership) -> None:
        """Waits for the next news of the mastership."""
        self._word = word
        self._news.set()

    async def get(self, key: str) -> Versioned | None:
        await self._reach("get")
        return await self._data.get(key)

    async def scan(self, prefix: str) -> dict[str, Versioned]:
        await self._reach("scan")
        return await self._data.scan(prefix)

    async def revision(self) -> int:
        await self._reach("revision")
        return await self._data.revision()

    async def transact(self, transaction: Transaction) -> int:
        await self._reach("transact")
        self.transactions += 1
        return await self._data.transact(transaction)

    def attach(self, server: grpc.aio.Server) -> None:
        assert self._address is None

    async def start(self, me: ControllerAddress) -> None:
        self._address = me
        self._group.present[me.controller_id] = self

    async def mastership(self) -> AsyncGenerator[Mastership]:
        while not self._closing:
            self._news.clear()
            yield self._word
            await self._news.wait()

    def resign(self) -> None:
        self.resigned += 1
        self.on_resign()

    async def controllers(self) -> dict[ControllerAddress, bool]:
        await self._reach("controllers")
        return {store.me: not store._closing for store in self._group.present.values()}

    async def wait_failed(self) -> StoreFailed:
        return await self._data.wait_failed()

    async def close(self) -> None:
        self._closing = True
        self._news.set()

    async def _reach(self, operation: str) -> None:
        if self._closing:
            raise Unavailable("closed")
        if self.before is not None:
            await self.before(operation)
