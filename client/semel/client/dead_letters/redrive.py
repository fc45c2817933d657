"""Brings dead letters back, each at most once.

How it works. A dead letter is brought back as a new message of the topic it came from (or of its
group's first retry topic, which no other group reads), with its own key, value and headers. A relay
(`dead_letters/relay.py`) keeps the copies and the ledger (`dead_letters/listing.py`) consistent.
Each round first stores a record of what it is about to copy, then the copies, then the ledger's
entry. The record is stored under the token of the run's lock (`dead_letters/redrive_lock.py`).

A new run takes that lock, so that an earlier run can write no record any more. It settles the
attempt that the record names. Only then it reads the ledger, and adds letters that were copied and
not entered. A second run finds nothing to do. Of two runs at a time the later ends the earlier.

A move of the ledger's queue ends the lock, too. Then the run goes on as a new run would: it takes
the lock again, settles the attempt that it had begun, and reads the ledger. It gives up only if a
later run has begun.

Not here: how letters come to be (`dead_letters/retrying.py`), the console (`console/dlq.py`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from semel.client.admin.calls import AdminCore
from semel.client.admin.descriptions import Described
from semel.client.core import letters
from semel.client.core.copies import read_record, record_bytes
from semel.client.core.letters import Origin
from semel.client.dead_letters.listing import DeadLetters, LetterFilter
from semel.client.dead_letters.redrive_lock import RedriveLock
from semel.client.dead_letters.relay import Copy, Relay, settle
from semel.client.dead_letters.retrying import UNLIMITED
from semel.client.message import Message
from semel.client.transport.cluster import Cluster
from semel.client.transport.runtime import Runtime
from semel.protos.errors import (
    FencedError,
    InvalidRequest,
    LockLost,
    ProducerFenced,
    SemelError,
)
from semel.protos.v1.copies_pb2 import CopyAttempt

logger = logging.getLogger(__name__)

ROUND_LETTERS: Final = 500
ROUND_BYTES: Final = 4 << 20
PROGRESS_S: Final = 0.2

To = Literal["origin", "group"]


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


async def redrive_letters(
    cluster: Cluster,
    runtime: Runtime,
    name: str,
    which: LetterFilter,
    *,
    to: To,
    dry_run: bool,
    note: Callable[[RedriveProgress], object],
) -> RedriveResult:
    """Brings letters back; `name` is that of their topic, or of its group. An interrupted or
    cancelled run may be repeated.

    Raises UnknownTopic; ProducerFenced when a later run has begun; LockLost when the lock has ended
    and it is unknown whether one has.
    """
    if to not in ("origin", "group"):
        raise InvalidRequest(f"to must be 'origin' or 'group', not {to!r}")
    source = DeadLetters(cluster, runtime, name)
    run = _Run(source, cluster, runtime, await source.resolve(), which, to, note)
    if dry_run:
        await run.look()
    else:
        await run.carry_out()
    return run.result(dry_run=dry_run)


class _Run:
    """One redrive of one topic."""

    def __init__(
        self,
        source: DeadLetters,
        cluster: Cluster,
        runtime: Runtime,
        topic: str,
        which: LetterFilter,
        to: To,
        note: Callable[[RedriveProgress], object],
    ) -> None:
        self._source = source
        self._cluster = cluster
        self._runtime = runtime
        self._topic = topic
        self._ledger = letters.redriven_topic(topic)
        self._which = which
        self._to = to
        self._note = note
        self._noted = 0.0
        self._looked = self._total = 0
        self._matched = self._already = self._without = self._redriven = 0
        self._targets: dict[str, int] = {}
        """Number of letters brought back, by topic."""
        self._mine: set[tuple[int, int]] = set()
        """Letters that this run has brought back."""
        self._recovered: set[tuple[int, int]] = set()
        """Letters that an earlier run has brought back and not entered in the ledger."""
        self._open: tuple[CopyAttempt, dict[tuple[int, int], str]] | None = None
        """The attempt of this run that is not over, and the topics to which its letters go."""

    def result(self, *, dry_run: bool) -> RedriveResult:
        return RedriveResult(
            topic=self._topic,
            matched=self._matched,
            redriven=self._redriven,
            already=self._already,
            recovered=len(self._recovered),
            without_origin=self._without,
            targets=dict(sorted(self._targets.items())),
            dry_run=dry_run,
        )

    # --- counting -------------------------------------------------------------------------------

    async def look(self) -> None:
        """Counts the letters to bring back."""
        done = await self._source.ledger(self._topic)
        async for message in self._source.read(self._topic, self._which.places):
            self._total += 1
            target = await self._target_of(message, done)
            if target:
                self._count(target)

    async def _target_of(self, message: Message, done: set[tuple[int, int]]) -> str:
        """Returns the topic to which a letter goes, or "" for none, and counts the case."""
        if not self._which.fits(message):
            return ""
        self._matched += 1
        place = message.queue, message.offset
        if place in done:
            self._already += place not in self._mine
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

    def _on_stored(self, place: tuple[int, int], target: str) -> None:
        """This run has brought a letter back."""
        if place not in self._mine:
            self._mine.add(place)
            self._count(target)

    def _tell(self) -> None:
        now = time.monotonic()
        if now - self._noted >= PROGRESS_S:
            self._noted = now
            self._note(
                RedriveProgress(looked_at=self._looked, total=self._total, redriven=self._redriven)
            )

    # --- bringing back --------------------------------------------------------------------------

    async def carry_out(self) -> None:
        """Brings the letters back. Raises ProducerFenced when a later run has begun, LockLost when
        that is unknown."""
        await self.look()
        self._redriven, self._targets = 0, {}
        if not await self._source.exists(self._ledger):
            settings: dict[str, int | None] = {"retention_ms": UNLIMITED}
            await AdminCore(self._cluster).create_topic(self._ledger, 1, settings, True, None)
            self._source.forget(self._ledger)  # another run may have made it, and written to it
        queue = (await self._cluster.topic(self._ledger, refresh=True)).every[0]
        lock = RedriveLock(self._cluster, self._ledger, queue)
        while True:
            left = read_record(await lock.acquire()).attempt
            try:
                await self._go_on(lock, left)
            except FencedError as error:
                await self._check_latest(lock)
                logger.info("redrive goes on topic=%s error=%s", self._topic, error.message)
            else:
                await lock.release()
                return

    async def _check_latest(self, lock: RedriveLock) -> None:
        """The lock is lost. Raises ProducerFenced or LockLost unless this is the latest run."""
        stays = "what this run brought back stays"
        try:
            passed_on = await lock.passed_on()
        except SemelError as error:
            raise LockLost(
                f"the lock of the redrives of topic {self._topic!r} is lost: a later redrive has"
                f" begun, or the queue that remembers them moved; {stays}, repeat it for the rest"
            ) from error
        if passed_on:
            raise ProducerFenced(f"a later redrive of topic {self._topic!r} has begun; {stays}")

    async def _go_on(self, lock: RedriveLock, left: CopyAttempt | None) -> None:
        """Brings back what is not brought back yet, under a lock that was just acquired; `left` is
        the attempt that the record names. Raises FencedError when the lock is lost."""
        topic_id = await self._source.topic_id(self._topic)
        relay = Relay(self._cluster, f"semel.redrive:{topic_id:x}")
        try:
            copied = await self._settle(left)
            # Read only after every earlier run has ended, since one could add to it otherwise.
            done = await self._source.ledger(self._topic)
            if copied - done:
                self._recovered |= copied - done - self._mine
                await relay.prepare([self._ledger], afresh=True)
                await self._write_down(relay, copied - done)
            await self._rounds(relay, lock, done | copied)
        finally:
            relay.close()

    async def _settle(self, left: CopyAttempt | None) -> set[tuple[int, int]]:
        """Ends the attempt that an earlier lock has left, this run's own or another one's. Returns
        the letters whose copies are stored."""
        copied: set[tuple[int, int]] = set()
        if self._open is not None:
            # The record should name it. It need not: somebody may have removed the group meanwhile.
            mine, targets = self._open
            copied = await self._copied_by(mine)
            for place in copied & targets.keys():
                self._on_stored(place, targets[place])
            if left is not None and left.producer_id == mine.producer_id:
                left = None
        if left is not None:
            copied |= await self._copied_by(left)
        self._open = None
        return copied

    async def _copied_by(self, attempt: CopyAttempt) -> set[tuple[int, int]]:
        """Ends an attempt. Returns the letters of the topic whose copies it has stored."""
        stored = await settle(self._cluster, self._runtime, attempt)
        if attempt.source_topic_id != await self._source.topic_id(self._topic):
            return set()  # letters of an earlier topic of this name
        return {place for m in stored if (place := _copied_from(m, self._topic))}

    async def _rounds(self, relay: Relay, lock: RedriveLock, done: set[tuple[int, int]]) -> None:
        self._looked = self._matched = self._already = self._without = 0
        round_: list[tuple[Message, str]] = []
        size = 0
        every = self._source.read(self._topic, self._which.places)
        async with contextlib.aclosing(every) as messages:
            async for message in messages:
                self._looked += 1
                target = await self._target_of(message, done)
                if target:
                    round_.append((message, target))
                    size += len(message.value or b"")
                if len(round_) >= ROUND_LETTERS or size >= ROUND_BYTES:
                    await self._bring_back(relay, lock, round_)
                    round_, size = [], 0
                self._tell()
        await self._bring_back(relay, lock, round_)
        self._noted = 0.0
        self._tell()

    async def _bring_back(
        self, relay: Relay, lock: RedriveLock, round_: Sequence[tuple[Message, str]]
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
        await relay.prepare([self._ledger, *(target for _, target in round_)], afresh=True)
        attempt = relay.attempt(1)
        attempt.source_topic_id = await self._source.topic_id(self._topic)
        await lock.store(record_bytes((), attempt, 0))
        targets = {(message.queue, message.offset): target for message, target in round_}
        self._open = attempt, targets
        await relay.wait(relay.send(copies))
        await self._write_down(relay, targets)
        self._open = None
        for place, target in targets.items():
            self._on_stored(place, target)

    async def _write_down(self, relay: Relay, places: Iterable[tuple[int, int]]) -> None:
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
        entry = Copy(self._ledger, None, value, [], time.time_ns() // 1000)
        await relay.wait(relay.send([entry]))


def _copied_from(message: Message, topic: str) -> tuple[int, int] | None:
    """Returns the dead letter of `topic` of which a message is the copy."""
    name, _, place = letters.read(message.headers).redriven.partition("/")
    queue, _, offset = place.partition("/")
    if name != topic or not (queue.isdigit() and offset.isdigit()):
        return None
    return int(queue), int(offset)
