"""Answers that only a master may give: one that was replaced, and does not know it, gives none."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.background.transaction_work import TransactionWork
from semel.broker.control_plane.route_cache import RoutesCopy
from semel.broker.server.broker_service import BrokerService
from semel.broker.server.delay_calls import DelayCalls
from semel.broker.server.fetch import FetchHandler
from semel.broker.server.group_offsets import GroupOffsetCalls
from semel.broker.server.id_calls import IdCalls
from semel.broker.server.id_window_calls import IdWindowCalls
from semel.broker.server.lock_calls import LockCalls
from semel.broker.server.node_status import NodeStatusCall
from semel.broker.server.parting_calls import PartingCalls
from semel.broker.server.producer_calls import ProducerCalls
from semel.broker.server.queue_calls import QueueCalls
from semel.broker.server.transactions_service import TransactionsService
from semel.broker.state import State
from semel.protos.errors import NotMaster, Unavailable, to_detail
from semel.protos.levels import LEVEL_MAX
from semel.protos.queue_refs import queue_ref
from semel.protos.staging import STAGER_ID_MIN
from semel.protos.v1 import (
    broker_pb2,
    control_pb2,
    transaction_records_pb2,
    transactions_pb2,
)
from tests.kit.fetch_replies import decode_fetch_reply
from tests.kit.state_log import KEY

QUEUE = queue_ref(KEY)
CALLS: dict[str, Any] = {
    "CancelMessage": broker_pb2.CancelMessageRequest(topic_id=7, message_id=b"a"),
    "CountDelayed": broker_pb2.CountDelayedRequest(queues=[QUEUE]),
    "DescribeGroupOffsets": broker_pb2.DescribeGroupOffsetsRequest(group="g"),
    "DescribeProducers": broker_pb2.DescribeProducersRequest(confirmed=True),
    "FindMessage": broker_pb2.FindMessageRequest(topic_id=7, message_id=b"a"),
    "DescribeIds": broker_pb2.DescribeIdsRequest(),
    "GetNodeStatus": broker_pb2.NodeStatusRequest(confirmed=True),
    "GiveUpDelayed": broker_pb2.GiveUpDelayedRequest(queue=QUEUE),
    "GetProduceOutcome": broker_pb2.ProduceOutcomeRequest(queue=QUEUE, producer_id=5),
    "ListDelayed": broker_pb2.ListDelayedRequest(queue=QUEUE, messages_max=1),
    "ListOffsets": broker_pb2.ListOffsetsRequest(queues=[QUEUE]),
    "ReleaseLocks": broker_pb2.ReleaseLocksRequest(group="g", member_id="m"),
    "RenewLocks": broker_pb2.RenewLocksRequest(group="g", member_id="m"),
}
TRANSACTIONS: dict[str, Any] = {
    "Describe": transactions_pb2.DescribeTransactionsRequest(),
    "Drop": transaction_records_pb2.DropStagers(stager_ids=[STAGER_ID_MIN]),
    "Publish": transaction_records_pb2.PublishTransaction(transaction_id="t", epoch=0, attempt=1),
    "Settle": transactions_pb2.SettleRequest(transaction_id="t"),
}


class Replaced:
    """A replica whose state is empty, and whose mastership nobody confirms."""

    def __init__(self) -> None:
        self.state = State()
        self.lock_clock = None
        self.submitted: list[control_pb2.ControlRecord] = []

    async def wait_master(self) -> None:
        """It believes to be one."""

    async def confirm_read(self) -> None:
        raise NotMaster("no quorum answers")

    async def submit_control(self, record: control_pb2.ControlRecord) -> None:
        self.submitted.append(record)


def service_of(replica: Replaced, routes: Any = None) -> BrokerService:
    config: Any = SimpleNamespace(cluster_id="c")
    stand_in: Any = replica
    nothing: Any = SimpleNamespace()
    return BrokerService(
        producers=ProducerCalls(stand_in),
        locks=LockCalls(stand_in),
        groups=GroupOffsetCalls(stand_in),
        queues=QueueCalls(config, stand_in, routes),
        delays=DelayCalls(stand_in),
        parting=PartingCalls(stand_in, nothing),
        ids=IdCalls(stand_in),
        id_windows=IdWindowCalls(stand_in),
        status=NodeStatusCall(config, stand_in, nothing, nothing, nothing),
    )


@pytest.mark.parametrize("method", CALLS)
async def test_a_master_that_was_replaced_tells_nothing(method: str) -> None:
    replica = Replaced()
    with pytest.raises(NotMaster):
        await getattr(service_of(replica), method)(CALLS[method], None)
    assert replica.submitted == []


@pytest.mark.parametrize("method", TRANSACTIONS)
async def test_a_master_that_was_replaced_tells_nothing_of_transactions(method: str) -> None:
    """It does not know of what was staged and pinned since: "there is nothing" would be wrong."""
    replica: Any = Replaced()
    config: Any = SimpleNamespace(group_id=1, staged_bytes_max=1)
    nothing: Any = SimpleNamespace()
    work = TransactionWork(config, replica, nothing)
    service = TransactionsService(config, replica, work, nothing)
    with pytest.raises(NotMaster):
        await getattr(service, method)(TRANSACTIONS[method], None)
    assert replica.submitted == []


async def test_a_controller_that_was_replaced_changes_no_queue() -> None:
    replica = Replaced()
    routes = RoutesCopy()
    service = service_of(replica, routes)
    request = broker_pb2.ApplyQueuesRequest(cluster_id="c", controller_epoch=2)
    request.records.add().delete_queue.queue.CopyFrom(QUEUE)
    await service.ApplyQueues(request, None)
    assert len(replica.submitted) == 1
    request.controller_epoch = 1
    with pytest.raises(Unavailable, match="is over"):
        await service.ApplyQueues(request, None)
    routes.on_epoch(3)
    request.controller_epoch = 2
    with pytest.raises(Unavailable, match="is over"):
        await service.ApplyQueues(request, None)
    assert len(replica.submitted) == 1


class FetchNode:
    """A node without queues that is not the master."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(
            fetch_shared_bytes_max=0,
            fetch_wait_max_ms=0,
            fetch_buffer_bytes_max=1 << 20,
            fetch_bytes_max=1 << 20,
        )
        self.state = State()

    def check_master(self) -> None:
        raise NotMaster("ask another node")


class Written:
    """Where replies leave."""

    def __init__(self) -> None:
        self.reading = asyncio.Semaphore(1)
        self.turn = lambda poll: self.reading
        self.errors: list[int] = []

    async def write(self, reply: bytes) -> None:
        header, _ = decode_fetch_reply(reply)
        self.errors.append(header.error.code)


@pytest.mark.parametrize("any_replica", [True, False])
async def test_a_node_that_is_not_the_master_is_read_only_if_any_replica_will_do(
    any_replica: bool,
) -> None:
    """What it has applied may be old, and a lock another's by now."""
    node: Any = FetchNode()
    out: Any = Written()
    handler = FetchHandler(node)
    request = broker_pb2.FetchRequest(any_replica=any_replica)
    request.queues.add(queue=QUEUE)
    await handler._serve(request, out, None, LEVEL_MAX)
    refused = to_detail(NotMaster("")).code
    assert (out.errors == [refused]) is not any_replica
    assert len(out.errors) == 1
