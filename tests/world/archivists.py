"""Programs around tiered topics: they read everything from the start, with brokers and without, and
wait in the end until the object store is clean.

How it works. An *archivist* reads the topic from its start to its end, again and again, most of it
from the object store through the brokers. An *outsider* reads the queues that the store has without
any broker. Both note the digest of each message; when the run is over it must be what the log says.
A *janitor* is done when nothing is in the store that no pointer leads to.

Not here: what must hold of manifests (`tier_checks.py`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from semel.protos.errors import SemelError
from semel.protos.ids import QueueKey
from semel.tier import QueueReader, Wanted, newest_pointer, queues_of, read_manifest, topics_of
from tests.checking.history import digest_of
from tests.checking.raw_log import Fold
from tests.world.clients import AUDITS, READS, TOPIC, ClientHost
from tests.world.nodes import CLUSTER
from tests.world.object_store import URL
from tests.world.registry import program
from tests.world.run import Run
from tests.world.tier_checks import TierChecks


@dataclass(slots=True)
class Reading:
    """What one reading of a queue has found."""

    queue: tuple[int, int]
    start: int
    """Every offset from here on was there all the time."""
    end: int
    read: dict[int, str]
    """Digests of messages by offset."""

    def wrong(self, held: dict[int, str]) -> str:
        """The first contradiction to the messages that the log has; empty if there is none."""
        for at, digest in self.read.items():
            if held.get(at) != digest:
                return f"offset {at} was read as {digest}, and is {held.get(at)}"
        missing = [at for at in held if self.start <= at < self.end and at not in self.read]
        return f"offset {min(missing)} was not read" if missing else ""


class _Reads(ClientHost):
    """Notes readings, and judges them when the run is over."""

    stage = READS

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run.world, name)
        self.readings: list[Reading] = []

    def verdict(self, fold: Fold) -> str:
        held: dict[tuple[int, int], dict[int, str]] = {}
        for row in fold.rows:
            held.setdefault(row.queue, {})[row.offset] = row.digest
        for each in self.readings:
            wrong = each.wrong(held[each.queue]) if each.queue in held else ""
            if wrong:
                return f"tier: {self.name}, queue {each.queue}: {wrong}"
        return ""


class Archivist(_Reads):
    """Reads the topic from its start to its end, over and over."""

    async def work(self, client: Any) -> None:
        while True:
            await self.pause(0.2)
            last = self.stopping  # one more reading, of everything
            topic = await client.admin.describe_topic(TOPIC)
            starts = {queue.queue: queue.log_start_offset for queue in topic.queues}
            ends = {queue.queue: queue.log_end_offset for queue in topic.queues}
            read: dict[int, dict[int, str]] = {number: {} for number in starts}
            async with client.reader(TOPIC, start=starts, end=ends) as reader:
                async for message in reader:
                    digest = digest_of(message.value, message.key)
                    read[message.queue][message.offset] = digest
            later = await client.admin.describe_topic(TOPIC)
            now = {queue.queue: queue.log_start_offset for queue in later.queues}
            for number, found in read.items():
                start = max(starts[number], now.get(number, ends[number]))
                place = int(topic.topic_id), number
                self.readings.append(Reading(place, start, ends[number], found))
                self.world.seen["queue read from its start"] += 1
            if last:
                break
        self.done = True


class Outsider(_Reads):
    """Reads what the store has, without brokers. What it gets may be old, and is never wrong."""

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run, name)
        self._checks = run.shared(TierChecks)

    async def work(self, client: Any) -> None:
        while not self.stopping:
            await self.pause(0.3)
            loop = asyncio.get_running_loop()
            for reading in await loop.run_in_executor(None, self._look):
                self.readings.append(reading)
                self.world.seen["queue read without brokers"] += 1
        self.done = True

    def _look(self) -> list[Reading]:
        """On a thread."""
        assert self._checks.store is not None
        store = self._checks.store.open(URL)
        readings: list[Reading] = []
        for topic in topics_of(store, CLUSTER):
            for key in queues_of(store, CLUSTER, topic.topic_id):
                try:
                    readings += self._look_queue(store, key)
                except SemelError as error:
                    self.world.tell(f"{type(error).__name__}: {error.message}")
        return readings

    @staticmethod
    def _look_queue(store: Any, key: QueueKey) -> list[Reading]:
        pointer = newest_pointer(store, CLUSTER, key)
        if pointer is None:
            return []
        reader = QueueReader(store, read_manifest(store, pointer))
        start, end = reader.manifest.start, reader.manifest.end
        read: dict[int, str] = {}
        for rows in reader.rows(Wanted(start=start, end=end), ("offset", "key", "value")):
            for row in rows.to_pylist():
                read[row["offset"]] = digest_of(row["value"], row["key"])
        return [Reading((int(key.topic_id), int(key.queue_id)), start, end, read)]


class Janitor(ClientHost):
    """Waits until the store is clean."""

    stage = AUDITS

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run.world, name)
        self._checks = run.shared(TierChecks)
        for group in run.groups:
            group.invariants.folded.on_tier = self._checks.on_record

    async def work(self, client: Any) -> None:
        while not (self.stopping and self.quiet()) or self._checks.garbage():
            await self.pause(0.2)
        self.done = True

    async def wind_up(self) -> None:
        """It waits longer."""

    def verdict(self, fold: Fold) -> str:
        return self._checks.wrong_rows(fold)


@program("archivist", host="ar")
def _archivist(run: Run, host: str) -> Archivist:
    return Archivist(run, host)


@program("outsider", host="os")
def _outsider(run: Run, host: str) -> Outsider:
    return Outsider(run, host)


@program("janitor", host="ja")
def _janitor(run: Run, host: str) -> Janitor:
    return Janitor(run, host)
