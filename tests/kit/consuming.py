"""Messages for a consumer's test: topics are filled, and a number of messages is taken."""

from __future__ import annotations

import time

from semel.client import Client, Consumer, Message


def fill(client: Client, topic: str, count: int, first: int = 0) -> list[bytes]:
    values = [b"%06d" % number for number in range(first, first + count)]
    with client.producer() as producer:
        for queue in range(4):
            producer.send_many(topic, values[queue::4], queue=queue).result(10)
    return values


def take(consumer: Consumer, count: int, timeout: float = 15.0) -> list[Message]:
    found: list[Message] = []
    deadline = time.monotonic() + timeout
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} came"
        found += consumer.poll(timeout=0.2)
    return found


def values_of(messages: list[Message]) -> list[bytes]:
    return sorted(message.value for message in messages)
