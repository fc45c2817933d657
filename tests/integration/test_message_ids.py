"""Broker groups that keep an index of message ids store each id once, through restarts and a change
of the master. Real nodes, real RocksDB."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.protos.dropped import Verdict
from tests.kit.brokers import QUEUE, BrokerGroup, RawClient
from tests.kit.id_senders import begin, ids


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
