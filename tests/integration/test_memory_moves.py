"""A queue in memory moves to another broker group: bodies go along, and a loss stays told."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.client import Client, connect
from semel.protos.errors import OffsetsLost
from tests.kit.cluster import Cluster
from tests.kit.waiting import until

TOPIC = "metrics"


def send(client: Client, first: int, count: int) -> list[int]:
    """Offsets of the messages, each in a batch of its own."""
    with client.producer() as producer:
        return [
            producer.send(TOPIC, b"%d" % number).result(30).offset
            for number in range(first, first + count)
        ]


def read(client: Client, start: int) -> list[int]:
    with client.reader(TOPIC, start={0: start}, end="latest") as reader:
        return [int(each.value) for each in reader]


def test_a_queue_in_memory_moves_with_its_messages_and_with_what_it_has_lost(
    tmp_path: Path,
) -> None:
    flags = ["--memory-wait-ms", "200"]
    cluster = Cluster(tmp_path / "c", brokers=1, groups=2, broker_flags=flags)
    with cluster, connect(cluster.bootstrap) as client:
        client.admin.create_topic(TOPIC, queues=1, groups=[1], storage="memory")
        assert send(client, 0, 10) == list(range(10))
        source = cluster.master(1)
        cluster.kill(source)
        cluster.start_node(source)
        until(
            lambda: client.admin.describe_topic(TOPIC).queues[0].lost_messages == 10, 60, "the loss"
        )
        assert send(client, 10, 30) == list(range(10, 40))
        client.admin.move_queue(TOPIC, 0, 2)
        until(lambda: not client.admin.list_moves(TOPIC), 60, "the end of the move")
        assert client.admin.describe_topic(TOPIC).queues[0].group == 2
        cluster.kill(source)  # with all that was in its memory
        assert read(client, 10) == list(range(10, 40))
        with pytest.raises(OffsetsLost) as told:
            read(client, 3)
        assert told.value.next_offset == 10
        assert send(client, 40, 5) == list(range(40, 45))
        assert read(client, 10) == list(range(10, 45))
        assert client.admin.describe_topic(TOPIC).queues[0].lost_messages == 10
        cluster.start_node(source)
        assert client.admin.verify(TOPIC).ok
