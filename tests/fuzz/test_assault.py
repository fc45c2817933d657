"""Real nodes under bad requests, for some seconds; `./run soak fuzz` goes on for longer."""

from __future__ import annotations

import asyncio
from pathlib import Path

from semel.client import connect
from tests.fuzz.assault import GROWTH_BYTES_MAX, VICTIM, Assault
from tests.fuzz.witness import HEALTHY, Healthy, problems_of, read_everything, verified
from tests.kit.cluster import Cluster

INPUTS = 2_000


def test_nodes_serve_others_whatever_comes_in(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=1, broker_flags=["--metrics-port", "0"]) as cluster:
        with connect(cluster.bootstrap) as client:
            client.admin.create_topic(HEALTHY, queues=2)
        before = {node.data: node.resident_bytes() for node in cluster.nodes}
        assault = Assault(cluster, seed=1)
        with Healthy(cluster.bootstrap) as healthy:
            asyncio.run(assault.run(INPUTS))
        assert problems_of(cluster) == []
        assert assault.tally.bugs == []
        assert healthy.error == ""
        assert healthy.sent
        assert sorted(healthy.read) == sorted(healthy.sent)
        assert assault.tally.stored > INPUTS // 100
        assert read_everything(cluster.bootstrap, VICTIM) > 0
        assert verified(cluster.bootstrap, [HEALTHY, VICTIM]) == []
        for node in cluster.nodes:
            assert node.resident_bytes() - before[node.data] < GROWTH_BYTES_MAX
