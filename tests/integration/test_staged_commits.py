"""Progress of a consumer group in a transaction, on a broker group whose master dies."""

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
from semel.protos.errors import LockLost, ProducerFenced, TransactionAborted, from_detail
from semel.protos.queue_refs import queue_ref
from semel.protos.rpc import error_from_rpc
from semel.protos.staging import STAGER_ID_MIN, batch_digest
from semel.protos.v1 import (
    transaction_records_pb2,
    transactions_pb2,
    transactions_pb2_grpc,
)
from tests.kit.brokers import QUEUE, BrokerGroup, RawClient, acquire, make_batch

STAGER, OTHER = STAGER_ID_MIN + 5, STAGER_ID_MIN + 6
READ = [b"read %d" % number for number in range(10)]
WRITTEN = [b"written %d" % number for number in range(3)]
LONG_MS = 600_000


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[BrokerGroup]:
    """Three nodes that are patient with pins."""
    async with BrokerGroup(tmp_path, transaction_pin_ms=LONG_MS) as built:
        yield built


async def ask(group: BrokerGroup, method: str, request: Any) -> Any:
    """Asks whichever node is the master."""
    async with RawClient((await group.master()).address) as client:
        stub = transactions_pb2_grpc.TransactionsStub(client.channel)
        try:
            return await getattr(stub, method)(request, timeout=10)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None


def opening(stager: int = STAGER, *, session: int = 1, empty: bool = False) -> Any:
    return transaction_records_pb2.OpenStager(
        transaction_id="t",
        stager_id=stager,
        session=session,
        ttl_ms=LONG_MS,
        queues=[] if empty else [queue_ref(QUEUE)],
    )


def commits(token: int, offset: int, stager: int = STAGER, session: int = 1) -> Any:
    commit = transaction_records_pb2.StagedCommit(
        queue=queue_ref(QUEUE), token=token, offset=offset, metadata=b"m", metadata_version=1
    )
    return transaction_records_pb2.StageCommits(
        transaction_id="t", stager_id=stager, group="g", commits=[commit], session=session
    )


async def prepared(group: BrokerGroup) -> int:
    """Stages messages and progress; the token of the lock."""
    async with RawClient((await group.master()).address) as client:
        await client.create_queue()
        await client.fence(1)
        await client.produce(make_batch(-1, READ))
        granted = await acquire(client, "member", lock_ms=LONG_MS, session_ms=LONG_MS)
        await ask(group, "Open", opening())
        await client.produce(make_batch(-1, WRITTEN, producer=STAGER))
    reply = await ask(group, "StageCommits", commits(granted.token, 7))
    assert [outcome.HasField("error") for outcome in reply.outcomes] == [False]
    return int(granted.token)


async def told(group: BrokerGroup) -> Any:
    request = transactions_pb2.DescribeTransactionsRequest(transaction_id="t", limit=1)
    return await ask(group, "Describe", request)


def winner_of(staged: Any) -> transaction_records_pb2.Winner:
    """What a coordinator that knows nothing pins of a stager."""
    return transaction_records_pb2.Winner(
        stager_id=staged.stager_id, parts=staged.parts, commits=len(staged.commits)
    )


async def pinned(group: BrokerGroup, *winners: transaction_records_pb2.Winner) -> int:
    """Begins and pins; the attempt."""
    begun = await ask(group, "Begin", transaction_records_pb2.BeginTransaction(transaction_id="t"))
    pin = transaction_records_pb2.PinTransaction(
        transaction_id="t", attempt=begun.attempt, coordinator=1, winners=winners
    )
    await ask(group, "Pin", transactions_pb2.PinRequest(pin=pin))
    return int(begun.attempt)


async def decided(group: BrokerGroup, attempt: int) -> None:
    decide = transaction_records_pb2.DecideTransaction(
        transaction_id="t", attempt=attempt, participants=[1]
    )
    while not (await ask(group, "Decide", transactions_pb2.DecideRequest(decide=decide))).published:
        await asyncio.sleep(0.05)


def stored(node: BrokerNode) -> tuple[int, int, bytes]:
    """Messages, progress and metadata as a node has them in one state."""
    state = node.replica.state
    found = state.groups.lookup("g", QUEUE)
    assert found is not None
    return state.queues[QUEUE].log_end_offset, found.committed_offset, found.metadata


async def test_progress_and_messages_come_together_though_the_master_dies(
    group: BrokerGroup,
) -> None:
    await prepared(group)
    (staged,) = (await told(group)).staged
    assert [(one.group, one.offset) for one in staged.commits] == [("g", 7)]
    assert (list(staged.queues), staged.session) == ([queue_ref(QUEUE)], 1)
    header = decode_header(make_batch(-1, WRITTEN, producer=STAGER))
    (part,) = staged.parts
    assert (part.batches, part.messages, part.digest) == (1, 3, batch_digest(header))
    attempt = await pinned(group, winner_of(staged))
    await group.settled()
    assert {stored(node) for node in group.running.values()} == {(10, -1, b"")}

    await group.stop((await group.master()).config.node_id)
    (again,) = (await told(group)).pinned
    assert [winner_of(each) for each in again.winners] == [winner_of(staged)]
    # The program is dead, too: the next one pins what it finds.
    newer = await pinned(group, *map(winner_of, again.winners))
    assert newer > attempt
    await decided(group, newer)
    await group.settled()
    assert {stored(node) for node in group.running.values()} == {(13, 7, b"m")}
    async with RawClient((await group.master()).address) as client:
        assert await client.values() == READ + WRITTEN
    assert len({node.replica.state.digest() for node in group.running.values()}) == 1


async def test_neither_comes_if_nobody_decides(tmp_path: Path) -> None:
    async with BrokerGroup(tmp_path, transaction_pin_ms=2_000) as group:
        await prepared(group)
        (staged,) = (await told(group)).staged
        await pinned(group, winner_of(staged))
        await group.stop((await group.master()).config.node_id)
        async with compat.timeout(30):
            while (await told(group)).pinned:
                await asyncio.sleep(0.05)
        await group.settled()
        assert {stored(node) for node in group.running.values()} == {(10, -1, b"")}
        staging = (await group.master()).replica.state.transactions.staging
        assert (staging.stagers, staging.places.cost, staging.bytes) == ({}, 0, 0)


async def test_a_stager_may_have_progress_only(group: BrokerGroup) -> None:
    token = await prepared(group)
    assert not (await ask(group, "Open", opening(OTHER, empty=True))).last_sequences
    await ask(group, "StageCommits", commits(token, 9, OTHER))
    winner = transaction_records_pb2.Winner(stager_id=OTHER, commits=1)
    await decided(group, await pinned(group, winner))
    await group.settled()
    assert {stored(node) for node in group.running.values()} == {(10, 9, b"m")}


async def test_the_next_coordinator_goes_on_and_the_last_one_is_fenced(group: BrokerGroup) -> None:
    token = await prepared(group)
    for _ in range(2):  # under the same session it is harmless
        assert (await ask(group, "Open", opening())).last_sequences == [2]
    assert (await ask(group, "Open", opening(session=2))).last_sequences == [2]
    with pytest.raises(ProducerFenced):
        await ask(group, "Open", opening())
    with pytest.raises(ProducerFenced):
        await ask(group, "StageCommits", commits(token, 8))
    lost = await ask(group, "StageCommits", commits(token + 1, 8, session=2))
    assert isinstance(from_detail(lost.outcomes[0].error), LockLost)
    await ask(group, "StageCommits", commits(token, 8, session=2))
    async with RawClient((await group.master()).address) as client:
        await client.produce(make_batch(2, [b"more"], producer=STAGER, session=2))
    (staged,) = (await told(group)).staged
    assert (staged.session, staged.messages, staged.commits[0].offset) == (2, 4, 8)
    await decided(group, await pinned(group, winner_of(staged)))
    assert stored(await group.master()) == (14, 8, b"m")
    with pytest.raises(TransactionAborted):
        await ask(group, "StageCommits", commits(token, 9, session=2))
