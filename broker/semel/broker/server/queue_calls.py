"""Calls about queues: their offsets, changes by the controllers, recomputing their content.

How it works. A call that changes state becomes a control record, and is answered once that is
applied. A call that reads state, and may answer "no" or "not yet", first has a heartbeat round
confirm the mastership, so that a master that was replaced without knowing it cannot answer from the
past. Times of messages that only the object store has are looked up there.

Not here: reading messages (`server/fetch.py`), moves (`server/moves_service.py`), how queues are
recomputed (`server/verification.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from semel.broker.config import BrokerConfig
from semel.broker.control_plane.route_cache import RoutesCopy
from semel.broker.replica.replica import Replica
from semel.broker.server.checks import absent, check_settled, known
from semel.broker.server.queue_reader import cold_place
from semel.broker.server.tier_verification import verify_tier
from semel.broker.server.verification import verify_queues
from semel.broker.state import MoveApplied, QueueState
from semel.broker.tiers.cold_reads import ColdReads
from semel.broker.tiers.place import TierPlace
from semel.protos.errors import InvalidRequest, SemelError, to_detail
from semel.protos.ids import Offset, QueueKey
from semel.protos.levels import COMPACTION_LEVEL, ID_LEVEL, MOVE_LEVEL, SPLIT_LEVEL
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import broker_pb2, control_pb2

_APPLY_TIMEOUT_S: Final = 30.0
_QUEUES_AT_ONCE: Final = 64
"""After so many the event loop turns."""


class QueueCalls:
    """Serves the calls of semel.protos.v1.Broker about queues."""

    def __init__(
        self,
        config: BrokerConfig,
        replica: Replica,
        routes: RoutesCopy,
        cold: ColdReads | None = None,
        place: TierPlace | None = None,
    ) -> None:
        """`cold` reads what only the object store has, which is `place`; None if the node was given
        none."""
        self._cold = cold
        self._place = place
        self._config = config
        self._replica = replica
        self._routes = routes

    async def ListOffsets(  # noqa: N802
        self, request: broker_pb2.ListOffsetsRequest, context: object
    ) -> broker_pb2.ListOffsetsReply:
        await self._replica.confirm_read()
        reply = broker_pb2.ListOffsetsReply()
        for number, ref in enumerate(request.queues, 1):
            if number % _QUEUES_AT_ONCE == 0:
                await asyncio.sleep(0)
            queue = self._replica.state.queues.get(queue_key_of(ref))
            if queue is None:
                error = absent(self._replica, queue_key_of(ref))
                reply.queues.add(queue=ref, error=to_detail(error))
                continue
            check_settled(self._replica, queue.key)
            try:
                time_offset, append_time_us = await self._times(queue, request)
            except SemelError as error:  # the object store is not there: others can be told
                reply.queues.add(queue=ref, error=to_detail(error))
                continue
            delayed = self._replica.state.delays.queues.get(queue.key)
            reply.queues.add(
                queue=ref,
                log_start_offset=queue.log_start_offset,
                high_watermark=queue.log_end_offset,
                time_offset=time_offset,
                bytes=queue.bytes,
                delayed_messages=delayed.messages if delayed else 0,
                next_due_us=delayed.first_due_us if delayed else 0,
                append_time_us=append_time_us,
                gaps_to=max(queue.compaction.gaps_to, queue.lost.gaps_to),
                lost_messages=queue.lost.messages,
                local_start_offset=queue.local_start,
                tier_end_offset=queue.tier.end if queue.tier.number else 0,
            )
        return reply

    async def _times(
        self, queue: QueueState, request: broker_pb2.ListOffsetsRequest
    ) -> tuple[int, int]:
        """The offset for the time that is asked for, and the time of the offset. Raises
        Unavailable, CorruptBatch."""
        time_offset, append_time_us = queue.log_end_offset, 0
        if request.time_us > 0:
            time_offset = queue.offset_for_time(request.time_us)
            if queue.is_time_cold(request.time_us):
                pointer, cold = cold_place(self._cold, queue)
                found = await cold.offset_at(pointer, request.time_us)
                time_offset = Offset(max(queue.log_start_offset, min(time_offset, found)))
        if request.HasField("offset"):
            if queue.is_cold(request.offset):
                pointer, cold = cold_place(self._cold, queue)
                append_time_us = await cold.append_time_us(pointer, request.offset)
            else:
                append_time_us = _append_time_us(queue, request.offset)
        return time_offset, append_time_us

    async def TrimQueues(  # noqa: N802
        self, request: broker_pb2.TrimQueuesRequest, context: object
    ) -> broker_pb2.TrimQueuesReply:
        await self._replica.wait_master()
        reply = broker_pb2.TrimQueuesReply()
        for wanted in request.trims:
            key = known(self._replica, queue_key_of(wanted.queue))
            record = control_pb2.Trim(queue=wanted.queue, log_start_offset=wanted.log_start_offset)
            await self._replica.submit_control(control_pb2.ControlRecord(trim=record))
            known(self._replica, key)
            start = self._replica.state.queues[key].log_start_offset
            reply.trims.add(queue=wanted.queue, log_start_offset=start)
        return reply

    async def ApplyQueues(  # noqa: N802
        self, request: broker_pb2.ApplyQueuesRequest, context: object
    ) -> broker_pb2.ApplyQueuesReply:
        if request.cluster_id != self._config.cluster_id:
            raise InvalidRequest(
                f"this broker belongs to cluster {self._config.cluster_id}, "
                f"the caller to {request.cluster_id}"
            )
        self._routes.check_epoch(request.controller_epoch)
        allowed = ("create_queue", "delete_queue", "alter_topic", "split_queue", "move_queue")
        for record in request.records:
            if record.WhichOneof("record") not in allowed:
                raise InvalidRequest(f"ApplyQueues takes {', '.join(allowed)} and nothing else")
        if any(record.HasField("split_queue") for record in request.records):
            await self._replica.require_level(SPLIT_LEVEL)
        if any(record.HasField("move_queue") for record in request.records):
            await self._replica.require_level(MOVE_LEVEL)
        if any(map(_compares_ids, request.records)):
            await self._replica.require_level(ID_LEVEL)
        if any(map(_compacts, request.records)):
            await self._replica.require_level(COMPACTION_LEVEL)
        for result in await asyncio.gather(*map(self._replica.submit_control, request.records)):
            if isinstance(result, MoveApplied) and result.error is not None:
                raise result.error
        return broker_pb2.ApplyQueuesReply()

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
            known(self._replica, key)
        async for reply in verify_queues(replica, keys, request.index):
            yield reply
        for key in keys if request.tier else ():
            if (tier := await verify_tier(replica, self._place, key)) is not None:
                yield broker_pb2.VerifyQueuesReply(tiers=[tier])


def _compares_ids(record: control_pb2.ControlRecord) -> bool:
    """Whether the record begins a queue that compares message ids, or makes a topic do so."""
    return record.create_queue.settings.HasField("dedup") or (
        record.alter_topic.settings.HasField("dedup")
    )


def _compacts(record: control_pb2.ControlRecord) -> bool:
    """Whether the record begins a queue that is compacted, or makes a topic be so."""
    return record.create_queue.settings.HasField("compaction") or (
        record.alter_topic.settings.HasField("compaction")
    )


def _append_time_us(queue: QueueState, offset: int) -> int:
    """The time at which the message at `offset` was appended; 0 when none is there."""
    if not queue.log_start_offset <= offset < queue.log_end_offset:
        return 0
    return queue.extents_from(offset, 1)[0].append_time_us
