"""Dead letters: lists them, and brings them back, each at most once.

How it works. A dead letter is brought back as a new message of the topic it came from (or of its
group's first retry topic, which no other group reads), with its own key, value and headers. A topic
beside the dead letters, `….redriven`, is the *ledger*: its messages name the queues and offsets of
letters that were brought back. A relay (`dead_letters/relay.py`) keeps copies and ledger
consistent. Each round first stores a record of what it is about to copy, then the copies, then the
ledger's entry. The record is metadata of a consumer group of its own on the ledger's queue, under
the token of its lock.

A new run takes that lock, so that an earlier run can write no record any more. It settles the
attempt that the record names. Only then it reads the ledger, and adds letters that were copied and
not entered. A second run finds nothing to do. Of two runs at a time the later ends the earlier.

Not here: how letters come to be (`dead_letters/retrying.py`), the console (`console/dlq.py`).
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from semel.client.admin.calls import AdminCore
from semel.client.admin.descriptions import Described
from semel.client.config import ReaderConfig
from semel.client.core import letters
from semel.client.core.copies import read_record, record_bytes
from semel.client.core.letters import Origin
from semel.client.core.routing import QueueRoute, TopicRoute
from semel.client.dead_letters.relay import Copy, Relay, settle
from semel.client.dead_letters.retrying import METADATA_ONLY, UNLIMITED
from semel.client.message import Message
from semel.client.reading.offsets import list_offsets
from semel.client.reading.pulling import await_ready
from semel.client.reading.reader import ReaderCore
from semel.client.transport.cluster import Cluster
from semel.client.transport.runtime import Runtime
from semel.protos.errors import (
    FencedError,
    InvalidRequest,
    LockLost,
    ProducerFenced,
    SemelError,
    UnknownTopic,
    from_detail,
)
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2

MEMBER: Final = "redrive"
"""All runs are the same member, so a lock passes from one to the next at once."""
LOCK_MS: Final = 24 * 3600 * 1000
"""The longest lock time there is. It delays no later run, which takes the lock over."""
ROUND_LETTERS: Final = 500
ROUND_BYTES: Final = 4 << 20
PROGRESS_S: Final = 0.2
READ_S: Final = 10.0

To = Literal["origin", "group"]
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
    value: bytes
    headers: tuple[tuple[str, bytes], ...]
    """The user's own headers."""
    message_id: bytes | None
    """The message id that the sender chose, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveProgress:
    """Progress of a run, in letters."""

    looked_at: int
    total: int
    redriven: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveResult(Described):
    """Result of a run, in letters; with a dry run, what it would do."""

    topic: str
    matched: int
    redriven: int
    """Brought back by this run."""
    already: int
    """Brought back before."""
    recovered: int
    """Number of these that a run brought back without entering them in the ledger."""
    without_origin: int
    """Not brought back: the message is no dead letter, or its topic does not exist any more."""
    targets: dict[str, int]
    """Brought back by this run, by topic."""
    dry_run: bool


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
        topic = await self._resolve()
        done = await self._ledger(topic)
        found: list[DeadLetter] = []
        async with contextlib.aclosing(self._read_in_order(topic, which.places)) as messages:
            async for message in messages:
                if which.fits(message):
                    found.append(_described(message, (message.queue, message.offset) in done))
                    if len(found) >= limit:
                        break
        return found

    async def redrive(
        self,
        which: LetterFilter,
        *,
        to: To,
        dry_run: bool,
        note: Callable[[RedriveProgress], object],
    ) -> RedriveResult:
        """Brings letters back. An interrupted or cancelled run may be repeated.

        Raises UnknownTopic; ProducerFenced when a later run has begun; LockLost when the lock has
        ended otherwise, because the ledger's queue moved.
        """
        if to not in ("origin", "group"):
            raise InvalidRequest(f"to must be 'origin' or 'group', not {to!r}")
        topic = await self._resolve()
        run = _Run(self, topic, which, to, note)
        if dry_run:
            await run.look(await self._ledger(topic))
            return run.result(dry_run=True)
        try:
            await run.carry_out()
        except FencedError:
            raise await run.why_fenced() from None
        return run.result(dry_run=False)

    async def _resolve(self) -> str:
        for name in (self._name, letters.dead_letter_topic(self._name)):
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

    async def topic_id(self, topic: str) -> int:
        """Returns the id of a topic that exists: in a topic that was created again, other letters
        have the same offsets."""
        if not await self.exists(topic):
            raise UnknownTopic(f"topic {topic!r} is gone")
        route = self._fetched[topic]
        assert route is not None
        return route.topic_id

    async def _ledger(self, topic: str) -> set[tuple[int, int]]:
        """Returns (queue, offset) of every letter that the ledger names as brought back."""
        name = letters.redriven_topic(topic)
        if not await self.exists(name):
            return set()
        topic_id = await self.topic_id(topic)
        return {
            (entry["queue"], offset)
            async for message in self._read(name)
            for entry in json.loads(message.value)
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
                for message in reader.puller.messages(ROUND_LETTERS):
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


class _Lock:
    """The exclusive right of one run: the lock of a group of its own on a queue of the ledger, and
    the record beside that group's offset. A run that acquires it ends the run that had it."""

    def __init__(self, cluster: Cluster, ledger: str, queue: QueueRoute) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._queue = queue
        self._token = 0
        self._version = 0

    async def acquire(self) -> bytes:
        """Acquires the lock and returns the record that an earlier run left. Raises SemelError."""
        request = broker_pb2.AcquireLocksRequest(
            group=letters.REDRIVE_GROUP,
            member_id=MEMBER,
            queues=[queue_ref(self._queue.key)],
            lock_ms=LOCK_MS,
            session_ms=LOCK_MS,
        )
        (grant,) = (await self._call("AcquireLocks", request)).grants
        if not grant.token:
            raise from_detail(grant.error)
        self._token = grant.token
        return bytes(grant.metadata)

    async def store(self, record: bytes) -> None:
        """Raises LockLost when a later run has begun, or the queue has moved."""
        self._version += 1
        request = broker_pb2.CommitRequest(group=letters.REDRIVE_GROUP)
        request.commits.add(
            queue=queue_ref(self._queue.key),
            token=self._token,
            offset=METADATA_ONLY,
            metadata=record,
            metadata_version=self._version,
        )
        for outcome in (await self._call("Commit", request)).outcomes:
            if outcome.HasField("error"):
                raise from_detail(outcome.error)

    async def passed_on(self) -> bool:
        """A later run has acquired the lock. A move of the queue ends it, too, but leaves the
        token as it is. Raises SemelError."""
        found = await AdminCore(self._cluster).describe_group(letters.REDRIVE_GROUP)
        tokens = [
            queue.token
            for queue in found.queues
            if (queue.topic, queue.queue) == (self._ledger, self._queue.key.queue_id)
        ]
        return max(tokens, default=0) > self._token

    async def release(self) -> None:
        """Clears the record: no attempt is open for a later run to settle."""
        with contextlib.suppress(SemelError):
            await self.store(b"")
            request = broker_pb2.ReleaseLocksRequest(group=letters.REDRIVE_GROUP, member_id=MEMBER)
            request.locks.add(queue=queue_ref(self._queue.key), token=self._token)
            await self._call("ReleaseLocks", request)

    async def _call(self, method: str, request: Any) -> Any:
        home = self._cluster.routes.home(self._queue)
        return await self._cluster.call_master(home, method, request)


class _Run:
    """One redrive of one topic."""

    def __init__(
        self,
        source: DeadLetters,
        topic: str,
        which: LetterFilter,
        to: To,
        note: Callable[[RedriveProgress], object],
    ) -> None:
        self._source = source
        self._topic = topic
        self._which = which
        self._to = to
        self._note = note
        self._noted = 0.0
        self._looked = self._total = 0
        self._matched = self._already = self._recovered = self._without = self._redriven = 0
        self._targets: dict[str, int] = {}
        """Number of letters brought back, by topic."""
        self._lock: _Lock | None = None

    async def why_fenced(self) -> SemelError:
        """Returns the error to raise when the run was fenced."""
        stays = "what this run brought back stays"
        try:
            passed_on = self._lock is None or await self._lock.passed_on()
        except SemelError:
            return LockLost(
                f"the lock of the redrives of topic {self._topic!r} is lost: a later redrive has"
                f" begun, or the queue that remembers them moved; {stays}, repeat it for the rest"
            )
        if passed_on:
            return ProducerFenced(f"a later redrive of topic {self._topic!r} has begun; {stays}")
        return LockLost(
            f"the queue that remembers the redrives of topic {self._topic!r} moved, and the lock"
            f" on it is lost; {stays}, repeat the redrive for the rest"
        )

    def result(self, *, dry_run: bool) -> RedriveResult:
        return RedriveResult(
            topic=self._topic,
            matched=self._matched,
            redriven=self._redriven,
            already=self._already,
            recovered=self._recovered,
            without_origin=self._without,
            targets=dict(sorted(self._targets.items())),
            dry_run=dry_run,
        )

    async def look(self, done: set[tuple[int, int]]) -> None:
        """Counts the letters to bring back."""
        self._start_counting()
        self._total = 0
        async for message in self._source.read(self._topic, self._which.places):
            self._total += 1
            target = await self._target_of(message, done)
            if target:
                self._count(target)

    def _start_counting(self) -> None:
        self._targets = {}
        self._matched = self._already = self._without = self._redriven = 0

    async def _target_of(self, message: Message, done: set[tuple[int, int]]) -> str:
        """Returns the topic to which a letter goes, or "" for none, and counts the case."""
        if not self._which.fits(message):
            return ""
        self._matched += 1
        if (message.queue, message.offset) in done:
            self._already += 1
            return ""
        letter = letters.read(message.headers)
        target = "" if letter.origin is None else letter.origin.topic
        if target and self._to == "group":
            target = letters.retry_topic(letter.group, 1)
        if not target or not await self._source.exists(target):
            self._without += 1
            return ""
        return target

    def _count(self, target: str) -> None:
        self._redriven += 1
        self._targets[target] = self._targets.get(target, 0) + 1

    async def carry_out(self) -> None:
        """Raises FencedError when a later run has begun, or the lock has ended otherwise."""
        source, cluster = self._source, self._source._cluster
        await self.look(await source._ledger(self._topic))
        ledger = letters.redriven_topic(self._topic)
        if not await source.exists(ledger):
            settings: dict[str, int | None] = {"retention_ms": UNLIMITED}
            await AdminCore(cluster).create_topic(ledger, 1, settings, True, None)
            del source._fetched[ledger]  # another run may have made it, and written to it
        queue = (await cluster.topic(ledger, refresh=True)).every[0]
        self._lock = lock = _Lock(cluster, ledger, queue)
        left = read_record(await lock.acquire()).attempt
        relay = Relay(cluster, f"semel.redrive:{await source.topic_id(self._topic):x}")
        try:
            copied: set[tuple[int, int]] = set()
            stored = await settle(cluster, source._runtime, left) if left is not None else []
            if left is not None and left.source_topic_id == await source.topic_id(self._topic):
                copied = {place for m in stored if (place := _copied_from(m, self._topic))}
            # Read only after every earlier run has ended, since one could add to it otherwise.
            done = await source._ledger(self._topic)
            if copied - done:
                self._recovered = len(copied - done)
                await relay.prepare([ledger], afresh=True)
                await self._write_down(relay, ledger, copied - done)
            await self._rounds(relay, lock, ledger, done | copied)
            await lock.release()
        finally:
            relay.close()

    async def _rounds(
        self, relay: Relay, lock: _Lock, ledger: str, done: set[tuple[int, int]]
    ) -> None:
        total = self._total
        self._start_counting()
        round_: list[tuple[Message, str]] = []
        size = 0
        async for message in self._source.read(self._topic, self._which.places):
            self._looked += 1
            target = await self._target_of(message, done)
            if target:
                round_.append((message, target))
                size += len(message.value)
            if len(round_) >= ROUND_LETTERS or size >= ROUND_BYTES:
                await self._bring_back(relay, lock, ledger, round_)
                round_, size = [], 0
            self._tell(total)
        await self._bring_back(relay, lock, ledger, round_)
        self._noted = 0.0
        self._tell(total)

    async def _bring_back(
        self, relay: Relay, lock: _Lock, ledger: str, round_: Sequence[tuple[Message, str]]
    ) -> None:
        if not round_:
            return
        copies = [
            Copy(
                topic=target,
                key=message.key,
                value=message.value,
                headers=letters.redriven(
                    message.headers, source=Origin(self._topic, message.queue, message.offset)
                ),
                timestamp_us=message.timestamp_us,
                message_id=message.message_id,
            )
            for message, target in round_
        ]
        # The round before this one is complete, and in the ledger.
        await relay.prepare([ledger, *(target for _, target in round_)], afresh=True)
        attempt = relay.attempt(1)
        attempt.source_topic_id = await self._source.topic_id(self._topic)
        await lock.store(record_bytes((), attempt, 0))
        await relay.wait(relay.send(copies))
        await self._write_down(relay, ledger, {(m.queue, m.offset) for m, _ in round_})
        for _, target in round_:
            self._count(target)

    async def _write_down(
        self, relay: Relay, ledger: str, places: Iterable[tuple[int, int]]
    ) -> None:
        """Adds an entry whose copies are durable. It is true whichever run writes it."""
        by_queue: dict[int, list[int]] = {}
        for queue, offset in sorted(places):
            by_queue.setdefault(queue, []).append(offset)
        topic_id = await self._source.topic_id(self._topic)
        entries = [
            {"topic_id": topic_id, "queue": queue, "offsets": found}
            for queue, found in by_queue.items()
        ]
        value = json.dumps(entries).encode()
        entry = Copy(ledger, None, value, [], time.time_ns() // 1000)
        await relay.wait(relay.send([entry]))

    def _tell(self, total: int) -> None:
        now = time.monotonic()
        if now - self._noted >= PROGRESS_S:
            self._noted = now
            self._note(
                RedriveProgress(looked_at=self._looked, total=total, redriven=self._redriven)
            )


def _copied_from(message: Message, topic: str) -> tuple[int, int] | None:
    """Returns the dead letter of `topic` of which a message is the copy."""
    name, _, place = letters.read(message.headers).redriven.partition("/")
    queue, _, offset = place.partition("/")
    if name != topic or not (queue.isdigit() and offset.isdigit()):
        return None
    return int(queue), int(offset)


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
