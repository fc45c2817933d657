"""Three controllers as processes: killed, paused, all lost, and come back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.client import Client, SemelError, connect
from tests.kit.cluster import Cluster, Node
from tests.kit.waiting import until

PATIENCE_S = 30.0


class Sender:
    """A thread that sends one message after the other and awaits each; the first error ends it."""

    def __init__(self, client: Client, topic: str) -> None:
        self.acknowledged = 0
        self.error: SemelError | None = None
        self._client = client
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def goes_on(self) -> None:
        """Waits for two more acknowledgements: the second was sent after this was called."""
        wanted = self.acknowledged + 2
        until(lambda: self.error or self.acknowledged >= wanted, PATIENCE_S, "messages")
        assert self.error is None

    def _run(self) -> None:
        try:
            with self._client.producer() as producer:
                while not self._stop.is_set():
                    producer.send(self._topic, b"x").result(PATIENCE_S)
                    self.acknowledged += 1
        except SemelError as error:
            self.error = error


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, brokers=1, controllers=3) as running:
        yield running


def roles(cluster: Cluster, node: Node) -> dict[int, str]:
    """Roles of all controllers as one of them sees them; "silent" for who does not live."""
    status = cluster.controller_status(node, standby=True)
    found = status.controllers if status is not None else []
    return {c.controller_id: c.role if c.alive else "silent" for c in found}


def starts_without_controllers(bootstrap: str, *, keep_routes: bool) -> None:
    """A client that starts now finds its way, and a topic that this one never used."""
    with connect(bootstrap, keep_routes=keep_routes) as client, client.producer() as producer:
        producer.send("orders", b"x").result(PATIENCE_S)


def busy(client: Client) -> bool:
    """The only broker has told of messages in and out, and of its disk."""
    ((node,),) = (group.nodes for group in client.admin.cluster_status().groups)
    assert node.produced_bytes >= node.produced_messages
    return bool(node.produced_messages and node.fetched_bytes and node.disk_total_bytes)


def test_losing_controllers_costs_no_message_and_no_metadata(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMEL_ROUTES_DIRECTORY", str(tmp_path / "routes"))
    first = cluster.active_controller()
    standby = next(node for node in cluster.controllers if node != first)
    with connect(standby.address) as client:  # it learns of the others
        client.admin.create_topic("orders", queues=2)
        consumer = client.consumer("readers", ["orders"], auto_offset_reset="earliest")
        with Sender(client, "orders") as sender, consumer:
            sender.goes_on()
            assert consumer.poll(max_messages=1, timeout=PATIENCE_S)
            consumer.commit()
            until(lambda: busy(client), PATIENCE_S, "the broker to report what it does")
            cluster.kill(first)
            sender.goes_on()
            client.admin.create_topic("killed", queues=1)
            cluster.start_node(first)

            second = cluster.active_controller()
            assert second != first
            until(
                lambda: sorted(roles(cluster, second).values()) == ["master", "standby", "standby"],
                PATIENCE_S,
                "the killed controller's return",
            )
            cluster.pause(second)
            sender.goes_on()
            client.admin.create_topic("paused", queues=1)
            third = cluster.active_controller()
            assert third != second
            cluster.resume(second)
            until(
                lambda: roles(cluster, second).get(second.id) == "standby",
                PATIENCE_S,
                "the paused controller to know that it was replaced",
            )

            held = consumer.assignment()
            for node in cluster.controllers:
                cluster.kill(node)
            sender.goes_on()
            assert consumer.poll(max_messages=1, timeout=PATIENCE_S)
            consumer.commit()
            starts_without_controllers(cluster.bootstrap, keep_routes=True)
            starts_without_controllers(cluster.brokers[0].address, keep_routes=False)
            with pytest.raises(SemelError):  # and it is the file, and the copy
                starts_without_controllers(cluster.bootstrap, keep_routes=False)
            for node in cluster.controllers:
                cluster.start_node(node)
            cluster.active_controller()
            sender.goes_on()
            client.admin.create_topic("lost", queues=1)
            assert consumer.assignment() == held
            assert [topic.name for topic in client.admin.list_topics()] == [
                "killed",
                "lost",
                "orders",
                "paused",
            ]
