"""Topics in memory on a real cluster: bodies are in a majority's memory, and a loss is told."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, LongType, StructType

from semel.client import Client, Compaction, IdDedup, connect
from semel.protos.errors import InvalidRequest, OffsetOutOfRange, OffsetsLost
from semel.spark_connector.client_options import ClientOptions
from semel.spark_connector.offsets import QueueRange
from semel.spark_connector.options import ReadOptions, Topics
from semel.spark_connector.tasks import RangesPartition, read_ranges
from tests.kit.cluster import Cluster, Node
from tests.kit.console import Console
from tests.kit.consuming import take
from tests.kit.waiting import until

MARKER = b"a-body-that-nobody-writes-to-a-disk"
TOPIC = "metrics"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", broker_flags=["--memory-wait-ms", "60000"]) as running:
        yield running


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with connect(cluster.bootstrap) as connected:
        yield connected


def create(client: Client, **settings: Any) -> None:
    client.admin.create_topic(TOPIC, queues=1, storage="memory", **settings)


def send(client: Client, first: int, count: int, producer: str = "loader") -> list[int]:
    """Offsets of the messages, each in a batch of its own."""
    with client.producer(producer) as sender:
        return [
            sender.send(TOPIC, MARKER + b"%d" % number).result(20).offset
            for number in range(first, first + count)
        ]


def read(client: Client, start: int = 0) -> list[bytes]:
    with client.reader(TOPIC, start={0: start}, end="latest") as reader:
        return [each.value for each in reader]


def values(first: int, count: int) -> list[bytes]:
    return [MARKER + b"%d" % number for number in range(first, first + count)]


def on_disk(node: Node) -> bool:
    """Whether any file of the node has the marker."""
    found = subprocess.run(
        ["grep", "-rqaF", MARKER.decode(), str(node.data)], check=False, capture_output=True
    )
    return found.returncode == 0


def readable(client: Client, start: int, count: int) -> bool:
    try:
        return len(read(client, start)) == count
    except OffsetsLost:
        return False


def test_no_body_is_on_any_disk(cluster: Cluster, client: Client) -> None:
    create(client)
    client.admin.create_topic("durable", queues=1)
    assert send(client, 0, 20) == list(range(20))
    assert read(client) == values(0, 20)
    assert read(client, 7) == values(7, 13)
    cluster.wait_synced()
    assert [on_disk(node) for node in cluster.brokers] == [False] * 3
    verified = client.admin.verify(TOPIC)
    assert verified.ok, verified
    assert [queue.messages for queue in verified.queues] == [20]
    with client.producer() as producer:  # the search finds what is there
        producer.send("durable", MARKER).result(20)
    cluster.wait_synced()
    assert [on_disk(node) for node in cluster.brokers] == [True] * 3


@pytest.mark.parametrize("who", ["slave", "master"])
def test_one_node_that_dies_loses_nothing(cluster: Cluster, client: Client, who: str) -> None:
    create(client)
    send(client, 0, 30)
    killed = cluster.master() if who == "master" else cluster.slaves()[0]
    cluster.kill(killed)
    send(client, 30, 10, "other")
    assert read(client) == values(0, 40)
    cluster.start_node(killed)
    cluster.wait_caught_up()
    # Each of the others dies in turn: the first one must have pulled the bodies by then.
    for node in cluster.brokers:
        if node is not killed:
            until(lambda: has_all(cluster), 30, "the bodies")
            cluster.kill(node)
            assert read(client) == values(0, 40)
            cluster.start_node(node)
            cluster.wait_caught_up()
    assert client.admin.verify(TOPIC).ok


def has_all(cluster: Cluster) -> bool:
    """Whether every node has the bodies of all messages."""
    return not any(cluster.status(node).memory_pulling for node in cluster.brokers)


def test_drains_wait_until_no_other_node_lacks_messages(tmp_path: Path) -> None:
    body, count = bytes(1 << 18), 48
    with (
        Cluster(tmp_path, broker_flags=["--catch-up-rate", str(1 << 20)]) as cluster,
        connect(cluster.bootstrap) as client,
    ):
        create(client)
        with client.producer("loader") as producer:
            for _ in range(count):
                producer.send(TOPIC, body).result(20)
        cluster.wait_caught_up()
        restarted, other = cluster.slaves()
        cluster.kill(restarted)
        cluster.start_node(restarted)
        cluster.wait_caught_up()
        semel = Console(cluster.bootstrap)
        assert cluster.status(restarted).memory_pulling, "12 MiB take seconds"
        found = {each["check"]: each for each in semel.json("doctor")["findings"]}
        assert found["memory-pulling"]["subject"] == f"broker {restarted.id}"
        now = ("--wait", "1s")
        reason = semel("node", "drain", str(other.id), *now)
        assert reason.returncode == 1
        assert f"node {restarted.id} still pulls" in reason.stderr.decode()
        reason = semel("cluster", "transfer", "1", str(restarted.id), *now)
        assert reason.returncode == 1
        assert f"node {restarted.id} still pulls" in reason.stderr.decode()
        assert cluster.status(restarted).memory_pulling
        assert cluster.status(other).electable
        semel.json("node", "drain", str(other.id))  # waits
        assert has_all(cluster)
        # Of the nodes that had all messages none is left; the one that waited has them.
        for node in (other, cluster.master()):
            cluster.kill(node)
        cluster.start_node(other)
        with client.reader(TOPIC, end="latest") as reader:
            assert sum(len(each.value) for each in reader) == count * len(body)


def test_a_majority_that_dies_loses_messages_visibly(cluster: Cluster, client: Client) -> None:
    create(client)
    client.admin.create_topic("durable", queues=1)
    with client.producer("loader") as producer:
        for number in range(10):
            producer.send(TOPIC, MARKER + b"%d" % number).result(20)
        producer.send("durable", b"stays").result(20)
    for node in cluster.brokers:
        cluster.kill(node)
    cluster.start()
    lost = until(lambda: lost_from(client, 0), 30, "the loss")
    assert lost.next_offset == 10
    assert lost_from(client, 4).next_offset == 10  # type: ignore[union-attr]
    # The names of what is lost are still known: a resumed producer does not send it again.
    with client.producer("loader") as producer:
        assert producer.last_sequence(TOPIC) == 9
        assert producer.send(TOPIC, MARKER + b"10").result(20).offset == 10
    assert read(client, 10) == values(10, 1)
    with client.reader(TOPIC, end="latest", on_lost="skip") as reader:
        assert [each.value for each in reader] == values(10, 1)
    with client.reader(TOPIC, end="latest") as reader:
        with pytest.raises(OffsetsLost):
            next(iter(reader))
        assert [each.value for each in reader] == values(10, 1)
    topic_id = client.admin.describe_topic(TOPIC).topic_id
    assert spark_rows(cluster, topic_id, strict=False) == [(10, MARKER + b"10")]
    with pytest.raises(OffsetsLost):
        spark_rows(cluster, topic_id, strict=True)
    with client.consumer("g", [TOPIC]) as consumer:
        (message,) = take(consumer, 1)
        assert (message.offset, consumer.lost_messages) == (10, 10)
        consumer.commit()
    (described,) = client.admin.describe_topic(TOPIC).queues
    assert (described.lost_messages, described.gaps_to) == (10, 10)
    with client.reader("durable", end="latest") as reader:
        assert [each.value for each in reader] == [b"stays"]
    verified = client.admin.verify(TOPIC)
    assert verified.ok, verified
    assert [on_disk(node) for node in cluster.brokers] == [False] * 3


def spark_rows(cluster: Cluster, topic_id: int, *, strict: bool) -> list[tuple[int, bytes]]:
    """What a task of Spark reads of all offsets."""
    options = ReadOptions(
        client=ClientOptions(bootstrap=cluster.bootstrap),
        topics=Topics(names=(TOPIC,)),
        fail_on_data_loss=strict,
    )
    whole = QueueRange(topic=TOPIC, topic_id=topic_id, queue=0, start=0, end=11)
    schema = StructType().add("offset", LongType()).add("value", BinaryType())
    found: list[tuple[int, bytes]] = []
    for batch in read_ranges(RangesPartition([whole]), options, schema):
        found += zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)
    return found


def lost_from(client: Client, start: int) -> OffsetsLost | None:
    try:
        read(client, start)
    except OffsetsLost as error:
        return error
    return None


def test_what_cannot_be_in_memory_is_refused_by_name(cluster: Cluster, client: Client) -> None:
    refused: list[dict[str, Any]] = [
        {"compaction": Compaction()},
        {"dedup": IdDedup(window_bytes=1 << 20)},
        {"delay_per_second_max": 9},
        {"memory_bytes": 1_000},
    ]
    for settings in refused:
        with pytest.raises(InvalidRequest, match="memory"):
            create(client, **settings)
    with pytest.raises(InvalidRequest, match="memory"):
        client.admin.create_topic(TOPIC, queues=1, memory_bytes=1 << 30)
    create(client)
    with pytest.raises(InvalidRequest, match="memory"):
        client.admin.alter_topic(TOPIC, compaction=Compaction())
    with client.producer() as producer, pytest.raises(InvalidRequest, match="in memory"):
        producer.send(TOPIC, b"x", deliver_after=60).result(20)
    altered = client.admin.alter_topic(TOPIC, memory_bytes=1 << 28)
    assert (altered.storage, altered.memory_bytes) == ("memory", 1 << 28)
    assert send(client, 0, 3) == [0, 1, 2]
    client.admin.split_queue(TOPIC, 0)
    with client.producer() as producer:
        sent = [producer.send(TOPIC, b"%d" % number).result(20) for number in range(20)]
    assert {each.queue for each in sent} == {1, 2}
    with client.reader(TOPIC, end="latest") as reader:
        assert sum(1 for _ in reader) == 23


def test_a_console_makes_and_shows_a_topic_in_memory(cluster: Cluster) -> None:
    console = Console(cluster.bootstrap)
    console("topic", "create", TOPIC, "--storage", "memory", "--memory-bytes", "64MiB")
    shown = console("topic", "describe", TOPIC).stdout.decode()
    assert "in memory, up to 64" in shown
    settings = console.json("topic", "describe", TOPIC)["settings"]
    assert (settings["storage"], settings["memory_bytes"]) == ("memory", 64 << 20)
    console("topic", "alter", TOPIC, "--memory-bytes", "128MiB")
    assert console.json("topic", "describe", TOPIC)["settings"]["memory_bytes"] == 128 << 20


def test_the_oldest_messages_go_beyond_the_bound(cluster: Cluster, client: Client) -> None:
    bound = 64 << 20
    create(client, memory_bytes=bound, batch_bytes_max=2 << 20)
    value = bytes(512 << 10)
    with client.producer("loader") as producer:
        futures = [producer.send(TOPIC, value) for _ in range(400)]
        assert [future.result(60).offset for future in futures] == list(range(400))

    def within() -> bool:
        found = [cluster.status(node).memory_bytes for node in cluster.brokers]
        return all(bound // 2 < held <= bound for held in found)

    until(within, 30, "the bound")
    (queue,) = client.admin.describe_topic(TOPIC).queues
    assert 400 - 128 <= queue.log_start_offset <= 400 - 64
    assert len(read(client, queue.log_start_offset)) == 400 - queue.log_start_offset
    with pytest.raises(OffsetOutOfRange):
        read(client, queue.log_start_offset - 1)
    # 200 MiB were produced, and the logs grew by the headers.
    assert all(cluster.status(node).disk_bytes < 64 << 20 for node in cluster.brokers)
    assert client.admin.verify(TOPIC).ok
