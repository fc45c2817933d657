"""A slave behind a slow link gets what it lacks, and gets it once."""

from __future__ import annotations

import time
from pathlib import Path

from semel.client import connect
from tests.faults.proxied import ProxiedCluster

COUNT = 24
VALUE_BYTES = 512 << 10
BYTES_PER_S = 4e6


def test_what_a_slow_link_carries_is_not_sent_again(tmp_path: Path) -> None:
    """The master asks every heartbeat whether something was lost, and several beats pass before
    what is on its way has arrived."""
    with ProxiedCluster(tmp_path) as cluster, connect(cluster.bootstrap) as client:
        client.admin.create_topic("t", queues=1)
        slave = next(node for node in cluster.brokers if node is not cluster.master())
        cluster.kill(slave)
        with client.producer() as producer:
            for _ in range(COUNT):
                producer.send("t", bytes(VALUE_BYTES))
        flows = cluster.heard_by(slave)
        cluster.network.shape(flows, bytes_per_s=BYTES_PER_S)
        cluster.start_node(slave)
        before = sum(cluster.network.flow(*flow).passed for flow in flows)
        began = time.monotonic()
        cluster.wait_caught_up(timeout=60)
        passed = sum(cluster.network.flow(*flow).passed for flow in flows) - before
        assert time.monotonic() - began > 1, "the link was not slow"
        assert passed < 1.5 * COUNT * VALUE_BYTES
