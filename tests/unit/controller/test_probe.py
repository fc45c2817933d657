"""A controller's metrics page."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

from semel.controller.probe import COMMON, METRICS
from semel.protos.v1 import controller_pb2 as pb
from tests.kit.controller_cluster import Cluster, refuse
from tests.kit.metrics_page import scrape


async def test_the_figures_of_a_controller_follow_the_cluster(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.config = dataclasses.replace(cluster.config, metrics_port=0)
    await cluster.start()
    node = cluster.node
    assert node is not None

    async def page() -> dict[str, float]:
        found = await scrape(node.metrics_address, COMMON)
        prefix = "semel_controller_"
        return {name.removeprefix(prefix): value for name, value in found.items()}

    try:
        await cluster.add_group(1, (10, 11))
        (second,) = await cluster.add_group(2)
        await cluster.client.create("orders", 4)
        join = pb.JoinGroupRequest(group="readers", topics=["orders"])
        await cluster.client.call("JoinGroup", join)
        found = await page()
        assert (found["broker_groups"], found["broker_nodes"]) == (2, 3)
        assert (found["masterless_groups"], found["under_replicated_groups"]) == (0, 0)
        assert found["silent_broker_nodes"] == 0
        assert (found["group_queues{1}"], found["group_queues{2}"]) == (2, 2)
        assert (found["topics"], found["unfinished_topics"]) == (1, 0)
        assert (found["consumer_groups"], found["consumer_members"]) == (1, 1)
        assert found["office"] == 1

        second.before = refuse
        creating = asyncio.create_task(cluster.client.create("half", 2))
        while not (await page())["unfinished_topics"]:
            await asyncio.sleep(0.01)
        reply = await cluster.client.call("GetClusterStatus", pb.ClusterStatusRequest())
        (unfinished,) = reply.unfinished
        assert (unfinished.name, unfinished.step) == ("half", "creating")
        second.before = None
        await creating
        assert (await page())["unfinished_topics"] == 0

        cluster.clock.now_ms += cluster.config.node_timeout_ms + 1
        await cluster.client.call("ReportNode", second.report())
        found = await page()
        assert found["silent_broker_nodes"] == 2
        assert (found["masterless_groups"], found["under_replicated_groups"]) == (1, 1)
        names = {name.partition("{")[0] for name in found}
        checked = {
            metric.name
            for metric in METRICS
            if not any(needs in metric.text for needs in ("With --", "With TLS"))
        }
        assert {name.removeprefix("semel_controller_") for name in checked} <= names
    finally:
        await cluster.stop()
        for broker in cluster.brokers:
            await broker.stop()
        await cluster.store.close()
