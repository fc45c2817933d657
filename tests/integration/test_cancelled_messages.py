"""Messages are found by their ids, and cancelled before they are due. Real nodes, real RocksDB."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from semel.protos.batch import BROKER_HEADER_BYTES, check_batch
from semel.protos.columns import decode_columns
from semel.protos.dropped import read_answer
from semel.protos.errors import InvalidRequest, NotMaster, UnknownQueue
from semel.protos.v1 import broker_pb2, common_pb2, control_pb2
from tests.kit.brokers import QUEUE, QUICK_CLEANING, BrokerGroup, RawClient
from tests.kit.found_messages import Sender, call, cancel, fate, find

HOUR_US = 3_600_000_000


def now_us() -> int:
    return time.time_ns() // 1_000


async def begin(group: BrokerGroup) -> tuple[Sender, Sender]:
    """Two producers of a topic that compares ids."""
    dedup = common_pb2.IdDedup(window_bytes=1 << 20, seed=b"0123456789abcdef")
    async with RawClient((await group.master()).address) as client:
        await client.create_queue(settings=common_pb2.TopicSettings(dedup=dedup))
        for producer in (5, 6):
            await client.fence(1, producer=producer)
    return Sender(group, 5), Sender(group, 6)


async def values(group: BrokerGroup) -> list[list[bytes]]:
    """The queue as each node serves it; asserts that offsets are dense."""
    await group.settled()
    everywhere = []
    for node in group.running.values():
        found: list[bytes] = []
        async with RawClient(node.address) as client:
            while True:
                header, parts = await client.fetch(
                    offset=len(found), max_wait_ms=0, any_replica=True
                )
                if not header.results:
                    break
                for place, part in zip(header.results[0].batches, parts, strict=True):
                    assert place.base_offset == len(found)
                    data = part[BROKER_HEADER_BYTES:]
                    rows = decode_columns(data, check_batch(data)).values.to_pylist()
                    found += rows[place.row_start : place.row_end]
        everywhere.append(found)
    return everywhere


async def delivered(group: BrokerGroup, count: int) -> None:
    """Waits until so many messages have offsets."""
    for _ in range(200):
        if (await group.master()).replica.state.queues[QUEUE].log_end_offset >= count:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("nothing is delivered")


async def test_a_message_is_cancelled_once_and_stays_so(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path)
    async with group:
        one, two = await begin(group)
        await one.send([b"plain"])
        due_us = now_us() + 4_000_000
        await one.send([b"a", b"b", b"c", b"d"], due_us=due_us)
        assert await fate(group, b"plain") == ("stored", 0)
        assert await fate(group, b"c") == ("delayed", -1)
        assert await fate(group, b"nothing") == ("unknown", -1)
        results = await asyncio.gather(*(cancel(group, b"b") for _ in range(4)))
        assert results == [("cancelled", -1)] * 4
        assert await cancel(group, b"nothing") == ("unknown", -1)
        with pytest.raises(InvalidRequest, match="not delayed"):
            await cancel(group, b"plain")
        old = await group.master()
        await group.settled()
        await old.checkpoints.write()
        await group.stop(old.config.node_id)
        assert await cancel(group, b"b") == ("cancelled", -1)
        assert await cancel(group, b"d") == ("cancelled", -1)
        await group.start(old.config.node_id)
        dropped = read_answer((await two.send([b"d", b"c"])).dropped)
        assert [(each.sequence, each.offset) for each in dropped] == [(1, -1)]
        assert await fate(group, b"d") == ("stored", 1)
        await delivered(group, 4)
        assert await values(group) == [[b"plain", b"d", b"a", b"c"]] * 3
        assert await fate(group, b"c") == ("stored", 3)
        assert await cancel(group, b"c") == ("stored", 3)
        assert await cancel(group, b"b") == ("cancelled", -1)
        recomputed = await group.recomputed()
        assert recomputed.table_matches
        assert not recomputed.problems
        assert (recomputed.missing, recomputed.duplicates, recomputed.delayed) == (0, 0, 0)


@pytest.mark.parametrize("checkpoint", [False, True])
async def test_a_node_that_starts_again_knows_what_is_cancelled(
    tmp_path: Path, checkpoint: bool
) -> None:
    group = BrokerGroup(tmp_path, nodes=1)
    async with group:
        one, _ = await begin(group)
        await one.send([b"a", b"b", b"c"], due_us=now_us() + HOUR_US)
        await cancel(group, b"a")
        if checkpoint:
            await (await group.master()).checkpoints.write()
        await cancel(group, b"b")
        await group.stop(1)
        await group.start(1)
        assert [await fate(group, each) for each in (b"a", b"b", b"c")] == [
            ("cancelled", -1),
            ("cancelled", -1),
            ("delayed", -1),
        ]
        assert (await one.send([b"a", b"b", b"c"])).base_offset == 0
        assert await values(group) == [[b"a", b"b"]]
        async with RawClient((await group.master()).address) as client:
            verified = (await client.verify())[QUEUE]
        assert (list(verified.problems), verified.delayed) == ([], 1)


async def test_a_message_that_retention_has_removed_is_said_to_have_been_there(
    tmp_path: Path,
) -> None:
    group = BrokerGroup(tmp_path, nodes=1, **QUICK_CLEANING)
    async with group:
        one, _ = await begin(group)
        await one.send([b"late", b"later"], due_us=now_us() + 300_000)
        await cancel(group, b"later")
        await one.send([b"early"])
        await delivered(group, 2)
        assert [await fate(group, each) for each in (b"early", b"late")] == [
            ("stored", 0),
            ("stored", 1),
        ]
        settings = common_pb2.TopicSettings(retention_bytes=1)
        master = await group.master()
        window = master.replica.state.id_windows.topics[QUEUE.topic_id]
        settings.dedup.window_bytes = window.settings.window_bytes
        settings.dedup.seed = window.settings.seed
        await master.replica.submit_control(
            control_pb2.ControlRecord(
                alter_topic=control_pb2.AlterTopic(topic_id=QUEUE.topic_id, settings=settings)
            )
        )
        await one.send([b"new"], b"x" * 1_000)
        for _ in range(200):
            if await fate(group, b"late") != ("stored", 1):
                break
            await asyncio.sleep(0.05)
        assert await fate(group, b"early") == ("removed", 0)
        assert await fate(group, b"late") == ("removed", -1)
        assert await cancel(group, b"late") == ("removed", -1)
        assert await fate(group, b"new") == ("stored", 2)


async def test_questions_that_have_no_answer_are_refused(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path)
    async with group:
        one, _ = await begin(group)
        await one.send([b"a"])
        for wrong in (b"", b"x" * 129):
            for ask in (find, cancel):
                with pytest.raises(InvalidRequest, match="1 to 128 bytes"):
                    await ask(group, wrong)
        assert await fate(group, b"x" * 128) == ("unknown", -1)
        request = broker_pb2.FindMessageRequest(topic_id=9, message_id=b"a")
        with pytest.raises(UnknownQueue):
            await call(group, "FindMessage", request)
        master = await group.master()
        slave = next(node for node in group.running.values() if node is not master)
        async with RawClient(slave.address) as client:
            request.topic_id = QUEUE.topic_id
            with pytest.raises(NotMaster):
                await client.call("FindMessage", request)


async def test_a_topic_that_compares_no_ids_says_how_it_would(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path, nodes=1)
    async with group:
        async with RawClient((await group.master()).address) as client:
            await client.create_queue()
        for ask in (find, cancel):
            with pytest.raises(InvalidRequest, match="topic alter t --dedup-by-id"):
                await ask(group, b"a")
