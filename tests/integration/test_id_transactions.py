"""Transactions on topics that compare message ids, on real nodes: what is stored already is dropped
at the commit, and every node knows the ids afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc.aio

from semel.broker.node import BrokerNode
from semel.protos.batch import decode_header
from semel.protos.dropped import Verdict
from semel.protos.errors import InvalidRequest
from semel.protos.queue_refs import queue_ref
from semel.protos.rpc import error_from_rpc
from semel.protos.staging import STAGER_ID_MIN, batch_digest
from semel.protos.v1 import (
    broker_pb2,
    transaction_records_pb2,
    transactions_pb2,
    transactions_pb2_grpc,
)
from tests.kit.brokers import QUEUE, BrokerGroup, RawClient, make_batch
from tests.kit.id_senders import begin, ids


async def ask(node: BrokerNode, method: str, request: Any) -> Any:
    async with RawClient(node.address) as client:
        stub = transactions_pb2_grpc.TransactionsStub(client.channel)
        try:
            return await getattr(stub, method)(request, timeout=10)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None


async def stage(group: BrokerGroup, stager: int, name: str, *batches: bytes) -> list[Any]:
    """Opens a stager, and returns the answers to its batches."""
    opening = transaction_records_pb2.OpenStager(
        transaction_id=name,
        stager_id=stager,
        session=1,
        ttl_ms=3_600_000,
        queues=[queue_ref(QUEUE)],
    )
    node = await group.master()
    await ask(node, "Open", opening)
    async with RawClient(node.address) as client:
        return await client.produce(*batches)


async def pin(group: BrokerGroup, stager: int, name: str, *batches: bytes) -> int:
    """Pins the batches, and returns the attempt."""
    node = await group.master()
    begun = await ask(node, "Begin", transaction_records_pb2.BeginTransaction(transaction_id=name))
    heads = [decode_header(batch) for batch in batches]
    part = transaction_records_pb2.StagedPart(
        queue=queue_ref(QUEUE),
        batches=len(heads),
        messages=sum(head.count for head in heads),
        digest=sum(map(batch_digest, heads)) % (1 << 64),
    )
    record = transaction_records_pb2.PinTransaction(
        transaction_id=name,
        attempt=begun.attempt,
        coordinator=1,
        winners=[transaction_records_pb2.Winner(stager_id=stager, parts=[part])],
    )
    await ask(node, "Pin", transactions_pb2.PinRequest(pin=record))
    return int(begun.attempt)


async def decide(group: BrokerGroup, name: str, attempt: int) -> tuple[int, int]:
    """Commits, and returns how many duplicates and conflicts were dropped."""
    record = transaction_records_pb2.DecideTransaction(
        transaction_id=name, attempt=attempt, participants=[1]
    )
    node = await group.master()
    decided = await ask(node, "Decide", transactions_pb2.DecideRequest(decide=record))
    assert decided.published
    return decided.duplicates, decided.conflicts


def staged(stager: int, previous: int, names: list[bytes], value: bytes = b"v") -> bytes:
    return make_batch(previous, [value] * len(names), producer=stager, ids=names)


async def test_a_commit_stores_each_id_once_with_another_master(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path, transaction_pin_ms=600_000)
    one, two = STAGER_ID_MIN + 1, STAGER_ID_MIN + 2
    async with group:
        sender, other = await begin(group)
        await sender.send(ids(0, 20))
        first = [staged(one, -1, ids(15, 25)), staged(one, 9, ids(24, 27))]
        second = [staged(two, -1, [b"id 3", b"id 26", b"id 30"], b"other")]
        for acks in (
            await stage(group, one, "one", *first),
            await stage(group, two, "two", *second),
        ):
            assert {ack.status for ack in acks} == {broker_pb2.PRODUCE_STATUS_COMMITTED}
        await sender.send(ids(25, 26))  # comes before the commit, so it is the first
        attempts = [await pin(group, one, "one", *first), await pin(group, two, "two", *second)]
        old = await group.master()
        await group.settled()
        await group.stop(old.config.node_id)
        assert await decide(group, "one", attempts[0]) == (7, 0)
        assert await decide(group, "two", attempts[1]) == (0, 2)
        assert await decide(group, "two", attempts[1]) == (0, 0), "it was published before"
        _, dropped = await other.send([*ids(19, 32), b"id 30"])
        assert [each[1] for each in dropped] == [19, 21, 22, 23, 24, 25, 20, 26, 27, 27]
        assert [each[2] for each in dropped[-2:]] == [Verdict.CONFLICT, Verdict.CONFLICT]
        await group.start(old.config.node_id)
        await group.settled()
        expected = [b"v"] * 27 + [b"other"] + [b"v"] * 4
        for node in group.running.values():
            async with RawClient(node.address) as client:
                assert await client.values(any_replica=True) == expected
            window = node.replica.state.id_windows.topics[QUEUE.topic_id]
            assert (window.ids, window.conflicts) == (32, 4)
            index = node.replica.ids.index_of(QUEUE.topic_id)
            assert index is not None
            assert index.end_arrival == 32
            assert not node.replica.ids.behind
        recomputed = await group.recomputed()
        assert recomputed.table_matches
        assert not recomputed.problems
        for number in list(group.running):
            await group.stop(number)
            await group.start(number)
            await group.settled()
        _, dropped = await other.send([b"id 24", b"id 26"])
        assert [each[1] for each in dropped] == [25, 26]


async def test_a_malformed_id_is_refused_before_it_is_staged(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path, nodes=1)
    stager = STAGER_ID_MIN + 1
    async with group:
        await begin(group)
        (ack,) = await stage(group, stager, "one", staged(stager, -1, [b"x" * 129]))
        assert ack.error.code == InvalidRequest.code
        node = await group.master()
        assert node.replica.state.transactions.staging.bytes == 0
