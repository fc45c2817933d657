"""Transactions on topics that compare message ids, on real nodes: what is stored already is dropped
at the commit, and every node knows the ids afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from semel.broker.node import BrokerNode
from semel.broker.replica import pinned_look_up
from semel.broker.replica.pinned_look_up import PinnedLookUp
from semel.broker.state import TransactionIds
from semel.protos.batch import BATCH_BYTES_MAX, decode_header
from semel.protos.dropped import Verdict
from semel.protos.errors import CorruptSegment, InvalidRequest, MessageTooLarge, SemelError
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


async def test_a_batch_that_may_grow_too_large_is_refused_before_it_is_staged(
    tmp_path: Path,
) -> None:
    group = BrokerGroup(tmp_path, nodes=1)
    stager = STAGER_ID_MIN + 1
    async with group:
        await begin(group)
        names = [b"%d" % number for number in range(300_000)]
        batch = make_batch(-1, [b"v" * 10] * len(names), producer=stager, ids=names)
        assert len(batch) < BATCH_BYTES_MAX
        (ack,) = await stage(group, stager, "one", batch)
        assert ack.error.code == MessageTooLarge.code
        assert "smaller batches" in ack.error.message


def large(stager: int) -> list[bytes]:
    """20 batches of 80,000 messages in all. A part of 0.6 % of each, the whole of the sixth, and
    what another one has in the seventh, are in `known`, or come a second time."""
    numbers = [list(range(at, at + 4_000)) for at in range(0, 80_000, 4_000)]
    numbers[5] = numbers[4]
    numbers[6][100:200] = numbers[3][100:200]
    batches, previous = [], -1
    for each in numbers:
        batches.append(staged(stager, previous, [b"id %d" % number for number in each]))
        previous += len(each)
    return batches


KNOWN = [b"id %d" % number for number in range(0, 80_000, 167)]


def lost() -> int:
    """How many of the messages must be dropped."""
    numbers = [*range(20_000), *range(16_000, 20_000), *range(24_000, 80_000)]
    numbers[24_100:24_200] = range(12_100, 12_200)
    stored = set(numbers) | set(range(0, 80_000, 167))
    return 80_000 + len(KNOWN) - len(stored)


async def check_all(group: BrokerGroup, ids_stored: int) -> None:
    """All nodes have the same messages and ids, and so after another start."""
    for again in (False, True):
        if again:
            for number in list(group.running):
                await group.stop(number)
                await group.start(number)
        index = await group.settled()
        found = set()
        for node in group.running.values():
            await node.replica.wait_applied(index, 20)
            async with RawClient(node.address) as client:
                found.add(tuple(sorted(await client.values(any_replica=True))))
            window = node.replica.state.id_windows.topics[QUEUE.topic_id]
            assert (window.ids, window.duplicates) == (ids_stored, lost())
            kept = node.replica.ids.index_of(QUEUE.topic_id)
            assert kept is not None
            assert kept.end_arrival == ids_stored
            assert not kept.missing(0)
            assert not node.replica.ids.behind
        assert len(found) == 1
        recomputed = await group.recomputed()
        assert recomputed.table_matches
        assert not recomputed.problems
        assert (recomputed.duplicates, recomputed.missing, recomputed.id_duplicates) == (0, 0, 0)
        assert recomputed.messages == ids_stored


async def test_a_large_commit_beside_a_restart_and_another_master(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path, transaction_pin_ms=600_000)
    stager = STAGER_ID_MIN + 1
    async with group:
        sender, other = await begin(group, window_bytes=64 << 20)
        await sender.send(KNOWN)
        batches = large(stager)
        acks = await stage(group, stager, "one", *batches)
        assert {ack.status for ack in acks} == {broker_pb2.PRODUCE_STATUS_COMMITTED}
        attempt = await pin(group, stager, "one", *batches)
        old = await group.master()
        await group.settled()
        slave = next(number for number in group.running if number != old.config.node_id)
        await group.stop(slave)
        await group.start(slave)
        await group.settled()
        await group.stop(old.config.node_id)
        assert await decide(group, "one", attempt) == (lost(), 0)
        assert await decide(group, "one", attempt) == (0, 0)
        await group.start(old.config.node_id)
        stored_ids = 80_000 + len(KNOWN) - lost()
        await check_all(group, stored_ids)
        _, dropped = await other.send([b"id 79999", b"id 12100", b"id 167", b"new"])
        assert [each[2] for each in dropped] == [Verdict.DUPLICATE] * 3
        assert dropped[0][1] == stored_ids - 1


async def test_a_master_that_stops_while_it_rewrites_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinned_look_up, "REWRITE_BYTES", 1)  # each batch in an entry of its own
    group = BrokerGroup(tmp_path, transaction_pin_ms=600_000)
    stager = STAGER_ID_MIN + 1
    async with group:
        sender, _ = await begin(group, window_bytes=64 << 20)
        await sender.send(KNOWN)
        batches = large(stager)
        await stage(group, stager, "one", *batches)
        attempt = await pin(group, stager, "one", *batches)
        old = await group.master()
        whole, asked, stopped = PinnedLookUp.next_rewrites, [], asyncio.Event()

        async def next_rewrites(look_up: PinnedLookUp) -> TransactionIds:
            if look_up._ids is old.replica.ids:
                asked.append(look_up)
                if len(asked) == 4:
                    stopped.set()
                    await asyncio.Event().wait()
            return await whole(look_up)

        monkeypatch.setattr(PinnedLookUp, "next_rewrites", next_rewrites)
        deciding = asyncio.ensure_future(decide(group, "one", attempt))
        await stopped.wait()
        index = await group.settled()
        await group.stop(old.config.node_id)
        with pytest.raises((SemelError, AssertionError)):
            await deciding
        for node in group.running.values():
            await node.replica.wait_applied(index, 20)
        new = await group.master()
        while new.replica.state.transactions.staging.pins:
            await asyncio.sleep(0.05)
        await group.start(old.config.node_id)
        await check_all(group, 80_000 + len(KNOWN) - lost())


async def test_a_slave_without_a_published_batch_gets_its_ids_from_a_peer(tmp_path: Path) -> None:
    """The batch is damaged on that node alone, so its ids are missing there at first."""
    group = BrokerGroup(tmp_path, transaction_pin_ms=600_000)
    stager = STAGER_ID_MIN + 1
    async with group:
        await begin(group, window_bytes=64 << 20)
        batches = [staged(stager, -1, ids(0, 10)), staged(stager, 9, ids(10, 20))]
        await stage(group, stager, "one", *batches)
        attempt = await pin(group, stager, "one", *batches)
        await group.settled()
        master = (await group.master()).config.node_id
        slave = next(node for number, node in group.running.items() if number != master)
        whole = slave.replica.log.read_record
        broken: list[int] = []

        def read_record(index: int, position: int, length: int) -> bytes | memoryview:
            if not broken:
                broken.append(index)
                raise CorruptSegment("it rotted")
            return whole(index, position, length)

        slave.replica.log.read_record = read_record  # type: ignore[method-assign]
        assert await decide(group, "one", attempt) == (0, 0)
        await group.settled()
        while not broken or slave.replica.ids.behind:
            await asyncio.sleep(0.02)
        index = slave.replica.ids.index_of(QUEUE.topic_id)
        assert index is not None
        assert (index.end_arrival, index.missing(0)) == (20, [])
        assert len(index.ids_of(range(20))[0]) == 20
