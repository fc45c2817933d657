"""A named producer that was away until the cluster forgot it is told, and stores nothing twice."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.client import Client, connect
from semel.protos.errors import DedupStateExpired
from tests.kit.cluster import Cluster
from tests.kit.loading import landed, semel

TOPIC = "t"
IDLE_MS = 300
DEADLINE_S = 30.0


@pytest.fixture(scope="module")
def cluster(module_path: Path) -> Iterator[Cluster]:
    directory = module_path / "forgetful"
    with Cluster(directory, broker_flags=["--producer-idle-ms", str(IDLE_MS)]) as running:
        yield running


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with connect(cluster.bootstrap) as connected:
        connected.admin.create_topic(TOPIC, queues=1, if_not_exists=True)
        yield connected


def stored(client: Client) -> int:
    """Messages in the topic."""
    (queue,) = client.admin.describe_topic(TOPIC).queues
    return queue.log_end_offset


def forget(client: Client, name: str) -> None:
    """Lets log time go on until the cluster has no row of the producer."""
    deadline = time.monotonic() + DEADLINE_S
    with client.producer() as clock:
        while client.admin.describe_producer(name).queues:
            assert time.monotonic() < deadline, f"the row of {name} does not expire"
            clock.send(TOPIC, b"tick").result(10)
            time.sleep(0.02)


def test_a_loader_that_was_forgotten_is_told_every_time(client: Client) -> None:
    with client.producer("loader", source_positions=True) as producer:
        for position in range(3):
            producer.send(TOPIC, b"line", position=position).result(10)
    forget(client, "loader")
    before = stored(client)
    for _ in range(2):
        with (
            client.producer("loader", source_positions=True) as producer,
            pytest.raises(DedupStateExpired, match=r"producer 'loader' was away until topic t "),
        ):
            producer.send(TOPIC, b"line", position=0)
    assert stored(client) == before
    # Who takes the empty row and ends leaves the next one as ignorant as it was.
    with client.producer("loader", source_positions=True, after_expiry="restart") as producer:
        assert producer.last_sequence(TOPIC) == -1
    with (
        client.producer("loader", source_positions=True) as producer,
        pytest.raises(DedupStateExpired, match=r"producer 'loader' was away until topic t "),
    ):
        producer.send(TOPIC, b"line", position=0)
    with client.producer("loader", source_positions=True, after_expiry="restart") as producer:
        assert not producer.send(TOPIC, b"line", position=0).result(10).duplicate
    assert stored(client) == before + 1


def test_a_loader_that_is_forgotten_while_it_runs_is_told_and_so_is_the_next_one(
    client: Client,
) -> None:
    """Were it given a new row by itself, its next life would hear that nothing is stored."""
    with client.producer("slow", source_positions=True) as producer:
        for position in range(3):
            producer.send(TOPIC, b"line", position=position).result(10)
        forget(client, "slow")
        with pytest.raises(DedupStateExpired, match="producer 'slow' was away"):
            producer.send(TOPIC, b"line", position=3).result(10)
    with (
        client.producer("slow", source_positions=True) as producer,
        pytest.raises(DedupStateExpired, match="producer 'slow' was away"),
    ):
        producer.send(TOPIC, b"line", position=0)


def test_the_console_says_what_to_do(cluster: Cluster, client: Client, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"a\nb\nc\n")
    load = ("produce", TOPIC, str(file), "--producer", "console", "--json")
    first = semel(cluster.bootstrap, *load)
    assert landed(json.loads(first.stdout)) == 3
    forget(client, "console")
    before = stored(client)
    refused = semel(cluster.bootstrap, *load)
    assert refused.returncode == 1
    assert "after_expiry" in refused.stderr
    assert stored(client) == before
    again = semel(cluster.bootstrap, *load, "--after-expiry", "restart")
    assert landed(json.loads(again.stdout)) == 3
    assert stored(client) == before + 3


def test_who_has_no_name_notices_nothing(client: Client) -> None:
    """Its row expires while it rests; it goes on by itself, and nothing is stored twice."""
    with client.producer() as producer:
        producer.send(TOPIC, b"one").result(10)
        before = stored(client)
        deadline = time.monotonic() + 10 * IDLE_MS / 1000
        with client.producer() as clock:
            ticks = 0
            while time.monotonic() < deadline:
                clock.send(TOPIC, b"tick").result(10)
                ticks += 1
        producer.send(TOPIC, b"two").result(10)
        assert stored(client) == before + ticks + 1


def test_queues_that_are_forgotten_together_do_not_end_a_named_producer(client: Client) -> None:
    """Each of them makes it open its name again, at the same time."""
    client.admin.create_topic("four", queues=4)
    with client.producer("feeder", after_expiry="restart") as producer:
        for value in (b"before", b"after"):
            for future in [producer.send("four", value, queue=queue) for queue in range(4)]:
                assert not future.result(60).duplicate
            if value == b"before":
                forget(client, "feeder")
    queues = client.admin.describe_topic("four").queues
    assert [queue.log_end_offset for queue in queues] == [2] * 4
