"""A connection of Kombu to a cluster: topics of queues, what is sent to them, feeds of them.

How it works. A queue is a topic, and the consumer group of the same name reads it. A message for
several queues is sent in one transaction, so all of them get it or none.

A *passing* queue (`auto_delete` or `exclusive`: replies, remote control, events) has a small topic
whose messages stay for an hour, and keeps no dead letters. When one is declared that nobody reads,
what it still has is passed over: a broker of AMQP would have deleted it with its last reader.

Not here: exchanges (`bindings.py`), Kombu's own shapes (`channel.py`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from semel.client import Client, Consumer, Producer, SemelError, connect
from semel.client.core.letters import retry_topic
from semel.contrib.kombu.bindings import Bindings
from semel.contrib.kombu.envelope import outgoing
from semel.contrib.kombu.names import bindings_topic, topic_of
from semel.contrib.kombu.options import TransportOptions
from semel.contrib.kombu.queue_feed import QueueFeed
from semel.protos.errors import InvalidRequest, UnknownGroup, UnknownTopic

logger = logging.getLogger(__name__)

PASSING_RETENTION_MS: Final = 3_600_000


class ClusterLink:
    """A client and what Kombu needs of it. Threads may share it."""

    def __init__(
        self,
        address: str,
        options: TransportOptions,
        *,
        virtual_host: str,
        connect_timeout_s: float,
    ) -> None:
        """Connects. Raises Unavailable, InvalidRequest."""
        self.options = options
        self._virtual_host = virtual_host
        timeout_ms = max(1, round(connect_timeout_s * 1000))
        settings = {"connect_timeout_ms": timeout_ms, **options.client}
        self._client: Client = connect(options.bootstrap or address, **settings)
        self._producer: Producer = self._client.producer()
        self.bindings = Bindings(self._client, self._producer, bindings_topic(virtual_host))
        self._lock = threading.Lock()
        self._known: set[str] = set()
        """Topics that exist, as far as this connection knows."""
        self._passing: set[str] = set()
        self._ttl_ms: dict[str, int] = {}
        self._transaction_id = f"kombu-{uuid4().hex}"

    def topic(self, queue: str) -> str:
        return topic_of(queue, self._virtual_host)

    # --- queues ---------------------------------------------------------------------------------

    def declare(self, queue: str, *, passing: bool, ttl_ms: int | None) -> None:
        """Makes a queue's topic unless it exists. Raises SemelError."""
        topic = self.topic(queue)
        with self._lock:
            if ttl_ms is not None:
                self._ttl_ms[queue] = ttl_ms
            if topic in self._known:
                return
            if passing:
                self._passing.add(queue)
            made = self._create(topic, passing=passing)
            self._known.add(topic)
        if passing and not made:
            self._pass_over(topic)

    def _create(self, topic: str, *, passing: bool) -> bool:
        """Returns whether there was no such topic."""
        if self._exists(topic):
            return False
        if passing:
            return self._client.admin.create_topic(
                topic, queues=1, retention_ms=PASSING_RETENTION_MS, if_not_exists=True
            )
        options = self.options
        return self._client.admin.create_topic(
            topic, queues=options.queues, dedup=options.dedup(), if_not_exists=True
        )

    def _exists(self, topic: str) -> bool:
        try:
            self._client.admin.describe_topic(topic)
        except UnknownTopic:
            return False
        return True

    def _pass_over(self, topic: str) -> None:
        with contextlib.suppress(UnknownGroup, InvalidRequest):
            if not self._client.admin.describe_group(topic).members:
                self._client.admin.reset_offsets(topic, topic, "latest")

    def has(self, queue: str) -> bool:
        return self._exists(self.topic(queue))

    def ttl_ms(self, queue: str) -> int | None:
        """The most that a message of the queue may wait, milliseconds; None for no limit."""
        return self._ttl_ms.get(queue)

    def size(self, queue: str) -> int:
        """Number of messages that are not acknowledged, without those that are held back. Raises
        SemelError."""
        topic = self.topic(queue)
        try:
            described = self._client.admin.describe_topic(topic)
        except UnknownTopic:
            return 0
        committed: dict[int, int] = {}
        with contextlib.suppress(UnknownGroup):
            for each in self._client.admin.describe_group(topic).queues:
                if each.topic == topic:
                    committed[each.queue] = each.committed_offset
        return sum(
            max(0, each.log_end_offset - max(each.log_start_offset, committed.get(each.queue, -1)))
            for each in described.queues
        )

    def purge(self, queue: str) -> int:
        """Passes over all messages that are there now; returns how many. Raises SemelError."""
        size = self.size(queue)
        if size:
            topic = self.topic(queue)
            self._client.admin.reset_offsets(topic, topic, "latest")
        return size

    def delete(self, queue: str) -> None:
        """Deletes a queue with its bindings, its progress and its retries. Dead letters stay.
        Raises SemelError."""
        topic = self.topic(queue)
        self.bindings.remove_queue(queue)
        with contextlib.suppress(UnknownGroup, InvalidRequest):  # another member is still there
            self._client.admin.delete_group(topic)
        steps = len(self.options.retry_steps_ms)
        for name in [topic, *(retry_topic(topic, step) for step in range(1, steps + 1))]:
            self._client.admin.delete_topic(name, if_exists=True)
        self._forget(queue)

    def is_unused(self, queue: str) -> bool:
        """Whether no connection consumes the queue. Raises SemelError."""
        try:
            return not self._client.admin.describe_group(self.topic(queue)).members
        except UnknownGroup:
            return True

    # --- messages -------------------------------------------------------------------------------

    def send(self, queues: Sequence[str], message: Mapping[str, Any], *, make: bool) -> None:
        """Returns once a message is stored for all queues. A queue that does not exist is made, or
        (`make=False`) left out, as by a broker of AMQP. Raises SemelError."""
        sent = outgoing(message, time.time_ns() // 1000)
        fields: dict[str, Any] = {
            "key": sent.key,
            "headers": sent.headers,
            "deliver_at": sent.deliver_at_us,
            "message_id": sent.message_id,
        }
        if make:
            for queue in queues:
                self.declare(queue, passing=False, ttl_ms=None)
        topics = [self.topic(queue) for queue in queues]
        if len(topics) > 1:
            topics = [topic for topic in topics if make or self._exists(topic)]
        if len(topics) > 1:
            with self._lock, self._producer.transaction(self._transaction_id) as transaction:
                for topic in topics:
                    transaction.send(topic, sent.value, **fields)
            return
        for topic, queue in zip(topics, queues, strict=False):
            try:
                self._producer.send(topic, sent.value, **fields).result()
            except UnknownTopic:
                self._forget(queue)
                if not make:
                    logger.info("nothing is sent to a queue that is gone topic=%s", topic)
                    return
                self.declare(queue, passing=False, ttl_ms=None)
                self._producer.send(topic, sent.value, **fields).result()

    def _forget(self, queue: str) -> None:
        with self._lock:
            self._known.discard(self.topic(queue))
            self._passing.discard(queue)
            self._ttl_ms.pop(queue, None)

    def open_feed(self, queue: str) -> QueueFeed:
        """Joins a queue's consumer group. Raises SemelError."""
        topic = self.topic(queue)
        self.declare(queue, passing=False, ttl_ms=None)
        policy = None if queue in self._passing else self.options.retry_policy()
        options = self.options.consumer_options()
        consumer: Consumer = self._client.consumer(topic, topic, retry=policy, **options)
        retries = policy is not None and bool(policy.steps_ms)
        return QueueFeed(consumer, keeps_letters=policy is not None, retries=retries)

    def close(self) -> None:
        """Ends the producer and disconnects."""
        with contextlib.suppress(SemelError):
            self.bindings.close()
        with contextlib.suppress(SemelError):
            self._client.close()
