"""A delayed batch of a queue that was split, and that no node can read. Real nodes, real damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from semel.client import Client, connect
from tests.kit.cluster import Cluster
from tests.kit.console import Console
from tests.kit.waiting import until

NEEDLE = b"a needle in the log"
HOUR_S = 3_600
STORED = ((b"before", 1), (NEEDLE, 2), (b"behind", 3), (b"behind", 4))
"""Values, and the hours after which they are due."""


def test_it_is_named_and_given_up_once_every_node_has_said_that_it_cannot_read_it(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, broker_flags=("--checkpoint-records", "1")) as cluster:
        semel = Console(cluster.bootstrap)
        with connect(cluster.bootstrap) as client:
            client.admin.create_topic("orders", queues=1)
            with client.producer() as producer:
                for value, hours in STORED:
                    producer.send("orders", value, deliver_after=hours * HOUR_S).result(20)
            stored = max(cluster.status(node).commit_index for node in cluster.brokers)
            until(lambda: all(checkpoint(cluster, node) >= stored for node in cluster.brokers))
        for node in cluster.brokers:
            cluster.kill(node)
        for node in cluster.brokers:
            flip(node.data)
        cluster.start()
        cluster.wait_ready()
        with connect(cluster.bootstrap) as client:
            children = semel.json("queue", "split", "orders/0", "--into", "2")["children"]
            (found,) = until(lambda: unreadable(semel), 30, "the finding")
            assert found["subject"] == "queue orders/0"
            assert "1 message of it, and 2 behind it" in found["text"]
            assert "semel delay give-up orders/0" in found["advice"]
            assert delayed(client, 0) == 3
            assert sum(delayed(client, child) for child in children) == 1, "what is before it"
            assert "pass --yes" in semel.fails("delay", "give-up", "orders/0", "--json", status=2)
            away = cluster.slaves()[0]
            cluster.kill(away)
            reason = semel("delay", "give-up", "orders/0", "--yes")
            assert reason.returncode == 1
            assert f"node {away.id} does not answer" in reason.stderr.decode()
            assert delayed(client, 0) == 3
            cluster.start_node(away)
            cluster.wait_caught_up()
            given_up = semel.json("delay", "give-up", "orders/0", "--yes")
            assert (given_up["messages"], given_up["queue"]) == (1, 0)
            until(lambda: not delayed(client, 0), 20, "what was behind it")
            assert sum(delayed(client, child) for child in children) == 3
            assert not unreadable(semel)
            reason = semel("delay", "give-up", "orders/0", "--yes")
            assert "no delayed messages that its children wait for" in reason.stderr.decode()


def checkpoint(cluster: Cluster, node: Any) -> int:
    return int(cluster.status(node).checkpoint_index)


def flip(data: Path) -> None:
    """Changes a byte of the needle wherever a node has it."""
    hurt = 0
    for path in (data / "log").glob("**/segment-*"):
        if (at := path.read_bytes().find(NEEDLE)) >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(b"A")
            hurt += 1
    assert hurt == 1


def unreadable(semel: Console) -> list[dict[str, Any]]:
    findings = json.loads(semel("doctor", "--json").stdout)["findings"]
    return [each for each in findings if each["check"] == "delayed-unreadable"]


def delayed(client: Client, queue: int) -> int:
    found = {each.queue: each for each in client.admin.describe_topic("orders").queues}
    return found[queue].delayed_messages if queue in found else 0
