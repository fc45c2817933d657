"""A queue takes its message ids along when it moves to another broker group. Real nodes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from semel.broker.dedup import moved_ids
from semel.protos import compat
from semel.protos.dropped import Verdict
from semel.protos.errors import InvalidRequest
from semel.protos.ids import GroupId, QueueId, QueueKey
from semel.protos.queue_refs import queue_ref
from semel.protos.rpc import error_from_rpc
from semel.protos.v1 import broker_pb2, broker_pb2_grpc, common_pb2, control_pb2
from tests.kit.brokers import CLUSTER, QUEUE, QUICK_CLEANING, TOPIC, BrokerGroup, RawClient
from tests.kit.id_senders import SEED, Sender, ids

OTHER = QueueKey(TOPIC, QueueId(1))
SETTINGS = common_pb2.TopicSettings(
    retention_bytes=50_000, dedup=common_pb2.IdDedup(window_bytes=1 << 20, seed=SEED)
)
SLOTS = {QUEUE: (0, 32_768), OTHER: (32_768, 65_536)}


def create_of(
    key: QueueKey, settings: common_pb2.TopicSettings = SETTINGS
) -> control_pb2.CreateQueue:
    start, end = SLOTS[key]
    return control_pb2.CreateQueue(
        queue=queue_ref(key), topic="t", slot_start=start, slot_end=end, settings=settings
    )


async def apply(group: BrokerGroup, **record: Any) -> None:
    request = broker_pb2.ApplyQueuesRequest(
        cluster_id=CLUSTER, records=[control_pb2.ControlRecord(**record)]
    )
    async with RawClient((await group.master()).address) as client:
        await client.call("ApplyQueues", request)


async def step(group: BrokerGroup, name: str, key: QueueKey, job: int, **fields: Any) -> None:
    record = control_pb2.MoveQueue(
        queue=queue_ref(key),
        job=job,
        group_id=3 - group.settings["group_id"],
        step=f"MOVE_STEP_{name}",
        **fields,
    )
    await apply(group, move_queue=record)


async def pull(
    source: BrokerGroup, target: BrokerGroup, key: QueueKey, job: int, *, finish: bool
) -> broker_pb2.PullQueueReply:
    request = broker_pb2.PullQueueRequest(
        cluster_id=CLUSTER,
        queue=queue_ref(key),
        job=job,
        sources=list(source.addresses.values()),
        finish=finish,
        max_ms=10_000,
    )
    master = await target.master()
    async with grpc.aio.insecure_channel(master.address) as channel:
        stub: Any = broker_pb2_grpc.MovesStub(channel)
        try:
            reply: broker_pb2.PullQueueReply = await stub.PullQueue(request, timeout=20)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None
    return reply


async def move(source: BrokerGroup, target: BrokerGroup, key: QueueKey, job: int) -> None:
    """What the controllers do."""
    await step(target, "BEGIN", key, job, create=create_of(key))
    found = await pull(source, target, key, job, finish=False)
    assert found.ids_left == 0
    await step(source, "SEAL", key, job)
    found = await pull(source, target, key, job, finish=True)
    assert found.ready
    await step(target, "ACTIVATE", key, job, create=create_of(key))
    await step(source, "FORWARD", key, job)


@contextlib.asynccontextmanager
async def groups(directory: Path, nodes: int = 1) -> AsyncIterator[tuple[BrokerGroup, BrokerGroup]]:
    """Two broker groups, of which the first one has both queues of the topic."""
    source = BrokerGroup(directory / "1", nodes, group_id=GroupId(1), **QUICK_CLEANING)
    target = BrokerGroup(directory / "2", nodes, group_id=GroupId(2), **QUICK_CLEANING)
    async with source, target:
        for key in SLOTS:
            await apply(source, create_queue=create_of(key))
        yield source, target


async def verify(group: BrokerGroup) -> list[Any]:
    """What the master recomputes. Its log is cleaned all the time, also while it is read."""
    async with compat.timeout(30), RawClient((await group.master()).address) as client:
        while True:
            try:
                return list((await client.verify()).values())
            except grpc.aio.AioRpcError as error:
                if "cleaned while they were read" not in str(error.details()):
                    raise


def places(dropped: list[Any]) -> list[tuple[int, Verdict]]:
    return [(offset, verdict) for _, offset, verdict in dropped]


def duplicates(*offsets: int) -> list[tuple[int, Verdict]]:
    return [(offset, Verdict.DUPLICATE) for offset in offsets]


def ids_held(group: BrokerGroup) -> list[int]:
    """How many ids each node of a group has of the topic."""
    found = []
    for node in group.running.values():
        window = node.replica.state.id_windows.topics[TOPIC]
        index = node.replica.ids.index_of(TOPIC)
        assert index is not None
        assert not node.replica.ids.behind
        assert index.end_arrival == window.next_arrival
        found.append(window.ids)
    return found


async def test_ids_go_along_also_of_messages_that_retention_removed(tmp_path: Path) -> None:
    async with groups(tmp_path) as (source, target):
        one = await Sender(source, 5).open()
        other = await Sender(source, 6).open(OTHER)
        node = await source.master()
        last = 0
        async with compat.timeout(30):
            while node.replica.state.queues[QUEUE].log_start_offset < 30:
                await one.send(ids(last, last + 10), b"v" * 1_000)
                await other.send([b"other %d" % last])
                last += 10
        await move(source, target, QUEUE, 1)
        assert ids_held(target) == [last]
        two = await Sender(target, 7).open()
        _, dropped = await two.send(ids(0, last + 5), b"v" * 1_000)
        assert places(dropped) == duplicates(*range(last))
        ack, dropped = await two.send([b"other 0"])
        assert (ack.base_offset, dropped) == (last + 5, [])
        _, dropped = await two.send([b"id 3"], b"else")
        assert places(dropped) == [(3, Verdict.CONFLICT)]
        _, dropped = await other.send([b"other 0"])
        assert places(dropped) == duplicates(0)
        for group in (source, target):
            for verified in await verify(group):
                assert not verified.problems
                assert verified.table_matches


async def test_all_nodes_of_the_new_group_have_the_ids_and_a_move_may_go_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moved_ids, "PASS_IDS", 40)
    monkeypatch.setattr("semel.broker.server.moves_service.PASS_IDS", 40)
    monkeypatch.setattr(moved_ids, "PORTION_IDS", 7)
    async with groups(tmp_path, 3) as (source, target):
        one = await Sender(source, 5).open()
        other = await Sender(source, 6).open(OTHER)
        for start in range(0, 100, 10):
            await one.send(ids(start, start + 10))
            await other.send([b"other %d" % (start + each) for each in range(10)])
        await move(source, target, QUEUE, 1)
        await target.settled()
        assert ids_held(target) == [100] * 3
        await move(source, target, OTHER, 2)
        await target.settled()
        assert ids_held(target) == [200] * 3
        for node in source.running.values():
            await node.replica.wait_applied((await source.master()).replica.state.applied_index, 10)
            assert not node.replica.state.id_windows.topics
            assert node.replica.ids.index_of(TOPIC) is None
        old = await target.master()
        await target.stop(old.config.node_id)
        two = await Sender(target, 7).open()
        _, dropped = await two.send(ids(0, 101))
        assert places(dropped) == duplicates(*range(100))
        await target.start(old.config.node_id)
        await target.settled()
        await move(target, source, QUEUE, 3)
        three = await Sender(source, 8).open()
        _, dropped = await three.send(ids(0, 101))
        assert places(dropped) == duplicates(*range(101))


async def test_delayed_ids_and_unsealed_moves(tmp_path: Path) -> None:
    """A move that was given up leaves no window behind where there is no queue."""
    async with groups(tmp_path) as (source, target):
        one = await Sender(source, 5).open()
        await one.send(ids(0, 10))
        await step(target, "BEGIN", QUEUE, 1, create=create_of(QUEUE))
        await pull(source, target, QUEUE, 1, finish=False)
        assert ids_held(target) == [10]
        await step(target, "ABORT", QUEUE, 1)
        state = (await target.master()).replica.state
        assert not state.id_windows.topics
        assert not state.id_windows.copied
        await move(source, target, QUEUE, 2)
        assert ids_held(target) == [10]


async def test_a_topic_that_compares_anew_is_not_mixed_with_its_old_window(tmp_path: Path) -> None:
    async with groups(tmp_path) as (source, target):
        one = await Sender(source, 5).open()
        await one.send(ids(0, 10))
        await step(target, "BEGIN", QUEUE, 1, create=create_of(QUEUE))
        await pull(source, target, QUEUE, 1, finish=False)
        plain = common_pb2.TopicSettings(retention_bytes=50_000)
        await apply(source, alter_topic=control_pb2.AlterTopic(topic_id=TOPIC, settings=plain))
        anew = common_pb2.TopicSettings(
            dedup=common_pb2.IdDedup(window_bytes=1 << 20, seed=b"another seed----")
        )
        await apply(source, alter_topic=control_pb2.AlterTopic(topic_id=TOPIC, settings=anew))
        with pytest.raises(InvalidRequest, match="has begun to compare message ids"):
            await pull(source, target, QUEUE, 1, finish=False)
