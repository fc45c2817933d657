"""Kafka's clients on a cluster whose feature level was not raised yet: those without transactions
go on, those with them hear why not, until the level is raised under the same gateway.

Older programs are played by `--level-max`, which each process loses when its turn comes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka import KafkaProducer  # type: ignore[import-untyped]
from kafka.errors import KafkaError  # type: ignore[import-untyped]

from semel.client import connect
from semel.protos.levels import KAFKA_TRANSACTIONS_LEVEL
from tests.kit.cluster import Cluster, Node
from tests.kit.kafka_gateway import KafkaGatewayProcess, consume, produce
from tests.kit.waiting import until

OLD = KAFKA_TRANSACTIONS_LEVEL - 1
WAIT_S = 30.0


def upgraded(cluster: Cluster, node: Node) -> None:
    """The same node with the newest program."""
    cluster.kill(node)
    at = node.command.index("--level-max")
    del node.command[at : at + 2]
    cluster.start_node(node)
    cluster.wait_ready()


def finish(cluster: Cluster) -> None:
    """Raises the level for good."""
    done = subprocess.run(
        [sys.executable, "-m", "semel.console", "cluster", "upgrade", "--finish"],
        capture_output=True,
        env={**os.environ, "SEMEL_BOOTSTRAP": cluster.bootstrap},
        timeout=60,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"raised to feature level {KAFKA_TRANSACTIONS_LEVEL}" in done.stdout


def transactional(address: str) -> Producer:
    """A producer of librdkafka whose transactional id is not ready yet."""
    return Producer({"bootstrap.servers": address, "transactional.id": "booking", "linger.ms": 2})


def is_refused(producer: Producer) -> None:
    """librdkafka asks again until the time is over, and then tells why."""
    with pytest.raises(KafkaException) as refused:
        producer.init_transactions(2.0)
    assert refused.value.args[0].name() == "UNSUPPORTED_VERSION", refused.value


def is_refused_at_once(address: str) -> None:
    producer = KafkaProducer(bootstrap_servers=address, transactional_id="python")
    began = time.monotonic()
    with pytest.raises(KafkaError, match="UnsupportedVersion"):
        producer.init_transactions()
    assert time.monotonic() - began < WAIT_S / 2
    producer.close()


def in_group(address: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )


def read_and_commit(address: str, values: list[bytes]) -> None:
    """Reads values as a member of the group, and commits them without a transaction."""
    consumer = in_group(address)
    consumer.subscribe(["orders"])
    found: list[bytes | None] = []

    def are_read() -> bool:
        found.extend(message.value() for message in consumer.consume(10, 0.5))
        return len(found) >= len(values)

    try:
        until(are_read, WAIT_S, what="the messages")
        assert found == values
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


def test_transactions_begin_with_the_level_and_all_else_before(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "cluster", brokers=1, broker_flags=["--level-max", str(OLD)])
    cluster.controller.command += ["--level-max", str(OLD)]
    with (
        cluster,
        connect(cluster.bootstrap) as client,
        KafkaGatewayProcess(cluster.bootstrap) as gateway,
    ):
        client.admin.create_topic("orders", queues=1)
        expected: list[bytes] = []

        def ordinary_clients_go_on() -> None:
            values = [b"%d" % number for number in range(len(expected), len(expected) + 5)]
            produce(gateway.address, "orders", values)
            read_and_commit(gateway.address, values)
            expected.extend(values)

        waiting = transactional(gateway.address)
        is_refused(waiting)
        ordinary_clients_go_on()
        for node in (*cluster.brokers, cluster.controller):
            upgraded(cluster, node)
        # All programs know the level, and none has been told to rise.
        is_refused(waiting)
        is_refused_at_once(gateway.address)
        ordinary_clients_go_on()
        assert client.transactions.describe("booking") is None, "nothing was begun"
        finish(cluster)

        producer = waiting  # it asks once more
        producer.init_transactions(WAIT_S)
        consumer = in_group(gateway.address)
        offsets = [TopicPartition("orders", 0, len(expected))]
        for number in range(2):
            producer.begin_transaction()
            producer.produce("orders", b"in a transaction", partition=0)
            producer.send_offsets_to_transaction(
                offsets, consumer.consumer_group_metadata(), WAIT_S
            )
            if number:
                producer.commit_transaction(WAIT_S)
            else:
                producer.abort_transaction(WAIT_S)
        consumer.close()
        expected.append(b"in a transaction")
        found = consume(gateway.address, "orders", 1, len(expected))
        assert [message.value() for message in found] == expected
        (state,) = client.admin.describe_group("billing").queues
        assert state.committed_offset == len(expected) - 1
        assert client.admin.verify("orders").ok
