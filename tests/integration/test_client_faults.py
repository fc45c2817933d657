"""The SDK while nodes die, freeze and come back: nothing lost, twice or out of order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from semel.client import Client, Producer, SendFuture, connect
from semel.client.admin import verify
from semel.protos.errors import (
    BufferFull,
    Closed,
    ProducerFenced,
    SemelError,
    TimedOut,
    Unavailable,
)
from tests.kit.cluster import Cluster
from tests.kit.waiting import until


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with connect(cluster.bootstrap) as connected:
        connected.admin.create_topic("t", queues=4)
        yield connected


class Load:
    """Sends keyed and unkeyed messages from a thread until stopped."""

    def __init__(self, producer: Producer) -> None:
        self.sent: dict[bytes, SendFuture] = {}
        self._producer = producer
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            for _ in range(20):
                value = b"%08d" % number
                key = b"k%d" % (number % 5) if number % 2 else None
                self.sent[value] = self._producer.send("t", value, key=key)
                number += 1
            time.sleep(0.002)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)

    def wait_acknowledged(self, timeout: float) -> float:
        """Seconds until a message that is sent now is stored."""
        began = time.monotonic()
        before = len(self.sent)
        until(lambda: len(self.sent) > before, timeout, "another message to be sent")
        self.sent[list(self.sent)[-1]].result(timeout - (time.monotonic() - began))
        return time.monotonic() - began


def check(client: Client, load: Load) -> None:
    """Every message is stored once, at the offset its future names, in order by key."""
    with client.reader("t", end="latest") as reader:
        messages = list(reader)
    values = [message.value for message in messages]
    assert len(set(values)) == len(values), "stored twice"
    assert set(values) == set(load.sent), "lost, or invented"
    newest: dict[bytes, bytes] = {}
    for message in messages:
        metadata = load.sent[message.value].result(0)
        assert metadata.queue == message.queue
        assert metadata.offset in (message.offset, -1)
        if message.key is not None:
            assert newest.get(message.key, b"") < message.value, "reordered"
            newest[message.key] = message.value


def test_a_killed_master(cluster: Cluster, client: Client) -> None:
    with client.producer() as producer:
        load = Load(producer)
        load.wait_acknowledged(30)
        for _ in range(2):
            master = cluster.master()
            cluster.kill(master)
            assert load.wait_acknowledged(10) < 10
            load.wait_acknowledged(30)  # the others go on
            cluster.start_node(master)
            cluster.wait_caught_up()
        load.stop()
        producer.flush(30)
        assert producer.stats.retries > 0, "the fault did not bite"
    check(client, load)
    result = client.admin.verify("t")
    assert result.ok, result.problems
    assert result.nodes_compared == 3


def test_a_frozen_master(cluster: Cluster, client: Client) -> None:
    with client.producer() as producer:
        load = Load(producer)
        load.wait_acknowledged(30)
        master = cluster.master()
        cluster.pause(master)
        took = load.wait_acknowledged(15)
        cluster.resume(master)
        cluster.wait_caught_up()
        load.stop()
        producer.flush(30)
    assert took < 10
    check(client, load)
    assert client.admin.verify("t").ok


def test_everything_is_killed_and_comes_back(cluster: Cluster, client: Client) -> None:
    with client.producer("survivor") as producer:
        load = Load(producer)
        load.wait_acknowledged(30)
        for node in cluster.nodes:
            cluster.kill(node)
        time.sleep(0.5)
        cluster.start()
        load.wait_acknowledged(30)
        load.stop()
        producer.flush(30)
    check(client, load)
    assert client.admin.verify("t").ok


def test_without_controllers_produce_and_consume_go_on(cluster: Cluster, client: Client) -> None:
    with client.producer() as producer, client.consumer("g", ["t"]) as consumer:
        producer.send("t", b"before").result(10)
        while not consumer.poll():
            pass
        consumer.commit()
        cluster.kill(cluster.controller)
        for number in range(20):
            producer.send("t", b"%d" % number).result(10)
        seen = 0
        deadline = time.monotonic() + 15
        while seen < 20 and time.monotonic() < deadline:
            seen += len(consumer.poll())
            consumer.commit()
        assert seen == 20
        # The master may even change meanwhile.
        cluster.kill(cluster.master())
        producer.send("t", b"after").result(15)
        while not consumer.poll():
            assert time.monotonic() < deadline + 15
        consumer.commit()
        cluster.start()


def test_an_idle_producer_finds_the_new_master(cluster: Cluster, client: Client) -> None:
    with client.producer() as producer:
        producer.send("t", b"one").result(10)
        master = cluster.master()
        cluster.kill(master)
        cluster.master()
        time.sleep(0.5)
        producer.send("t", b"two").result(10)
        cluster.start_node(master)


def test_a_consumer_outlives_its_master(cluster: Cluster, client: Client) -> None:
    values = [b"%d" % number for number in range(2_000)]
    with client.producer() as producer:
        producer.send_many("t", values).result(10)
    seen: list[bytes] = []
    with client.consumer("g", ["t"]) as consumer:
        killed = False
        deadline = time.monotonic() + 30
        while len(seen) < 2_000:
            assert time.monotonic() < deadline
            messages = consumer.poll(max_messages=100)
            seen += [message.value for message in messages]
            consumer.commit()
            if len(seen) >= 500 and not killed:
                cluster.kill(cluster.master())
                killed = True
    # Nothing was committed twice, so nothing came twice: the locks went over to the new master.
    assert sorted(seen) == sorted(values)


def test_a_loader_is_replaced_in_mid_load_while_the_master_dies(
    cluster: Cluster, client: Client
) -> None:
    lines = [b"line %d" % number for number in range(40_000)]
    old = client.producer("loader", source_positions=True)
    fenced: list[Exception] = []

    def load_as_a_zombie() -> None:
        try:
            for start in range(0, len(lines), 200):
                old.send_many("t", lines[start : start + 200], positions=range(start, start + 200))
                time.sleep(0.005)
            old.flush(30)
        except ProducerFenced as error:
            fenced.append(error)

    zombie = threading.Thread(target=load_as_a_zombie)
    zombie.start()
    until(lambda: old.stats.stored >= 5_000)
    cluster.kill(cluster.master())
    with client.producer("loader", source_positions=True) as new:
        known = new.last_sequences("t")
        assert max(known.values()) >= 0
        summary = new.send_many("t", lines, positions=range(len(lines))).result(60)
        assert summary.stored + summary.duplicates == len(lines)
        new.flush(30)
        assert new.last_sequence("t") == len(lines) - 1
    zombie.join(60)
    assert fenced, "the zombie was not told"
    with client.reader("t", end="latest") as reader:
        messages = list(reader)
    assert sorted(message.sequence for message in messages) == list(range(len(lines)))
    newest: dict[int, int] = {}
    for message in messages:
        assert message.value == lines[message.sequence]
        assert newest.get(message.queue, -1) < message.sequence
        newest[message.queue] = message.sequence
    cluster.start()
    assert client.admin.verify("t").ok


def test_an_unreachable_cluster_is_told_in_time(cluster: Cluster) -> None:
    with connect(cluster.bootstrap) as patient:
        patient.admin.create_topic("t", queues=4)
    client = connect(cluster.bootstrap, request_timeout_ms=1_000)
    producer = client.producer(delivery_timeout_ms=1_500, buffer_bytes=1_000, buffer_full="raise")
    producer.send("t", b"stored").result(10)
    for node in cluster.nodes:
        cluster.kill(node)
    began = time.monotonic()
    future = producer.send("t", b"never")
    filler = producer.send("t", bytes(1_000))
    with pytest.raises(BufferFull):
        producer.send("t", b"no room")
    for each in (future, filler):
        # Unavailable: the queue was never used before, so nothing of it can be in doubt.
        with pytest.raises((TimedOut, Unavailable)):
            each.result(10)
    assert time.monotonic() - began < 5
    with pytest.raises(SemelError):
        client.admin.list_topics()
    # Both failures were shown by their futures: there is nothing left to tell.
    producer.flush(5)
    client.close()


def test_closing_takes_its_time_and_no_more(cluster: Cluster) -> None:
    client = connect(cluster.bootstrap, close_timeout_ms=1_000, request_timeout_ms=1_000)
    client.admin.create_topic("t", queues=1)
    producer = client.producer()
    consumer = client.consumer("g", ["t"])
    producer.send("t", b"stored").result(10)
    for node in cluster.nodes:
        cluster.kill(node)
    lost = producer.send("t", b"in doubt")
    began = time.monotonic()
    consumer.close()
    with pytest.raises((TimedOut, Closed, Unavailable)):
        client.close()
    assert time.monotonic() - began < 6
    with pytest.raises(SemelError):
        lost.result(1)


def test_a_dead_node_is_named_by_verify_and_not_waited_for_without_end(
    cluster: Cluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "SILENT_S", 1.0)
    with client.producer() as producer:
        producer.send("t", b"one").result(30)
    dead = next(node for node in cluster.brokers if node.id != cluster.master().id)
    cluster.kill(dead)
    result = client.admin.verify("t", timeout=600)
    assert not result.ok
    assert result.nodes_compared == 2
    assert [f"node {dead.id}" in unread for unread in result.unread] == [True]
    assert not result.violated
    cluster.start_node(dead)
    monkeypatch.undo()
    result = client.admin.verify("t")
    assert result.ok, result.problems
