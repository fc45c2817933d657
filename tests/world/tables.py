"""Programs with a compacted topic: some write to it, one reads it again and again from its start.

How it works. A *keeper* writes messages with a few keys, some of them without a value, alone, in
transactions and delayed. A *tabler* reads the topic from its start to its end, and notes what it
ends with. What was sent is known by its digest, so the log says which message got which offset. At
the end the keepers read all queues on all nodes, and judge (`tests/checking/compaction.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from semel.broker.state import QueueState
from semel.client import Compaction
from semel.protos.batch import BROKER_HEADER_BYTES, BatchFlags, check_batch
from semel.protos.columns import decode_columns
from semel.protos.compacted_rows import offsets_of_rows
from tests.checking.compaction import Message, judge, judge_reading, purges_of
from tests.checking.history import digest_of
from tests.checking.raw_log import Fold
from tests.checking.stored import Queue
from tests.world.clients import READS, ClientHost
from tests.world.nodes import BrokerHost
from tests.world.registry import program, random_of
from tests.world.run import Run

TABLE: Final = "table"
TOMBSTONE_MS: Final = 1_200
KEYS: Final = 9
RETENTION: Final = (-1, -1, 4_000)
"""Bytes of a queue beyond which it is trimmed, too; -1 for no limit."""


@dataclass(slots=True)
class Reading:
    """One reading from the start to the end."""

    began_s: float
    ended_s: float
    starts: dict[int, int]
    ends: dict[int, int]
    read: dict[int, dict[bytes, bytes | None]]


@dataclass(slots=True)
class Known:
    """What all programs of the topic know together."""

    sent: dict[str, Message] = field(default_factory=dict)
    """Messages by their digests."""
    readings: list[Reading] = field(default_factory=list)
    judged: bool = False


class Keeper(ClientHost):
    """Writes to the topic, and judges at the end."""

    topics = (TABLE,)

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run.world, name)
        self._run = run
        self._known = run.shared(Known)
        self._number = 0

    async def work(self, client: Any) -> None:
        await client.admin.create_topic(
            TABLE,
            queues=self._run.plan.queues,
            if_not_exists=True,
            compaction=Compaction(tombstone_ms=TOMBSTONE_MS),
            retention_bytes=random_of(self._run.plan, "retention of tables").choice(RETENTION),
        )
        producer = client.producer(linger_ms=1, delivery_timeout_ms=8_000)
        while not self.stopping:
            rows = [self._message() for _ in range(self.random.randrange(1, 6))]
            keys, values = [key for key, _ in rows], [value for _, value in rows]
            chance = self.random.random()
            if chance < 0.15:
                async with producer.transaction(f"{self.name}-t") as staged:
                    await staged.send_many(TABLE, values, keys=keys)
            elif chance < 0.25:
                await producer.send_many(TABLE, values, keys=keys, deliver_at=self.soon_us())
            else:
                await producer.send_many(TABLE, values, keys=keys)
            await self.pause(0.04)
        await producer.flush()
        self.done = True

    def _message(self) -> Message:
        self._number += 1
        key = None if self.random.random() < 0.05 else b"k%d" % self.random.randrange(KEYS)
        value = f"{self.name}/{self.starts}/{self._number}".encode()
        message = key, None if key is not None and self.random.random() < 0.2 else value
        self._known.sent[digest_of(message[1], key)] = message
        return message

    def verdict(self, fold: Fold) -> str:
        if self._known.judged:
            return ""
        self._known.judged = True
        problems: list[str] = []
        sent: dict[Queue, dict[int, Message]] = {}
        for row in fold.rows:
            if fold.topics.get(row.queue[0]) == TABLE:
                sent.setdefault(row.queue, {})[row.offset] = self._known.sent[row.digest]
        logs = {int(group.group_id): group.invariants.committed for group in self._run.groups}
        purged: dict[Queue, int] = {}
        for queue, purges in purges_of(logs, TOMBSTONE_MS, problems).items():
            purged[queue] = purges.below
            self.world.seen["pass of compaction"] += purges.ended
            self.world.seen["tombstones removed"] += purges.below > 0
        for group in self._run.groups:
            for host in group.members():
                problems += self._judge_node(host, sent, purged)
        for reading in self._known.readings:
            problems += self._judge_reading(reading, sent, purged)
        return f"compaction: {problems[0]}" if problems else ""

    def _judge_node(
        self, host: BrokerHost, sent: dict[Queue, dict[int, Message]], purged: dict[Queue, int]
    ) -> list[str]:
        assert host.replica is not None
        problems: list[str] = []
        for key, queue in host.replica.state.queues.items():
            if queue.topic != TABLE:
                continue
            place = int(key.topic_id), int(key.queue_id)
            held = rows_on(host, queue)
            self.world.seen["message removed by compaction"] += len(sent.get(place, {})) - len(held)
            self.world.seen["message kept by compaction"] += len(held)
            problems += [
                f"{host.name}, queue {place}: {problem}"
                for problem in judge(
                    sent.get(place, {}),
                    held,
                    start=queue.log_start_offset,
                    purged=purged.get(place, 0),
                    compacted_to=queue.compaction.compacted_to,
                )
            ]
        return problems

    def _judge_reading(
        self, reading: Reading, sent: dict[Queue, dict[int, Message]], purged: dict[Queue, int]
    ) -> list[str]:
        if reading.ended_s - reading.began_s > TOMBSTONE_MS / 1_300:
            return []  # it may have missed a tombstone
        self.world.seen["table read"] += 1
        problems: list[str] = []
        for (topic, number), rows in sent.items():
            if number in reading.ends:
                problems += judge_reading(
                    rows,
                    reading.read.get(number, {}),
                    start=reading.starts[number],
                    end=reading.ends[number],
                    purged=purged.get((topic, number), 0),
                )
        return problems


def rows_on(host: BrokerHost, queue: QueueState) -> list[tuple[int, Message]]:
    """The messages of a queue on a node, read from its log."""
    assert host.replica is not None
    found: list[tuple[int, Message]] = []
    for extent in queue.extents_from(queue.log_start_offset, 1 << 60):
        stored = host.replica.log.read_record(extent.index, extent.position, extent.length)
        data = bytes(stored)[BROKER_HEADER_BYTES:]
        header = check_batch(data)
        if header.flags & BatchFlags.POSITION_MARK:
            continue
        columns = decode_columns(data, header)
        keys = [None] * len(columns) if columns.keys is None else columns.keys.to_pylist()
        offsets = offsets_of_rows(columns, extent.base_offset, extent.first_row, extent.count)
        rows = zip(offsets.tolist(), keys, columns.values.to_pylist(), strict=True)
        found += [(offset, (key, value)) for offset, key, value in rows if offset >= 0]
    return found


class Tabler(ClientHost):
    """Reads the topic from its start to its end, over and over."""

    stage = READS

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run.world, name)
        self._known = run.shared(Known)

    async def work(self, client: Any) -> None:
        while not self.stopping:
            await self.pause(0.2)
            began_s = self.world.now
            topic = await client.admin.describe_topic(TABLE)
            starts = {queue.queue: queue.log_start_offset for queue in topic.queues}
            ends = {queue.queue: queue.log_end_offset for queue in topic.queues}
            read: dict[int, dict[bytes, bytes | None]] = {}
            async with client.reader(TABLE, start=starts, end=ends) as reader:
                async for message in reader:
                    if message.key is not None:
                        read.setdefault(message.queue, {})[message.key] = message.value
            self._known.readings.append(Reading(began_s, self.world.now, starts, ends, read))
        self.done = True


@program("keeper", host="tk")
def _keeper(run: Run, host: str) -> Keeper:
    return Keeper(run, host)


@program("tabler", host="tr")
def _tabler(run: Run, host: str) -> Tabler:
    return Tabler(run, host)
