"""Moves that are refused when they are asked for, each with its error."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from semel.protos import errors
from semel.protos.errors import SemelError
from semel.protos.levels import own_levels
from semel.protos.v1 import controller_pb2 as pb
from semel.protos.v1.common_pb2 import Levels
from tests.kit.controller_cluster import raised_by, running_cluster
from tests.kit.waiting import until_async
from tests.unit.controller.moving import (
    MovingBroker,
    add_groups,
    check_whole,
    move,
    settled,
    statuses,
    topic_of,
)


async def test_a_queue_goes_only_to_a_group_that_knows_the_rules_it_lived_by(
    tmp_path: Path,
) -> None:
    """What stays undecided of a queue may be written in records that a lower level has not."""
    async with running_cluster(tmp_path) as cluster:
        source, target = await add_groups(cluster)
        await cluster.client.create("orders", 1, groups=[1])

        async def told(broker: MovingBroker, levels: Levels) -> None:
            await cluster.client.call("ReportNode", broker.report(levels=levels))

        for at, of_target, kind in (
            (own_levels(active=6), own_levels(active=5), errors.UnsupportedVersion),
            (own_levels(active=3), own_levels(active=3), errors.UnsupportedVersion),
            (own_levels(active=0), own_levels(active=4), errors.UnsupportedVersion),
            (own_levels(active=4), own_levels(active=0), errors.Throttled),
        ):
            await told(source, at)
            await told(target, of_target)
            assert isinstance(await raised_by(move(cluster.client)), kind)
        assert await statuses(cluster.client) == []
        await told(source, own_levels(active=4))
        await told(target, own_levels(active=5))
        await move(cluster.client)
        assert await settled(cluster) == []
        assert check_whole([source, target], await topic_of(cluster)) == 2


async def test_each_thing_that_cannot_be_has_its_error(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        brokers = await add_groups(cluster, 3)
        client = cluster.client

        async def refused(**fields: Any) -> SemelError:
            request = pb.MoveQueueRequest(**{"name": "orders", "group_id": 2, **fields})
            return await raised_by(client.call("MoveQueue", request))

        assert isinstance(await refused(), errors.UnknownTopic)
        await client.create("orders", 2, groups=[1])
        assert isinstance(await refused(queue_id=9), errors.UnknownQueue)
        assert isinstance(await refused(group_id=9), errors.UnknownGroup)
        assert "already" in str(await refused(group_id=1))
        gate = asyncio.Event()
        brokers[1].before = gate.wait
        await move(client)
        assert (await move(client)).target == 2, "the same again is success"
        assert "on its way" in str(await refused(group_id=3))
        split = pb.SplitQueueRequest(name="orders", queue_id=0, children=2)
        assert "moves to another" in str(await raised_by(client.call("SplitQueue", split)))
        more = pb.AlterTopicRequest(name="orders", queues=4)
        assert "moves to another" in str(await raised_by(client.call("AlterTopic", more)))
        gate.set()
        await settled(cluster)
        await client.call("SplitQueue", split)
        assert "was split" in str(await refused(group_id=1))
        assert "still holds" in str(await refused(queue_id=2, group_id=1))
        cluster.clock.now_ms += 60_000
        await client.call("ReportNode", brokers[0].report())
        dead = await refused(queue_id=1, group_id=3)
        assert isinstance(dead, errors.Unavailable)
        assert "has no master" in dead.message


async def test_a_queue_that_was_split_while_its_move_was_asked_for_stays(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        brokers = await add_groups(cluster)
        await cluster.client.create("orders", 1, groups=[1])

        async def split() -> None:
            request = pb.SplitQueueRequest(name="orders", children=2)
            await cluster.client.call("SplitQueue", request)

        brokers[0].after_figures = split
        refusal = await raised_by(move(cluster.client))
        assert isinstance(refusal, errors.InvalidRequest)
        assert "was split" in str(refusal)
        assert await statuses(cluster.client) == []


async def test_a_queue_of_a_topic_that_is_being_split_waits(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        brokers = await add_groups(cluster)
        await cluster.client.create("orders", 2, groups=[1])
        gate = asyncio.Event()
        brokers[0].before = gate.wait
        split = pb.SplitQueueRequest(name="orders", children=2)
        splitting = asyncio.ensure_future(cluster.client.call("SplitQueue", split))
        await until_async(lambda: brokers[0].calls >= 2)
        assert isinstance(await raised_by(move(cluster.client)), errors.Throttled)
        assert isinstance(await raised_by(move(cluster.client, queue_id=1)), errors.Throttled)
        gate.set()
        await splitting
        await move(cluster.client, queue_id=1)
        assert await settled(cluster) == []
