"""Kafka's transactional producers through gateways of a real cluster: all or nothing, once."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer  # type: ignore[import-untyped]
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka import KafkaProducer  # type: ignore[import-untyped]

from semel.client import connect
from tests.kit.cluster import Cluster
from tests.kit.console_inside import InsideConsole
from tests.kit.kafka_gateway import KafkaGatewayProcess, await_acquainted, consume, produce
from tests.kit.waiting import until

WAIT_S = 30.0


def transactional(addresses: str, name: str, **settings: Any) -> Producer:
    """A producer of librdkafka whose transactional id is ready."""
    config: dict[str, Any] = {
        "bootstrap.servers": addresses,
        "transactional.id": name,
        "linger.ms": 2,
        "reconnect.backoff.max.ms": 200,
    }
    producer = Producer(config | settings)
    producer.init_transactions(WAIT_S)
    return producer


def send_offsets(producer: Producer, consumer: Consumer) -> None:
    """Adds the consumer's progress to the transaction, again if librdkafka says that one may."""
    positions = consumer.position(consumer.assignment())

    def is_sent() -> bool:
        try:
            producer.send_offsets_to_transaction(
                positions, consumer.consumer_group_metadata(), WAIT_S
            )
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
            return False
        return True

    until(is_sent, what="the offsets to be sent")


def reading(addresses: str, group: str, topic: str) -> Consumer:
    """A member of a group that begins at the start, and commits nothing by itself."""
    consumer = Consumer(
        {
            "bootstrap.servers": addresses,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([topic])
    return consumer


def check_shown(cluster: Cluster, name: str, topic: str) -> None:
    """The console names the topic of the offsets that a transaction has staged, and the group."""
    semel = InsideConsole(cluster.bootstrap)
    shown = semel.json("transaction", "describe", name)["progress"]
    assert {(one["topic"], one["consumer_group"]) for one in shown} == {(topic, "copiers")}
    out = semel("transaction", "describe", name).out
    lines = [line.split() for line in out.splitlines() if "copiers" in line]
    assert len(lines) == len(shown)
    assert all(topic in line for line in lines), out


def messages(cluster: Cluster, topic: str) -> list[bytes]:
    """What a consumer of the SDK would get now, in no order; and the cluster's own proof."""
    with connect(cluster.bootstrap) as client:
        count = sum(queue.log_end_offset for queue in client.admin.describe_topic(topic).queues)
        assert client.admin.verify(topic).ok
        with client.consumer(f"readers-{uuid.uuid4()}", [topic]) as consumer:
            found: list[bytes] = []
            while len(found) < count:
                found += [bytes(message.value or b"") for message in consumer.poll(timeout=1.0)]
    return found


@pytest.fixture
def gateways(cluster: Cluster) -> Iterator[list[KafkaGatewayProcess]]:
    """Two that know each other."""
    with contextlib.ExitStack() as stack:
        both = [stack.enter_context(KafkaGatewayProcess(cluster.bootstrap)) for _ in range(2)]
        await_acquainted(*both)
        yield both


def test_a_transaction_is_seen_as_a_whole_and_an_aborted_one_never(
    cluster: Cluster, gateways: list[KafkaGatewayProcess]
) -> None:
    with connect(cluster.bootstrap) as client:
        client.admin.create_topic("orders", queues=3)
        client.admin.create_topic("audit", queues=1)
        addresses = ",".join(each.address for each in gateways)
        producer = transactional(addresses, "booking")
        for number in range(3):
            producer.begin_transaction()
            for place in range(90):
                producer.produce("orders", f"{number}-{place}".encode(), partition=place % 3)
            producer.produce("audit", b"%d" % number, partition=0)
            assert producer.flush(WAIT_S) == 0
            queues = client.admin.describe_topic("orders").queues
            stored = sum(queue.log_end_offset for queue in queues)
            assert stored == (90 if number == 2 else 0)
            if number == 1:
                producer.commit_transaction(WAIT_S)
            else:
                producer.abort_transaction(WAIT_S)
    found = consume(addresses, "orders", 3, 90)
    assert sorted(message.value() for message in found) == sorted(
        f"1-{place}".encode() for place in range(90)
    )
    assert [message.value() for message in consume(addresses, "audit", 1, 1)] == [b"1"]
    assert len(messages(cluster, "orders")) == 90


def test_none_of_many_transactions_is_refused(
    cluster: Cluster, gateways: list[KafkaGatewayProcess]
) -> None:
    with connect(cluster.bootstrap) as client:
        client.admin.create_topic("diary", queues=2)
    addresses = ",".join(each.address for each in gateways)
    producer = transactional(addresses, "writer")
    for number in range(20):
        producer.begin_transaction()
        for partition in range(2):
            producer.produce("diary", b"%d" % number, partition=partition)
        producer.commit_transaction(WAIT_S)
    found = [message.value() for message in consume(addresses, "diary", 2, 40)]
    assert sorted(found) == sorted(b"%d" % number for number in range(20) for _ in range(2))


def test_a_second_producer_of_the_same_id_fences_the_first(
    cluster: Cluster, gateways: list[KafkaGatewayProcess]
) -> None:
    with connect(cluster.bootstrap) as client:
        client.admin.create_topic("orders", queues=1)
    one, two = gateways
    old = transactional(one.address, "booking")
    old.begin_transaction()
    old.produce("orders", b"old", partition=0)
    assert old.flush(WAIT_S) == 0
    new = transactional(two.address, "booking")
    new.begin_transaction()
    new.produce("orders", b"new", partition=0)
    with pytest.raises(KafkaException) as refused:
        old.commit_transaction(WAIT_S)
    assert refused.value.args[0].fatal()
    new.commit_transaction(WAIT_S)
    assert messages(cluster, "orders") == [b"new"]


def test_a_gateway_dies_between_produce_and_commit(
    cluster: Cluster, gateways: list[KafkaGatewayProcess]
) -> None:
    with connect(cluster.bootstrap) as client:
        client.admin.create_topic("orders", queues=2)
    addresses = ",".join(each.address for each in gateways)
    producer = transactional(addresses, "booking")
    expected: list[bytes] = []
    for number, victim in enumerate([gateways[0], gateways[1], gateways[0]]):
        producer.begin_transaction()
        for place in range(40):
            value = f"{number}-{place}".encode()
            expected.append(value)
            producer.produce("orders", value, partition=place % 2)
            if place == 20:
                assert producer.flush(WAIT_S) == 0
        victim.kill()
        producer.commit_transaction(WAIT_S)
        assert sorted(messages(cluster, "orders")) == sorted(expected)
        victim.start()
        await_acquainted(*gateways)


def test_what_is_under_way_when_a_gateway_dies_is_stored_once(
    cluster: Cluster, gateways: list[KafkaGatewayProcess]
) -> None:
    with connect(cluster.bootstrap) as client:
        client.admin.create_topic("orders", queues=1)
    addresses = ",".join(each.address for each in gateways)
    producer = transactional(addresses, "booking", **{"batch.num.messages": 5, "linger.ms": 0})
    expected: list[bytes] = []
    for number in range(4):
        producer.begin_transaction()
        for place in range(300):
            value = f"{number}-{place}".encode()
            expected.append(value)
            producer.produce("orders", value, partition=0)
            producer.poll(0)
            if place == 150:
                gateways[number % 2].kill()
        producer.commit_transaction(WAIT_S)
        gateways[number % 2].start()
        await_acquainted(*gateways)
    found = consume(addresses, "orders", 1, len(expected))
    assert [message.value() for message in found] == expected
    assert len(messages(cluster, "orders")) == len(expected)


def test_a_transaction_that_takes_too_long_is_given_up_and_its_producer_fenced(
    cluster: Cluster, gateways: list[KafkaGatewayProcess]
) -> None:
    with connect(cluster.bootstrap) as client:
        client.admin.create_topic("orders", queues=1)
        producer = transactional(
            gateways[0].address, "booking", **{"transaction.timeout.ms": 1_500}
        )
        producer.begin_transaction()
        producer.produce("orders", b"late", partition=0)
        assert producer.flush(WAIT_S) == 0

        def is_over() -> bool:
            found = client.transactions.describe("booking")
            return found is not None and found.state == "idle"

        until(is_over, what="the transaction to end")
        with pytest.raises(KafkaException):
            producer.commit_transaction(WAIT_S)
    assert messages(cluster, "orders") == []


def test_a_program_that_reads_and_writes_does_each_message_once(
    cluster: Cluster, gateways: list[KafkaGatewayProcess]
) -> None:
    with connect(cluster.bootstrap) as client:
        client.admin.create_topic("orders", queues=2)
        client.admin.create_topic("copies", queues=1)
    addresses = ",".join(each.address for each in gateways)
    produce(addresses, "orders", [b"%03d" % number for number in range(200)])
    copied = 0
    for enough in (100, 200):  # the second goes on where the first has ended
        producer = transactional(addresses, "copier")
        consumer = reading(addresses, "copiers", "orders")
        number = 0
        while copied < enough:
            found = consumer.consume(20, 5.0)
            assert found, f"nothing comes after {copied} copies"
            producer.begin_transaction()
            for message in found:
                producer.produce("copies", message.value(), partition=0)
            send_offsets(producer, consumer)
            number += 1
            if number % 3 == 2:
                producer.abort_transaction(WAIT_S)
                for place in consumer.committed(consumer.assignment(), WAIT_S):
                    consumer.seek(
                        TopicPartition(place.topic, place.partition, max(0, place.offset))
                    )
            else:
                producer.commit_transaction(WAIT_S)
                copied += len(found)
        consumer.close()
    assert sorted(messages(cluster, "copies")) == [b"%03d" % number for number in range(200)]


def test_who_reads_on_after_another_has_left_is_the_only_one_who_commits(
    cluster: Cluster, gateways: list[KafkaGatewayProcess]
) -> None:
    with connect(cluster.bootstrap) as client:
        client.admin.create_topic("orders", queues=2)
        client.admin.create_topic("copies", queues=1)
    addresses = ",".join(each.address for each in gateways)
    produce(addresses, "orders", [b"%03d" % number for number in range(50)])

    def copy(consumer: Consumer, producer: Producer) -> None:
        found: list[Any] = []
        while len(found) < 50:
            more = consumer.consume(50, WAIT_S)
            assert more, f"nothing comes after {len(found)} records"
            found += more
        producer.begin_transaction()
        for message in found:
            producer.produce("copies", message.value(), partition=0)
        send_offsets(producer, consumer)

    gone, gone_producer = reading(addresses, "copiers", "orders"), transactional(addresses, "one")
    copy(gone, gone_producer)
    check_shown(cluster, "one", "orders")
    gone.close()  # and its transaction is open
    consumer, producer = reading(addresses, "copiers", "orders"), transactional(addresses, "two")
    copy(consumer, producer)
    with pytest.raises(KafkaException) as refused:
        gone_producer.commit_transaction(WAIT_S)
    assert refused.value.args[0].txn_requires_abort()
    gone_producer.abort_transaction(WAIT_S)
    producer.commit_transaction(WAIT_S)
    consumer.close()
    assert sorted(messages(cluster, "copies")) == [b"%03d" % number for number in range(50)]


def test_kafka_python_and_aiokafka_commit_and_abort(
    cluster: Cluster, gateways: list[KafkaGatewayProcess]
) -> None:
    with connect(cluster.bootstrap) as client:
        client.admin.create_topic("orders", queues=1)
    address = gateways[0].address

    producer = KafkaProducer(bootstrap_servers=address, transactional_id="python")
    producer.init_transactions()
    for number in range(3):
        producer.begin_transaction()
        producer.send("orders", b"python-%d" % number, partition=0)
        producer.flush()
        if number == 1:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.close()

    async def by_aiokafka() -> None:
        async with AIOKafkaProducer(bootstrap_servers=address, transactional_id="aio") as aio:
            async with aio.transaction():
                await aio.send_and_wait("orders", b"aio-0", partition=0)
            await aio.begin_transaction()
            await aio.send_and_wait("orders", b"aio-1", partition=0)
            await aio.abort_transaction()
            async with aio.transaction():
                await aio.send_and_wait("orders", b"aio-2", partition=0)

    asyncio.run(by_aiokafka())
    assert messages(cluster, "orders") == [b"python-0", b"python-2", b"aio-0", b"aio-2"]
