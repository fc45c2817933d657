"""Messages of a consumer that are to be tried again later, or never.

How it works. `retry` and `reject` only take a note. The commit that covers a noted message first
copies it, to the topic of the next step or to the dead letters, then commits (`relay.py` says why
that is exactly once). The members of a group read its retry topics like any others; a queue there
has one delay, and batches are in the order in which they were stored, so the first one is always
the first one due, and nothing but its lock is held while it waits (`fetch.py`).

Whoever acquires a queue finds the copies that an owner made and could not commit: their originals
are *skipped*, neither given out nor copied again.

Invariants
1. A message that was given out is copied only by the commit that covers it, and once.
2. What is noted and not committed is given out again, to whoever holds the queue then.
3. Notes between two commits of a queue are bounded by NOTES_MAX and NOTES_BYTES_MAX.

Not here: headers (`core/letters.py`), bringing dead letters back (`redriving.py`).
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Final

from semel.client.admin import AdminCore
from semel.client.cluster import Cluster
from semel.client.config import RetryPolicy
from semel.client.core import letters
from semel.client.core.batching import Chunk
from semel.client.feed_queue import FeedQueue
from semel.client.message import Message
from semel.client.relay import Copy, Relay, relay_id, relay_name
from semel.client.runtime import Runtime
from semel.protos.errors import InvalidRequest, LockLost, TopicExists, UnknownTopic
from semel.protos.ids import ProducerId, QueueKey

logger = logging.getLogger(__name__)

NOTES_MAX: Final = 1_000
NOTES_BYTES_MAX: Final = 8 << 20
RETRY_RETENTION_MS: Final = 30 * 24 * 3600 * 1000
"""Of a retry topic; longer than any step, since a message that waits must not be trimmed."""
UNLIMITED: Final = -1


@dataclass(slots=True)
class _Note:
    message: Message
    reason: str
    rejected: bool
    sent: Chunk | None = None
    """Its copy is on its way, or durable."""


class _QueueNotes:
    """One held queue."""

    def __init__(self, queue: FeedQueue, relay: Relay) -> None:
        self.queue = queue
        self.relay = relay
        self.notes: dict[int, _Note] = {}
        """By offset. The caller's thread adds, the I/O thread takes away."""
        self.bytes = 0


class Retrying:
    """The retries of one consumer. Lives on the I/O thread, but for `note`."""

    def __init__(self, cluster: Cluster, runtime: Runtime, group: str, policy: RetryPolicy) -> None:
        self.policy = policy
        self.topics: list[str] = []
        """Retry topics to read, by step."""
        self._cluster = cluster
        self._runtime = runtime
        self._group = group
        self._dead_letters = policy.dead_letter or letters.dead_letter_topic(group)
        self._ids: dict[QueueKey, ProducerId] = {}
        self._queues: dict[QueueKey, _QueueNotes] = {}

    # --- topics ---------------------------------------------------------------------------------

    async def open(self) -> None:
        """Makes the topics that are missing. Raises SemelError."""
        steps = len(self.policy.steps_ms)
        self.topics = [letters.retry_topic(self._group, step) for step in range(1, steps + 1)]
        for topic in self.topics:
            await self._make(topic, RETRY_RETENTION_MS)
        await self._make(self._dead_letters, UNLIMITED)
        # A policy that had more steps may have left messages behind.
        while await self._exists(letters.retry_topic(self._group, len(self.topics) + 1)):
            self.topics.append(letters.retry_topic(self._group, len(self.topics) + 1))

    async def _exists(self, topic: str) -> bool:
        try:
            await self._cluster.topic(topic)
        except UnknownTopic:
            return False
        return True

    async def _make(self, topic: str, retention_ms: int) -> None:
        if await self._exists(topic):
            return
        settings: dict[str, int | None] = {"retention_ms": retention_ms}
        try:
            await AdminCore(self._cluster).create_topic(
                topic, self.policy.queues, settings, True, None
            )
        except TopicExists:  # another member made it, by another policy
            logger.info("topic exists with other settings topic=%s", topic)
        await self._cluster.topic(topic, refresh=True)

    def step_of(self, topic: str) -> int:
        """0 for a topic of the consumer's own, else the step whose retries it holds."""
        return self.topics.index(topic) + 1 if topic in self.topics else 0

    def delay_ms_of(self, topic: str) -> int:
        """How long messages of a topic wait before they are given out."""
        step = self.step_of(topic)
        steps = self.policy.steps_ms
        return steps[min(step, len(steps)) - 1] if step and steps else 0

    def _next_topic(self, topic: str) -> str:
        """Where a message goes that failed once more."""
        step = self.step_of(topic)
        return self.topics[step] if step < len(self.policy.steps_ms) else self._dead_letters

    # --- ownership ------------------------------------------------------------------------------

    async def take_over(self, queue: FeedQueue, start: int) -> int:
        """The queue is ours from `start` on: ends older owners' copying, finds what they left.

        Returns the first offset to read; sets what is to be skipped behind it. Raises SemelError,
        ProducerFenced when there is a newer owner.
        """
        key = queue.key
        name = relay_name("retry", self._group, key)
        if key not in self._ids:
            self._ids[key] = await relay_id(self._cluster, name)
        relay = Relay(self._cluster, self._runtime, name, self._ids[key], queue.token)
        targets = dict.fromkeys([self._next_topic(queue.topic), self._dead_letters])
        try:
            left = await relay.take_over(list(targets))
        except UnknownTopic:
            await self.open()  # somebody deleted one
            left = await relay.take_over(list(targets))
        sources = {letters.read(message.headers).source_offset for message in left}
        queue.skip = {offset for offset in sources if offset >= start}
        if queue.skip:
            logger.info(
                "copies of an earlier owner are skipped group=%s topic=%s queue=%s messages=%s",
                self._group,
                queue.topic,
                key.queue_id,
                len(queue.skip),
            )
        newer = self._queues.get(key)
        if newer is None or newer.queue.token < queue.token:
            # Else the lock was lost and acquired again meanwhile, and this came too late.
            self._queues[key] = _QueueNotes(queue, relay)
        return self.covered(queue, start)

    def drop(self, queue: FeedQueue) -> None:
        """The queue is not ours any more, and its notes are void."""
        found = self._queues.get(queue.key)
        if found is not None and found.queue is queue:
            del self._queues[queue.key]
            found.relay.close()

    def close(self) -> None:
        """Ends all copying at once."""
        for found in self._queues.values():
            found.relay.close()
        self._queues.clear()

    # --- notes ----------------------------------------------------------------------------------

    def note(self, message: Message, reason: str, *, rejected: bool) -> None:
        """Takes a note, from the caller's thread. Raises LockLost, InvalidRequest."""
        rows = message.rows
        found = self._queues.get(rows.queue)
        if found is None or found.queue.token != rows.token:
            raise LockLost(
                f"queue {message.queue} of topic {message.topic!r} is not held by this consumer any"
                f" more: offset {message.offset} is given out again"
            )
        earlier = found.notes.get(message.offset)
        if earlier is not None and earlier.sent is not None:
            return
        size = len(message.value)
        full = len(found.notes) >= NOTES_MAX or found.bytes + size > NOTES_BYTES_MAX
        if earlier is None and full and found.notes:
            raise InvalidRequest(
                f"{len(found.notes)} messages of queue {message.queue} of topic {message.topic!r}"
                " wait to be retried or rejected: commit first"
            )
        found.bytes += size if earlier is None else 0
        found.notes[message.offset] = _Note(message, reason, rejected)

    def covered(self, queue: FeedQueue, offset: int) -> int:
        """How far a commit of `offset` reaches: over what is to be skipped right behind it."""
        while offset in queue.skip:
            offset += 1
        return offset

    def notes_below(self, queue: FeedQueue, offset: int) -> bool:
        """A commit of `offset` has something to copy, or to wait for."""
        found = self._queues.get(queue.key)
        return found is not None and any(at < offset for at in list(found.notes))

    async def publish(self, queue: FeedQueue, offset: int) -> None:
        """Copies what is noted below `offset`; returns once it is durable.

        Raises SemelError: then the queue must be given up, since nobody knows what of it is stored.
        A cancelled call leaves the copies on their way; the next one waits for them.
        """
        found = self._queues.get(queue.key)
        if found is None:
            return
        noted = sorted(at for at in list(found.notes) if at < offset)
        fresh = [at for at in noted if found.notes[at].sent is None]
        if fresh:
            copies = [self._copy(found.notes[at]) for at in fresh]
            chunks = await found.relay.send(copies)
            by_topic = {chunk.topic: chunk for chunk in chunks}
            for at, copy in zip(fresh, copies, strict=True):
                found.notes[at].sent = by_topic[copy.topic]
        waiting = [found.notes[at].sent for at in noted]
        await found.relay.wait(list(dict.fromkeys(chunk for chunk in waiting if chunk)))

    async def on_committed(self, queue: FeedQueue, offset: int) -> None:
        """Progress up to `offset` is durable; nothing that fails here does harm."""
        found = self._queues.get(queue.key)
        if found is None or found.queue is not queue:
            return
        done = [at for at in list(found.notes) if at < offset]
        for at in done:
            found.bytes -= len(found.notes.pop(at).message.value)
        skipped = {at for at in queue.skip if at < offset}
        queue.skip -= skipped
        open_copies = queue.skip or any(note.sent for note in list(found.notes.values()))
        if (done or skipped) and not open_copies:
            await found.relay.resolve()

    def on_seek(self, queue: FeedQueue, offset: int) -> None:
        """Messages from `offset` on are given out again, but for those that are copied already."""
        found = self._queues.get(queue.key)
        if found is None:
            return
        for at in [at for at in list(found.notes) if at >= offset]:
            if found.notes[at].sent is not None:
                queue.skip.add(at)
            else:
                found.bytes -= len(found.notes.pop(at).message.value)

    def _copy(self, note: _Note) -> Copy:
        message = note.message
        letter = letters.read(message.headers)
        target = self._dead_letters if note.rejected else self._next_topic(message.topic)
        cause = letters.REJECTED if note.rejected else letters.EXHAUSTED
        return Copy(
            topic=target,
            key=message.key,
            value=message.value,
            headers=letters.failed(
                message.headers,
                origin=message.origin,
                group=self._group,
                attempts=letter.attempts + 1,
                reason=note.reason,
                failed_us=time.time_ns() // 1000,
                cause=cause if target == self._dead_letters else "",
                source_offset=message.offset,
            ),
            timestamp_us=message.timestamp_us,
            message_id=message.message_id,
        )
