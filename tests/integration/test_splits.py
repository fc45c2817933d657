"""Queues are split while everything goes on: nothing lost, twice, or out of order by key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from semel.client import Client, SendFuture, connect
from semel.client.dead_letters.relay import Copy, Relay, settle
from semel.protos.errors import InvalidRequest, ProducerFenced, UnknownQueue, UnknownTopic
from semel.spark_connector.options import Topics
from semel.spark_connector.view import describe
from tests.kit.cluster import Cluster
from tests.kit.split_load import KEYS, Group, Load, check_stored, first_deliveries, wait_stored


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with connect(cluster.bootstrap) as connected:
        connected.admin.create_topic("t", queues=2)
        yield connected


@contextmanager
def uninformed(cluster: Cluster) -> Iterator[Callable[[], dict[bytes, SendFuture]]]:
    """A producer whose client knows the routes of now only; the call lets it send to all keys
    while no controller answers: what it needs to know it hears from the brokers."""
    with connect(cluster.bootstrap) as other:
        sent: dict[bytes, SendFuture] = {}
        producer = other.producer()

        def send(name: bytes) -> None:
            for number in range(KEYS):
                value = name + b"%08d" % number
                sent[value] = producer.send("t", value, key=b"uninformed%d" % number)
            producer.flush()

        def go_on() -> dict[bytes, SendFuture]:
            cluster.kill(cluster.controller)
            send(b"uninformed: later ")
            cluster.start_node(cluster.controller)
            return sent

        send(b"uninformed: first ")
        yield go_on


def test_splits_under_load_with_a_killed_master(cluster: Cluster, client: Client) -> None:
    with uninformed(cluster) as go_on:
        splits_under_load(cluster, client, go_on)


def splits_under_load(
    cluster: Cluster, client: Client, go_on: Callable[[], dict[bytes, SendFuture]]
) -> None:
    group = Group(client, members=2)
    loads = [
        Load(client.producer(), b"anonymous", positions=False),
        Load(client.producer("counted"), b"counted", positions=False),
        Load(client.producer("loader", source_positions=True), b"loader", positions=True),
    ]
    try:
        wait_stored(client)
        client.admin.alter_topic("t", queues=3)
        killed = cluster.master()
        cluster.kill(killed)
        made = client.admin.split_queue("t", client.admin.describe_topic("t").queues[-1].queue)
        client.admin.alter_topic("t", queues=6)
        cluster.start_node(killed)
        wait_stored(client)
    finally:
        for load in loads:
            load.stop()
    sent = {value: future for load in loads for value, future in load.sent.items()} | go_on()
    try:
        group.wait_for(len(sent), 60)
    finally:
        group.stop()
    check_stored(client, sent)
    for key, values in first_deliveries(group.delivered).items():
        assert values == sorted(values), f"key {key!r} was read out of order"
    assert {value for _, value in group.delivered} == set(sent)

    queues = client.admin.describe_topic("t").queues
    assert sum(not queue.sealed for queue in queues) == 6
    assert {queue.queue for queue in queues if queue.parent == queues[made[0]].parent} == set(made)
    assert sum(queue.sealed for queue in queues) == 3

    # A loader that starts again finds its place from the children, and stores nothing twice.
    loader = loads[2]
    last = len(loader.sent) - 1
    with client.producer("loader", source_positions=True) as again:
        assert min(again.last_sequences("t").values()) <= last
        assert max(again.last_sequences("t").values()) == last
        for value in sorted(loader.sent):
            number = int(value.rpartition(b":")[2])
            own = b"loader%d" % (number % KEYS) if number % 7 else None
            again.send("t", value, key=own, position=number)
        again.flush()
        assert again.stats.stored == 0
    verified = client.admin.verify("t")
    assert verified.ok, verified.problems
    assert verified.messages == len(sent)
    assert len(verified.queues) == len(queues)


@pytest.fixture(scope="module")
def calm(shared_cluster: Cluster) -> Iterator[Client]:
    """A client of a cluster in which nothing dies."""
    with connect(shared_cluster.bootstrap) as connected:
        yield connected


def test_splits_are_asked_for_in_words_that_can_be_repeated(calm: Client) -> None:
    calm.admin.create_topic("words", queues=2)
    future = calm.producer().send("words", b"v", key=b"k")
    home = future.result(10).queue
    assert calm.admin.split_queue("words", home, children=3) == [2, 3, 4]
    assert calm.admin.split_queue("words", home, children=3) == [2, 3, 4]
    with pytest.raises(InvalidRequest, match="split into 3 before"):
        calm.admin.split_queue("words", home)
    with pytest.raises(UnknownQueue):
        calm.admin.split_queue("words", 9)
    with pytest.raises(InvalidRequest, match="queues are not merged"):
        calm.admin.alter_topic("words", queues=3)
    calm.admin.alter_topic("words", queues=4, retention_ms=60_000)
    calm.admin.alter_topic("words", queues=6)
    described = calm.admin.describe_topic("words")
    assert described.settings.retention_ms == 60_000
    assert sum(not queue.sealed for queue in described.queues) == 6
    with calm.producer() as producer:
        with pytest.raises(UnknownQueue, match="was split"):
            producer.send("words", b"w", queue=home).result(10)
        moved = producer.send("words", b"w", key=b"k").result(10)
        assert moved.queue > home
        last = next(queue for queue in reversed(described.queues) if not queue.sealed)
        assert producer.send("words", b"x", queue=last.queue).result(10).queue == last.queue


def test_a_reader_without_an_end_goes_on_with_the_children(calm: Client) -> None:
    calm.admin.create_topic("endless", queues=2)
    with calm.producer() as producer, calm.reader("endless") as reader:
        producer.send("endless", b"before", key=b"k").result(10)
        assert [message.value for message in reader.poll(timeout=10)] == [b"before"]
        calm.admin.alter_topic("endless", queues=8)
        producer.send("endless", b"after", key=b"k").result(10)
        assert [message.value for message in reader.poll(timeout=10)] == [b"after"]


def test_what_waits_in_a_queue_is_read_before_its_children_are(calm: Client) -> None:
    """A group that has not read the parent gets nothing of the child, whoever asks."""
    calm.admin.create_topic("lineage", queues=2)
    with calm.producer() as producer:
        for number in range(10):
            producer.send("lineage", b"%d" % number, key=b"k").result(10)
        calm.admin.alter_topic("lineage", queues=4)
        for number in range(10, 20):
            producer.send("lineage", b"%d" % number, key=b"k").result(10)
    with calm.consumer("g", ["lineage"]) as consumer:
        seen: list[int] = []
        while len(seen) < 10:
            seen += [int(message.value or b"") for message in consumer.poll(timeout=10)]
        assert seen == list(range(10)), "the child was given before its parent's end is committed"
        assert calm.admin.describe_group("g").lag == 20, "what waits in the child counts"
        consumer.commit()
        while len(seen) < 20:
            seen += [int(message.value or b"") for message in consumer.poll(timeout=10)]
            consumer.commit()
    assert seen == list(range(20))
    assert calm.admin.describe_group("g").lag == 0


def test_copies_of_a_dead_owner_are_found_in_a_queue_that_was_split(calm: Client) -> None:
    """What a relay has sent stays where it was sent; what it sends then goes to the children."""
    calm.admin.create_topic("copies", queues=1)
    session = calm._session

    async def owners() -> None:
        old = Relay(session.cluster, "split-relay")
        await old.prepare(["copies"], afresh=True)
        attempt = old.attempt(1)
        await old.wait(old.send([Copy("copies", b"k", b"left", [], 1)]))
        await session.admin.split_queue("copies", 0, 2)
        await old.wait(old.send([Copy("copies", b"k", b"more", [], 1)]))
        found = await settle(session.cluster, session.runtime, attempt)
        assert sorted(m.value or b"" for m in found) == [b"left", b"more"]
        with pytest.raises(ProducerFenced):
            await old.wait(old.send([Copy("copies", b"k", b"late", [], 1)]))
        old.close()

    session.run(owners())


def test_a_group_is_reset_on_parents_and_children(calm: Client) -> None:
    calm.admin.create_topic("resets", queues=1)
    with calm.producer() as producer:
        producer.send("resets", b"1", key=b"k").result(10)
        calm.admin.split_queue("resets", 0)
        producer.send("resets", b"2", key=b"k").result(10)
    for _ in range(2):
        with calm.consumer("again", ["resets"]) as consumer:
            seen: list[bytes | None] = []
            while len(seen) < 2:
                seen += [message.value for message in consumer.poll(timeout=10)]
                consumer.commit()
        assert seen == [b"1", b"2"]
        calm.admin.reset_offsets("again", "resets", "earliest")


def test_spark_reads_parents_and_children(calm: Client) -> None:
    calm.admin.create_topic("columns", queues=1)
    with calm.producer() as producer:
        producer.send("columns", b"1", key=b"k").result(10)
        calm.admin.split_queue("columns", 0)
        producer.send("columns", b"2", key=b"k").result(10)
    states = {state.queue: state for state in describe(calm, Topics(names=("columns",)))}
    assert sorted(states) == [0, 1, 2]
    assert sum(state.log_end_offset for state in states.values()) == 2


def test_a_split_topic_is_deleted_whole_and_may_come_again(calm: Client) -> None:
    calm.admin.create_topic("again", queues=1)
    with calm.producer() as producer:
        producer.send("again", b"1", key=b"k").result(10)
        calm.admin.split_queue("again", 0)
        producer.send("again", b"2", key=b"k").result(10)
        calm.admin.delete_topic("again")
        calm.admin.create_topic("again", queues=1)
        with calm.reader("again", end="latest") as reader:
            assert list(reader) == []
        with pytest.raises((UnknownQueue, UnknownTopic)):
            producer.send("again", b"3", key=b"k").result(10)
        assert producer.send("again", b"3", key=b"k").result(10).queue == 0
    assert calm.admin.verify("again").messages == 1
