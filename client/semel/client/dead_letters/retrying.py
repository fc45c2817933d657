"""Retries and rejections of a consumer's messages.

How it works. `retry` and `reject` only take a note. The commit that covers a noted message first
copies it, to the topic of the next step or to the dead letters, then commits
(`dead_letters/relay.py` says why that is exactly once). The members of a group read its retry
topics like any others. A queue there has one delay, and its batches are in the order in which they
were stored. So the first batch is always the first one due, and only the queue's lock is held while
it waits (`reading/fetch.py`).

Before the first copy leaves, the queue's owner stores a *record* of the copies beside the group's
offset, under the token of the lock. Each later commit keeps the part of the record that is not
resolved. A member that acquires the queue gets the record and finds the copies that an owner made
and could not commit. Their originals are *skipped*: neither given out nor copied again. That is so
for a member without a retry policy, too: it makes no copies, but its group may have had a policy.

Invariants
1. A message that was given out is copied only by the commit that covers it, and once.
2. A message that is noted and not committed is given out again, to the member that holds the queue
   then.
3. Notes between two commits of a queue are bounded by NOTES_MAX and NOTES_BYTES_MAX.
4. A record is numbered, and names everything that is unresolved at that number. Of two records
   under way at a time the broker keeps the later one.
5. A record names an offset as copied, and a commit reaches past a skipped one, only when its copy
   is durable. A copy on its way is a part of the attempt.

Not here: headers (`core/letters.py`), bringing dead letters back (`dead_letters/redrive.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Final

from semel.client.admin.calls import AdminCore
from semel.client.config import RetryPolicy
from semel.client.core import letters
from semel.client.core.batching import Chunk
from semel.client.core.copies import read_record, record_bytes
from semel.client.dead_letters.relay import Copy, Relay, relay_name, settle
from semel.client.message import Message
from semel.client.reading.feed_queue import FeedQueue
from semel.client.transport.cluster import Cluster
from semel.client.transport.runtime import Runtime
from semel.protos.errors import (
    InvalidRequest,
    LockLost,
    TopicExists,
    UnknownTopic,
    from_detail,
)
from semel.protos.ids import QueueKey
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2
from semel.protos.v1.control_pb2 import QueueCommit

logger = logging.getLogger(__name__)

NOTES_MAX: Final = 1_000
NOTES_BYTES_MAX: Final = 8 << 20
RETRY_RETENTION_MS: Final = 30 * 24 * 3600 * 1000
"""Retention of a retry topic: longer than any step, since a waiting message must not be trimmed."""
UNLIMITED: Final = -1
METADATA_ONLY: Final = -1
"""The offset of a commit of metadata alone."""


@dataclass(slots=True)
class _Note:
    message: Message
    reason: str
    rejected: bool
    sending: asyncio.Task[None] | None = None
    """It is being copied, or was; no other commit may copy it."""
    chunk: Chunk | None = None
    """The chunk of its copy, once that is on its way."""
    copied: bool = False
    """Its copy is known to be durable."""


class _Held:
    """The notes and copies of one held queue."""

    def __init__(self, queue: FeedQueue, relay: Relay, *, recorded: bool) -> None:
        self.queue = queue
        self.relay = relay
        self.notes: dict[int, _Note] = {}
        """Notes by offset. The caller's thread adds them, the I/O thread removes them."""
        self.bytes = 0
        self.end = 0
        """One past the last message that this owner has copied or is about to copy."""
        self.sending: asyncio.Task[None] | None = None
        """The newest sending; each waits for the one before it."""
        self.recorded = recorded
        """The broker may have a record, which the next commit must renew."""
        self.version = 0
        """Number of the newest record."""

    def record(self, progress: int) -> bytes:
        """Returns the record of everything unresolved at a given progress."""
        attempt = self.relay.attempt(self.end) if self.end > progress else None
        under_way = {at for at, note in list(self.notes.items()) if not note.copied}
        return record_bytes(self.queue.skip - under_way, attempt, progress)


class Retrying:
    """The retries of one consumer. Lives on the I/O thread, except for `note`."""

    def __init__(
        self, cluster: Cluster, runtime: Runtime, group: str, policy: RetryPolicy | None
    ) -> None:
        """Without a policy nothing is copied: `note` refuses, and there are no retry topics."""
        self.policy = policy
        self.topics: list[str] = []
        """Retry topics to read, by step."""
        self._steps_ms = () if policy is None else policy.steps_ms
        self._cluster = cluster
        self._runtime = runtime
        self._group = group
        named = None if policy is None else policy.dead_letter
        self._dead_letters = named or letters.dead_letter_topic(group)
        self._queues: dict[QueueKey, _Held] = {}

    # --- topics ---------------------------------------------------------------------------------

    async def open(self) -> None:
        """Makes the topics that are missing. Raises SemelError."""
        if self.policy is None:
            return
        steps = len(self.policy.steps_ms)
        topics = [letters.retry_topic(self._group, step) for step in range(1, steps + 1)]
        for topic in topics:
            await self._make(topic, RETRY_RETENTION_MS, self.policy.queues)
        await self._make(self._dead_letters, UNLIMITED, self.policy.queues)
        # A policy that had more steps may have left messages behind.
        while await self._exists(letters.retry_topic(self._group, len(topics) + 1)):
            topics.append(letters.retry_topic(self._group, len(topics) + 1))
        self.topics = topics  # at once: other tasks ask for the step of a topic meanwhile

    async def _exists(self, topic: str) -> bool:
        try:
            await self._cluster.topic(topic)
        except UnknownTopic:
            return False
        return True

    async def _make(self, topic: str, retention_ms: int, queues: int) -> None:
        if await self._exists(topic):
            return
        settings: dict[str, int | None] = {"retention_ms": retention_ms}
        try:
            await AdminCore(self._cluster).create_topic(topic, queues, settings, True, None)
        except TopicExists:  # another member with another policy made it
            logger.info("topic exists with other settings topic=%s", topic)
        await self._cluster.topic(topic, refresh=True)

    def step_of(self, topic: str) -> int:
        """Returns 0 for a topic that the consumer subscribed to, else the step whose retries it
        holds."""
        return self.topics.index(topic) + 1 if topic in self.topics else 0

    def delay_ms_of(self, topic: str) -> int:
        """Returns how long messages of a topic wait before they are given out, in milliseconds."""
        step, steps = self.step_of(topic), self._steps_ms
        return steps[min(step, len(steps)) - 1] if step and steps else 0

    def _targets(self, topic: str) -> list[str]:
        """Returns the topics to which copies of a topic's messages may go."""
        return list(dict.fromkeys([self._next_topic(topic), self._dead_letters]))

    def _next_topic(self, topic: str) -> str:
        """Returns the topic for a message that failed once more."""
        step = self.step_of(topic)
        return self.topics[step] if step < len(self._steps_ms) else self._dead_letters

    # --- ownership ------------------------------------------------------------------------------

    async def take_over(self, queue: FeedQueue, start: int, metadata: bytes) -> int:
        """Takes over a queue from `start` on: ends older owners' copying, and finds the copies that
        their record names.

        Returns the first offset to read, and sets the offsets to skip after it. Raises SemelError.
        """
        key = queue.key
        record = read_record(metadata)
        copied = set(record.copied)
        if record.attempt is not None and record.attempt.end > start:
            stored = await settle(self._cluster, self._runtime, record.attempt)
            copied |= {letters.read(message.headers).source_offset for message in stored}
        queue.skip = {offset for offset in copied if offset >= start}
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
            # Else the lock was lost and acquired again meanwhile, so this result is void.
            relay = Relay(self._cluster, relay_name("retry", self._group, key))
            self._queues[key] = _Held(queue, relay, recorded=bool(metadata))
        return self.covered(queue, start)

    def drop(self, queue: FeedQueue) -> None:
        """The queue is not held any more, so its notes are void."""
        found = self._held(queue)
        if found is not None:
            del self._queues[queue.key]
            found.relay.close()

    def close(self) -> None:
        """Ends all copying at once."""
        for found in self._queues.values():
            found.relay.close()
        self._queues.clear()

    def _held(self, queue: FeedQueue) -> _Held | None:
        """The notes and copies under this lock of the queue; None if it was lost or acquired anew
        since."""
        found = self._queues.get(queue.key)
        return found if found is not None and found.queue is queue else None

    # --- notes ----------------------------------------------------------------------------------

    def note(self, message: Message, reason: str, *, rejected: bool) -> None:
        """Takes a note, from the caller's thread. Raises LockLost, InvalidRequest."""
        if self.policy is None:
            raise InvalidRequest("this consumer has no retry policy: consumer(…, retry=…)")
        rows = message.rows
        found = self._queues.get(rows.queue)
        if found is None or found.queue.token != rows.token:
            raise LockLost(
                f"queue {message.queue} of topic {message.topic!r} is not held by this consumer any"
                f" more: offset {message.offset} is given out again"
            )
        earlier = found.notes.get(message.offset)
        if earlier is not None and earlier.sending is not None:
            return
        size = len(message.value or b"")
        full = len(found.notes) >= NOTES_MAX or found.bytes + size > NOTES_BYTES_MAX
        if earlier is None and full and found.notes:
            raise InvalidRequest(
                f"{len(found.notes)} messages of queue {message.queue} of topic {message.topic!r}"
                " wait to be retried or rejected: commit first"
            )
        found.bytes += size if earlier is None else 0
        found.notes[message.offset] = _Note(message, reason, rejected)

    def covered(self, queue: FeedQueue, offset: int) -> int:
        """Returns the reach of a commit of `offset`: past the skipped offsets right after it."""
        while offset in queue.skip:
            offset += 1
        return offset

    def noted(self, queue: FeedQueue) -> bool:
        """Whether there are notes, so that a commit may have copies to wait for."""
        found = self._held(queue)
        return found is not None and bool(found.notes)

    async def publish(self, queue: FeedQueue, offset: int) -> int:
        """Makes the copies that a commit of `offset` needs: of the messages noted below its reach.

        Returns that reach, past the offsets skipped right after `offset`, once the copies are
        durable. A skipped offset may be one whose copy is still on its way: a commit was cancelled
        and its messages are given out again (`on_seek`).

        Raises SemelError. Then the queue must be released, since it is unknown which are stored.
        A cancelled call leaves the copies on their way; the next one waits for them.
        """
        offset = self.covered(queue, offset)
        found = self._held(queue)
        if found is None:
            return offset
        noted = sorted(at for at in list(found.notes) if at < offset)
        fresh = [found.notes[at] for at in noted if found.notes[at].sending is None]
        if fresh:
            # From here on they count as copied: another commit, at the same time or after this one
            # was cancelled, must not copy them again.
            found.sending = self._cluster.spawn(
                self._send(found, found.sending, fresh), "semel-consumer-copy"
            )
            for note in fresh:
                note.sending = found.sending
        notes = [found.notes[at] for at in noted]
        for task in dict.fromkeys(note.sending for note in notes):
            assert task is not None
            await asyncio.shield(task)
        chunks = dict.fromkeys(note.chunk for note in notes)
        await found.relay.wait([chunk for chunk in chunks if chunk is not None])
        for note in notes:
            note.copied = True
        return offset

    async def _send(
        self, found: _Held, before: asyncio.Task[None] | None, notes: list[_Note]
    ) -> None:
        """Sends copies, once the record that names them is durable."""
        if before is not None:
            await before
        targets = self._targets(found.queue.topic)
        afresh = found.end <= found.queue.done
        try:
            await found.relay.prepare(targets, afresh=afresh)
        except UnknownTopic:
            await self.open()  # one was deleted
            await found.relay.prepare(targets, afresh=afresh)
        found.end = max(found.end, *(note.message.offset + 1 for note in notes))
        await self._store_record(found)
        copies = [self._copy(note) for note in notes]
        chunks = {chunk.topic: chunk for chunk in found.relay.send(copies)}
        for note, copy in zip(notes, copies, strict=True):
            note.chunk = chunks[copy.topic]

    async def _store_record(self, found: _Held) -> None:
        """Stores the record, under the token of the lock. Raises SemelError."""
        queue = found.queue
        request = broker_pb2.CommitRequest(group=self._group)
        commit = request.commits.add(
            queue=queue_ref(queue.key), token=queue.token, offset=METADATA_ONLY
        )
        found.recorded = True
        self.renew_record(commit, queue, queue.done)
        reply = await self._cluster.call_master(queue.group_id, "Commit", request)
        for outcome in reply.outcomes:
            if outcome.HasField("error"):
                raise from_detail(outcome.error)

    def renew_record(self, commit: QueueCommit, queue: FeedQueue, progress: int) -> None:
        """Adds to a commit of `progress` the record of what is unresolved after it."""
        found = self._held(queue)
        if found is not None and found.recorded:
            found.version += 1
            commit.metadata = found.record(progress)
            commit.metadata_version = found.version

    def on_stored(self, queue: FeedQueue, offset: int) -> None:
        """Progress up to `offset` is durable, at the brokers or in the user's database: its notes
        have served."""
        found = self._held(queue)
        if found is None:
            return
        for at in [at for at in list(found.notes) if at < offset]:
            found.bytes -= len(found.notes.pop(at).message.value or b"")

    def on_committed(self, queue: FeedQueue, offset: int) -> None:
        """Progress up to `offset` is durable at the brokers."""
        self.on_stored(queue, offset)
        found = self._held(queue)
        if found is None:
            return
        # A commit reaches past skipped offsets, also where they are not fetched yet.
        passed = min(offset, queue.delivered)
        queue.skip -= {at for at in queue.skip if at < passed}
        found.recorded = found.recorded and bool(found.record(offset))

    def on_seek(self, queue: FeedQueue, offset: int) -> None:
        """Messages from `offset` on are given out again, except for those that are copied
        already."""
        found = self._queues.get(queue.key)
        if found is None:
            return
        for at in [at for at in list(found.notes) if at >= offset]:
            if found.notes[at].sending is not None:
                queue.skip.add(at)
            else:
                found.bytes -= len(found.notes.pop(at).message.value or b"")

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
                message.carried_headers,
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
