"""Offsets that are staged with a transaction live as long as the transaction may last."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from semel.gateway.coordination.broker_ledger import SLACK_MS
from semel.gateway.coordination.callers import Caller
from semel.gateway.coordination.transaction_service import (
    TIMEOUT_MS_MAX,
    TransactionRefused,
    TransactionService,
)
from semel.gateway.dispatch import Gateways
from semel.gateway.transactions.numbers import epoch_of, producer_id_of
from semel.gateway.transactions.standing import Producer
from semel.protos.ids import GroupId, QueueId, QueueKey, TopicId
from semel.protos.v1 import common_pb2, transactions_pb2

ID = "copier"
BEGUN = epoch_of(7, 1)
PRODUCER = Producer(ID, producer_id_of(ID), 7)
KEY = QueueKey(TopicId(1), QueueId(0))
HOUR_MS = 3_600_000


class _Brokers:
    """Two broker groups, and what they know of the id."""

    def __init__(self, *staged: transactions_pb2.StagedTransaction, begun: int = BEGUN) -> None:
        row = transactions_pb2.CoordinatedTransaction(
            transaction_id=ID, epoch=epoch_of(7, 0), begun_epoch=begun, attempt=3
        )
        self.replies: Mapping[GroupId, transactions_pb2.DescribeTransactionsReply] = {
            GroupId(1): transactions_pb2.DescribeTransactionsReply(coordinated=[row]),
            GroupId(2): transactions_pb2.DescribeTransactionsReply(staged=staged),
        }

    async def described(
        self, _: str
    ) -> Mapping[GroupId, transactions_pb2.DescribeTransactionsReply]:
        return self.replies

    async def coordinator(self, _: str) -> GroupId:
        return GroupId(1)


def stager(timeout_ms: int, *, epoch: int = BEGUN, of_queue: bool = True) -> Any:
    """What a broker group tells of a stager."""
    queues = [common_pb2.QueueRef(topic_id=1, queue_id=0)] if of_queue else []
    return transactions_pb2.StagedTransaction(
        transaction_id=ID, epoch=epoch, stager_id=5, writer=timeout_ms, queues=queues
    )


async def staged_in(brokers: _Brokers) -> Any:
    async def await_run(call: Awaitable[Any]) -> Any:
        return await call

    session = SimpleNamespace(cluster=None, await_run=await_run)
    caller = cast(Caller, SimpleNamespace(session=session, transactions=brokers))
    service = TransactionService(caller, cast(Gateways, None))
    return await service.staged_in(PRODUCER, None)


async def test_staged_offsets_outlive_a_transaction_that_may_take_an_hour() -> None:
    """They once ended after 15 minutes, and the messages were committed without them."""
    found = await staged_in(_Brokers(stager(HOUR_MS), stager(5_000, epoch=BEGUN - 1)))
    assert found.epoch == BEGUN
    assert found.timeout_ms == HOUR_MS
    assert found.opening("group", KEY).ttl_ms == HOUR_MS + SLACK_MS


@pytest.mark.parametrize("others", [(), (stager(900_000, of_queue=False),)])
async def test_offsets_that_are_staged_first_live_as_long_as_any_transaction(others: Any) -> None:
    found = await staged_in(_Brokers(*others))
    assert found.ttl_ms >= TIMEOUT_MS_MAX + SLACK_MS


async def test_a_transaction_that_has_ended_takes_no_offsets() -> None:
    with pytest.raises(TransactionRefused) as refused:
        await staged_in(_Brokers(begun=epoch_of(7, 0)))
    assert refused.value.code is ErrorCode.invalid_txn_state
