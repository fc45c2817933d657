"""Calls of consumers about their locks: acquiring, renewing and releasing them, and commits.

How it works. A call that changes state becomes a control record, and is answered once that is
applied. A call that reads state, and may answer "no" or "not yet", first has a heartbeat round
confirm the mastership, so that a master that was replaced without knowing it cannot answer from the
past.

Invariants
1. A renewal or a commit extends the session from its arrival, not from its answer.
2. "Your lock is fine" is said only after a quorum confirmed that this node is still the master.

Not here: when a lock expires (`state/lock_clock.py`), releasing expired locks
(`background/lock_expiry.py`), offsets of whole groups (`server/group_offsets.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from semel.broker.replica.clock import monotonic_ms
from semel.broker.replica.replica import Replica
from semel.broker.server.checks import check_group, check_room_for_group
from semel.broker.state import CommitApplied, LockGranted, LockRefused, unread_error
from semel.broker.state.apply.splits import split_record_of
from semel.protos.errors import InvalidRequest, UnknownQueue, to_detail
from semel.protos.ids import QueueKey
from semel.protos.levels import KAFKA_LEVEL, METADATA_LEVEL, STAGED_COMMITS_LEVEL
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import broker_pb2, common_pb2, control_pb2, transaction_records_pb2

_METADATA_BYTES_MAX: Final = 64 << 10
"""Every node keeps it in memory and writes it into each checkpoint."""
_LOCK_MS: Final = (100, 24 * 3600 * 1000)


class LockCalls:
    """Serves the calls of semel.protos.v1.Broker about locks and commits."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def AcquireLocks(  # noqa: N802
        self, request: broker_pb2.AcquireLocksRequest, context: object
    ) -> broker_pb2.AcquireLocksReply:
        check_group(request.group)
        if not request.member_id:
            raise InvalidRequest("a lock needs the id of the member that asks")
        for name in ("lock_ms", "session_ms"):
            value = getattr(request, name)
            if not _LOCK_MS[0] <= value <= _LOCK_MS[1]:
                raise InvalidRequest(
                    f"{name} is {value}, it must be between {_LOCK_MS[0]} and {_LOCK_MS[1]}"
                )
        await self._replica.wait_master()
        if request.beside_parents:
            await self._replica.require_level(KAFKA_LEVEL)
        check_room_for_group(self._replica, request.group)
        grants = await asyncio.gather(*(self._acquire(request, ref) for ref in request.queues))
        return broker_pb2.AcquireLocksReply(grants=grants)

    async def _acquire(
        self, request: broker_pb2.AcquireLocksRequest, ref: common_pb2.QueueRef
    ) -> broker_pb2.LockGrant:
        state, key = self._replica.state, queue_key_of(ref)
        if (barred := state.moves.barred(key, state.queues.get(key))) is not None:
            return broker_pb2.LockGrant(queue=ref, error=to_detail(barred))
        if key in state.queues and not request.beside_parents:
            unread = unread_error(state.queues, state.groups, request.group, state.queues[key])
            if unread is not None:  # refused without an entry: members ask again and again
                return broker_pb2.LockGrant(queue=ref, error=to_detail(unread))
        drops = request.drop_staged and state.feature_level >= STAGED_COMMITS_LEVEL
        if drops and (pinned := state.transactions.pinned_progress(request.group, key)) is not None:
            return broker_pb2.LockGrant(queue=ref, error=to_detail(pinned))
        record = control_pb2.AcquireLock(
            group=request.group,
            queue=ref,
            member_id=request.member_id,
            generation=request.generation,
            lock_ms=request.lock_ms,
            session_ms=request.session_ms,
            beside_parents=request.beside_parents,
            drop_staged=drops,
        )
        try:
            result = await self._replica.submit_control(
                control_pb2.ControlRecord(acquire_lock=record)
            )
        except UnknownQueue as error:
            return broker_pb2.LockGrant(queue=ref, error=to_detail(error))
        if isinstance(result, LockRefused):
            return broker_pb2.LockGrant(queue=ref, error=to_detail(result.error))
        assert isinstance(result, LockGranted)
        queue = self._replica.state.queues[result.queue_key]
        return broker_pb2.LockGrant(
            queue=ref,
            token=result.token,
            committed_offset=result.committed_offset,
            log_start_offset=queue.log_start_offset,
            high_watermark=queue.log_end_offset,
            metadata=result.metadata,
            split=split_record_of(queue) if queue.sealed else None,
        )

    async def RenewLocks(  # noqa: N802
        self, request: broker_pb2.RenewLocksRequest, context: object
    ) -> broker_pb2.RenewLocksReply:
        replica = self._replica
        await replica.wait_master()
        now_ms = monotonic_ms()
        alive = [
            self._keep_alive(request.group, queue_key_of(lock.queue), lock.token, now_ms)
            for lock in request.locks
        ]
        # A master that was replaced without knowing it must not tell an owner of its time that all
        # is well: by now somebody else may hold the lock.
        await replica.confirm_read()
        groups = replica.state.groups
        lost = []
        for lock, in_time in zip(request.locks, alive, strict=True):
            held = groups.lookup(request.group, queue_key_of(lock.queue))
            current = held is not None and (held.token, held.owner) == (
                lock.token,
                request.member_id,
            )
            if not current or not in_time:
                lost.append(lock)
        return broker_pb2.RenewLocksReply(lost=lost)

    def _keep_alive(self, group: str, key: QueueKey, token: int, now_ms: int) -> bool:
        """Notes that the member is alive; False if its lock has ended or is about to.

        The session is extended when the request arrives, not when it is answered: it could end in
        between, and its holder would still hear that the lock is held.
        """
        clock = self._replica.lock_clock
        return clock is not None and clock.on_renewed(group, key, token, now_ms)

    async def ReleaseLocks(  # noqa: N802
        self, request: broker_pb2.ReleaseLocksRequest, context: object
    ) -> broker_pb2.ReleaseLocksReply:
        await self._replica.confirm_read()  # else this node may not know the current token yet
        groups = self._replica.state.groups
        held = [
            lock
            for lock in request.locks
            if (found := groups.lookup(request.group, queue_key_of(lock.queue))) is not None
            and found.token == lock.token
        ]
        await asyncio.gather(
            *(
                self._replica.submit_control(
                    control_pb2.ControlRecord(
                        release_lock=control_pb2.ReleaseLock(
                            group=request.group, queue=lock.queue, token=lock.token
                        )
                    )
                )
                for lock in held
            )
        )
        return broker_pb2.ReleaseLocksReply()

    async def Commit(  # noqa: N802
        self, request: broker_pb2.CommitRequest, context: object
    ) -> broker_pb2.CommitReply:
        check_group(request.group)
        if not request.commits:
            return broker_pb2.CommitReply()
        if any(commit.HasField("metadata") for commit in request.commits):
            check_metadata(request.group, request.commits)
            await self._replica.require_level(METADATA_LEVEL)
        if any(commit.may_lower for commit in request.commits):
            await self._replica.require_level(KAFKA_LEVEL)
        now_ms = monotonic_ms()
        for commit in request.commits:
            self._keep_alive(request.group, queue_key_of(commit.queue), commit.token, now_ms)
        record = control_pb2.CommitOffsets(group=request.group, commits=request.commits)
        result = await self._replica.submit_control(
            control_pb2.ControlRecord(commit_offsets=record)
        )
        assert isinstance(result, CommitApplied)
        reply = broker_pb2.CommitReply()
        for commit, outcome in zip(request.commits, result.outcomes, strict=True):
            error = None if outcome.error is None else to_detail(outcome.error)
            reply.outcomes.append(broker_pb2.CommitOutcome(queue=commit.queue, error=error))
        return reply


def check_metadata(
    group: str,
    commits: Iterable[control_pb2.QueueCommit | transaction_records_pb2.StagedCommit],
) -> None:
    """Raises InvalidRequest if a commit of a consumer group has too much metadata."""
    for commit in commits:
        if len(commit.metadata) > _METADATA_BYTES_MAX:
            raise InvalidRequest(
                f"group {group!r} has {len(commit.metadata):,} bytes of metadata for queue"
                f" {commit.queue.queue_id}, {_METADATA_BYTES_MAX:,} are the most"
            )
