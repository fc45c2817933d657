"""A topic that is written and read from threads while its queues are split or moved."""

from __future__ import annotations

import threading
import time

from semel.client import Client, Producer, SendFuture
from tests.kit.waiting import until

KEYS = 40


class Load:
    """Sends from a thread until stopped: mostly keyed messages, each key's values rising."""

    def __init__(self, producer: Producer, name: bytes, *, positions: bool) -> None:
        self.sent: dict[bytes, SendFuture] = {}
        self._producer = producer
        self._name = name
        self._positions = positions
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            for _ in range(20):
                self.send(number)
                number += 1
            time.sleep(0.002)

    def send(self, number: int) -> SendFuture:
        value = self._name + b":%08d" % number
        key = self._name + b"%d" % (number % KEYS) if number % 7 else None
        future = self._producer.send(
            "t", value, key=key, position=number if self._positions else None
        )
        self.sent.setdefault(value, future)
        return future

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        self._producer.flush()


class Group:
    """Consumers of one group, each in a thread; `delivered` is in the order of processing."""

    def __init__(self, client: Client, members: int) -> None:
        self.delivered: list[tuple[bytes | None, bytes]] = []
        self._client = client
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(members)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        with self._client.consumer("g", ["t"]) as consumer:
            while not self._stop.is_set():
                messages = consumer.poll(timeout=0.2, max_messages=200)
                for message in messages:
                    self.delivered.append((message.key, message.value))
                if messages:
                    consumer.commit()

    def wait_for(self, count: int, timeout: float) -> None:
        until(lambda: len(set(self.delivered)) >= count, timeout, f"{count} to be delivered")

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)


def first_deliveries(delivered: list[tuple[bytes | None, bytes]]) -> dict[bytes, list[bytes]]:
    """Values of each key in the order in which they were first seen."""
    found: dict[bytes, dict[bytes, None]] = {}
    for key, value in delivered:
        if key is not None:
            found.setdefault(key, {})[value] = None
    return {key: list(values) for key, values in found.items()}


def wait_stored(client: Client) -> None:
    """Returns once every open queue has messages."""

    def stored() -> bool:
        queues = client.admin.describe_topic("t").queues
        return all(queue.messages for queue in queues if not queue.sealed)

    until(stored, 60, "messages in every queue")


def check_stored(client: Client, sent: dict[bytes, SendFuture]) -> None:
    """Checks that every message is stored once, where its future says, and each key in order: a
    parent, whose number is lower, stands before its children."""
    with client.reader("t", end="latest") as reader:
        messages = list(reader)
    values = [message.value for message in messages]
    assert len(set(values)) == len(values), "stored twice"
    assert set(values) == set(sent), "lost, or invented"
    newest: dict[bytes, bytes] = {}
    for message in sorted(messages, key=lambda each: (each.queue, each.offset)):
        metadata = sent[message.value].result(0)
        assert metadata.queue == message.queue
        assert metadata.offset in (message.offset, -1)
        if message.key is not None:
            assert newest.get(message.key, b"") < message.value, "reordered"
            newest[message.key] = message.value
