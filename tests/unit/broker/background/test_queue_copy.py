"""Asking another broker group while a queue is fetched from it."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from semel.broker.background.queue_copy import QueuePull, Source
from semel.broker.control_plane import group_calls
from semel.broker.control_plane.group_calls import GroupCalls
from semel.broker.control_plane.route_cache import RoutesCopy
from semel.protos.errors import CorruptBatch, NotMaster, Unavailable
from semel.protos.rpc import ServerInterceptor
from semel.protos.v1 import (
    broker_pb2,
    broker_pb2_grpc,
    transaction_records_pb2,
    transactions_pb2,
    transactions_pb2_grpc,
)
from tests.kit.compacting import CompactedGroup
from tests.kit.state_log import KEY


class _Slave(broker_pb2_grpc.MovesServicer, transactions_pb2_grpc.TransactionsServicer):
    """A node of the other group, which has no master now."""

    async def CopyQueue(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotMaster("node 7 is not the master of group 2", master_address="", term=3)

    async def Abort(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotMaster("node 7 is not the master of group 2", master_address="", term=3)


async def test_another_groups_missing_master_is_not_taken_for_ones_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NotMaster would send the caller, who asked this group, to the nodes of the other one."""
    monkeypatch.setattr(group_calls, "ATTEMPT_S", 60.0)
    monkeypatch.setattr(group_calls, "PAUSE_S", 60.0)  # so that there is one attempt
    server = grpc.aio.server(interceptors=[ServerInterceptor()])
    broker_pb2_grpc.add_MovesServicer_to_server(_Slave(), server)
    transactions_pb2_grpc.add_TransactionsServicer_to_server(_Slave(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    source = Source([address])
    calls = GroupCalls(RoutesCopy())
    try:
        with pytest.raises(Unavailable, match="node 7 is not the master of group 2") as caught:
            await source.ask("CopyQueue", broker_pb2.CopyQueueRequest())
        assert not isinstance(caught.value, NotMaster)
        calls.learn([transactions_pb2.KnownGroup(group_id=2, addresses=[address])])
        abort = transaction_records_pb2.AbortTransaction(transaction_id="t")
        with pytest.raises(Unavailable, match="broker group 2 has no master: node 7"):
            await calls.call(2, "Abort", abort, 60.0)
    finally:
        await calls.close()
        await source.close()
        await server.stop(None)


async def test_an_attempt_that_is_cut_short_does_not_hide_why_those_before_it_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_calls, "ATTEMPT_S", 60.0)
    server = grpc.aio.server(interceptors=[ServerInterceptor()])

    class _HangsLater(_Slave):
        asked = False

        async def Abort(self, request: Any, context: Any) -> Any:  # noqa: N802
            if self.asked:
                await asyncio.sleep(60)  # cancelled with the call
            self.asked = True
            return await super().Abort(request, context)

    transactions_pb2_grpc.add_TransactionsServicer_to_server(_HangsLater(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    calls = GroupCalls(RoutesCopy())
    try:
        calls.learn([transactions_pb2.KnownGroup(group_id=2, addresses=[address])])
        abort = transaction_records_pb2.AbortTransaction(transaction_id="t")
        with pytest.raises(Unavailable, match="broker group 2 has no master: node 7"):
            await calls.call(2, "Abort", abort, 3.0)
    finally:
        await calls.close()
        await server.stop(None)


def test_batches_with_gaps_are_taken_for_the_offsets_that_they_stand_for() -> None:
    """A compacted batch has fewer messages than offsets."""
    group = CompactedGroup()
    for number in range(3):
        group.send([(b"a", b"%d" % number), (b"b%d" % number, b"x")])
    group.compact()
    extents = group.state.queues[KEY].extents_from(0, 1 << 30)
    answer = broker_pb2.CopyQueueReply()
    for extent in extents:
        answer.batches.add(
            base_offset=extent.base_offset, count=extent.count, stored=group.stored(extent)
        )
    node: Any = None
    pull = QueuePull(
        node, node, KEY, 1, bytes_per_second=1, on_copied=lambda _: None, bodies_refusal=node
    )
    pull._check(answer)
    answer.batches[0].count -= 1
    with pytest.raises(CorruptBatch, match="2 offsets from 0"):
        pull._check(answer)
