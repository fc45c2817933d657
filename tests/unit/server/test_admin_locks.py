"""What the edge does for locks before anything is an entry."""

from __future__ import annotations

import asyncio
from typing import Any

from semel.broker.replica import monotonic_ms
from semel.broker.server.admin import AdminService
from semel.broker.state import LockClock
from semel.protos.control_records import queue_ref
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.v1 import broker_pb2

KEY = QueueKey(TopicId(1), QueueId(2))
SESSION_MS = 1_000


class SlowReplica:
    """A master whose entries take for ever."""

    def __init__(self, clock: LockClock) -> None:
        self.lock_clock = clock
        self.submitted = asyncio.Event()

    async def submit_control(self, record: object) -> Any:
        self.submitted.set()
        await asyncio.Event().wait()


async def test_a_session_does_not_end_while_its_holders_commit_is_on_the_way() -> None:
    """Else the commit is granted, and the lock given away right behind it."""
    clock = LockClock()
    granted_ms = monotonic_ms() - SESSION_MS + 200
    clock.on_granted("g", KEY, 7, lock_ms=60_000, session_ms=SESSION_MS, now_ms=granted_ms)
    assert clock.expired(granted_ms + SESSION_MS) == [("g", KEY, 7)]
    clock.refresh_all(granted_ms)
    replica = SlowReplica(clock)
    service = AdminService(None, replica, None, None)  # type: ignore[arg-type]
    request = broker_pb2.CommitRequest(group="g")
    request.commits.add(queue=queue_ref(KEY), token=7, offset=1)
    commit = asyncio.ensure_future(service.Commit(request, None))
    await replica.submitted.wait()
    assert clock.expired(granted_ms + SESSION_MS) == []
    commit.cancel()
