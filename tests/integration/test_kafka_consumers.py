"""Consumer groups of Kafka clients that nobody here wrote: librdkafka, kafka-python, aiokafka.

They share partitions, take over from members and from gateways that are killed, and go on where
others of the group have stopped, whichever library those used.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from semel.client import Client
from tests.kit.cluster import Cluster
from tests.kit.consuming import fill
from tests.kit.kafka_gateway import KafkaGatewayProcess
from tests.kit.kafka_reader import LIBRARIES, ReaderProcess
from tests.kit.waiting import until

PARTITIONS = 4
STILL_S = 4.0
"""Less than a gateway's session."""


@pytest.fixture(scope="module")
def shared_cluster(module_path: Path) -> Iterator[Cluster]:
    with Cluster(module_path / "cluster", brokers=1) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(shared_cluster: Cluster) -> Iterator[KafkaGatewayProcess]:
    with KafkaGatewayProcess(shared_cluster.bootstrap) as running:
        yield running


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name).translate({ord("["): "-", ord("]"): None})
    client.admin.create_topic(name, queues=PARTITIONS)
    return name


def knows(gateway: KafkaGatewayProcess, *others: KafkaGatewayProcess) -> bool:
    """Whether a gateway tells clients of these."""
    brokers = AdminClient({"bootstrap.servers": gateway.address}).list_topics(timeout=30).brokers
    told = {f"{broker.host}:{broker.port}" for broker in brokers.values()}
    return {other.address for other in others} <= told


def texts(values: list[bytes]) -> list[str]:
    return sorted(value.decode() for value in values)


@pytest.mark.parametrize("library", LIBRARIES)
def test_members_share_and_the_survivor_of_a_kill_gets_all(
    gateway: KafkaGatewayProcess, client: Client, topic: str, library: str
) -> None:
    with ReaderProcess(library, gateway.address, topic, topic) as one:
        values = fill(client, topic, 200)
        until(lambda: len(one.values) == 200)
        with ReaderProcess(library, gateway.address, topic, topic) as two:
            filled = 200

            def both_read() -> bool:
                nonlocal filled
                values.extend(fill(client, topic, 40, first=filled))
                filled += 40
                time.sleep(0.2)
                return bool(two.values) and len(one.values) > 200

            until(both_read)
            until(lambda: {*one.values, *two.values} == {*texts(values)}, what="each message")
            two.kill()
        values += fill(client, topic, 100, first=filled)
        until(lambda: {*one.values, *two.values} == {*texts(values)}, what="each message")
        # What is printed is committed a moment later.
        until(lambda: client.admin.describe_group(topic).lag == 0, what="the last commit")
    assert client.admin.describe_group(topic).kind == "kafka"


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_group_goes_on_at_the_other_gateway_when_its_coordinator_is_killed(
    shared_cluster: Cluster, client: Client, topic: str, library: str
) -> None:
    with (
        contextlib.ExitStack() as stack,
        KafkaGatewayProcess(shared_cluster.bootstrap) as left,
        KafkaGatewayProcess(shared_cluster.bootstrap) as right,
    ):
        until(lambda: knows(left, right))
        until(lambda: knows(right, left))
        reader = stack.enter_context(
            ReaderProcess(library, f"{left.address},{right.address}", topic, topic)
        )
        values = fill(client, topic, 100)
        until(lambda: len(reader.values) == 100)
        until(lambda: client.admin.describe_group(topic).lag == 0)
        (member,) = client.admin.describe_group(topic).members
        coordinator = left if member.client.endswith(left.address) else right
        coordinator.kill()
        values += fill(client, topic, 100, first=100)
        until(lambda: {*reader.values} == {*texts(values)}, what="each message")
        until(lambda: client.admin.describe_group(topic).lag == 0, what="the last commit")
        (member,) = client.admin.describe_group(topic).members
        assert not member.client.endswith(coordinator.address)


def test_a_coordinator_that_stands_still_for_some_seconds_keeps_its_groups(
    gateway: KafkaGatewayProcess, client: Client, topic: str
) -> None:
    """It was taken for dead, and all members had to join again."""
    values = fill(client, topic, 20)
    told: list[str] = []
    consumer = Consumer(
        {
            "bootstrap.servers": gateway.address,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 20_000,
            "heartbeat.interval.ms": 500,
        }
    )
    with contextlib.closing(consumer):
        consumer.subscribe(
            [topic],
            on_assign=lambda *_: told.append("assigned"),
            on_revoke=lambda *_: told.append("revoked"),
            on_lost=lambda *_: told.append("lost"),
        )
        found: list[bytes] = []

        def all_read() -> bool:
            found.extend(each.value() or b"" for each in consumer.consume(100, 0.5))
            return len(found) >= len(values)

        until(all_read, what="the first messages")
        gateway.pause()
        time.sleep(STILL_S)
        gateway.resume()
        values += fill(client, topic, 20, first=20)
        until(all_read, what="the other messages")
        ends = time.monotonic() + 3  # more than a heartbeat of its and of ours
        while time.monotonic() < ends:
            consumer.poll(0.1)
        assert texts(found) == texts(values)
        assert told == ["assigned"]


def test_whoever_comes_next_goes_on_where_the_group_has_stopped(
    gateway: KafkaGatewayProcess, client: Client, topic: str
) -> None:
    values: list[bytes] = []
    for library in LIBRARIES:
        new = fill(client, topic, 50, first=len(values))
        values += new
        with ReaderProcess(library, gateway.address, topic, topic) as reader:
            until(lambda: len(reader.values) >= 50)
            until(lambda: client.admin.describe_group(topic).lag == 0)
            assert sorted(reader.values) == texts(new)


def test_a_static_member_that_starts_again_keeps_its_partitions(
    gateway: KafkaGatewayProcess, client: Client, topic: str
) -> None:
    with ReaderProcess("librdkafka", gateway.address, topic, topic, "one") as reader:
        fill(client, topic, 50)
        until(lambda: len(reader.values) == 50)
        until(lambda: client.admin.describe_group(topic).lag == 0)
        reader.kill()
    admin = AdminClient({"bootstrap.servers": gateway.address})
    described = admin.describe_consumer_groups([topic])[topic].result(30)
    assert [member.group_instance_id for member in described.members] == ["one"]
    began = time.monotonic()
    with ReaderProcess("librdkafka", gateway.address, topic, topic, "one") as reader:
        fill(client, topic, 50, first=50)
        until(lambda: len(reader.values) == 50)
    assert time.monotonic() - began < 30


def test_administrators_list_describe_reset_and_delete(
    gateway: KafkaGatewayProcess, client: Client, topic: str
) -> None:
    values = fill(client, topic, 100)
    with ReaderProcess("librdkafka", gateway.address, topic, topic) as reader:
        until(lambda: len(reader.values) == 100)
        until(lambda: client.admin.describe_group(topic).lag == 0)
    admin = AdminClient({"bootstrap.servers": gateway.address})
    listed = admin.list_consumer_groups().result(30)
    assert topic in [group.group_id for group in listed.valid]

    def state() -> str:
        described = admin.describe_consumer_groups([topic])[topic].result(30)
        return str(described.state.name)

    until(lambda: state() == "EMPTY")
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    asked = [ConsumerGroupTopicPartitions(topic, places)]
    found = admin.list_consumer_group_offsets(asked)[topic].result(30)
    assert sum(place.offset for place in found.topic_partitions) == 100
    back = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(topic, back)])[topic].result(
        30
    )
    assert client.admin.describe_group(topic).lag == 100
    with ReaderProcess("kafka-python", gateway.address, topic, topic) as reader:
        until(lambda: len(reader.values) == 100)
        assert sorted(reader.values) == texts(values)
    until(lambda: state() == "EMPTY")
    admin.delete_consumer_groups([topic])[topic].result(30)
    assert topic not in client.admin.list_groups()


def test_kinds_do_not_mix(gateway: KafkaGatewayProcess, client: Client, topic: str) -> None:
    fill(client, topic, 10)
    with client.consumer(topic, [topic]) as sdk:
        assert sdk.poll(max_messages=1, timeout=10)
    consumer = Consumer(
        {
            "bootstrap.servers": gateway.address,
            "group.id": topic,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    try:
        with pytest.raises(KafkaException, match="INCONSISTENT_GROUP_PROTOCOL"):
            _raise_what_comes(consumer)
    finally:
        consumer.close()


def _raise_what_comes(consumer: Consumer) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        message = consumer.poll(0.5)
        if message is not None:
            assert message.error() is not None, "a message came"
            raise KafkaException(message.error())
