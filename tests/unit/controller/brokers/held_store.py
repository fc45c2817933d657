"""A store whose writes wait in the middle, so that a test may cancel the caller there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from semel.controller.store import MemoryStore, Transaction

MOMENTS = ("before the write", "after the write")


class HeldStore(MemoryStore):
    """While `moment` is one of MOMENTS, each write stops there until `release`."""

    def __init__(self) -> None:
        super().__init__()
        self.moment = ""
        self.written: list[frozenset[str]] = []
        """The keys of each write, in the order of their ends."""
        self._held = asyncio.Event()
        self._go = asyncio.Event()

    async def transact(self, transaction: Transaction) -> int:
        await self._stop(MOMENTS[0])
        revision = await super().transact(transaction)
        self.written.append(frozenset(transaction.puts))
        await self._stop(MOMENTS[1])
        return revision

    async def held(self) -> None:
        """Returns once a write stands still."""
        await self._held.wait()

    def release(self) -> None:
        """All writes go on, and none stops from now on."""
        self.moment = ""
        self._go.set()

    async def _stop(self, moment: str) -> None:
        if self.moment == moment:
            self._held.set()
            await self._go.wait()


async def cancel_in_the_middle(
    store: HeldStore, moment: str, call: Coroutine[Any, Any, object]
) -> None:
    """Cancels `call` while its write is at `moment`; then the write goes on, if anything does."""
    store.moment = moment
    caller = asyncio.ensure_future(call)
    await store.held()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    store.release()
    for _ in range(20):
        await asyncio.sleep(0)
