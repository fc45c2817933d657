"""Staged and pinned batches survive what befalls a log: cleaning, snapshots, other masters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from semel.broker.node import BrokerNode
from semel.protos import compat
from semel.protos.batch import decode_header
from semel.protos.queue_refs import queue_ref
from semel.protos.rpc import error_from_rpc
from semel.protos.staging import STAGER_ID_MIN, batch_digest
from semel.protos.v1 import (
    broker_pb2,
    common_pb2,
    transaction_records_pb2,
    transactions_pb2,
    transactions_pb2_grpc,
)
from tests.kit.batches import to_record_batch
from tests.kit.brokers import QUEUE, QUICK_CLEANING, BrokerGroup, RawClient, make_batch

STAGER = STAGER_ID_MIN + 5
SIZE = 8_000
BATCHES = [make_batch(number - 1, [b"staged %d" % number], producer=STAGER) for number in range(5)]


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[BrokerGroup]:
    """Three nodes whose logs are cleaned as soon as something is dead."""
    built = BrokerGroup(tmp_path, **QUICK_CLEANING, transaction_pin_ms=600_000)
    async with built:
        yield built


async def ask(node: BrokerNode, method: str, request: Any) -> Any:
    async with RawClient(node.address) as client:
        stub = transactions_pb2_grpc.TransactionsStub(client.channel)
        try:
            return await getattr(stub, method)(request, timeout=10)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None


def pin_of(attempt: int) -> transactions_pb2.PinRequest:
    part = transaction_records_pb2.StagedPart(
        queue=queue_ref(QUEUE),
        batches=len(BATCHES),
        messages=len(BATCHES),
        digest=sum(batch_digest(decode_header(batch)) for batch in BATCHES),
    )
    pin = transaction_records_pb2.PinTransaction(
        transaction_id="t",
        attempt=attempt,
        coordinator=1,
        winners=[transaction_records_pb2.Winner(stager_id=STAGER, parts=[part])],
    )
    return transactions_pb2.PinRequest(pin=pin)


async def values(node: BrokerNode) -> list[bytes]:
    """The queue's live messages, offsets as the reply tells them."""
    queue = node.replica.state.queues[QUEUE]
    found: list[bytes] = []
    async with RawClient(node.address) as client:
        while (offset := queue.log_start_offset + len(found)) < queue.log_end_offset:
            header, parts = await client.fetch(offset=offset, any_replica=True)
            assert not header.results[0].HasField("error"), header.results[0].error
            for place, part in zip(header.results[0].batches, parts, strict=True):
                base = place.base_offset - place.row_start
                rows = to_record_batch(part, place.row_start, place.row_end, base_offset=base)
                assert rows.column("offset")[0].as_py() == queue.log_start_offset + len(found)
                found += rows.column("value").to_pylist()
    return found


async def test_staged_batches_outlive_their_segments_a_new_node_and_the_master(
    group: BrokerGroup,
) -> None:
    master = await group.master()
    async with RawClient(master.address) as client:
        await client.create_queue(settings=common_pb2.TopicSettings(retention_bytes=100_000))
        await client.fence(1)
        opening = transaction_records_pb2.OpenStager(
            transaction_id="t",
            stager_id=STAGER,
            session=1,
            ttl_ms=3_600_000,
            queues=[queue_ref(QUEUE)],
        )
        assert (await ask(master, "Open", opening)).last_sequences == [-1]
        acks = await client.produce(*BATCHES)
        assert {ack.status for ack in acks} == {broker_pb2.PRODUCE_STATUS_COMMITTED}
        (again,) = await client.produce(BATCHES[-1])
        assert again.status == broker_pb2.PRODUCE_STATUS_DUPLICATE
        staged_at = master.replica.state.applied_index
        for number in range(100):
            value = str(number).encode().rjust(SIZE, b".")
            await client.produce(make_batch(number - 1, [value]))
    await group.settled()
    async with compat.timeout(30):
        for node in group.running.values():
            while node.replica.log.first_index <= staged_at:
                await asyncio.sleep(0.02)
    assert master.replica.log.stats().kept_bytes

    newcomer = await group.join(4)
    await group.change(4, broker_pb2.MEMBERSHIP_STATUS_LEARNER)
    async with compat.timeout(30):
        while newcomer.replica.non_counting or newcomer.replica.log.first_index <= staged_at:
            await asyncio.sleep(0.02)
    await group.change(4, broker_pb2.MEMBERSHIP_STATUS_VOTER)

    begun = await ask(
        await group.master(), "Begin", transaction_records_pb2.BeginTransaction(transaction_id="t")
    )
    await ask(await group.master(), "Pin", pin_of(begun.attempt))
    await group.stop(master.config.node_id)
    successor = await group.master()
    staging = successor.replica.state.transactions.staging
    assert staging.pins["t"].attempt == begun.attempt
    await ask(successor, "Pin", pin_of(begun.attempt))
    decide = transaction_records_pb2.DecideTransaction(
        transaction_id="t", attempt=begun.attempt, participants=[1]
    )
    decided = await ask(successor, "Decide", transactions_pb2.DecideRequest(decide=decide))
    assert decided.published
    await group.settled()
    expected = [b"staged %d" % number for number in range(5)]
    for node in group.running.values():
        assert (await values(node))[-5:] == expected, "also on the node that never saw the entries"
        assert node.replica.state.transactions.staging.bytes == 0
    await group.settled()
    digests = {node.replica.state.digest() for node in group.running.values()}
    assert len(digests) == 1
    queue = await group.recomputed()
    assert not queue.problems
    assert queue.missing == queue.duplicates == 0
