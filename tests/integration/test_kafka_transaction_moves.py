"""Queues are split and moved while transactions of Kafka's clients are open: the client hears that
it has to abort, does so and tries again, and each message is stored once."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from semel.client import Client, connect
from tests.kit.cluster import Cluster
from tests.kit.kafka_gateway import KafkaGatewayProcess, await_acquainted, consume, produce
from tests.kit.waiting import until

WAIT_S = 60.0
GROUPS = (1, 2)
CHANGED = 10
"""Splits and moves while a program copies messages."""


@pytest.fixture(scope="module")
def two_groups(module_path: Path) -> Iterator[Cluster]:
    """Two broker groups of one node each."""
    with Cluster(module_path / "cluster", brokers=1, groups=len(GROUPS)) as running:
        yield running


@pytest.fixture(scope="module")
def gateways(two_groups: Cluster) -> Iterator[str]:
    """The addresses of two that know each other."""
    with contextlib.ExitStack() as stack:
        both = [stack.enter_context(KafkaGatewayProcess(two_groups.bootstrap)) for _ in range(2)]
        await_acquainted(*both)
        yield ",".join(each.address for each in both)


@pytest.fixture(scope="module")
def client(two_groups: Cluster) -> Iterator[Client]:
    with connect(two_groups.bootstrap) as connected:
        yield connected


def split(client: Client, topic: str, queue: int) -> None:
    client.admin.split_queue(topic, queue)


def move(client: Client, topic: str, queue: int) -> None:
    """Moves a queue to the other broker group, and returns when it is there."""
    here = {each.queue: each.group for each in client.admin.describe_topic(topic).queues}[queue]
    client.admin.move_queue(topic, queue, next(group for group in GROUPS if group != here))

    def is_there() -> bool:
        queues = client.admin.describe_topic(topic).queues
        return any(each.queue == queue and each.group != here for each in queues)

    until(is_there, WAIT_S, what="the queue to move")


Change = Callable[[Client, str, int], None]
CHANGES: tuple[Change, ...] = (split, move)


def transactional(addresses: str, name: str) -> Producer:
    """A producer of librdkafka whose transactional id is ready."""
    producer = Producer(
        {
            "bootstrap.servers": addresses,
            "transactional.id": name,
            "linger.ms": 2,
            "topic.metadata.refresh.interval.ms": 1_000,
        }
    )
    producer.init_transactions(WAIT_S)
    return producer


def stored(client: Client, topic: str) -> int:
    queues = client.admin.describe_topic(topic).queues
    return sum(queue.log_end_offset for queue in queues)


def read(addresses: str, client: Client, topic: str, count: int) -> list[bytes]:
    """All values of a topic, sorted; there are `count`, and no more."""
    assert stored(client, topic) == count
    queues = client.admin.describe_topic(topic).queues
    partitions = sum(not queue.sealed for queue in queues)
    return sorted(message.value() for message in consume(addresses, topic, partitions, count))


def is_committed(producer: Producer) -> bool:
    """Commits, or aborts if that is what the client is told to do."""
    try:
        producer.commit_transaction(WAIT_S)
    except KafkaException as error:
        abort(producer, error)
        return False
    return True


def abort(producer: Producer, error: KafkaException) -> None:
    """Aborts, if that is what the client is told to do."""
    if not error.args[0].txn_requires_abort():
        raise error
    producer.abort_transaction(WAIT_S)


def is_stored_by_transaction(
    producer: Producer,
    topic: str,
    values: Sequence[bytes],
    between: Callable[[], None] = lambda: None,
) -> bool:
    """Stores values in one transaction, by turns in partitions 0 and 1; `between` is called in the
    middle. Returns whether that is committed; else it is aborted."""
    producer.begin_transaction()
    for place, value in enumerate(values):
        if place == len(values) // 2:
            between()
        producer.produce(topic, value, partition=place % 2)
    return is_committed(producer)


@pytest.mark.parametrize("change", CHANGES)
def test_a_transaction_is_not_committed_without_the_queue_that_is_split_or_moved(
    gateways: str, client: Client, change: Change
) -> None:
    topic = f"staged-{change.__name__}"
    client.admin.create_topic(topic, queues=2, groups=[1])
    producer = transactional(gateways, topic)

    def between() -> None:
        assert producer.flush(WAIT_S) == 0
        change(client, topic, 0)

    expected: list[bytes] = []
    for number in range(3):
        values = [f"{number}-{place}".encode() for place in range(40)]
        if number == 1:
            assert not is_stored_by_transaction(producer, topic, values, between)
            assert stored(client, topic) == len(expected)
        assert is_stored_by_transaction(producer, topic, values)
        expected += values
    assert read(gateways, client, topic, len(expected)) == sorted(expected)
    assert client.admin.verify(topic).ok


@pytest.mark.parametrize("change", CHANGES)
def test_a_transaction_that_begins_behind_a_split_or_a_move_is_committed(
    gateways: str, client: Client, change: Change
) -> None:
    """Neither the gateway that coordinates it nor the one that stores for it needs to know."""
    topic = f"behind-{change.__name__}"
    client.admin.create_topic(topic, queues=2, groups=[1])
    expected: list[bytes] = []
    producers = [transactional(gateways, f"{topic}-{number}") for number in range(4)]
    for number in range(3):
        if number:
            change(client, topic, number - 1)
        for each, producer in enumerate(producers):
            values = [f"{number}-{each}-{place}".encode() for place in range(40)]
            assert is_stored_by_transaction(producer, topic, values)
            expected += values
    assert read(gateways, client, topic, len(expected)) == sorted(expected)
    assert client.admin.verify(topic).ok


def rewind(consumer: Consumer) -> None:
    """Goes back to what is committed, as programs do after an abort."""
    for place in consumer.committed(consumer.assignment(), WAIT_S):
        consumer.seek(TopicPartition(place.topic, place.partition, max(0, place.offset)))


def copy(
    producer: Producer,
    consumer: Consumer,
    found: Sequence[Any],
    between: Callable[[], None] = lambda: None,
) -> bool:
    """Copies messages in one transaction with the consumer's progress; `between` is called between
    both. Returns whether that is committed; else it is aborted."""
    producer.begin_transaction()
    for number, message in enumerate(found):
        producer.produce("copies", message.value(), partition=number % 2)
    between()
    positions = consumer.position(consumer.assignment())
    while True:
        try:
            producer.send_offsets_to_transaction(
                positions, consumer.consumer_group_metadata(), WAIT_S
            )
        except KafkaException as error:
            if error.args[0].retriable():
                continue
            abort(producer, error)
            return False
        return is_committed(producer)


def test_a_program_that_reads_and_writes_goes_on_through_splits_and_moves(
    two_groups: Cluster, gateways: str, client: Client
) -> None:
    """What it reads from, and what it writes to, is split and moved all the time."""
    client.admin.create_topic("source", queues=2, groups=[1])
    client.admin.create_topic("copies", queues=2, groups=[2])
    failures: list[BaseException] = []

    def change() -> None:
        chance = random.Random(5)
        try:
            with connect(two_groups.bootstrap) as admin:
                for number in range(CHANGED):
                    topic = ("source", "copies")[number % 2]
                    queues = admin.admin.describe_topic(topic).queues
                    left = [each.queue for each in queues if each.queue and not each.sealed]
                    if len(queues) < 6 and number % 4 < 2:
                        split(admin, topic, chance.choice(left))
                    else:
                        move(admin, topic, 0)  # children stay until their parents are read
        except BaseException as error:
            failures.append(error)

    changes = threading.Thread(target=change)
    wanted: list[bytes] = []
    copied = 0
    consumer = Consumer(
        {
            "bootstrap.servers": gateways,
            "group.id": "copiers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 500,
        }
    )
    try:
        producer = transactional(gateways, "copier")
        consumer.subscribe(["source"])

        def first_change() -> None:
            assert producer.flush(WAIT_S) == 0
            split(client, "copies", 1)

        deadline = time.monotonic() + 3 * WAIT_S
        while changes.ident is None or copied < len(wanted) or changes.is_alive():
            assert time.monotonic() < deadline, f"{copied} of {len(wanted)} are copied"
            if copied == len(wanted):
                more = [b"%05d" % number for number in range(copied, copied + 50)]
                produce(gateways, "source", more)
                wanted += more
            found = [each for each in consumer.consume(10, 1.0) if each.error() is None]
            if not found:
                continue
            if changes.ident is None:
                changes.start()
                assert not copy(producer, consumer, found, first_change)
                rewind(consumer)
            elif copy(producer, consumer, found):
                copied += len(found)
            else:
                rewind(consumer)
    finally:
        if changes.ident is not None:
            changes.join(WAIT_S)
        consumer.close()
    assert not failures
    assert read(gateways, client, "copies", len(wanted)) == wanted
    for topic in ("source", "copies"):
        assert client.admin.verify(topic).ok
