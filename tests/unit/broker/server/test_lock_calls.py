"""What the edge does for locks before anything is an entry."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from semel.broker.replica.clock import monotonic_ms
from semel.broker.server.lock_calls import LockCalls
from semel.broker.state import LockClock, State
from semel.protos.errors import InvalidRequest, NotMaster
from semel.protos.frames import RecordKind, build_frame
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2, control_pb2

KEY = QueueKey(TopicId(1), QueueId(2))
SESSION_MS = 1_000


class SlowReplica:
    """A master whose entries take for ever, and who can be replaced without knowing it."""

    def __init__(self, clock: LockClock) -> None:
        self.lock_clock = clock
        self.submitted = asyncio.Event()
        self.replaced = False
        self.state = State()

    async def wait_master(self) -> None:
        """It believes to be one."""

    async def confirm_read(self) -> None:
        if self.replaced:
            raise NotMaster("no quorum answers")

    async def submit_control(self, record: object) -> Any:
        self.submitted.set()
        await asyncio.Event().wait()


def held(session_ms: int = SESSION_MS) -> tuple[SlowReplica, LockCalls, float]:
    """A lock under token 1 of member m, granted some time ago; and when that was."""
    clock = LockClock()
    granted_ms = monotonic_ms() - session_ms + 200
    replica = SlowReplica(clock)
    create = control_pb2.CreateQueue(queue=queue_ref(KEY), topic="t", slot_end=65_536)
    acquire = control_pb2.AcquireLock(
        group="g", queue=queue_ref(KEY), member_id="m", lock_ms=60_000, session_ms=session_ms
    )
    records = [
        (RecordKind.CONTROL, (control_pb2.ControlRecord(create_queue=create).SerializeToString(),)),
        (
            RecordKind.CONTROL,
            (control_pb2.ControlRecord(acquire_lock=acquire).SerializeToString(),),
        ),
    ]
    replica.state.apply_frame(build_frame(1, 1, 1, records)[0])
    clock.on_granted("g", KEY, 1, lock_ms=60_000, session_ms=session_ms, now_ms=granted_ms)
    service = LockCalls(replica)  # type: ignore[arg-type]
    return replica, service, granted_ms


RENEW = broker_pb2.RenewLocksRequest(
    group="g", member_id="m", locks=[broker_pb2.LockRef(queue=queue_ref(KEY), token=1)]
)


async def test_a_session_does_not_end_while_its_holders_commit_is_on_the_way() -> None:
    """Else the commit is granted, and the lock given away right behind it."""
    replica, service, granted_ms = held()
    clock = replica.lock_clock
    request = broker_pb2.CommitRequest(group="g")
    request.commits.add(queue=queue_ref(KEY), token=1, offset=1)
    commit = asyncio.ensure_future(service.Commit(request, None))
    await replica.submitted.wait()
    assert clock.expired(granted_ms + SESSION_MS) == []
    commit.cancel()


async def test_an_owner_is_renewed() -> None:
    replica, service, granted_ms = held()
    reply = await service.RenewLocks(RENEW, None)
    assert not reply.lost
    assert replica.lock_clock.expired(granted_ms + SESSION_MS) == []


async def test_a_master_that_was_replaced_renews_nobody() -> None:
    """Else an owner goes on whose lock another member holds by now."""
    replica, service, _ = held()
    replica.replaced = True
    with pytest.raises(NotMaster):
        await service.RenewLocks(RENEW, None)
    with pytest.raises(NotMaster):
        await service.ReleaseLocks(broker_pb2.ReleaseLocksRequest(group="g", member_id="m"), None)


async def test_a_renewal_behind_the_release_is_told_that_the_lock_is_lost() -> None:
    """The release is decided and not applied yet."""
    replica, service, granted_ms = held()
    assert replica.lock_clock.expired(granted_ms + SESSION_MS) == [("g", KEY, 1)]
    reply = await service.RenewLocks(RENEW, None)
    assert [lock.token for lock in reply.lost] == [1]


async def test_metadata_has_a_limit() -> None:
    _, service, _ = held()
    request = broker_pb2.CommitRequest(group="g")
    request.commits.add(queue=queue_ref(KEY), token=1, offset=-1, metadata=bytes((64 << 10) + 1))
    with pytest.raises(InvalidRequest, match="65,536 are the most"):
        await service.Commit(request, None)
