"""Kafka's clients go on while queues are split: partitions stay what they are, new ones come."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from kafka import KafkaAdminClient, KafkaConsumer  # type: ignore[import-untyped]
from kafka import TopicPartition as PlainPartition

from semel.client import Client
from tests.kit.cluster import Cluster
from tests.kit.kafka_gateway import KafkaGatewayProcess, Stored, consume, produce

WAIT_S = 60.0


@pytest.fixture(scope="module")
def gateways(shared_cluster: Cluster) -> Iterator[str]:
    """The addresses of two: clients reach one or the other, which hear of a split by themselves."""
    with (
        KafkaGatewayProcess(shared_cluster.bootstrap) as one,
        KafkaGatewayProcess(shared_cluster.bootstrap) as other,
    ):
        yield f"{one.address},{other.address}"


def partitions_of(admin: Any, topic: str, expected: int) -> None:
    """Waits until clients hear of so many."""
    until = time.monotonic() + WAIT_S
    while len(admin.list_topics(topic, timeout=30).topics[topic].partitions) != expected:
        assert time.monotonic() < until, f"{expected} partitions did not come"


def places(addresses: str, topic: str, partitions: int, count: int) -> dict[Stored, bytes]:
    return {
        Stored(message.partition(), message.offset()): message.value()
        for message in consume(addresses, topic, partitions, count)
    }


@pytest.mark.parametrize("idempotent", [True, False])
def test_producers_go_on_through_splits(gateways: str, client: Client, idempotent: bool) -> None:
    topic = f"through-{idempotent}"
    client.admin.create_topic(topic, queues=2)
    values = [b"%d" % number for number in range(600)]

    def between(number: int) -> None:
        if number == 200:
            client.admin.split_queue(topic, 0)
        if number == 400:
            client.admin.alter_topic(topic, queues=5)

    stored = produce(
        gateways,
        topic,
        values,
        keys=[b"%d" % (number % 7) for number in range(len(values))],
        between=between,
        settings={"enable.idempotence": idempotent, "linger.ms": 0},
    )
    found = places(gateways, topic, 5, len(values))
    assert sorted(found.values()) == sorted(values)
    told = {place: value for place, value in zip(stored, values, strict=True) if place.offset >= 0}
    assert len(told) > len(values) // 2
    assert found.items() >= told.items(), "a producer was told another place"
    for partition in range(5):
        offsets = sorted(place.offset for place in found if place.partition == partition)
        assert offsets == list(range(len(offsets))), "offsets go on behind a split"
    assert client.admin.verify(topic).ok


def test_an_idempotent_producer_begins_anew_in_a_new_partition(
    gateways: str, client: Client
) -> None:
    """The new queue has the row of the one that was split. Its sequences begin with 0 there, and
    must not be taken for those of the parent."""
    topic = "rows"
    client.admin.create_topic(topic, queues=1)
    producer = Producer({"bootstrap.servers": gateways, "enable.idempotence": True})
    failures: list[Any] = []

    def send(partition: int, values: range) -> None:
        for number in values:
            producer.produce(
                topic,
                b"%d" % number,
                partition=partition,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
        assert producer.flush(WAIT_S) == 0

    send(0, range(100))
    client.admin.split_queue(topic, 0)
    partitions_of(producer, topic, 2)
    send(1, range(100, 150))
    send(0, range(150, 200))
    client.admin.alter_topic(topic, queues=4)
    partitions_of(producer, topic, 4)
    for partition in range(4):
        send(partition, range(200 + 50 * partition, 250 + 50 * partition))
    assert not failures
    found = places(gateways, topic, 4, 400)
    by_partition = defaultdict(list)
    for place in sorted(found):
        by_partition[place.partition].append(int(found[place]))
    assert by_partition[0] == [*range(100), *range(150, 200), *range(200, 250)]
    assert by_partition[1] == [*range(100, 150), *range(250, 300)]
    assert by_partition[2] == [*range(300, 350)]
    assert by_partition[3] == [*range(350, 400)]
    assert client.admin.verify(topic).ok


def read(addresses: str, group: str, topic: str, count: int) -> list[Any]:
    """Reads as a member of a group until it has so many, and commits them."""
    consumer = Consumer(
        {
            "bootstrap.servers": addresses,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 500,
        }
    )
    consumer.subscribe([topic])
    found: list[Any] = []
    until = time.monotonic() + WAIT_S
    try:
        while len(found) < count:
            assert time.monotonic() < until, f"{len(found)} of {count} came"
            for message in consumer.consume(min(100, count - len(found)), 0.2):
                if message.error() is None:
                    found.append(message)
        ends: dict[int, int] = {}
        for message in found:
            ends[message.partition()] = message.offset() + 1
        consumer.commit(
            offsets=[TopicPartition(topic, *each) for each in ends.items()], asynchronous=False
        )
        return found
    finally:
        consumer.close()


def test_a_group_reads_on_where_it_was(gateways: str, client: Client) -> None:
    topic, group = "read-on", "read-on"
    client.admin.create_topic(topic, queues=1)
    produce(gateways, topic, [b"%d" % number for number in range(100)])
    first = read(gateways, group, topic, 60)
    client.admin.split_queue(topic, 0)
    admin = AdminClient({"bootstrap.servers": gateways})
    partitions_of(admin, topic, 2)
    with client.producer() as sdk:  # by slot, to both children
        keys = [b"%d" % (number % 9) for number in range(90)]
        sdk.send_many(topic, [b"%d" % n for n in range(100, 190)], keys=keys).result(30)
    second = read(gateways, group, topic, 70)
    third = read(gateways, group, topic, 60)
    values = [int(message.value()) for message in [*first, *second, *third]]
    assert sorted(values) == list(range(190)), "each message once"
    in_order = defaultdict(list)
    for message in [*first, *second, *third]:
        in_order[message.partition()].append((message.offset(), int(message.value())))
    for found in in_order.values():
        assert found == sorted(found), "the order of a partition"
        assert [offset for offset, _ in found] == list(range(len(found)))
    assert [value for _, value in in_order[0]][:100] == list(range(100)), "the parent comes first"
    asked = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    consumer = Consumer({"bootstrap.servers": gateways, "group.id": group})
    committed = [each.offset for each in consumer.committed(asked, timeout=30)]
    consumer.close()
    assert committed == [len(in_order[0]), len(in_order[1])]
    assert sum(queue.lag for queue in client.admin.describe_group(group).queues) == 0


def test_offsets_are_looked_up_across_a_split(gateways: str, client: Client) -> None:
    topic = "looked-up"
    client.admin.create_topic(topic, queues=1)
    produce(gateways, topic, [b"a"] * 10)
    between_ms = client.admin.show_message(topic, 0, 9).append_time_us // 1000 + 1
    client.admin.split_queue(topic, 0)
    partitions_of(AdminClient({"bootstrap.servers": gateways}), topic, 2)
    producer = Producer({"bootstrap.servers": gateways})
    for _ in range(5):
        producer.produce(topic, b"b", partition=0)
    assert producer.flush(WAIT_S) == 0
    consumer = KafkaConsumer(bootstrap_servers=gateways.split(","), group_id=None)
    zero, one = PlainPartition(topic, 0), PlainPartition(topic, 1)
    consumer.assign([zero, one])
    assert consumer.beginning_offsets([zero, one]) == {zero: 0, one: 0}
    assert consumer.end_offsets([zero, one]) == {zero: 15, one: 0}
    found = consumer.offsets_for_times({zero: between_ms, one: between_ms})
    assert (found[zero].offset, found[one]) == (10, None)
    assert consumer.offsets_for_times({zero: 0})[zero].offset == 0
    consumer.seek(zero, 7)
    records: list[Any] = []
    until = time.monotonic() + WAIT_S
    while len(records) < 8 and time.monotonic() < until:
        for some in consumer.poll(500).values():
            records += some
    consumer.close()
    assert [(each.offset, each.value) for each in records] == [
        *((offset, b"a") for offset in (7, 8, 9)),
        *((offset, b"b") for offset in range(10, 15)),
    ]


def test_partitions_are_added_by_kafka_s_tools(gateways: str, client: Client) -> None:
    topic = "added"
    client.admin.create_topic(topic, queues=2)
    admin = AdminClient({"bootstrap.servers": gateways})
    admin.create_partitions([NewPartitions(topic, 5)], validate_only=True)[topic].result(30)
    assert len(client.admin.describe_topic(topic).queues) == 2
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(30)
    partitions_of(admin, topic, 5)
    for count, name in ((5, topic), (3, topic), (9, "missing")):
        with pytest.raises(KafkaException):
            admin.create_partitions([NewPartitions(name, count)])[name].result(30)
    plain = KafkaAdminClient(bootstrap_servers=gateways.split(","))
    plain.create_partitions({topic: 7})
    plain.close()
    partitions_of(admin, topic, 7)
    produce(gateways, topic, [b"%d" % number for number in range(200)], keys=[b"k"] * 200)
    assert len(consume(gateways, topic, 7, 200)) == 200
