"""Which queues are bound to which exchanges, for all programs of a cluster.

How it works. Bindings are a compacted topic: the key is a binding, a value says that it is there,
no value that it is gone. Each connection follows the topic as a table. A router asks for the state
as of now, so that a message sent after a binding was made is routed by it, whoever made it.

Not here: how an exchange chooses among its bindings (Kombu's `transport/virtual/exchange.py`).
"""

from __future__ import annotations

import json
import threading
from typing import Final, NamedTuple

from semel.client import Client, Compaction, Producer, Table

WAIT_S: Final = 15.0
"""Seconds for which a look waits for the state as of now."""


class Binding(NamedTuple):
    """One binding of an exchange, as Kombu's tables have it."""

    routing_key: str
    pattern: str | None
    queue: str


class Bindings:
    """The bindings of a virtual host. Threads may share it."""

    def __init__(self, client: Client, producer: Producer, topic: str) -> None:
        self._client = client
        self._producer = producer
        self._topic = topic
        self._lock = threading.Lock()
        self._table: Table | None = None

    def add(self, exchange: str, binding: Binding) -> None:
        """Returns once the binding is durable. Raises SemelError."""
        key = _key(exchange, binding)
        value = json.dumps(binding.pattern).encode()
        with self._lock:
            if self._now().get(key) != value:
                self._store(key, value)

    def remove(self, exchange: str, binding: Binding) -> None:
        """Raises SemelError."""
        key = _key(exchange, binding)
        with self._lock:
            if key in self._now():
                self._store(key, None)

    def of_exchange(self, exchange: str) -> list[Binding]:
        """Returns the bindings of an exchange as of now. Raises SemelError."""
        return [binding for name, binding in self._all() if name == exchange]

    def remove_queue(self, queue: str) -> None:
        """Removes all bindings of a queue. Raises SemelError."""
        for exchange, binding in self._all():
            if binding.queue == queue:
                self.remove(exchange, binding)

    def close(self) -> None:
        with self._lock:
            if self._table is not None:
                self._table.close()
                self._table = None

    def _all(self) -> list[tuple[str, Binding]]:
        with self._lock:
            found = []
            for key, value in self._now().items():
                exchange, routing_key, queue = json.loads(key)
                found.append((exchange, Binding(routing_key, json.loads(value), queue)))
            return found

    def _now(self) -> Table:
        if self._table is None:
            self._client.admin.create_topic(
                self._topic, queues=1, compaction=Compaction(), if_not_exists=True
            )
            self._table = self._client.table(self._topic)
        self._table.catch_up(WAIT_S)
        return self._table

    def _store(self, key: bytes, value: bytes | None) -> None:
        self._producer.send(self._topic, value, key=key).result()


def _key(exchange: str, binding: Binding) -> bytes:
    return json.dumps([exchange, binding.routing_key, binding.queue]).encode()
