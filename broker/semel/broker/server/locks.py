"""The broker's ordinary calls: producers, offsets, consumer groups, queues, status.

How it works. What changes state becomes a control record and answers when that is applied. What
reads state and may say "no" or "not yet" (an end offset, an outcome) is confirmed by a heartbeat
round first, so that a master that was replaced without knowing it cannot answer from the past.

Not here: hot streams (`produce.py`, `fetch.py`), recomputing (`verify.py`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from importlib.metadata import version

from semel.broker.config import BrokerConfig
from semel.broker.control_plane.route_cache import RoutesCopy
from semel.broker.identity import NodeIdentity
from semel.broker.machine import disk_room, resident_bytes
from semel.broker.membership.service import member_statuses
from semel.broker.repair.scrub import Scrub
from semel.broker.replica.clock import monotonic_ms
from semel.broker.replica.replica import Replica
from semel.broker.server.verify import verify_queues
from semel.broker.snapshots.checkpoints import Checkpoints
from semel.broker.state import (
    CommitApplied,
    FenceApplied,
    GroupDeleted,
    LockGranted,
    LockRefused,
    MoveApplied,
    OffsetReset,
    OutcomeKind,
    ProducerState,
    State,
    progress,
    row_message,
    unread_error,
)
from semel.protos import compat
from semel.protos.errors import InvalidRequest, SemelError, UnknownQueue, to_detail
from semel.protos.ids import NodeId, ProducerId, QueueKey
from semel.protos.levels import METADATA_LEVEL, MOVE_LEVEL, SPLIT_LEVEL
from semel.protos.queue_refs import queue_key_of, queue_ref
from semel.protos.v1 import broker_pb2, broker_pb2_grpc, common_pb2, control_pb2

_OUTCOMES = {
    OutcomeKind.COMMITTED: broker_pb2.ProduceOutcomeReply.OUTCOME_COMMITTED,
    OutcomeKind.NOT_COMMITTED: broker_pb2.ProduceOutcomeReply.OUTCOME_NOT_COMMITTED,
    OutcomeKind.TOO_OLD: broker_pb2.ProduceOutcomeReply.OUTCOME_TOO_OLD,
}
_ROWS_DEFAULT = 10_000
_NAME_MAX = 249
_METADATA_BYTES_MAX = 64 << 10
"""Every node keeps it in memory and writes it into each checkpoint."""
_LOCK_MS = (100, 24 * 3600 * 1000)
_APPLY_TIMEOUT_S = 30.0
_VERSION = version("semel")


class AdminService(broker_pb2_grpc.BrokerServicer):
    """Serves semel.protos.v1.Broker on one replica."""

    def __init__(
        self,
        config: BrokerConfig,
        replica: Replica,
        checkpoints: Checkpoints,
        scrub: Scrub,
        routes: RoutesCopy,
        identity: NodeIdentity,
    ) -> None:
        self._config = config
        self._replica = replica
        self._scrub = scrub
        self._checkpoints = checkpoints
        self._routes = routes
        self._identity = identity

    # ------------------------------------------------------------------ producers

    async def FenceProducer(  # noqa: N802
        self, request: broker_pb2.FenceProducerRequest, context: object
    ) -> broker_pb2.FenceProducerReply:
        _check_producer(request.producer_id)
        if not request.queues:
            return broker_pb2.FenceProducerReply()
        wanted = [queue_key_of(queue) for queue in request.queues]
        if len(set(wanted)) != len(wanted):
            raise InvalidRequest("a fence names each queue once")
        fence = control_pb2.Fence(
            queues=[queue_ref(key) for key in sorted(wanted)],
            producer_id=request.producer_id,
            epoch=request.epoch,
            session=request.session,
            name=request.name,
            after_expiry=request.after_expiry,
        )
        result = await self._replica.submit_control(control_pb2.ControlRecord(fence=fence))
        assert isinstance(result, FenceApplied)
        rows = {row.queue_key: row for row in result.rows}
        return broker_pb2.FenceProducerReply(rows=[row_message(rows[key]) for key in wanted])

    async def GetProduceOutcome(  # noqa: N802
        self, request: broker_pb2.ProduceOutcomeRequest, context: object
    ) -> broker_pb2.ProduceOutcomeReply:
        _check_producer(request.producer_id)
        await self._replica.confirm_read()
        key = self._known(queue_key_of(request.queue))
        self._check_settled(key)
        outcome = self._replica.state.outcome(
            key, ProducerId(request.producer_id), request.sequence
        )
        return broker_pb2.ProduceOutcomeReply(
            outcome=_OUTCOMES[outcome.kind],
            offset=outcome.offset,
            last_sequence=outcome.last_sequence,
        )

    async def DescribeProducers(  # noqa: N802
        self, request: broker_pb2.DescribeProducersRequest, context: object
    ) -> broker_pb2.DescribeProducersReply:
        if request.confirmed:
            await self._replica.confirm_read()
        state = self._replica.state
        keys = [queue_key_of(queue) for queue in request.queues] or sorted(state.queues)
        limit = request.limit or _ROWS_DEFAULT
        reply = broker_pb2.DescribeProducersReply()
        for key in keys:
            self._known(key)
            if request.confirmed:
                self._check_settled(key)
            if request.producer_id:
                row = state.producers.lookup(key, request.producer_id)
                rows: Iterable[ProducerState] = [row] if row is not None else []
            else:
                rows = state.producers.rows(key)
            for found in rows:
                if len(reply.rows) == limit:
                    reply.truncated = True
                    return reply
                reply.rows.append(row_message(found, window=request.windows))
        return reply

    # ------------------------------------------------------------------ locks and progress

    async def AcquireLocks(  # noqa: N802
        self, request: broker_pb2.AcquireLocksRequest, context: object
    ) -> broker_pb2.AcquireLocksReply:
        _check_group(request.group)
        if not request.member_id:
            raise InvalidRequest("a lock needs the id of the member that asks")
        for name in ("lock_ms", "session_ms"):
            value = getattr(request, name)
            if not _LOCK_MS[0] <= value <= _LOCK_MS[1]:
                raise InvalidRequest(
                    f"{name} is {value}, it must be between {_LOCK_MS[0]} and {_LOCK_MS[1]}"
                )
        await self._replica.wait_master()
        grants = await asyncio.gather(*(self._acquire(request, ref) for ref in request.queues))
        return broker_pb2.AcquireLocksReply(grants=grants)

    async def _acquire(
        self, request: broker_pb2.AcquireLocksRequest, ref: common_pb2.QueueRef
    ) -> broker_pb2.LockGrant:
        state, key = self._replica.state, queue_key_of(ref)
        if (barred := state.moves.barred(key, state.queues.get(key))) is not None:
            return broker_pb2.LockGrant(queue=ref, error=to_detail(barred))
        if key in state.queues:
            unread = unread_error(state.queues, state.groups, request.group, state.queues[key])
            if unread is not None:  # told without an entry: it is asked again and again
                return broker_pb2.LockGrant(queue=ref, error=to_detail(unread))
        record = control_pb2.AcquireLock(
            group=request.group,
            queue=ref,
            member_id=request.member_id,
            generation=request.generation,
            lock_ms=request.lock_ms,
            session_ms=request.session_ms,
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
        """A sign of life counts when it comes, not when its request is done: in between a session
        might end whose holder is about to be told that all is well. False: it comes too late."""
        clock = self._replica.lock_clock
        return clock is not None and clock.on_renewed(group, key, token, now_ms)

    async def ReleaseLocks(  # noqa: N802
        self, request: broker_pb2.ReleaseLocksRequest, context: object
    ) -> broker_pb2.ReleaseLocksReply:
        await self._replica.confirm_read()  # else a token could be unknown that is current by now
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
        _check_group(request.group)
        if not request.commits:
            return broker_pb2.CommitReply()
        if any(commit.HasField("metadata") for commit in request.commits):
            _check_metadata(request)
            await self._replica.require_level(METADATA_LEVEL)
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

    async def DescribeGroupOffsets(  # noqa: N802
        self, request: broker_pb2.DescribeGroupOffsetsRequest, context: object
    ) -> broker_pb2.DescribeGroupOffsetsReply:
        await self._replica.confirm_read()
        state = self._replica.state
        reply = broker_pb2.DescribeGroupOffsetsReply()
        for group in [request.group] if request.group else state.groups.names():
            found = progress(state.queues, state.groups, group)
            for queue, row in sorted(found, key=lambda one: one.queue.key):
                reply.states.add(
                    group=group,
                    queue=queue_ref(queue.key),
                    committed_offset=row.committed_offset,
                    token=row.token,
                    owner=row.owner,
                    log_start_offset=queue.log_start_offset,
                    high_watermark=queue.log_end_offset,
                )
        return reply

    async def ResetOffsets(  # noqa: N802
        self, request: broker_pb2.ResetOffsetsRequest, context: object
    ) -> broker_pb2.ResetOffsetsReply:
        _check_group(request.group)
        for wanted in request.offsets:
            record = control_pb2.ResetOffset(
                group=request.group, queue=wanted.queue, offset=wanted.offset
            )
            result = await self._replica.submit_control(
                control_pb2.ControlRecord(reset_offset=record)
            )
            assert isinstance(result, OffsetReset)
            if result.error is not None:
                raise result.error
        return broker_pb2.ResetOffsetsReply()

    async def DeleteGroup(  # noqa: N802
        self, request: broker_pb2.DeleteGroupRequest, context: object
    ) -> broker_pb2.DeleteGroupReply:
        _check_group(request.group)
        record = control_pb2.DeleteGroup(group=request.group)
        result = await self._replica.submit_control(control_pb2.ControlRecord(delete_group=record))
        assert isinstance(result, GroupDeleted)
        return broker_pb2.DeleteGroupReply(moves_digest=result.moves_digest, queues=result.queues)

    # ------------------------------------------------------------------ queues

    async def ListOffsets(  # noqa: N802
        self, request: broker_pb2.ListOffsetsRequest, context: object
    ) -> broker_pb2.ListOffsetsReply:
        await self._replica.confirm_read()
        reply = broker_pb2.ListOffsetsReply()
        for ref in request.queues:
            queue = self._replica.state.queues.get(queue_key_of(ref))
            if queue is None:
                error = _absent(self._replica.state, queue_key_of(ref), self._config)
                reply.queues.add(queue=ref, error=to_detail(error))
                continue
            self._check_settled(queue.key)
            delayed = self._replica.state.delays.queues.get(queue.key)
            reply.queues.add(
                queue=ref,
                log_start_offset=queue.log_start_offset,
                high_watermark=queue.log_end_offset,
                time_offset=(
                    queue.offset_for_time(request.time_us)
                    if request.time_us > 0
                    else queue.log_end_offset
                ),
                bytes=queue.bytes,
                delayed_messages=delayed.messages if delayed else 0,
                next_due_us=delayed.first_due_us if delayed else 0,
            )
        return reply

    async def ApplyQueues(  # noqa: N802
        self, request: broker_pb2.ApplyQueuesRequest, context: object
    ) -> broker_pb2.ApplyQueuesReply:
        if request.cluster_id != self._config.cluster_id:
            raise InvalidRequest(
                f"this broker belongs to cluster {self._config.cluster_id}, "
                f"the caller to {request.cluster_id}"
            )
        self._routes.check_office(request.office)
        allowed = ("create_queue", "delete_queue", "alter_topic", "split_queue", "move_queue")
        for record in request.records:
            if record.WhichOneof("record") not in allowed:
                raise InvalidRequest(f"ApplyQueues takes {', '.join(allowed)} and nothing else")
        if any(record.HasField("split_queue") for record in request.records):
            await self._replica.require_level(SPLIT_LEVEL)
        if any(record.HasField("move_queue") for record in request.records):
            await self._replica.require_level(MOVE_LEVEL)
        for result in await asyncio.gather(*map(self._replica.submit_control, request.records)):
            if isinstance(result, MoveApplied) and result.error is not None:
                raise result.error
        return broker_pb2.ApplyQueuesReply()

    async def GetNodeStatus(  # noqa: N802
        self, request: broker_pb2.NodeStatusRequest, context: object
    ) -> broker_pb2.NodeStatusReply:
        replica = self._replica
        if request.confirmed:
            await replica.confirm_read()
        status = replica.core.status()
        log, state = replica.log.stats(), replica.state
        master = status.master_id or 0
        free, total = disk_room(self._config.data)
        return broker_pb2.NodeStatusReply(
            cluster_id=self._config.cluster_id,
            group_id=self._config.group_id,
            node_id=self._config.node_id,
            role=replica.role,
            term=status.term,
            master_id=master,
            master_address=replica.peers.reachable.get(NodeId(master), ""),
            commit_index=status.commit_index,
            applied_index=state.applied_index,
            log_end_index=status.last_index,
            synced_index=status.synced_index,
            log_first_index=log.first_index,
            checkpoint_index=self._checkpoints.index,
            queues=len(state.queues),
            producers=state.producers.row_count,
            disk_bytes=log.segment_bytes + log.kept_bytes,
            peers=[
                broker_pb2.PeerStatus(
                    node_id=peer,
                    match_index=progress.match_index,
                    active=progress.recently_active,
                    counts=progress.counts,
                )
                for peer, progress in sorted(status.progress.items())
            ],
            version=_VERSION,
            runtime=compat.runtime(),
            resident_bytes=resident_bytes(),
            pid=os.getpid(),
            members=member_statuses(replica),
            membership_index=state.membership.index,
            muted=replica.muted,
            electable=replica.electable,
            scrub_passes=self._scrub.passes,
            scrub_bytes=self._scrub.position_bytes,
            scrub_total_bytes=self._scrub.total_bytes,
            damaged=log.damaged + len(replica.log.damaged_records),
            lost=len(replica.lost_entries),
            disk_free_bytes=free,
            disk_total_bytes=total,
            disk_full=replica.disk_full,
            wall_us=replica.log_time.wall_us(),
            log_time_us=replica.log_time_us(),
            producer_idle_ms=self._config.producer_idle_ms,
            founding_id=self._identity.founding,
            prepared_id=self._identity.prepared,
            knows_foundings=True,
            levels=replica.levels(),
        )

    async def VerifyQueues(  # noqa: N802
        self, request: broker_pb2.VerifyQueuesRequest, context: object
    ) -> AsyncIterator[broker_pb2.VerifyQueuesReply]:
        replica = self._replica
        if request.index:
            await replica.wait_applied(request.index, _APPLY_TIMEOUT_S)
        keys: Sequence[QueueKey] = [queue_key_of(ref) for ref in request.queues] or sorted(
            replica.state.queues
        )
        for key in keys:
            self._known(key)
        async for reply in verify_queues(replica, keys, request.index):
            yield reply

    def _known(self, key: QueueKey) -> QueueKey:
        if key not in self._replica.state.queues:
            raise _absent(self._replica.state, key, self._config)
        return key

    def _check_settled(self, key: QueueKey) -> None:
        """Raises Throttled while the queue is sealed by a move: it may live at the other broker
        group already, and hold more there than this one can know."""
        sealed = self._replica.state.moves.frozen(key)
        if sealed is not None:
            raise sealed


def _absent(state: State, key: QueueKey, config: BrokerConfig) -> SemelError:
    """QueueMoved or UnknownQueue."""
    if key in state.moves.places:
        return state.absent(key)
    return UnknownQueue(
        f"queue {key.queue_id} of topic {key.topic_id} is not on broker group {config.group_id}; "
        "refresh the routes"
    )


def _check_producer(producer_id: int) -> None:
    if not 0 < producer_id < 1 << 63:
        raise InvalidRequest(f"producer id {producer_id} is out of range; open the producer first")


def _check_metadata(request: broker_pb2.CommitRequest) -> None:
    for commit in request.commits:
        if len(commit.metadata) > _METADATA_BYTES_MAX:
            raise InvalidRequest(
                f"group {request.group!r} has {len(commit.metadata):,} bytes of metadata for queue"
                f" {commit.queue.queue_id}, {_METADATA_BYTES_MAX:,} are the most"
            )


def _check_group(group: str) -> None:
    if not 0 < len(group) <= _NAME_MAX or not group.isprintable():
        raise InvalidRequest(
            f"a consumer group's name has 1 to {_NAME_MAX} printable characters: {group!r}"
        )
