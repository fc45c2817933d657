"""A controller that stops dead between any two of its steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from semel.controller.store import MemoryStore, Transaction
from semel.protos import compat
from semel.protos.v1.metadata_pb2 import TOPIC_STATE_ACTIVE, TopicRecord
from tests.kit.controller_cluster import Client, Cluster

Operation = Callable[[Client], Awaitable[object]]


class CrashPoints:
    """Stops whoever comes to point number `stop_at`, for ever."""

    def __init__(self) -> None:
        self.stop_at = -1
        self.passed = 0
        self.stopped = asyncio.Event()

    async def point(self) -> None:
        if self.stop_at < 0:
            return
        self.passed += 1
        if self.passed > self.stop_at:
            self.stopped.set()
            await asyncio.Event().wait()


class CrashingStore(MemoryStore):
    """Has a crash point before and after each transaction."""

    def __init__(self, points: CrashPoints) -> None:
        super().__init__()
        self._points = points

    async def transact(self, transaction: Transaction) -> int:
        await self._points.point()
        revision = await super().transact(transaction)
        await self._points.point()
        return revision


async def crash(cluster: Cluster, points: CrashPoints, stop_at: int, operation: Operation) -> bool:
    """Runs the operation into a crash and starts the next controller; false if it got through."""
    points.stop_at, points.passed = stop_at, 0
    points.stopped.clear()
    running = asyncio.ensure_future(operation(cluster.client))
    stopped = asyncio.ensure_future(points.stopped.wait())
    await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
    hit = not running.done()
    await cluster.stop()
    await asyncio.gather(running, return_exceptions=True)
    stopped.cancel()
    points.stop_at = -1
    await cluster.start()
    await cluster.report()
    return hit


async def settled(cluster: Cluster, within_s: float = 5.0) -> None:
    """Waits until the store holds no unfinished topic."""

    async def unfinished() -> bool:
        entries = {
            **await cluster.store.scan("/topics/"),
            **await cluster.store.scan("/deleting/"),
        }
        records = [TopicRecord.FromString(entry.value) for entry in entries.values()]
        return any(r.state != TOPIC_STATE_ACTIVE or r.settings_pending or r.splits for r in records)

    async with compat.timeout(within_s):
        while await unfinished():
            await asyncio.sleep(0.005)
