"""A queue forgets an idempotent producer of Kafka: it goes on, and nothing is stored twice."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from semel.client import Client
from semel.gateway.versions import ApiKey
from tests.kit.cluster import Cluster
from tests.kit.kafka_batches import Record, Sender, of_kafka_python
from tests.kit.kafka_gateway import KafkaGatewayProcess
from tests.kit.waiting import until

IDLE_MS = 300
PRODUCER = 1 << 40
VERSION = 8


class Answer(NamedTuple):
    """What Produce is answered."""

    error: ErrorCode
    offset: int
    log_start: int


@pytest.fixture(scope="module")
def shared_cluster(module_path: Path) -> Iterator[Cluster]:
    flags = ["--producer-idle-ms", str(IDLE_MS)]
    with Cluster(module_path / "forgetful", brokers=1, broker_flags=flags) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(shared_cluster: Cluster) -> Iterator[KafkaGatewayProcess]:
    with KafkaGatewayProcess(shared_cluster.bootstrap) as running:
        yield running


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name)
    client.admin.create_topic(name, queues=1)
    return name


def sent(
    gateway: KafkaGatewayProcess, topic: str, value: bytes, *, epoch: int, sequence: int
) -> Answer:
    """Stores one record by a request of its own, on a connection of its own."""
    batch = of_kafka_python([Record(0, None, value)], Sender(PRODUCER, epoch, sequence))
    name = topic.encode()
    request = b"".join(
        (
            struct.pack(">hhih", ApiKey.PRODUCE, VERSION, 1, -1),
            struct.pack(">hhii", -1, -1, 30_000, 1),
            struct.pack(">h", len(name)) + name,
            struct.pack(">iii", 1, 0, len(batch)) + batch,
        )
    )
    host, _, port = gateway.address.partition(":")
    with socket.create_connection((host, int(port)), 30) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            data = stream.read(size)
    response: Any
    response, _ = entity_reader(load_response_schema(ApiKey.PRODUCE, VERSION))(data, 4)
    (partition,) = response.responses[0].partition_responses
    return Answer(partition.error_code, partition.base_offset, partition.log_start_offset)


def pass_time(client: Client, topic: str) -> None:
    """Lets log time go on for longer than a row lives that nobody uses."""
    until_s = time.monotonic() + 3 * IDLE_MS / 1000
    with client.producer() as clock:
        while time.monotonic() < until_s:
            clock.send(topic, b"tick").result(10)


def forget(client: Client, gateway: KafkaGatewayProcess, topic: str, epoch: int) -> None:
    """Waits until the producer is unknown; a gap is refused as long as it is known."""

    def unknown() -> bool:
        pass_time(client, topic)
        answer = sent(gateway, topic, b"gap", epoch=epoch, sequence=9)
        return answer.error is ErrorCode.unknown_producer_id

    until(unknown, what="the queue to forget the producer")


def stored(client: Client, topic: str) -> int:
    (queue,) = client.admin.describe_topic(topic).queues
    return queue.log_end_offset


def test_a_producer_that_keeps_its_id_goes_on_in_a_higher_epoch(
    gateway: KafkaGatewayProcess, client: Client, topic: str
) -> None:
    """As Java's client does: it sends the same again until it is told where the log begins, then
    raises its epoch by itself, and never asks for another id."""
    assert sent(gateway, topic, b"one", epoch=0, sequence=0) == (ErrorCode.none, 0, -1)
    forget(client, gateway, topic, epoch=0)
    before = stored(client, topic)
    for sequence, value in enumerate((b"one", b"two")):  # a late retry, and the next record
        answer = sent(gateway, topic, value, epoch=0, sequence=sequence)
        assert answer == (ErrorCode.unknown_producer_id, -1, 0)
    assert stored(client, topic) == before
    for _ in range(2):  # what comes again is a duplicate
        assert sent(gateway, topic, b"two", epoch=1, sequence=0) == (ErrorCode.none, before, -1)
    answer = sent(gateway, topic, b"three", epoch=1, sequence=1)
    assert answer == (ErrorCode.none, before + 1, -1)
    late = sent(gateway, topic, b"two", epoch=0, sequence=1)
    assert late.error is ErrorCode.invalid_producer_epoch
    assert stored(client, topic) == before + 2
    forget(client, gateway, topic, epoch=1)
    before = stored(client, topic)
    late = sent(gateway, topic, b"two", epoch=1, sequence=0)
    assert late.error is ErrorCode.unknown_producer_id, "stored twice"
    assert stored(client, topic) == before
    assert client.admin.verify(topic).ok


def test_librdkafka_goes_on_with_another_id(
    gateway: KafkaGatewayProcess, client: Client, topic: str
) -> None:
    producer = Producer({"bootstrap.servers": gateway.address, "enable.idempotence": True})
    failures: list[Any] = []

    def told(error: Any, _: Any) -> None:
        if error is not None:
            failures.append(error)

    producer.produce(topic, b"one", on_delivery=told)
    assert producer.flush(30) == 0
    for _ in range(3):
        pass_time(client, topic)
    before = stored(client, topic)
    producer.produce(topic, b"two", on_delivery=told)
    assert producer.flush(30) == 0
    assert failures == []
    assert stored(client, topic) == before + 1
