"""Queues move between groups while everything goes on: nothing lost, twice, or out of order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.client import Client, SendFuture, connect
from semel.client.admin.descriptions import QueueMove
from semel.protos.errors import InvalidRequest, LockLost, SemelError, UnknownGroup, UnknownQueue
from tests.kit.cluster import Cluster
from tests.kit.split_load import Group, Load, check_stored, first_deliveries, wait_stored


class Slow(Load):
    """A load that leaves the machine to the moves."""

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            for _ in range(20):
                self.send(number)
                number += 1
            time.sleep(0.04)


class Losing(Group):
    """Consumers that lose their locks now and then, as with every move, and go on."""

    lost = 0

    def _run(self) -> None:
        with self._client.consumer("g", ["t"]) as consumer:
            while not self._stop.is_set():
                messages = consumer.poll(timeout=0.2, max_messages=2_000)
                self.delivered += [(message.key, message.value) for message in messages]
                if messages:
                    try:
                        consumer.commit()
                    except LockLost:
                        self.lost += 1


def moved(client: Client, topic: str, queue: int, timeout: float = 90.0) -> QueueMove | None:
    """Waits for the end of a move; what is told of it then: None when the queue has arrived."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            found = [each for each in client.admin.list_moves(topic) if each.queue == queue]
        except SemelError:
            found = [None]  # type: ignore[list-item]  # between two controllers
        if not found or (found[0] is not None and found[0].stage == "aborted"):
            return found[0] if found else None
        assert time.monotonic() < deadline, f"the move stands still: {found}"
        time.sleep(0.02)


def group_of(client: Client, topic: str, queue: int) -> int:
    return client.admin.describe_topic(topic).queues[queue].group


def test_queues_move_under_load_while_masters_and_controllers_are_killed(tmp_path: Path) -> None:
    with (
        Cluster(tmp_path, brokers=3, groups=2, broker_flags=["--move-rate", "400000"]) as cluster,
        connect(cluster.bootstrap) as client,
    ):
        client.admin.create_topic("t", queues=2, groups=[1])
        with (
            client.producer("loader", source_positions=True) as named,
            client.producer() as anonymous,
        ):
            loads = [
                Slow(named, b"n", positions=True),
                Slow(anonymous, b"a", positions=False),
            ]
            consumers = Losing(client, 2)
            wait_stored(client)
            move = client.admin.move_queue("t", 0, 2)
            assert (move.source, move.target) == (1, 2)
            first = cluster.master(1)
            cluster.kill(first)  # the source's master, while it gives
            assert moved(client, "t", 0) is None
            assert group_of(client, "t", 0) == 2
            cluster.start_node(first)

            client.admin.move_queue("t", 1, 2)
            cluster.kill(cluster.controller)  # it alone knows what is to be done next
            target = cluster.master(2)
            cluster.kill(target)
            cluster.start_node(cluster.controller)
            assert moved(client, "t", 1) is None
            assert group_of(client, "t", 1) == 2
            cluster.start_node(target)

            client.admin.move_queue("t", 0, 1)  # and back
            assert moved(client, "t", 0) is None
            assert group_of(client, "t", 0) == 1
            sent: dict[bytes, SendFuture] = {}
            for load in loads:
                load.stop()
                sent |= load.sent
        consumers.wait_for(len(sent), 90)
        consumers.stop()
        check_stored(client, sent)
        assert {value for _, value in consumers.delivered} == set(sent)
        for key, values in first_deliveries(consumers.delivered).items():
            assert values == sorted(values), f"out of order: {key!r}"
        for group in (1, 2):
            cluster.wait_caught_up(group)
        result = client.admin.verify("t")
        assert result.ok, result.problems
        assert result.messages == len(sent)
        assert result.nodes_compared == 6


@pytest.fixture(scope="module")
def pair(module_path: Path) -> Iterator[Cluster]:
    """Two groups of one node."""
    cluster = Cluster(module_path / "pair", brokers=1, groups=2)
    with cluster:
        yield cluster


def test_a_producer_and_a_consumer_that_were_away_find_the_queue(pair: Cluster) -> None:
    """Routes that are older than the move: whoever is asked says where the queue is."""
    with connect(pair.bootstrap) as client, connect(pair.bootstrap) as mover:
        client.admin.create_topic("away", queues=1, groups=[1])
        with client.producer("p") as producer, client.consumer("g", ["away"]) as consumer:
            producer.send("away", b"0").result(30)
            (message,) = consumer.poll(timeout=30, max_messages=1)
            consumer.commit()
            late = producer.send("away", b"1").result(30)
            (held,) = consumer.poll(timeout=30, max_messages=1)
            mover.admin.move_queue("away", 0, 2)
            assert moved(mover, "away", 0) is None
            with pytest.raises(LockLost):
                consumer.commit()
            assert producer.send("away", b"2").result(30).offset == 2
            again = [consumer.poll(timeout=30, max_messages=1)[0] for _ in range(2)]
            assert [each.value for each in again] == [b"1", b"2"], "from the committed offset on"
            consumer.commit()
            assert (message.offset, held.offset, late.offset) == (0, 1, 1)
        with client.producer("p") as producer:
            assert producer.send("away", b"3").result(30).offset == 3
        (queue,) = client.admin.describe_group("g").queues
        assert (queue.committed_offset, queue.log_end_offset) == (3, 4)
        (described,) = client.admin.describe_topic("away").queues
        assert (described.group, described.messages) == (2, 4)
        result = client.admin.verify("away")
        assert result.ok, result.problems


def test_a_reader_goes_on_at_the_new_group(pair: Cluster) -> None:
    with connect(pair.bootstrap) as client:
        client.admin.create_topic("read", queues=1, groups=[1])
        with client.producer() as producer:
            values = [b"%d" % number for number in range(50)]
            for value in values[:25]:
                producer.send("read", value).result(30)
            with client.reader("read") as reader:
                found = [reader.poll(timeout=30, max_messages=1)[0] for _ in range(25)]
                client.admin.move_queue("read", 0, 2)
                assert moved(client, "read", 0) is None
                for value in values[25:]:
                    producer.send("read", value).result(30)
                while len(found) < 50:
                    found += reader.poll(timeout=30, max_messages=50)
        assert [message.value for message in found] == values


def test_what_a_transaction_stored_moves_too(pair: Cluster) -> None:
    """It was stored before it had offsets; its copies have them."""
    with connect(pair.bootstrap) as client:
        client.admin.create_topic("txn", queues=1, groups=[1])
        with client.producer() as producer:
            producer.send("txn", b"plain").result(30)
            with producer.transaction("job") as transaction:
                for number in range(3):
                    transaction.send("txn", b"%d" % number)
            client.admin.move_queue("txn", 0, 2)
            assert moved(client, "txn", 0) is None
            with producer.transaction("job") as transaction:
                transaction.send("txn", b"later")
        with client.reader("txn", end="latest") as reader:
            found = [(message.offset, message.value) for message in reader]
        assert found == list(enumerate([b"plain", b"0", b"1", b"2", b"later"]))
        result = client.admin.verify("txn")
        assert (result.ok, result.messages) == (True, 5), result.problems


def test_what_is_larger_than_one_request_arrives_whole(pair: Cluster) -> None:
    with connect(pair.bootstrap) as client:
        client.admin.create_topic("large", queues=1, groups=[1])
        with client.producer("big") as producer:
            for _ in range(3):
                producer.send_many("large", [bytes(900_000)] * 8)
            producer.flush()
            stop = threading.Event()
            client.admin.move_queue("large", 0, 2)
            while moved(client, "large", 0) is not None:
                stop.wait(0.02)
            assert producer.send("large", b"end").result(30).offset == 24
        result = client.admin.verify("large")
        assert (result.ok, result.messages) == (True, 25), result.problems
        bytes_of = {
            node.group: pair.status(node).disk_bytes for node in pair.brokers if node.running
        }
        assert bytes_of[2] > 0


def test_what_cannot_be_moved_is_told(pair: Cluster) -> None:
    with connect(pair.bootstrap) as client:
        client.admin.create_topic("no", queues=1, groups=[1])
        with pytest.raises(UnknownGroup):
            client.admin.move_queue("no", 0, 9)
        with pytest.raises(UnknownQueue):
            client.admin.move_queue("no", 5, 2)
        with pytest.raises(InvalidRequest, match="already"):
            client.admin.move_queue("no", 0, 1)
        with pytest.raises(InvalidRequest, match="not being moved"):
            client.admin.cancel_move("no", 0)
        with client.producer() as producer:
            producer.send("no", b"x").result(30)
        children = client.admin.split_queue("no", 0)
        with pytest.raises(InvalidRequest, match="still holds 1 messages"):
            client.admin.move_queue("no", children[0], 2)
