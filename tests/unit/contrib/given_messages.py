"""Messages and a consumer for units that do not need those of a cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from semel.client import Consumer, Message
from semel.client.core.letters import Origin
from semel.contrib.kombu.deliveries import Delivery, Place


class GivenRows(NamedTuple):
    token: int


@dataclass(kw_only=True)
class GivenMessage:
    """What the transport reads of a message."""

    topic: str = "work"
    queue: int = 0
    offset: int = 0
    token: int = 1
    value: bytes | None = b""
    headers: list[tuple[str, bytes]] = field(default_factory=list)
    attempt: int = 1
    timestamp_us: int = 1_000_000

    @property
    def rows(self) -> GivenRows:
        return GivenRows(self.token)

    @property
    def origin(self) -> Origin:
        return Origin(self.topic, self.queue, self.offset)


def message(**fields: Any) -> Message:
    return cast(Message, GivenMessage(**fields))


def delivery(offset: int, *, queue: int = 0, token: int = 1) -> Delivery:
    given = message(offset=offset, queue=queue, token=token)
    return Delivery(message=given, place=Place("work", queue), token=token, offset=offset)


class GivenConsumer:
    """Gives out what it has, and notes what is asked of it."""

    def __init__(self) -> None:
        self.ready: deque[Message] = deque()
        self.calls: list[tuple[str, int]] = []
        self.on_commit: Callable[[Message], None] = lambda message: None
        self.closed = False

    def poll(self, max_messages: int, timeout: float) -> list[Message]:
        assert (max_messages, timeout) == (1, 0)
        return [self.ready.popleft()] if self.ready else []

    def commit(self, given: Message) -> None:
        self.on_commit(given)
        self.calls.append(("commit", given.offset))

    def retry(self, given: Message, reason: str) -> None:
        self.calls.append(("retry", given.offset))

    def reject(self, given: Message, reason: str) -> None:
        self.calls.append(("reject", given.offset))

    def close(self) -> None:
        self.closed = True

    def as_consumer(self) -> Consumer:
        return cast(Consumer, self)
