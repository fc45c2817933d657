"""The letters of one dead-letter topic: which there are, and which of them were brought back.

How it works. A topic beside the dead letters, `….redriven`, is the *ledger*: its messages name the
queues and offsets of letters that were brought back. Both are read to their present ends.

Not here: how letters come to be (`dead_letters/retrying.py`), bringing them back
(`dead_letters/redrive.py`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Final

from semel.client.admin.descriptions import Described
from semel.client.config import ReaderConfig
from semel.client.core import letters
from semel.client.core.letters import Origin
from semel.client.core.routing import TopicRoute
from semel.client.message import Message, Value
from semel.client.reading.offsets import list_offsets
from semel.client.reading.pulling import await_ready
from semel.client.reading.reader import ReaderCore
from semel.client.transport.cluster import Cluster
from semel.client.transport.runtime import Runtime
from semel.protos.errors import UnknownTopic

READ_MESSAGES: Final = 500
READ_S: Final = 10.0

Places = tuple[tuple[int, int], ...]
"""(queue, offset) in a dead-letter topic; empty for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """Selects the dead letters that match every field that is given."""

    places: Places = ()
    """(queue, offset) in the dead-letter topic."""
    origin: str = ""
    """The topic in which they were stored first."""
    group: str = ""
    """The consumer group that gave them up."""
    reason: str = ""
    """A part of the reason's text."""
    key: bytes | None = None
    failed_from_us: int = 0
    """Given up at this wall time or later, microseconds since the epoch."""
    failed_until_us: int = 0
    """Given up before this time; 0: no limit."""

    def fits(self, message: Message) -> bool:
        """The message matches."""
        if self.places and (message.queue, message.offset) not in self.places:
            return False
        if self.key is not None and message.key != self.key:
            return False
        letter = letters.read(message.headers)
        return (
            (not self.origin or (letter.origin is not None and letter.origin.topic == self.origin))
            and (not self.group or letter.group == self.group)
            and self.reason in letter.reason
            and letter.failed_us >= self.failed_from_us
            and (not self.failed_until_us or letter.failed_us < self.failed_until_us)
        )


EVERYTHING: Final = LetterFilter()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter(Described):
    """One dead letter."""

    topic: str
    queue: int
    offset: int
    origin: Origin | None
    """None for a message that another program put into the topic."""
    group: str
    attempts: int
    reason: str
    cause: str
    failed_us: int
    redriven: bool
    key: bytes | None
    value: Value
    headers: tuple[tuple[str, bytes], ...]
    """The user's own headers."""
    message_id: bytes | None
    """The message id that the sender chose, or None."""


class DeadLetters:
    """One dead-letter topic. Lives on the I/O thread."""

    def __init__(self, cluster: Cluster, runtime: Runtime, name: str) -> None:
        """`name` is that of the topic, or of its group."""
        self._cluster = cluster
        self._runtime = runtime
        self._name = name
        self._fetched: dict[str, TopicRoute | None] = {}

    async def list(self, which: LetterFilter, limit: int) -> list[DeadLetter]:
        """Returns the first `limit` letters that match, by queue and offset. Raises
        UnknownTopic."""
        topic = await self.resolve()
        done = await self.ledger(topic)
        found: list[DeadLetter] = []
        async with contextlib.aclosing(self._read_in_order(topic, which.places)) as messages:
            async for message in messages:
                if which.fits(message):
                    found.append(_described(message, (message.queue, message.offset) in done))
                    if len(found) >= limit:
                        break
        return found

    async def resolve(self) -> str:
        """Returns the name of the topic. A group's comes first: one that has the name of the topic
        that it reads would otherwise have no dead letters. Raises UnknownTopic."""
        for name in (letters.dead_letter_topic(self._name), self._name):
            if await self.exists(name):
                return name
        raise UnknownTopic(
            f"there is no topic {self._name!r}, and no dead letters of a group {self._name!r}"
        )

    async def exists(self, topic: str) -> bool:
        """Asks the controllers, once for each topic."""
        if topic not in self._fetched:
            try:
                self._fetched[topic] = await self._cluster.topic(topic, refresh=True)
            except UnknownTopic:
                self._fetched[topic] = None
        return self._fetched[topic] is not None

    def forget(self, topic: str) -> None:
        """Asks the controllers about the topic anew."""
        self._fetched.pop(topic, None)

    async def topic_id(self, topic: str) -> int:
        """Returns the id of a topic that exists: in a topic that was created again, other letters
        have the same offsets."""
        if not await self.exists(topic):
            raise UnknownTopic(f"topic {topic!r} is gone")
        route = self._fetched[topic]
        assert route is not None
        return route.topic_id

    async def ledger(self, topic: str) -> set[tuple[int, int]]:
        """Returns (queue, offset) of every letter that the ledger names as brought back."""
        name = letters.redriven_topic(topic)
        if not await self.exists(name):
            return set()
        topic_id = await self.topic_id(topic)
        return {
            (entry["queue"], offset)
            async for message in self._read(name)
            for entry in json.loads(message.value or b"[]")
            if entry.get("topic_id", topic_id) == topic_id
            for offset in entry["offsets"]
        }

    def read(self, topic: str, places: Places) -> AsyncGenerator[Message]:
        """Yields the messages at these places, or all messages up to the present end."""
        return self._read_in_order(topic, places) if places else self._read(topic)

    async def _read_in_order(self, topic: str, places: Places) -> AsyncGenerator[Message]:
        """Yields the same by queue and offset: one queue after the other, so that whoever has seen
        enough may stop, and nothing that comes later has been kept."""
        route = await self._cluster.topic(topic, refresh=True)
        known = await list_offsets(self._cluster, list(route.every))
        for queue, offsets in sorted(known.items()):
            chosen = sorted({offset for number, offset in places if number == queue})
            start, end = offsets.log_start_offset, offsets.log_end_offset
            for low, high in _runs(chosen) if places else [(start, end)]:
                if max(low, start) < min(high, end):
                    some = self._read(topic, queue, max(low, start), min(high, end))
                    async with contextlib.aclosing(some) as messages:
                        async for message in messages:
                            yield message

    async def _read(
        self, topic: str, queue: int | None = None, start: int = 0, end: int = 0
    ) -> AsyncGenerator[Message]:
        """Yields all messages up to the present end, or offsets `[start, end)` of a queue."""
        reader = ReaderCore(self._cluster, self._runtime, ReaderConfig())
        try:
            if queue is None:
                await reader.open(topic, None, "earliest", "latest")
            else:
                await reader.open(topic, [queue], {queue: start}, {queue: end})
            while not reader.puller.finished:
                await await_ready(reader.feed, READ_S)
                for message in reader.puller.messages(READ_MESSAGES):
                    yield message
        finally:
            reader.close()


def _runs(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Returns sorted offsets as half-open ranges."""
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and runs[-1][1] == offset:
            runs[-1] = (runs[-1][0], offset + 1)
        else:
            runs.append((offset, offset + 1))
    return runs


def _described(message: Message, redriven: bool) -> DeadLetter:
    letter = letters.read(message.headers)
    return DeadLetter(
        topic=message.topic,
        queue=message.queue,
        offset=message.offset,
        origin=letter.origin,
        group=letter.group,
        attempts=letter.attempts,
        reason=letter.reason,
        cause=letter.cause,
        failed_us=letter.failed_us,
        redriven=redriven,
        key=message.key,
        value=message.value,
        headers=tuple(letters.own(message.headers)),
        message_id=message.message_id,
    )
