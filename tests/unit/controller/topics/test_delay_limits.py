"""The limit of what is due in one second: which values a topic may have, and from which level."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from semel.controller.topics import setting_levels
from semel.protos.errors import InvalidRequest, SemelError, Throttled, UnsupportedVersion
from semel.protos.levels import DELAY_LIMIT_LEVEL
from semel.protos.v1 import controller_pb2 as pb
from semel.protos.v1.common_pb2 import Compaction, TopicSettings
from semel.protos.v1.metadata_pb2 import TopicRecord
from tests.kit.controller_cluster import Cluster, raised_by, running_cluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as running:
        yield running


class Groups:
    """Two groups, one of which may lack the level, or not have told it."""

    def __init__(self, *levels: int | None) -> None:
        self._levels = dict(enumerate(levels, 1))

    def level(self, group_id: int) -> int | None:
        return self._levels[group_id]

    def disk_bytes(self, group_id: int) -> int | None:
        return None


async def test_brokers_get_the_limit_and_its_end(cluster: Cluster) -> None:
    await cluster.add_group(1)
    settings = TopicSettings(delay_per_second_max=500)
    created = await cluster.client.create("orders", 4, settings=settings)
    assert created.topic.settings.delay_per_second_max == 500

    def limits() -> set[int]:
        return {
            queue.settings.delay_per_second_max
            for broker in cluster.brokers
            for queue in broker.queues.values()
        }

    assert limits() == {500}
    for given, stored in ((9, 9), (-1, 0)):
        wanted = TopicSettings(delay_per_second_max=given)
        reply = await cluster.client.call(
            "AlterTopic", pb.AlterTopicRequest(name="orders", settings=wanted)
        )
        assert reply.topic.settings.delay_per_second_max == stored
        assert limits() == {stored}
    wrong = TopicSettings(delay_per_second_max=-2)
    error = await raised_by(
        cluster.client.call("AlterTopic", pb.AlterTopicRequest(name="orders", settings=wrong))
    )
    assert isinstance(error, InvalidRequest)


@pytest.mark.parametrize(
    ("metadata", "groups", "error"),
    [
        (DELAY_LIMIT_LEVEL, (DELAY_LIMIT_LEVEL, DELAY_LIMIT_LEVEL), None),
        (DELAY_LIMIT_LEVEL - 1, (DELAY_LIMIT_LEVEL, DELAY_LIMIT_LEVEL), UnsupportedVersion),
        (DELAY_LIMIT_LEVEL, (DELAY_LIMIT_LEVEL, DELAY_LIMIT_LEVEL - 1), UnsupportedVersion),
        (DELAY_LIMIT_LEVEL, (None, DELAY_LIMIT_LEVEL), Throttled),
    ],
)
@pytest.mark.parametrize(
    "wanted",
    [TopicSettings(delay_per_second_max=1), TopicSettings(compaction=Compaction())],
    ids=["a limit of delays", "compaction"],
)
def test_metadata_and_all_groups_must_know_it(
    wanted: TopicSettings,
    metadata: int,
    groups: tuple[int | None, ...],
    error: type[SemelError] | None,
) -> None:
    record = TopicRecord(name="t", placement=[1, 2])
    told = Groups(*groups)
    setting_levels.require_levels_of(record, TopicSettings(), 0, told)
    if error is None:
        setting_levels.require_levels_of(record, wanted, metadata, told)
    else:
        with pytest.raises(error):
            setting_levels.require_levels_of(record, wanted, metadata, told)
