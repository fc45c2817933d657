"""Readers pinned to a topic or spread over nodes, and progress shown under a group's name."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.client import Client, connect
from semel.client.transport.connection import BROKER, Purpose
from semel.client.transport.streams import Stream, Streams
from semel.protos.errors import InvalidRequest, UnknownQueue, UnknownTopic
from semel.protos.ids import GroupId
from semel.protos.v1 import broker_pb2, common_pb2
from tests.kit.cluster import Cluster, Node

COUNT = 3_000


@pytest.fixture(scope="module")
def running(module_path: Path) -> Iterator[Cluster]:
    """A cluster of which the tests freeze nodes for a moment."""
    with Cluster(module_path / "cluster") as cluster:
        yield cluster


@pytest.fixture
def client(running: Cluster) -> Iterator[Client]:
    with connect(running.bootstrap) as connected:
        yield connected


def fill(client: Client, topic: str, queues: int = 2, count: int = COUNT) -> None:
    client.admin.create_topic(topic, queues=queues)
    with client.producer() as producer:
        producer.send_many(topic, [b"%d" % number for number in range(count)])


def read_all(client: Client, topic: str, **options: Any) -> list[int]:
    with client.reader(topic, end="latest", **options) as reader:
        return sorted(int(message.value) for message in reader)


@pytest.fixture
def fetched_from(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Addresses that fetch streams were asked of."""
    asked: set[str] = set()
    original = Streams.open

    async def noted(self: Streams, address: str, purpose: Purpose) -> Stream:
        if purpose is Purpose.FETCH:
            asked.add(address)
        return await original(self, address, purpose)

    monkeypatch.setattr(Streams, "open", noted)
    return asked


def choose(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lot falls on this node."""

    def chosen(addresses: list[str]) -> str:
        assert node.address in addresses
        return node.address

    monkeypatch.setattr(random, "choice", chosen)


def test_a_slave_serves_those_who_may_read_from_any(
    running: Cluster, client: Client, monkeypatch: pytest.MonkeyPatch, fetched_from: set[str]
) -> None:
    fill(client, "spread")
    running.wait_caught_up()
    slave = running.slaves()[0]
    choose(slave, monkeypatch)
    assert read_all(client, "spread", read_from="any") == list(range(COUNT))
    assert fetched_from == {slave.address}


def test_a_frozen_slave_holds_nobody_up_for_long(
    running: Cluster, client: Client, monkeypatch: pytest.MonkeyPatch, fetched_from: set[str]
) -> None:
    fill(client, "frozen")
    slave = running.slaves()[0]
    choose(slave, monkeypatch)
    running.pause(slave)
    try:
        assert read_all(client, "frozen", read_from="any") == list(range(COUNT))
    finally:
        running.resume(slave)
    assert fetched_from == {slave.address, running.master().address}


def test_reading_from_any_needs_an_end(client: Client) -> None:
    fill(client, "endless", count=1)
    with pytest.raises(InvalidRequest, match="needs an end"):
        client.reader("endless", read_from="any")
    with pytest.raises(InvalidRequest, match="'master' or 'any', not 'slave'"):
        client.reader("endless", end="latest", read_from="slave")


def test_a_reader_is_pinned_to_its_topic(client: Client) -> None:
    fill(client, "pinned", count=5)
    topic_id = client.admin.describe_topic("pinned").topic_id
    assert read_all(client, "pinned", topic_id=topic_id) == list(range(5))
    client.admin.delete_topic("pinned")
    fill(client, "pinned", count=7)
    with pytest.raises(UnknownTopic, match="deleted and created again"):
        read_all(client, "pinned", topic_id=topic_id)
    assert read_all(client, "pinned") == list(range(7))


def lags(client: Client, group: str) -> dict[int, tuple[int, int]]:
    queues = client.admin.describe_group(group).queues
    return {queue.queue: (queue.committed_offset, queue.lag) for queue in queues}


def test_progress_is_shown_as_a_groups_lag_also_backwards_and_over_a_split(client: Client) -> None:
    fill(client, "shown", queues=1, count=10)
    client.admin.publish_progress("stream", {("shown", 0): 4})
    assert lags(client, "stream") == {0: (4, 6)}
    client.admin.publish_progress("stream", {("shown", 0): 2})
    assert lags(client, "stream") == {0: (2, 8)}
    client.admin.split_queue("shown", 0)
    with client.producer() as producer:
        producer.send("shown", b"10", key=b"k").result(30)
    ends = {
        queue.queue: queue.log_end_offset for queue in client.admin.describe_topic("shown").queues
    }
    # The children's locks are granted only once the parent is read.
    done = {("shown", queue): end for queue, end in ends.items()}
    assert client.admin.publish_progress("stream", done) == []
    assert lags(client, "stream") == {queue: (end, 0) for queue, end in ends.items()}
    assert all(not queue.owner for queue in client.admin.describe_group("stream").queues)


def test_progress_of_consumers_is_never_touched(client: Client) -> None:
    fill(client, "theirs", queues=1, count=10)
    with client.consumer("workers", "theirs") as consumer:
        consumer.commit(consumer.poll(3, 30)[-1])
    with pytest.raises(InvalidRequest, match="belongs to consumers"):
        client.admin.publish_progress("workers", {("theirs", 0): 9})
    assert lags(client, "workers") == {0: (3, 7)}


def test_a_lock_that_somebody_holds_is_left_alone(client: Client) -> None:
    fill(client, "held", queues=1, count=10)
    client.admin.publish_progress("holders", {("held", 0): 1})
    topic_id = client.admin.describe_topic("held").topic_id
    cluster = client._session.cluster
    request = broker_pb2.AcquireLocksRequest(
        group="holders",
        member_id="somebody",
        queues=[common_pb2.QueueRef(topic_id=topic_id, queue_id=0)],
        lock_ms=60_000,
        session_ms=60_000,
    )
    client._session.run(cluster.call_master(GroupId(1), "AcquireLocks", request, service=BROKER))
    assert client.admin.publish_progress("holders", {("held", 0): 9}) == [("held", 0)]
    assert lags(client, "holders") == {0: (1, 9)}


def test_progress_needs_queues_that_exist(client: Client) -> None:
    fill(client, "few", queues=1, count=1)
    with pytest.raises(UnknownQueue, match="no queue 7"):
        client.admin.publish_progress("stream", {("few", 7): 1})
    with pytest.raises(UnknownTopic):
        client.admin.publish_progress("stream", {("no-such-topic", 0): 1})
    with pytest.raises(InvalidRequest, match="must be a name"):
        client.admin.publish_progress("", {("few", 0): 1})


def test_several_topics_are_described_at_once_and_times_looked_up(client: Client) -> None:
    fill(client, "one", queues=1, count=3)
    fill(client, "two", queues=2, count=0)
    found = client.admin.describe_topics(["two", "one"])
    assert [topic.name for topic in found] == ["two", "one"]
    assert found[1] == client.admin.describe_topic("one")
    assert client.admin.offsets_at("one", 1) == {0: 0}
    assert client.admin.offsets_at("one", 1 << 60) == {0: 3}
    with pytest.raises(UnknownTopic):
        client.admin.describe_topics(["one", "no-such-topic"])
