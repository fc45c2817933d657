"""How many topics a cluster may have."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from semel.protos.errors import InvalidRequest
from semel.protos.v1 import controller_pb2 as pb
from tests.kit.controller_cluster import Cluster, raised_by


async def test_one_topic_too_many_is_refused_until_another_is_deleted(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.config = dataclasses.replace(cluster.config, topics_max=2)
    await cluster.start()
    try:
        await cluster.add_group(1)
        for name in ("a", "b"):
            await cluster.client.call("CreateTopic", pb.CreateTopicRequest(name=name, queues=1))
        third = pb.CreateTopicRequest(name="c", queues=1)
        error = await raised_by(cluster.client.call("CreateTopic", third))
        assert isinstance(error, InvalidRequest)
        assert "--topics-max" in str(error)
        await cluster.client.call("DeleteTopic", pb.DeleteTopicRequest(name="a"))
        await cluster.client.call("CreateTopic", third)
    finally:
        await cluster.stop()
        for broker in cluster.brokers:
            await broker.stop()
        await cluster.store.close()
