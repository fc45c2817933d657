"""Programs with a topic in memory: some write to it, others read it from its start, over and over.

How it works. A *pusher* sends numbered messages under a durable name and begins anew with each
life. A *peeker* reads one queue at a time, from its start to its end, and notes what it is given,
and what it is told to be lost. What is acknowledged, what is read and what the nodes hold in the
end must agree: at each offset there is one message, or it is lost on every node, and said so.

Not here: faults (`parts/memory.py`), what the log says (`tests/checking/raw_log.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from semel.broker.state import QueueState
from semel.protos.batch import BROKER_HEADER_BYTES, check_batch
from semel.protos.columns import decode_columns
from semel.protos.errors import (
    DedupStateExpired,
    OffsetOutOfRange,
    OffsetsLost,
    TopicExists,
)
from tests.checking.raw_log import Fold
from tests.world.clients import READS, ClientHost
from tests.world.nodes import BrokerHost
from tests.world.registry import program, random_of
from tests.world.run import Run

MEMORY: Final = "memory"
CAREFUL: Final = "careful kill"
"""The fault after which nothing may be lost."""
BOUNDS: Final = (40_000, 1 << 20, 1 << 20)
Place = tuple[int, int]
"""Queue and offset."""


@dataclass(slots=True)
class Known:
    """What all programs of the topic know together."""

    made: set[bytes] = field(default_factory=set)
    acknowledged: dict[Place, bytes] = field(default_factory=dict)
    read: dict[Place, bytes] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    judged: bool = False

    def note(self, notes: dict[Place, bytes], place: Place, value: bytes, what: str) -> None:
        """Adds what somebody was told of an offset."""
        for others in (self.acknowledged, self.read):
            if others.get(place, value) != value:
                self.problems.append(f"{place} {what} {value!r}, and it was {others[place]!r}")
        if value not in self.made:
            self.problems.append(f"{place} {what} {value!r}, which nobody has sent")
        notes[place] = value


class Pusher(ClientHost):
    """Writes to the topic, and judges at the end."""

    topics = (MEMORY,)

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run.world, name)
        self._run = run
        self._known = run.shared(Known)
        self._made = 0
        self._identity = 0
        """Rises when the queues have forgotten the producer: what it had sent stays as it is."""

    async def work(self, client: Any) -> None:
        plan = self._run.plan
        with contextlib.suppress(TopicExists):  # with more queues, since it was split
            await client.admin.create_topic(
                MEMORY,
                queues=plan.queues,
                if_not_exists=True,
                storage="memory",
                memory_bytes=random_of(plan, "bound of memory").choice(BOUNDS),
                message_bytes_max=4_096,
                batch_bytes_max=8_192,
            )
        try:
            await self._push(client)
        except DedupStateExpired:
            self.world.count("pusher forgotten")
            self._identity += 1
            self._made = 0
            raise
        self.done = True

    async def _push(self, client: Any) -> None:
        name = f"{self.name}-{self._identity}"
        producer = client.producer(
            name, source_positions=True, linger_ms=1, delivery_timeout_ms=20_000
        )
        await producer.open(MEMORY)
        resume = await producer.last_sequence(MEMORY)
        futures: list[asyncio.Future[None]] = []
        position = 0
        while not self.stopping or position < self._made:
            value = f"{name}/{position}/".encode().ljust(60, b".")
            self._known.made.add(value)
            self._made = max(self._made, position + 1)
            future = producer.send(MEMORY, value, position=position)
            futures.append(asyncio.ensure_future(self._settle(future, value)))
            if position > resume:
                await self.pause(0.03)
            position += 1
        results = await asyncio.gather(*futures, return_exceptions=True)
        await producer.flush()
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _settle(self, future: Any, value: bytes) -> None:
        found = await future
        if found.offset >= 0:
            place = found.queue, found.offset
            self._known.note(self._known.acknowledged, place, value, "was acknowledged as")
            self.world.count("message in memory acknowledged")

    async def wind_up(self) -> None:
        """Goes on until every message it began with is stored."""

    def verdict(self, fold: Fold) -> str:
        known = self._known
        if known.judged:
            return ""
        known.judged = True
        for notes in (known.acknowledged, known.read):
            places: dict[bytes, Place] = {}
            for place, value in notes.items():
                if places.setdefault(value, place) != place:
                    known.problems.append(f"{value!r} is stored at {places[value]} and {place}")
        plan = self._run.plan
        # Machines are upgraded without regard to what others have in memory.
        careful = any(step.kind == CAREFUL for step in plan.steps) and "upgrades" not in plan.parts
        for group in self._run.groups:
            for host in group.members():
                known.problems += self._judge_node(host, careful=careful)
        return f"memory: {known.problems[0]}" if known.problems else ""

    def _judge_node(self, host: BrokerHost, *, careful: bool) -> Iterator[str]:
        assert host.replica is not None
        for key, queue in host.replica.state.queues.items():
            if queue.topic != MEMORY:
                continue
            assert queue.in_memory
            held = dict(_rows_on(host, queue))
            number = int(key.queue_id)
            self.world.seen["message held in memory"] += len(held)
            self.world.seen["queue in memory arrived"] += key in host.replica.state.moves.places
            self.world.seen["message lost"] += queue.lost.messages
            self.world.seen["message dropped by the bound"] += queue.log_start_offset
            if careful and queue.lost.messages:
                yield f"{host.name}: {queue.lost} though one node died at a time"
            for offset in range(queue.log_start_offset, queue.log_end_offset):
                if queue.lost.end_at(offset) is not None:
                    continue
                if offset not in held:
                    yield f"{host.name}: {(number, offset)} is gone, and nobody was told"
                    continue
                for notes in (self._known.acknowledged, self._known.read):
                    if notes.get((number, offset), held[offset]) != held[offset]:
                        yield f"{host.name}: {(number, offset)} holds {held[offset]!r}"


def _rows_on(host: BrokerHost, queue: QueueState) -> Iterator[tuple[int, bytes]]:
    """Offset and value of the messages of a queue in the memory of a node."""
    assert host.replica is not None
    for extent in queue.extents_from(queue.log_start_offset, 1 << 60):
        stored = host.replica.bodies.get(extent.index, extent.position)
        if stored is None:
            continue
        data = stored[BROKER_HEADER_BYTES:]
        values = decode_columns(data, check_batch(data)).values.to_pylist()
        yield from ((extent.base_offset + row, value) for row, value in enumerate(values))


class Peeker(ClientHost):
    """Reads one queue after the other, from its start to its end."""

    stage = READS

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run.world, name)
        self._known = run.shared(Known)

    async def work(self, client: Any) -> None:
        while not self.stopping:
            await self.pause(0.15)
            topic = await client.admin.describe_topic(MEMORY)
            queue = self.random.choice(topic.queues)
            number, expected = queue.queue, queue.log_start_offset
            async with client.reader(
                MEMORY, queues=[number], start={number: expected}, end="latest"
            ) as reader:
                while not (reader.finished or self.stopping):
                    try:
                        messages = await reader.poll(timeout=0.5)
                    except OffsetsLost as error:
                        self.world.count("reader told of a loss")
                        expected = error.next_offset
                        continue
                    except OffsetOutOfRange:
                        break  # the bound has overtaken it
                    for message in messages:
                        place = number, message.offset
                        if message.offset != expected:
                            self._known.problems.append(
                                f"{place} was read where {expected} was due, and no loss was told"
                            )
                        expected = message.offset + 1
                        self._known.note(self._known.read, place, message.value, "was read as")
                        self.world.count("message in memory read")
        self.done = True


@program("pusher", host="mp")
def _pusher(run: Run, host: str) -> Pusher:
    return Pusher(run, host)


@program("peeker", host="mr")
def _peeker(run: Run, host: str) -> Peeker:
    return Peeker(run, host)
