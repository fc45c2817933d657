"""An index of message ids that was lost or damaged comes back from the peers. Real nodes, real
RocksDB."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from semel.broker.dedup.id_store import CorruptIndex
from semel.broker.node import BrokerNode
from semel.protos import compat
from semel.protos.dropped import Verdict
from semel.protos.errors import SemelError
from tests.kit.brokers import QUEUE, QUICK_CLEANING, BrokerGroup, RawClient, make_batch
from tests.kit.id_senders import Sender, begin, ids


async def whole(node: BrokerNode) -> None:
    """Waits until a node has all ids."""
    async with compat.timeout(30):
        while node.replica.ids.behind or not node.replica.ids._topics:
            await asyncio.sleep(0.02)


async def slave_of(group: BrokerGroup) -> BrokerNode:
    master = await group.master()
    return next(node for node in group.running.values() if node is not master)


async def stop_and_lose(group: BrokerGroup, *nodes: int) -> None:
    """Stops nodes whose checkpoints count ids, and deletes their indexes."""
    for node in nodes:
        await group.running[node].checkpoints.write()  # type: ignore[index]
    for node in nodes:
        await group.stop(node)
        shutil.rmtree(group.directory / str(node) / "ids")


async def all_known(group: BrokerGroup, sender: Sender, end: int) -> None:
    """The present master knows the ids below `end`, all stored in their order."""
    _, dropped = await sender.send(ids(0, end))
    assert [(offset, verdict) for _, offset, verdict in dropped] == [
        (number, Verdict.DUPLICATE) for number in range(end)
    ]


async def make_master(group: BrokerGroup, node: BrokerNode) -> None:
    """Hands mastership over to a node."""
    async with compat.timeout(30):
        while not node.replica.is_master:
            master = await group.master()
            await group.settled()
            try:
                await master.changes.transfer(node.config.node_id)
            except SemelError:
                await asyncio.sleep(0.1)


async def test_a_deleted_index_comes_back_from_a_peer(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path)
    async with group:
        one, two = await begin(group)
        await one.send(ids(0, 40))
        await group.settled()
        slave = await slave_of(group)
        number = slave.config.node_id
        await stop_and_lose(group, number)
        await one.send(ids(40, 60))
        slave = await group.start(number)
        await one.send(ids(60, 70))
        await whole(slave)
        assert slave.replica.electable
        await make_master(group, slave)
        await all_known(group, two, 70)
        assert (await group.recomputed()).table_matches


async def test_a_deleted_index_is_durable_once_it_is_back(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path)
    async with group:
        one, two = await begin(group)
        await one.send(ids(0, 40))
        await group.settled()
        number = (await slave_of(group)).config.node_id
        await stop_and_lose(group, number)
        slave = await group.start(number)
        await whole(slave)
        await group.stop(number)
        slave = await group.start(number)
        await asyncio.sleep(0)
        assert not slave.replica.ids.behind
        await make_master(group, slave)
        await all_known(group, two, 40)


@pytest.mark.parametrize("of_master", [False, True])
async def test_a_damaged_index_is_built_anew_while_others_serve(
    tmp_path: Path, of_master: bool
) -> None:
    group = BrokerGroup(tmp_path)
    async with group:
        one, two = await begin(group)
        await one.send(ids(0, 40))
        await group.settled()
        node = await group.master() if of_master else await slave_of(group)
        await node.replica.ids.settle({QUEUE.topic_id: 40})
        node.replica.ids.on_damage(CorruptIndex("planted"))
        assert node.replica.ids.behind
        assert not node.replica.electable
        async with compat.timeout(30):
            while node.replica.is_master:
                await asyncio.sleep(0.01)
        await all_known(group, two, 40)
        await whole(node)
        await make_master(group, node)
        await one.send(ids(40, 41))
        await all_known(group, two, 41)


async def test_a_damaged_file_is_found_by_a_look_up(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path)
    async with group:
        one, two = await begin(group)
        await one.send(ids(0, 40))
        await group.settled()
        for each in group.running.values():
            await each.checkpoints.write()
        number = (await group.master()).config.node_id
        await group.stop(number)
        for file in (tmp_path / str(number) / "ids").glob("*.sst"):
            data = bytearray(file.read_bytes())
            data[20] ^= 1  # in the first value, which is read when an id is looked up
            file.write_bytes(data)
        node = await group.start(number)
        await whole(node)
        await make_master(group, node)
        while True:
            batch = make_batch(two.last, [b"v"] * 40, producer=6, ids=ids(0, 40))
            async with RawClient((await group.master()).address) as client:
                (ack,) = await client.produce(batch)
            if not ack.HasField("error"):
                break
        assert ack.dropped
        await whole(node)


def _log_says(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return any(text in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("nodes", [1, 3])
async def test_ids_that_all_nodes_have_lost_are_forgotten_aloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, nodes: int
) -> None:
    group = BrokerGroup(tmp_path, nodes=nodes)
    async with group:
        one, two = await begin(group)
        await one.send(ids(0, 40))
        await group.settled()
        await stop_and_lose(group, *list(group.running))
        assert not _log_says(caplog, "lost on all nodes")
        for number in range(1, nodes + 1):
            await group.start(number)
        ack, dropped = await two.send(ids(0, 5))
        assert (ack.base_offset, dropped) == (40, [])
        assert _log_says(caplog, "message ids are lost on all nodes")
        ack, dropped = await one.send(ids(3, 6))
        assert [each[1] for each in dropped] == [43, 44]
        for node in group.running.values():
            await whole(node)
            window = node.replica.state.id_windows.topics[QUEUE.topic_id]
            assert window.first_arrival == 40
        assert (await group.recomputed()).table_matches


async def test_a_voter_that_is_down_may_still_have_the_ids(tmp_path: Path) -> None:
    """Two of three have lost their indexes, and the third is down: nobody becomes master."""
    group = BrokerGroup(tmp_path)
    async with group:
        one, two = await begin(group)
        await one.send(ids(0, 40))
        await group.settled()
        last, *others = list(group.running)
        await stop_and_lose(group, *others)
        await group.stop(last)
        started = [await group.start(number) for number in others]
        await asyncio.sleep(2.5)
        assert all(node.replica.ids.behind for node in started)
        assert not any(node.replica.is_master for node in started)
        await group.start(last)
        await all_known(group, two, 40)
        for node in started:
            await whole(node)


async def test_a_node_that_gets_a_snapshot_gets_the_ids(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path, **QUICK_CLEANING)
    async with group:
        one, two = await begin(group, retention_bytes=400_000)
        await one.send(ids(0, 40))
        await group.settled()
        slave = await slave_of(group)
        number = slave.config.node_id
        await group.stop(number)
        group.wipe(number)
        start = 40
        async with compat.timeout(30):
            while (await group.master()).replica.log.first_index == 1:
                await one.send(ids(start, start + 20), b"v" * 4_000)
                start += 20
        slave = await group.start(number)
        await group.settled()
        await whole(slave)
        assert slave.catch_up.bytes_pulled
        await make_master(group, slave)
        _, dropped = await two.send(ids(0, 40))
        assert len(dropped) == 40
