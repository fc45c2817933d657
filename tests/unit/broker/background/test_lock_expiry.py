"""Releasing locks whose time is over, without disk or network."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from semel.broker.background.lock_expiry import LockExpiry
from semel.broker.replica.clock import monotonic_ms
from semel.broker.state import LockClock
from semel.protos import compat
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.v1.control_pb2 import ControlRecord

KEY = QueueKey(TopicId(1), QueueId(2))


class StoppedReplica:
    """A master whose process was frozen for an hour and whose next tick is still to come."""

    def __init__(self) -> None:
        self.lock_clock = LockClock()
        long_ago = monotonic_ms() - 3_600_000
        self.lock_clock.on_granted("g", KEY, 1, lock_ms=1_000, session_ms=1_000, now_ms=long_ago)
        self.looked = asyncio.Event()
        self.released: asyncio.Queue[ControlRecord] = asyncio.Queue()
        self.stopped = True

    @property
    def driver(self) -> Any:
        return SimpleNamespace(loop_stopped=self._loop_stopped)

    def _loop_stopped(self) -> bool:
        self.looked.set()
        return self.stopped

    async def submit_control(self, record: ControlRecord) -> Any:
        self.released.put_nowait(record)


async def test_no_lock_is_released_between_a_stop_of_the_loop_and_the_next_tick() -> None:
    """Its holder could not be heard; the tick gives it fresh time."""
    replica = StoppedReplica()
    expiry = LockExpiry(replica)  # type: ignore[arg-type]
    task = asyncio.ensure_future(expiry.run())
    async with compat.timeout(60):
        for _ in range(2):
            replica.looked.clear()
            await replica.looked.wait()
        assert replica.released.empty()
        replica.stopped = False  # without a tick: what a look would do
        record = await replica.released.get()
    assert record.release_lock.token == 1
    task.cancel()
