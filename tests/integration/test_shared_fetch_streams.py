"""All readers and consumers of a client have one connection to a broker, and go on without one
another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from semel.client import Client, Consumer, Reader, connect
from semel.client.transport.connection import Purpose
from semel.client.transport.fetch_streams import OLD_SEATS_MAX
from semel.client.transport.streams import Stream, Streams
from tests.kit.cluster import Cluster, Node
from tests.kit.waiting import until

TOPICS = [f"topic-{number}" for number in range(5)]
READERS = 50
MESSAGES = 20
LARGE = 500_000


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster") as cluster:
        yield cluster


def direct_connections(node: Node) -> int:
    """Connections of this process to the node's port for streams."""
    listens = {
        each.laddr.port
        for each in psutil.Process(node.pid).net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    } - {int(node.address.rpartition(":")[2])}
    return sum(
        each.status == psutil.CONN_ESTABLISHED and bool(each.raddr) and each.raddr.port in listens
        for each in psutil.Process().net_connections("tcp")
    )


def values_of(topic: str, turn: int) -> list[bytes]:
    return [b"%s/%d/%d" % (topic.encode(), turn, number) for number in range(MESSAGES)]


def expect(source: Reader | Consumer, topic: str, turn: int) -> None:
    """Takes the messages of a turn, and no other ones."""
    found: list[bytes] = []

    def all_there() -> bool:
        found.extend(message.value for message in source.poll(1_000, timeout=0.2))
        return len(found) >= MESSAGES

    until(all_there, within_s=30, what=f"turn {turn} of {topic}")
    assert sorted(found) == sorted(values_of(topic, turn))


def test_fifty_readers_and_three_consumers_share_a_connection_and_survive_its_master(
    running: Cluster,
) -> None:
    with ExitStack() as stack:
        client = stack.enter_context(connect(running.bootstrap))
        for topic in TOPICS:
            client.admin.create_topic(topic, queues=2)
        producer = stack.enter_context(client.producer())
        readers = [
            (stack.enter_context(client.reader(TOPICS[number % len(TOPICS)])), number)
            for number in range(READERS)
        ]
        consumers = [
            (stack.enter_context(client.consumer(f"group-{topic}", topic)), topic)
            for topic in TOPICS[:3]
        ]

        def turn(number: int) -> None:
            for topic in TOPICS:
                producer.send_many(topic, values_of(topic, number))
            producer.flush()
            for reader, of in readers:
                expect(reader, TOPICS[of % len(TOPICS)], number)
            for consumer, topic in consumers:
                expect(consumer, topic, number)
                consumer.commit()

        turn(1)
        master = running.master()
        assert direct_connections(master) == 2, "one for produce, one for fetch"
        running.kill(master)
        turn(2)
        assert direct_connections(running.master()) == 2
        for reader, _ in readers[::2]:
            reader.close()
        consumers.pop()[0].close()
        del readers[::2]
        turn(3)
        assert direct_connections(running.master()) == 2
        for reader, _ in readers:
            reader.close()
        for consumer, _ in consumers:
            consumer.close()
        until(lambda: direct_connections(running.master()) == 1, what="the end of the last fetch")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[Purpose]:
    """Streams that were opened."""
    found: Counter[Purpose] = Counter()
    original = Streams.open

    async def counted(self: Streams, address: str, purpose: Purpose) -> Stream:
        found[purpose] += 1
        return await original(self, address, purpose)

    monkeypatch.setattr(Streams, "open", counted)
    return found


def take_all(reader: Reader, count: int) -> None:
    seen = 0
    while seen < count:
        batch = reader.poll_arrow(timeout=20)
        assert batch is not None, f"{seen} of {count}"
        seen += batch.num_rows
    assert seen == count


@pytest.mark.parametrize("way", ["memory", "direct", "grpc"])
def test_a_slow_reader_is_in_nobodys_way(
    shared_cluster: Cluster, client: Client, opened: Counter[Purpose], way: str
) -> None:
    count = 120
    client.admin.create_topic(f"slow-{way}", queues=1)
    client.admin.create_topic(f"new-{way}", queues=1)
    with client.producer() as producer:
        for number in range(count):
            producer.send(f"slow-{way}", bytes([number]) * LARGE)
    opened.clear()
    options = {"shared_memory": way == "memory", "direct_streams": way != "grpc"}
    sizes: dict[str, Any] = {"fetch_bytes": 2 * LARGE, "prefetch_bytes": 4 * LARGE}
    with (
        connect(shared_cluster.bootstrap, **options) as own,
        own.reader(f"slow-{way}", **sizes) as slow,
        own.reader(f"new-{way}", start="latest") as waiting,
        own.producer() as producer,
    ):
        assert len(slow.poll(1, timeout=20)) == 1
        for number in range(3):
            with own.reader(f"slow-{way}", **sizes) as fast:
                take_all(fast, count)
            producer.send(f"new-{way}", b"%d" % number).result(timeout=20)
            (message,) = waiting.poll(1, timeout=20)
            assert message.value == b"%d" % number
            # It has what it has room for, and the answers that were under way when it was full.
            assert slow._feed.buffered <= 4 * LARGE + 2 * 2 * LARGE
        take_all(slow, count - 1)
    assert opened[Purpose.FETCH] == 1


def test_readers_of_an_old_broker_have_as_many_streams_as_it_takes(
    shared_cluster: Cluster,
    client: Client,
    opened: Counter[Purpose],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original: Callable[..., object] = Streams._open

    async def old(self: Streams, address: str, purpose: Purpose, patience_s: float) -> object:
        stream = await original(self, address, purpose, patience_s)  # type: ignore[misc]
        stream.levels.max = 8
        return stream

    monkeypatch.setattr(Streams, "_open", old)
    client.admin.create_topic("old", queues=1)
    with client.producer() as producer:
        producer.send_many("old", values_of("old", 1))
    opened.clear()
    with ExitStack() as stack:
        own = stack.enter_context(connect(shared_cluster.bootstrap))
        for _ in range(OLD_SEATS_MAX + 1):
            expect(stack.enter_context(own.reader("old")), "old", 1)
    assert opened[Purpose.FETCH] == 2
