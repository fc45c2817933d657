"""Topics that compare message ids: their seed, what is refused, and crashes between the steps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from semel.controller.topics import id_dedup
from semel.controller.topics.topic_table import copied
from semel.protos.compat import timeout
from semel.protos.errors import InvalidRequest, SemelError, Throttled, UnsupportedVersion
from semel.protos.levels import ID_LEVEL, own_levels
from semel.protos.v1 import controller_pb2 as pb
from semel.protos.v1.common_pb2 import IdDedup, TopicSettings
from semel.protos.v1.controller_pb2 import NodeLoad
from semel.protos.v1.metadata_pb2 import TopicRecord
from tests.kit.controller_cluster import Cluster, raised_by, refuse, running_cluster

MIB = 1 << 20
DEDUP = TopicSettings(dedup=IdDedup(window_bytes=4 * MIB))
OFF = TopicSettings(retention_ms=5)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as running:
        yield running


async def alter(cluster: Cluster, settings: TopicSettings) -> pb.AlterTopicReply:
    request = pb.AlterTopicRequest(name="orders", settings=settings)
    reply: pb.AlterTopicReply = await cluster.client.call("AlterTopic", request)
    return reply


def seeds(cluster: Cluster) -> set[bytes]:
    """Seeds that the brokers' queues have."""
    return {
        queue.settings.dedup.seed for broker in cluster.brokers for queue in broker.queues.values()
    }


async def test_brokers_get_one_seed_that_clients_never_see(cluster: Cluster) -> None:
    for number in (1, 2):
        await cluster.add_group(number)
    created = await cluster.client.create("orders", 4, settings=DEDUP)
    (seed,) = seeds(cluster)
    assert len(seed) == 16
    assert len(set(seed)) > 1
    watched = cluster.client.watch("orders")
    for shown in (
        created.topic,
        (await cluster.client.routes()).topics[0],
        (await watched.read()).topics[0],
        (await alter(cluster, DEDUP)).topic,
    ):
        assert shown.settings.dedup == IdDedup(window_bytes=4 * MIB)
        assert seed not in shown.SerializeToString()
    watched.cancel()


async def test_the_seed_stays_while_ids_are_compared_and_never_comes_back(
    cluster: Cluster,
) -> None:
    await cluster.add_group(1)
    await cluster.client.create("orders", 2, settings=OFF)
    found = []
    for _ in range(3):
        await alter(cluster, DEDUP)
        (seed,) = seeds(cluster)
        found.append(seed)
        other = TopicSettings(dedup=IdDedup(window_bytes=8 * MIB, keep_ms=7, keep_first=True))
        await alter(cluster, other)
        assert seeds(cluster) == {seed}
        await cluster.restart()
        await cluster.report()
        await alter(cluster, TopicSettings(retention_ms=9, dedup=DEDUP.dedup))
        assert seeds(cluster) == {seed}
        await alter(cluster, OFF)
        assert seeds(cluster) == {b""}
    assert len(set(found)) == 3


async def test_comparing_does_not_begin_anew_before_its_end_is_everywhere(
    cluster: Cluster,
) -> None:
    (broker,) = await cluster.add_group(1)
    await cluster.client.create("orders", 2, settings=DEDUP)
    (first,) = seeds(cluster)
    broker.before = refuse
    request = pb.AlterTopicRequest(name="orders", settings=OFF)
    with pytest.raises(SemelError):
        await cluster.client.call("AlterTopic", request, timeout=0.5)
    error = await raised_by(alter(cluster, DEDUP))
    assert isinstance(error, Throttled)
    assert "'orders'" in error.message
    assert seeds(cluster) == {first}
    broker.before = None
    async with timeout(10):
        while isinstance(await raised_or_none(alter(cluster, DEDUP)), Throttled):
            pass
    (second,) = seeds(cluster)
    assert second not in (first, b"")


async def raised_or_none(work: Any) -> SemelError | None:
    try:
        await work
    except SemelError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("dedup", "wrong"),
    [
        ({"window_bytes": MIB - 1}, "1,048,576"),
        ({}, "1,048,576"),
        ({"window_bytes": 1 << 62}, "window"),
        ({"window_bytes": MIB, "keep_ms": -2}, "keep_ms"),
        ({"window_bytes": MIB, "seed": bytes(16)}, "seed"),
        ({"window_bytes": 8 * MIB + 2}, "disk"),
    ],
)
async def test_senseless_dedup_is_refused_and_nothing_changes(
    cluster: Cluster, dedup: dict[str, Any], wrong: str
) -> None:
    """Two groups whose smallest disks have 4 MiB each."""
    for number in (1, 2):
        nodes = await cluster.add_group(number, (number * 10, number * 10 + 1))
        for node, size in zip(nodes, (4, 9), strict=True):
            load = NodeLoad(disk_total_bytes=size * MIB, disk_free_bytes=size * MIB)
            everyone = [each.report().node for each in nodes]
            await cluster.client.call("ReportNode", node.report(load=load, members=everyone))
    settings = TopicSettings(dedup=IdDedup(**dedup))
    error = await raised_by(cluster.client.create("orders", 2, settings=settings))
    assert isinstance(error, InvalidRequest)
    assert wrong in error.message
    assert not (await cluster.client.routes()).topics
    for before in (OFF, TopicSettings(dedup=IdDedup(window_bytes=8 * MIB))):
        await cluster.client.create("orders", 2, settings=before)
        known = seeds(cluster)
        error = await raised_by(alter(cluster, settings))
        assert isinstance(error, InvalidRequest)
        assert wrong in error.message
        assert seeds(cluster) == known
        shown = (await cluster.client.routes()).topics[0].settings
        assert shown.dedup.window_bytes == before.dedup.window_bytes
        await cluster.client.delete("orders")


async def test_dedup_needs_the_level_of_groups_and_of_the_metadata(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        (broker,) = await cluster.add_group(1)
        levels = own_levels(active=ID_LEVEL - 1)
        await cluster.client.call("ReportNode", broker.report(levels=levels))
        error = await raised_by(cluster.client.create("orders", 2, settings=DEDUP))
        assert isinstance(error, UnsupportedVersion)
        assert "broker group 1" in error.message
        assert "semel cluster upgrade" in error.message
        await cluster.client.create("orders", 2, settings=OFF)
        assert isinstance(await raised_by(alter(cluster, DEDUP)), UnsupportedVersion)
        await cluster.client.call("ReportNode", broker.report(levels=own_levels()))
        assert isinstance(await raised_by(alter(cluster, DEDUP)), Throttled)
        await cluster.report()
        await alter(cluster, DEDUP)
        assert (await cluster.client.routes()).topics[0].settings.HasField("dedup")


def test_metadata_below_the_level_takes_no_dedup() -> None:
    class Roomy:
        def level(self, group_id: int) -> int:
            return ID_LEVEL

        def disk_bytes(self, group_id: int) -> None:
            return None

    record = TopicRecord(name="t", placement=[1], settings=OFF)
    record.settings.dedup.CopyFrom(DEDUP.dedup)
    with pytest.raises(UnsupportedVersion, match="the controllers' metadata"):
        id_dedup.begin(copied(record), ID_LEVEL - 1, Roomy())
    id_dedup.begin(record, ID_LEVEL, Roomy())
    assert len(record.settings.dedup.seed) == 16


def test_a_table_from_before_dedup_is_read() -> None:
    """A record as it was stored before: the same bytes again, and no dedup."""
    stored = TopicRecord(name="t", topic_id=5, placement=[1], settings=OFF).SerializeToString()
    record = TopicRecord.FromString(stored)
    assert not record.settings.HasField("dedup")
    assert record.SerializeToString(deterministic=True) == stored
