"""Calls about the offsets of whole consumer groups: showing, summing, resetting, deleting them.

Not here: a consumer's own commits (`server/lock_calls.py`), membership of groups (the controller).
"""

from __future__ import annotations

import asyncio
from typing import Final

from semel.broker.replica.clock import monotonic_ms
from semel.broker.replica.replica import Replica
from semel.broker.server.checks import check_group, check_room_for_group
from semel.broker.state import GroupDeleted, OffsetReset, progress
from semel.protos.groups import check_not_reserved
from semel.protos.levels import GROUP_QUEUES_LEVEL
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2, control_pb2

_ROWS_AT_ONCE: Final = 64
"""After so many the event loop turns."""


class GroupOffsetCalls:
    """Serves the calls of semel.protos.v1.Broker about consumer groups."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def DescribeGroupOffsets(  # noqa: N802
        self, request: broker_pb2.DescribeGroupOffsetsRequest, context: object
    ) -> broker_pb2.DescribeGroupOffsetsReply:
        await self._replica.confirm_read()
        state = self._replica.state
        reply = broker_pb2.DescribeGroupOffsetsReply()
        rows = 0
        for group in [request.group] if request.group else state.groups.names():
            found = progress(state.queues, state.groups, group)
            for queue, row in sorted(found, key=lambda one: one.queue.key):
                rows += 1
                if rows % _ROWS_AT_ONCE == 0:
                    await asyncio.sleep(0)
                told = reply.states.add(
                    group=group,
                    queue=queue_ref(queue.key),
                    committed_offset=row.committed_offset,
                    token=row.token,
                    owner=row.owner,
                    log_start_offset=queue.log_start_offset,
                    high_watermark=queue.log_end_offset,
                    metadata=row.metadata if request.group else b"",
                    unsettled=bool(state.transactions.staging.places.at((group, queue.key))),
                )
                clock = self._replica.lock_clock
                if row.owner and clock is not None:
                    age = clock.age(group, queue.key, row.token, monotonic_ms())
                    if age is not None:
                        told.lock.held_ms = int(age.held_ms)
                        told.lock.older = age.older
                        told.lock.uncommitted_ms = max(0, int(age.uncommitted_ms))
                        told.lock.lock_ms = age.lock_ms
        return reply

    async def SumGroups(  # noqa: N802
        self, request: broker_pb2.SumGroupsRequest, context: object
    ) -> broker_pb2.SumGroupsReply:
        await self._replica.confirm_read()
        state = self._replica.state
        if not request.groups:
            return broker_pb2.SumGroupsReply(names=sorted(state.groups.names()))
        reply = broker_pb2.SumGroupsReply()
        rows = 0
        for group in sorted(set(request.groups)):
            by_topic: dict[int, list[int]] = {}
            for queue, row in progress(state.queues, state.groups, group):
                rows += 1
                if rows % _ROWS_AT_ONCE == 0:
                    await asyncio.sleep(0)
                sums = by_topic.setdefault(queue.key.topic_id, [0, 0])
                done = max(row.committed_offset, queue.log_start_offset)
                sums[0] += queue.log_end_offset - done
                sums[1] += bool(row.owner)
            for topic_id, (lag, locks) in sorted(by_topic.items()):
                reply.sums.add(group=group, topic_id=topic_id, lag=lag, locks=locks)
        return reply

    async def ResetOffsets(  # noqa: N802
        self, request: broker_pb2.ResetOffsetsRequest, context: object
    ) -> broker_pb2.ResetOffsetsReply:
        check_group(request.group)
        check_not_reserved(request.group)
        check_room_for_group(self._replica, request.group)
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
        check_group(request.group)
        check_not_reserved(request.group)
        if request.queues:
            await self._replica.require_level(GROUP_QUEUES_LEVEL)
        record = control_pb2.DeleteGroup(group=request.group, queues=request.queues)
        result = await self._replica.submit_control(control_pb2.ControlRecord(delete_group=record))
        assert isinstance(result, GroupDeleted)
        return broker_pb2.DeleteGroupReply(moves_digest=result.moves_digest, queues=result.queues)
