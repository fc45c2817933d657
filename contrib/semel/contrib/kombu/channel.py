"""A channel of Kombu on topics: what Kombu calls a queue, an exchange, an acknowledgement.

How it works. Kombu's virtual channel makes messages and calls the consumers; this one says where
messages come from and go to. A message that is delivered gets a tag, under which the connection
remembers which feed gave it out.

Not here: topics and groups (`cluster_link.py`), commits (`queue_feed.py`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from queue import Empty
from typing import Any, Final

from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments

from semel.client import SemelError
from semel.contrib.kombu.bindings import Binding
from semel.contrib.kombu.cluster_link import ClusterLink
from semel.contrib.kombu.deliveries import Delivery
from semel.contrib.kombu.envelope import incoming, is_expired
from semel.contrib.kombu.queue_feed import QueueFeed, Verdict

_LOOK_PAUSE_S: Final = 0.02


class QoS(virtual.QoS):  # type: ignore[misc]
    """The messages that consumers have not settled: limits them, and settles them at the feeds."""

    restore_at_shutdown = False

    def ack(self, delivery_tag: str) -> None:
        self.channel.connection.settle(delivery_tag, Verdict.DONE)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        verdict = Verdict.AGAIN if requeue else Verdict.REJECT
        self.channel.connection.settle(delivery_tag, verdict)
        super().ack(delivery_tag)

    def restore_unacked(self) -> list[Any]:
        """Has everything that is not settled delivered again to this channel."""
        self._flush()
        for tag in list(self._delivered):
            self.reject(tag, requeue=True)
        self._flush()
        return []

    def restore_unacked_once(self, stderr: object = None) -> None:
        """A no-op: what was not settled is delivered again because nothing has committed it."""
        self._on_collect.cancel()


class Channel(virtual.Channel):  # type: ignore[misc]
    """A channel; it belongs to one thread, except that any thread may settle messages."""

    QoS = QoS
    supports_fanout = True
    do_restore = False
    body_encoding = None  # the body stays as it is

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._feeds: dict[str, QueueFeed] = {}
        self._passing: set[str] = set()

    @property
    def link(self) -> ClusterLink:
        link: ClusterLink = self.connection.link
        return link

    # --- queues ---------------------------------------------------------------------------------

    def prepare_queue_arguments(self, arguments: Any, **kwargs: Any) -> Any:
        return to_rabbitmq_queue_arguments(arguments or {}, **kwargs)

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        passing = bool(kwargs.get("auto_delete") or kwargs.get("exclusive"))
        ttl_ms = (kwargs.get("arguments") or {}).get("x-message-ttl")
        self.link.declare(queue, passing=passing, ttl_ms=None if ttl_ms is None else int(ttl_ms))
        if passing:
            self._passing.add(queue)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return self.link.has(queue)

    def _size(self, queue: str) -> int:
        return self.link.size(queue)

    def _purge(self, queue: str) -> int:
        return self.link.purge(queue)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any
    ) -> None:
        """Deletes a queue, unless it is used or has messages and the caller minds that."""
        if (if_empty and self._size(queue)) or (if_unused and queue in self._active_queues):
            return
        feed = self._feeds.pop(queue, None)
        if feed is not None:
            feed.close()
        if if_unused and not self.link.is_unused(queue):
            return
        self._passing.discard(queue)
        self.link.delete(queue)

    # --- exchanges ------------------------------------------------------------------------------

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **kwargs: Any,
    ) -> None:
        """Binds a queue for all programs."""
        exchange = exchange or "amq.direct"
        self.link.bindings.add(exchange, self._binding(queue, exchange, routing_key, arguments))

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **kwargs: Any,
    ) -> None:
        """Ends a binding for all programs."""
        exchange = exchange or "amq.direct"
        self.link.bindings.remove(exchange, self._binding(queue, exchange, routing_key, arguments))

    def _binding(self, queue: str, exchange: str, routing_key: str, arguments: Any) -> Binding:
        kind = self.typeof(exchange)
        return Binding(*kind.prepare_bind(queue, exchange, routing_key or "", arguments))

    def get_table(self, exchange: str) -> list[Binding]:
        """Returns the bindings of an exchange as of now."""
        return self.link.bindings.of_exchange(exchange)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Ends all bindings of an exchange; the queues stay."""
        table = self.get_table(exchange)
        if if_unused and table:
            return
        for binding in table:
            self.link.bindings.remove(exchange, binding)
        self.state.exchanges.pop(exchange, None)

    # --- sending --------------------------------------------------------------------------------

    def basic_publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any
    ) -> None:
        """Returns once the message is durable in every queue that it is routed to."""
        self._inplace_augment_message(message, exchange, routing_key)
        found = self._lookup(exchange, routing_key) if exchange else [routing_key]
        queues = sorted({queue for queue in found if queue})
        if queues:
            self.link.send(queues, message, make=not exchange)

    def _put(self, queue: str, message: Mapping[str, Any], **kwargs: Any) -> None:
        self.link.send([queue], message, make=True)

    # --- receiving ------------------------------------------------------------------------------

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[Any], Any],
        consumer_tag: str,
        **kwargs: Any,
    ) -> None:
        """Consumes a queue. Without acknowledgements a message is done before it is delivered."""
        self._feed(queue)

        def deliver(message: Any) -> Any:
            if no_ack:
                self.connection.settle(message.delivery_tag, Verdict.DONE)
            return callback(message)

        super().basic_consume(queue, no_ack, deliver, consumer_tag, **kwargs)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Ends a consumer; what it has not settled may still be settled."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues:
            if queue in self._passing:
                with contextlib.suppress(SemelError):
                    self.queue_delete(queue, if_unused=True)
            elif queue in self._feeds:
                self._feeds[queue].rest()

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Returns one message, or None when there is none that this connection could get."""
        try:
            payload = self._look(queue)
            if payload is None:
                return None
            message = self.Message(payload, channel=self)
            if no_ack:
                self.connection.settle(message.delivery_tag, Verdict.DONE)
            else:
                self.qos.append(message, message.delivery_tag)
            return message
        finally:
            feed = self._feeds.get(queue)
            if feed is not None and queue not in self._active_queues:
                feed.rest()  # a member that only looks would keep locks

    def _look(self, queue: str) -> dict[str, Any] | None:
        deadline = time.monotonic() + self.link.options.look_ms / 1000
        while True:
            with contextlib.suppress(Empty):
                return self._get(queue)
            outstanding = self._feed(queue).outstanding
            if self._size(queue) <= outstanding or time.monotonic() >= deadline:
                return None
            time.sleep(_LOOK_PAUSE_S)

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        """Returns the next message that has not expired. Raises Empty."""
        feed = self._feed(queue)
        while (delivery := feed.take()) is not None:
            payload = self._payload(delivery)
            message = delivery.message
            ttl_ms, now_us = self.link.ttl_ms(queue), time.time_ns() // 1000
            if not is_expired(payload, message.timestamp_us, ttl_ms, now_us):
                self.connection.remember(payload["properties"]["delivery_tag"], feed, delivery)
                return payload
            feed.settle(delivery, Verdict.DONE)
        raise Empty

    def _payload(self, delivery: Delivery) -> dict[str, Any]:
        tag = self._next_delivery_tag()
        return incoming(delivery.message, tag, redelivered=delivery.redelivered)

    def _feed(self, queue: str) -> QueueFeed:
        feed = self._feeds.get(queue)
        if feed is None or not feed.wake():
            feed = self._feeds[queue] = self.link.open_feed(queue)
        return feed

    def feeds(self) -> Iterable[QueueFeed]:
        """Returns the feeds of this channel."""
        return list(self._feeds.values())

    def close(self) -> None:
        """Ends all consumers; what is not settled is delivered again."""
        if not self.closed:
            for feed in self.feeds():
                feed.rest()
        connection = self.connection
        super().close()
        for feed in self.feeds():
            feed.close()
        self._feeds.clear()
        if connection is not None:
            connection.forget_closed()
