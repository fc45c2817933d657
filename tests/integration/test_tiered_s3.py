"""Tiered topics with a real S3 server, which may hang, and Spark that reads both halves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.client import Client, Message, connect
from tests.kit.cluster import Cluster
from tests.kit.s3_server import CREDENTIALS, S3Server, running_s3_server
from tests.kit.waiting import until

FLAGS = (
    *("--tier-file-bytes", "20000"),
    *("--tier-wait-ms", "200"),
    *("--tier-check-ms", "50"),
    *("--tier-read-ms", "1000"),
    *("--retention-check-ms", "100"),
)
TIERED: dict[str, Any] = {"tier_after_ms": 300, "local_retention_ms": 600}


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        with running_s3_server() as running:
            yield running


@pytest.fixture(scope="module")
def url(server: S3Server) -> str:
    return server.url.replace("PREFIX", "clusters/one")


@pytest.fixture(scope="module")
def shared_cluster(module_path: Path, url: str) -> Iterator[Cluster]:
    flags = ["--tier", url, *FLAGS]
    with Cluster(module_path / "cluster", broker_flags=flags) as running:
        yield running


def produce(client: Client, topic: str, count: int, start: int = 0) -> None:
    """Numbers as values, in batches."""
    with client.producer() as producer:
        for at in range(start, start + count, 50):
            values = [b"%d " % number + b"v" * 100 for number in range(at, at + 50)]
            producer.send_many(topic, values, keys=values)
        producer.flush(30)


def number(message: Message) -> int:
    assert message.value is not None
    return int(message.value.split()[0])


def cold(client: Client, topic: str) -> bool:
    queues = client.admin.describe_topic(topic).queues
    return all(queue.local_start_offset == queue.log_end_offset > 0 for queue in queues)


def read(client: Client, topic: str) -> list[int]:
    with client.reader(topic, end="latest") as reader:
        return sorted(number(message) for message in reader)


def test_a_store_that_hangs_keeps_nobody_from_newer_messages(
    client: Client, shared_cluster: Cluster, server: S3Server
) -> None:
    client.admin.create_topic("slow", queues=1, **TIERED)
    produce(client, "slow", 1_000)
    until(lambda: cold(client, "slow"), what="an empty log")
    server.pause()
    try:
        with (
            client.producer() as producer,
            client.reader("slow", start={0: 1_000}) as newer,
            client.reader("slow", start={0: 100}) as older,
        ):
            slowest = 0.0
            for value in range(1_000, 1_040):
                begun = time.monotonic()
                producer.send("slow", b"%d " % value, key=b"k").result(30)
                (message,) = newer.poll(timeout=30)
                slowest = max(slowest, time.monotonic() - begun)
                assert number(message) == value
                time.sleep(0.05)
            assert slowest < 1.5, "an older message is waited for longer than that"
            assert older.poll(timeout=0.1) == []
    finally:
        server.resume()
    assert read(client, "slow") == list(range(1_040))
    until(lambda: cold(client, "slow"), what="an empty log")
    assert read(client, "slow") == list(range(1_040))


def test_nodes_end_and_start_while_the_store_hangs(
    server: S3Server, url: str, tmp_path: Path
) -> None:
    flags = ["--tier", url.replace("/one", "/two"), *FLAGS]
    with (
        Cluster(tmp_path / "cluster", brokers=1, broker_flags=flags) as cluster,
        connect(cluster.bootstrap) as client,
    ):
        client.admin.create_topic("t", queues=1, **TIERED)
        produce(client, "t", 500)
        until(lambda: cold(client, "t"), what="an empty log")
        (node,) = cluster.brokers
        server.pause()
        try:
            produce(client, "t", 500, 500)
            with client.reader("t", start={0: 100}) as older:
                assert older.poll(timeout=1.5) == []
            assert node.process is not None
            begun = time.monotonic()
            node.process.terminate()
            assert node.process.wait(60) == 0
            assert time.monotonic() - begun < 10
            cluster.start_node(node, timeout=60)
            produce(client, "t", 500, 1_000)
            with client.reader("t", start={0: 1_000}, end="latest") as reader:
                assert [number(each) for each in reader] == list(range(1_000, 1_500))
        finally:
            server.resume()
        until(lambda: read(client, "t") == list(range(1_500)), what="all messages")
