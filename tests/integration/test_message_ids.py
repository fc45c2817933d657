"""Broker groups that keep an index of message ids store each id once, through restarts and a change
of the master. Real nodes, real RocksDB."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from semel.protos import compat
from semel.protos.dropped import Verdict, read_answer
from semel.protos.errors import InvalidRequest
from semel.protos.ids import QueueId, QueueKey
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2, common_pb2, control_pb2, errors_pb2
from tests.kit.brokers import (
    CLUSTER,
    QUEUE,
    QUICK_CLEANING,
    TOPIC,
    BrokerGroup,
    RawClient,
    make_batch,
)
from tests.kit.id_senders import SEED, Sender, begin, ids


async def test_an_id_is_stored_once_whoever_sends_it_and_whoever_is_master(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path)
    async with group:
        one, two = await begin(group)
        assert (await one.send(ids(0, 50)))[1] == []
        ack, dropped = await two.send(ids(48, 53))
        assert ack.base_offset == 50
        assert dropped == [(0, 48, Verdict.DUPLICATE), (1, 49, Verdict.DUPLICATE)]
        _, dropped = await two.send([b"id 7", b"new"], b"other")
        assert dropped == [(5, 7, Verdict.CONFLICT)]
        old = await group.master()
        await group.settled()
        await group.stop(old.config.node_id)
        _, dropped = await one.send(ids(52, 56))
        assert dropped == [(50, 52, Verdict.DUPLICATE)]
        await group.start(old.config.node_id)
        await group.settled()
        recomputed = await group.recomputed()
        assert recomputed.table_matches
        assert not recomputed.problems
        for node in group.running.values():
            async with RawClient(node.address) as client:
                values = await client.values(any_replica=True)
            assert values == [b"v"] * 53 + [b"other"] + [b"v"] * 3
            assert not node.replica.ids.behind


async def test_a_lost_answer_comes_again_from_another_master_and_after_restarts(
    tmp_path: Path,
) -> None:
    group = BrokerGroup(tmp_path)
    async with group:
        one, two = await begin(group)
        await one.send(ids(0, 20))
        before, retried = two.last, ids(15, 25)
        first, dropped = await two.send(retried)
        assert [each[1] for each in dropped] == [15, 16, 17, 18, 19]

        async def again() -> None:
            batch = make_batch(before, [b"v"] * 10, producer=two.producer, ids=retried)
            async with RawClient((await group.master()).address) as client:
                (ack,) = await client.produce(batch)
            assert not ack.HasField("error"), ack.error
            assert (ack.base_offset, ack.dropped) == (first.base_offset, first.dropped)

        await again()
        old = await group.master()
        await group.settled()
        await group.stop(old.config.node_id)
        await again()
        await group.start(old.config.node_id)
        await group.settled()
        for number in list(group.running):
            node = group.running[number]
            await node.checkpoints.write()
            await group.stop(number)
            await group.start(number)
            await group.settled()
        await again()


@pytest.mark.parametrize("checkpoint", [False, True])
async def test_a_node_that_starts_again_knows_all_ids(tmp_path: Path, checkpoint: bool) -> None:
    group = BrokerGroup(tmp_path, nodes=1)
    async with group:
        one, two = await begin(group)
        await one.send(ids(0, 40))
        if checkpoint:
            node = await group.master()
            await node.checkpoints.write()
            assert node.replica.ids._topics[QUEUE.topic_id].ids.durable_arrival == 40
        await one.send(ids(40, 60))
        await group.stop(1)
        node = await group.start(1)
        _, dropped = await two.send(ids(0, 61))
        assert [each[1] for each in dropped] == list(range(60))
        assert node.replica.state.id_windows.topics[QUEUE.topic_id].ids == 61


async def test_a_node_whose_index_is_gone_does_not_become_master(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path)
    async with group:
        one, _ = await begin(group)
        await one.send(ids(0, 40))
        await group.settled()
        master = await group.master()
        slave = next(node for node in group.running.values() if node is not master)
        number = slave.config.node_id
        await slave.checkpoints.write()
        await group.stop(number)
        index = tmp_path / str(number) / "ids"
        for path in index.iterdir():
            path.unlink()
        slave = await group.start(number)
        assert slave.replica.ids.behind
        assert not slave.replica.electable
        assert (await one.send(ids(39, 45)))[1] == [(40, 39, Verdict.DUPLICATE)]


async def apply(group: BrokerGroup, **record: Any) -> None:
    """Has the master apply one control record, as controllers do."""
    async with RawClient((await group.master()).address) as client:
        await client.call(
            "ApplyQueues",
            broker_pb2.ApplyQueuesRequest(
                cluster_id=CLUSTER, records=[control_pb2.ControlRecord(**record)]
            ),
        )


async def test_the_children_of_a_split_know_the_ids_of_their_parent(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path, nodes=1)
    async with group:
        await begin(group)
        one = await Sender(group, 5).open()
        await one.send(ids(0, 20))
        children = [
            control_pb2.ChildQueue(queue_id=1, slot_start=0, slot_end=40_000),
            control_pb2.ChildQueue(queue_id=2, slot_start=40_000, slot_end=65_536),
        ]
        split = control_pb2.SplitQueue(queue=queue_ref(QUEUE), children=children)
        await apply(group, split_queue=split)
        left = await Sender(group, 7).open(QueueKey(TOPIC, QueueId(1)))
        right = await Sender(group, 8).open(QueueKey(TOPIC, QueueId(2)))
        assert (await left.send(ids(10, 22)))[1] == [
            (row, 10 + row, Verdict.DUPLICATE) for row in range(10)
        ]
        ack, dropped = await right.send(ids(19, 23))
        assert ack.base_offset == 0
        assert [each[1:] for each in dropped] == [
            (19, Verdict.DUPLICATE),
            (0, Verdict.DUPLICATE),
            (1, Verdict.DUPLICATE),
        ]
        assert [each.queue_id for each in read_answer(ack.dropped)] == [0, 1, 1]


async def test_retention_of_messages_does_not_shorten_the_window(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path, nodes=1, **QUICK_CLEANING)
    async with group:
        one, two = await begin(group, retention_bytes=50_000)
        await one.send(ids(0, 20), b"v" * 1_000)
        node = await group.master()
        last = 20
        async with compat.timeout(30):
            while node.replica.state.queues[QUEUE].log_start_offset < 20:
                await one.send(ids(last, last + 20), b"v" * 1_000)
                last += 20
        _, dropped = await two.send(ids(0, 20), b"v" * 1_000)
        assert [each[1:] for each in dropped] == [
            (offset, Verdict.DUPLICATE) for offset in range(20)
        ]


async def test_a_window_may_shrink_while_messages_arrive(tmp_path: Path) -> None:
    """From 4 MiB to 1 MiB, which is 26,214 ids: the oldest are forgotten, and no others."""
    group = BrokerGroup(tmp_path)
    async with group:
        one, two = await begin(group, window_bytes=4 << 20)
        window = 26_214

        async def send_all() -> None:
            for start in range(0, 40_000, 500):
                await one.send(ids(start, start + 500))

        sending = asyncio.create_task(send_all())
        while (await group.master()).replica.state.id_windows.topics[QUEUE.topic_id].ids < 30_000:
            await asyncio.sleep(0.01)
        settings = common_pb2.TopicSettings(
            dedup=common_pb2.IdDedup(window_bytes=1 << 20, seed=SEED)
        )
        await apply(group, alter_topic=control_pb2.AlterTopic(topic_id=TOPIC, settings=settings))
        await sending
        state = (await group.master()).replica.state
        async with compat.timeout(30):
            while state.id_windows.topics[QUEUE.topic_id].ids > window:
                await asyncio.sleep(0.01)
        first = state.id_windows.topics[QUEUE.topic_id].first_arrival
        assert first == 40_000 - window
        _, dropped = await two.send(ids(first - 5, first + 5))
        assert [each[1] for each in dropped] == list(range(first, first + 5))
        assert (await group.recomputed()).table_matches


@pytest.mark.parametrize("given", [b"", b"x" * 129])
async def test_a_malformed_id_is_refused_and_nothing_is_stored(
    tmp_path: Path, given: bytes
) -> None:
    group = BrokerGroup(tmp_path, nodes=1)
    async with group:
        one, _ = await begin(group)
        batch = make_batch(-1, [b"v", b"w"], ids=[b"good", given])
        async with RawClient((await group.master()).address) as client:
            (ack,) = await client.produce(batch)
        assert ack.error.code == errors_pb2.ERROR_CODE_INVALID_REQUEST
        assert "128" in ack.error.message
        assert (await one.send([b"good"]))[0].base_offset == 0


@pytest.mark.parametrize("window_bytes", [0, (1 << 20) - 1])
async def test_a_window_below_the_least_is_refused(tmp_path: Path, window_bytes: int) -> None:
    group = BrokerGroup(tmp_path, nodes=1)
    async with group:
        with pytest.raises(InvalidRequest, match="it has at least 1048576"):
            await begin(group, window_bytes=window_bytes)
