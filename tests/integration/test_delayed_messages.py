"""Delayed messages survive what befalls a log and its nodes, and come once, never early."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from semel.client import connect
from semel.protos import compat
from semel.protos.errors import InvalidRequest, Throttled, from_detail
from semel.protos.levels import DELAYED_SPLIT_LEVEL
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2, common_pb2, control_pb2
from tests.kit.brokers import (
    CLUSTER,
    QUEUE,
    QUICK_CLEANING,
    BrokerGroup,
    RawClient,
    make_batch,
)
from tests.kit.cluster import Cluster

SIZE = 8_000
HOUR_US = 3_600_000_000
PRODUCER = 6
DELAYED = [b"delayed %d " % number * 100 for number in range(5)]


def now_us() -> int:
    return time.time_ns() // 1000


def delayed_batches(due_us: int) -> list[bytes]:
    """One a message, each due a second after the one before."""
    return [
        make_batch(
            number - 1, [value], producer=PRODUCER, deliver_at_us=due_us + number * 1_000_000
        )
        for number, value in enumerate(DELAYED)
    ]


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[BrokerGroup]:
    """Three nodes whose logs are cleaned as soon as something is dead."""
    built = BrokerGroup(
        tmp_path,
        **QUICK_CLEANING,
        scrub_bytes_per_second=1 << 30,
        scrub_pause_ms=50,
    )
    async with built:
        async with RawClient((await built.master()).address) as client:
            await client.create_queue(settings=common_pb2.TopicSettings(retention_bytes=100_000))
            await client.fence(1)
            await client.fence(1, producer=PRODUCER)
        yield built


async def produce(group: BrokerGroup, *batches: bytes) -> list[Any]:
    """Acknowledgements; whoever is refused comes back until the group knows the rules."""
    async with compat.timeout(20):
        while True:
            async with RawClient((await group.master()).address) as client:
                acks = await client.produce(*batches)
            if all(ack.status != broker_pb2.PRODUCE_STATUS_FAILED for ack in acks):
                return acks
            for ack in acks:
                if ack.status == broker_pb2.PRODUCE_STATUS_FAILED:
                    error = from_detail(ack.error)
                    assert error.retriable, error
            await asyncio.sleep(0.05)


async def bury(group: BrokerGroup) -> None:
    """Stores until every node's log begins behind what was delayed; retention trims what came."""
    stored = 0
    async with compat.timeout(40):
        while any(
            node.replica.log.first_index < 40 or not node.replica.log.stats().kept_records
            for node in group.running.values()
        ):
            value = str(stored).encode().rjust(SIZE, b".")
            await produce(group, make_batch(stored - 1, [value]))
            stored += 1


async def advance_clocks(group: BrokerGroup) -> None:
    """Every node's clock says two hours later, and the next master goes by that."""
    for node in group.running.values():
        node.replica.log_time.wall_us = lambda: now_us() + 2 * HOUR_US
    (await group.master()).replica.resign()


async def delivered(group: BrokerGroup) -> list[bytes]:
    """All that is in the queue once nothing is delayed, read from every node alike."""
    async with compat.timeout(30):
        while (await group.master()).replica.state.delays.queues:
            await asyncio.sleep(0.02)
    await group.settled()
    found = []
    state = (await group.master()).replica.state
    while state.queues[QUEUE].retention_target(state.log_time_us) is not None:
        await asyncio.sleep(0.02)
    await group.settled()
    start = state.queues[QUEUE].log_start_offset
    for node in group.running.values():
        async with RawClient(node.address) as client:
            offset, values = start, []
            while True:
                header, parts = await client.fetch(
                    offset=offset, max_wait_ms=0, any_replica=True, max_bytes=1 << 20
                )
                if not header.results:
                    break
                assert not header.results[0].HasField("error"), header.results[0].error
                for place, part in zip(header.results[0].batches, parts, strict=True):
                    values += [value for value in DELAYED if value in part]
                    assert place.base_offset == offset
                    offset += place.row_end - place.row_start
            found.append(values)
    assert all(values == found[0] for values in found)
    return found[0]


async def test_cleaning_snapshots_and_restarts_lose_nothing_that_is_delayed(
    group: BrokerGroup,
) -> None:
    batches = delayed_batches(now_us() + HOUR_US)
    acks = await produce(group, *batches)
    assert {ack.base_offset for ack in acks} == {-1}
    await bury(group)
    for node in group.running.values():
        assert node.replica.state.delays.messages == len(DELAYED)
    master = await group.master()
    lost = next(each for each in group.running if each != master.config.node_id)
    await group.stop(lost)
    group.wipe(lost)
    node = await group.start(lost)  # by snapshot: the log begins behind what is delayed
    async with compat.timeout(30):
        while node.replica.non_counting:
            await asyncio.sleep(0.02)
    assert node.replica.state.delays.messages == len(DELAYED)
    for each in list(group.running):
        await group.stop(each)
    for each in group.founding:
        await group.start(each)
    again = await produce(group, *batches)
    assert {ack.status for ack in again} == {broker_pb2.PRODUCE_STATUS_DUPLICATE}
    queue = await group.recomputed()
    assert (queue.delayed, queue.missing, queue.duplicates) == (len(DELAYED), 0, 0)
    assert not queue.problems
    await advance_clocks(group)
    assert await delivered(group) == DELAYED
    again = await produce(group, *batches)
    assert {ack.status for ack in again} == {broker_pb2.PRODUCE_STATUS_DUPLICATE}
    queue = await group.recomputed()
    assert (queue.delayed, queue.missing, queue.duplicates) == (0, 0, 0)
    assert not queue.problems


async def test_a_damaged_record_that_is_delayed_is_repaired_from_a_peer(group: BrokerGroup) -> None:
    await produce(group, *delayed_batches(now_us() + HOUR_US))
    await bury(group)
    victim = next(iter(group.running))
    await group.stop(victim)
    hurt = 0
    for path in sorted((group.directory / str(victim)).glob("log/log-*/kept-*")):
        data = bytearray(path.read_bytes())
        for value in DELAYED:
            at = data.find(value)
            if at >= 0:
                data[at + 7] ^= 4
                hurt += 1
        path.write_bytes(data)
    assert hurt == len(DELAYED), "what is delayed is in no kept file"
    node = await group.start(victim)
    async with compat.timeout(30):
        while not node.scrub.passes or node.replica.log.damaged_records:
            await asyncio.sleep(0.02)
    await advance_clocks(group)
    assert await delivered(group) == DELAYED
    assert not (await group.recomputed()).problems


async def test_one_node_whose_clock_is_ahead_releases_nothing_early(group: BrokerGroup) -> None:
    await produce(group, *delayed_batches(now_us() + HOUR_US))
    for _ in range(3):
        master = await group.master()
        master.replica.log_time.wall_us = lambda: now_us() + 2 * HOUR_US
        await asyncio.sleep(0.5)
        assert master.replica.state.delays.messages == len(DELAYED), "its own clock was believed"
        master.replica.resign()
        await asyncio.sleep(0.3)
        assert (await group.master()).replica.log_time_us() < now_us() + HOUR_US // 60
        master.replica.log_time.wall_us = now_us


async def test_a_time_too_far_ahead_is_refused_with_a_guess(group: BrokerGroup) -> None:
    await produce(group, *delayed_batches(now_us() + HOUR_US))
    wrong = make_batch(4, [b"x"], producer=PRODUCER, deliver_at_us=time.time_ns())
    async with RawClient((await group.master()).address) as client:
        (ack,) = await client.produce(wrong)
    error = from_detail(ack.error)
    assert isinstance(error, InvalidRequest)
    assert "nanoseconds" in str(error)


async def test_below_the_level_a_queue_with_delayed_messages_is_not_split_and_says_so(
    tmp_path: Path,
) -> None:
    group = BrokerGroup(tmp_path, 1)
    group.levels[1] = DELAYED_SPLIT_LEVEL - 1
    async with group:
        async with RawClient((await group.master()).address) as client:
            await client.create_queue()
            await client.fence(1)
            await client.fence(1, producer=PRODUCER)
        await is_not_split(group)


async def is_not_split(group: BrokerGroup) -> None:
    await produce(group, *delayed_batches(now_us() + HOUR_US))
    split = control_pb2.SplitQueue(queue=queue_ref(QUEUE))
    split.children.add(queue_id=1, slot_start=0, slot_end=9)
    split.children.add(queue_id=2, slot_start=9, slot_end=65_536)
    async with RawClient((await group.master()).address) as client:
        record = control_pb2.ControlRecord(split_queue=split)
        request = broker_pb2.ApplyQueuesRequest(cluster_id=CLUSTER, records=[record])
        with pytest.raises(Throttled, match="5 messages of queue 0 are delayed, the last"):
            await client.call("ApplyQueues", request)
        reply = await client.call(
            "ListOffsets", broker_pb2.ListOffsetsRequest(queues=[queue_ref(QUEUE)])
        )
    (offsets,) = reply.queues
    assert (offsets.delayed_messages, offsets.high_watermark) == (len(DELAYED), 0)
    assert abs(offsets.next_due_us - now_us() - HOUR_US) < 60_000_000


def test_all_processes_are_killed_before_the_time_and_everything_comes_once(
    cluster: Cluster,
) -> None:
    with connect(cluster.bootstrap) as client:
        client.admin.create_topic("t", queues=3)
        values = [b"%04d" % number for number in range(300)]
        due_us = (now_us() // 1_000_000 + 4) * 1_000_000
        dues = [due_us + number % 3 * 1_000_000 for number in range(300)]
        with client.producer("survivor", batch_bytes=1_024) as producer:
            stored = producer.send_many("t", values, deliver_at=dues).result(30)
            assert stored.stored == len(values)
            cluster.kill(cluster.master())
            for node in cluster.nodes:
                if node.running:
                    cluster.kill(node)
            assert now_us() < due_us, "the nodes lived until the messages were due"
        cluster.start()
        seen: dict[bytes, int] = {}
        with client.reader("t") as reader:
            deadline = time.monotonic() + 60
            while len(seen) < len(values):
                for message in reader.poll(timeout=1):
                    assert message.value not in seen, "delivered twice"
                    seen[message.value] = now_us()
                assert time.monotonic() < deadline, f"{len(seen)} of {len(values)} came"
            assert not list(reader.poll(timeout=0.5))
        assert sorted(seen) == values
        for value, came_us in seen.items():
            assert came_us >= dues[int(value)], "delivered early"
        result = client.admin.verify("t")
        assert (result.ok, result.messages, result.nodes_compared) == (True, 300, 3)
