"""Copies messages from one queue to other topics, so that none is lost and none comes twice.

How it works. What was copied is remembered elsewhere (a group's committed offset, a database, a
topic), and no crash must come between the two unnoticed. So copies are sent by a named producer of
that queue's own, in three steps:

    1. send      the copies are durable in their topics
    2. (caller)  progress behind the copied messages is durable
    3. resolve   an empty batch behind the copies says so: a *position mark*

Whoever takes over fences the producer with a higher epoch. From then on nothing of an older owner
can land, and the queue's window shows what it left: batches behind the last mark are *unresolved*.
They are read back; those whose originals the progress does not cover were copied by an owner that
died between 1 and 2, and must not be copied, nor processed, again.

Sequences are the relay's own rising numbers, shared by its topics: originals may be copied again
(after an operator's reset), and must not be taken for duplicates then.

Invariants
1. A copy is submitted once by one owner; whoever is in doubt gives up the ownership and takes over
   again, under a higher epoch.
2. Epochs follow ownership: for a queue of a consumer group the fencing token of its lock is the
   epoch, so that the locks' order is the fences' order.
3. Batches behind a mark are few (callers bound what they send before they `resolve`), so that the
   window of 64 holds them all.
4. A queue that was split keeps its batches: they are looked for there, and a mark behind them
   stands in one of the queues that it was split into.

Where it ends. A crash between 2 and 3, followed by a reset of the progress before anybody took
over: what the last copies were made of looks unresolved, and is left out of that one reprocessing.
A row that expired (seven idle days) shows nothing: only a crash between 1 and 2 that nobody came
back from for so long is not noticed.

Not here: whose messages, and where to (`retrying.py`, `redriving.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from semel.client.cluster import Cluster
from semel.client.config import ProducerConfig, ReaderConfig
from semel.client.core.batching import Chunk, Rows, row_sizes
from semel.client.core.letters import Headers
from semel.client.core.routing import TopicRoute
from semel.client.futures import await_settled
from semel.client.identity import Identity
from semel.client.intake import Intake
from semel.client.message import Message
from semel.client.producer import ProducerCore
from semel.client.producer_topic import ProducerTopic
from semel.client.pulling import await_ready
from semel.client.reader import ReaderCore
from semel.client.runtime import Runtime
from semel.protos import compat
from semel.protos.batch import COPY_BYTES_MAX, MESSAGE_BYTES_MAX
from semel.protos.columns import Columns
from semel.protos.errors import OffsetOutOfRange, QueueSealed, UnknownQueue, UnknownTopic
from semel.protos.ids import GroupId, ProducerId, QueueKey
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import broker_pb2, control_pb2, controller_pb2

logger = logging.getLogger(__name__)

SESSION: Final = 1
WINDOW_WARNING: Final = 60
"""So many unresolved batches are near the end of what a queue remembers."""
READ_S: Final = 10.0
RESOLVE_S: Final = 2.0
"""How long a mark is waited for; without it the next owner reads a little more."""
NAME_CHARACTERS_MAX: Final = 249
_OPEN_ID: Final = b"semel-relay"


class Copy(NamedTuple):
    """One message on its way to another topic."""

    topic: str
    key: bytes | None
    value: bytes
    headers: Headers
    timestamp_us: int
    message_id: bytes | None = None


async def relay_id(cluster: Cluster, name: str) -> ProducerId:
    """The producer id of a relay; always the same. Raises SemelError."""
    request = controller_pb2.OpenProducerRequest(name=name, open_id=_OPEN_ID)
    return ProducerId((await cluster.controller("OpenProducer", request)).producer_id)


async def new_owner(cluster: Cluster, name: str) -> tuple[ProducerId, int]:
    """Id of a relay, and an epoch above all before: for one whose owners the controllers order.

    Raises SemelError.
    """
    request = controller_pb2.OpenProducerRequest(name=name, open_id=os.urandom(16))
    reply = await cluster.controller("OpenProducer", request)
    return ProducerId(reply.producer_id), reply.epoch


class _RelayProducer(ProducerCore):
    """A producer whose messages do not come through the door, and may be somewhat larger than what
    they are copies of."""

    def submit(self, name: str, columns: Columns, positions: Rows) -> Chunk:
        """Messages for a topic that is open. Raises what the producer failed with, UnknownTopic."""
        topic = self._opened(name)
        chunk = Chunk(name, time.time_ns() // 1000, self._deadline())
        chunk.values, chunk.keys = columns.values, columns.keys
        chunk.headers, chunk.timestamps = columns.headers, columns.timestamps
        chunk.message_ids = columns.message_ids
        chunk.positions = positions
        chunk.message_bytes_max = MESSAGE_BYTES_MAX + COPY_BYTES_MAX
        chunk.count = len(columns)
        chunk.bytes = int(row_sizes(columns).sum())
        self._keep(chunk)
        self._route(topic, chunk, 0)
        return chunk

    def mark(self, name: str, queues: Iterable[int], position: int) -> Chunk:
        """Moves the last sequence of some queues of an open topic. Raises like `submit`."""
        topic = self._opened(name)
        wanted = {heir.key for queue in queues for heir in topic.route.heirs_of(queue)}
        lanes = [lane for lane in topic.lanes if lane.key in wanted]
        return self._mark(topic, lanes, position)

    def _opened(self, name: str) -> ProducerTopic:
        failure = self.intake.failure()
        if failure is not None:
            raise failure
        topic = self._topics.get(name)
        if topic is None:
            raise UnknownTopic(f"topic {name!r} is gone")
        return topic


class Relay:
    """One owner's copies out of one queue. Lives on the I/O thread."""

    def __init__(
        self, cluster: Cluster, runtime: Runtime, name: str, producer_id: ProducerId, epoch: int
    ) -> None:
        self._cluster = cluster
        self._runtime = runtime
        self._identity = Identity.given(cluster, name, producer_id, epoch)
        self._core: _RelayProducer | None = None
        self._position = 0
        """Next number to give."""
        self._unresolved: dict[str, set[int]] = {}
        """Queues, by topic, with copies behind their last mark."""

    async def take_over(self, topics: Sequence[str]) -> list[Message]:
        """Ends older owners on all queues of the topics; returns the unresolved copies.

        Raises ProducerFenced when a newer owner exists; UnknownTopic.
        """
        found: list[Message] = []
        for topic in topics:
            try:
                rows = await self._fence(topic, refresh=False)
            except (UnknownQueue, UnknownTopic):
                rows = await self._fence(topic, refresh=True)
            for row in rows:
                self._position = max(self._position, row.last_sequence + 1)
                batches = _behind_last_mark(row)
                if not batches:
                    continue
                if len(batches) >= WINDOW_WARNING:
                    logger.warning(
                        "very many copies are unresolved topic=%s queue=%s batches=%s",
                        topic,
                        row.queue.queue_id,
                        len(batches),
                    )
                self._unresolved.setdefault(topic, set()).add(row.queue.queue_id)
                start = batches[0].base_offset
                end = batches[-1].base_offset + batches[-1].count
                messages = await self._read(topic, row.queue.queue_id, start, end)
                found += [m for m in messages if m.producer_id == self._identity.producer_id]
        return found

    async def _fence(self, topic: str, *, refresh: bool) -> list[broker_pb2.ProducerRow]:
        """Rows of the open queues, and those of split ones behind which no mark came."""
        timeout_s = self._cluster.config.request_timeout_ms / 1000
        route = await self._cluster.topic(topic, refresh=refresh)
        while True:
            try:
                rows = await self._identity.fence(
                    list(route.queues), SESSION, timeout_s, after_expiry=True
                )
            except QueueSealed as error:
                split = control_pb2.SplitQueue.FromString(error.split_record)
                route = route.after_split(split)
                self._cluster.routes.on_split(topic, split)
                continue
            return rows + await self._rows_of_split_queues(route, rows)

    async def _rows_of_split_queues(
        self, route: TopicRoute, open_rows: Sequence[broker_pb2.ProducerRow]
    ) -> list[broker_pb2.ProducerRow]:
        """They cannot be fenced and do not change any more."""
        by_group: dict[GroupId, broker_pb2.DescribeProducersRequest] = {}
        for queue in route.sealed:
            request = by_group.setdefault(
                queue.group_id,
                broker_pb2.DescribeProducersRequest(
                    producer_id=self._identity.producer_id, windows=True, confirmed=True
                ),
            )
            request.queues.append(queue_ref(queue.key))
        replies = await asyncio.gather(
            *(
                self._cluster.call_master(group_id, "DescribeProducers", request)
                for group_id, request in by_group.items()
            )
        )
        rows = [row for reply in replies for row in reply.rows]
        known = {row.queue.queue_id: row for row in (*open_rows, *rows)}
        return [row for row in rows if not _marked_later(row, route, known)]

    async def _read(self, topic: str, queue: int, start: int, end: int) -> list[Message]:
        """Rows `[start, end)` of a queue, as far as they exist. Raises SemelError."""
        reader = ReaderCore(self._cluster, self._runtime, ReaderConfig())
        found: list[Message] = []
        try:
            with contextlib.suppress(OffsetOutOfRange):  # trimmed away since
                await reader.open(topic, [queue], {queue: start}, {queue: end})
                while not reader.puller.finished:
                    await await_ready(reader.feed, READ_S)
                    found += reader.puller.messages(1_000)
        finally:
            reader.close()
        return found

    async def send(self, copies: Sequence[Copy]) -> list[Chunk]:
        """Puts copies on their way in the order given; `wait` for them.

        Raises ProducerFenced when a newer owner exists, UnknownTopic; then nothing is on its way.
        """
        core = await self._open({copy.topic for copy in copies})
        chunks = []
        for topic in dict.fromkeys(copy.topic for copy in copies):
            some = [copy for copy in copies if copy.topic == topic]
            columns = Columns.from_arrow(
                [copy.value for copy in some],
                keys=[copy.key for copy in some],
                headers=[copy.headers for copy in some],
                timestamps=[copy.timestamp_us for copy in some],
                message_ids=_ids_of(some),
            )
            positions = np.arange(self._position, self._position + len(some), dtype=np.int64)
            self._position += len(some)
            chunk = core.submit(topic, columns, positions)
            queues = {part.queue.queue_id for part in chunk.parts or ()}
            self._unresolved.setdefault(topic, set()).update(queues)
            chunks.append(chunk)
        return chunks

    async def wait(self, chunks: Sequence[Chunk]) -> None:
        """Returns once the copies are durable. Raises what the first of them failed with."""
        for chunk in chunks:
            await await_settled(chunk, lambda chunk=chunk: chunk.settled)  # type: ignore[misc]
        for chunk in chunks:
            for _, outcome in chunk.outcomes(0, chunk.count) or ():
                if outcome.error is not None:
                    raise outcome.error

    async def resolve(self) -> None:
        """Says that progress behind all copies is durable, as far as it can be said in time.

        Raises nothing of the cluster's: what is left out costs the next owner a longer look.
        """
        if not self._unresolved:
            return
        try:
            async with compat.timeout(RESOLVE_S):
                core = await self._open(set(self._unresolved))
                unresolved, self._unresolved = self._unresolved, {}
                marks = []
                for topic, queues in unresolved.items():
                    marks.append(core.mark(topic, queues, self._position))
                    self._position += 1
                await self.wait(marks)
        except Exception as error:  # whatever it was, the progress is durable
            logger.info("copies stay unresolved error=%s", error)

    async def _open(self, topics: set[str]) -> _RelayProducer:
        if self._core is None:
            config = ProducerConfig(source_positions=True, after_expiry="restart")
            intake = Intake(config, wake=lambda: None, open_topic=None)
            self._core = _RelayProducer(
                self._cluster, self._identity.name, config, intake, identity=self._identity
            )
            self._core.start()
        core = self._core
        for topic in sorted(topics):
            await core.open_topic(topic)
        return core

    def close(self) -> None:
        """Ends it at once; what is on its way may still land."""
        if self._core is not None:
            self._core.close()
            self._core = None


def _ids_of(copies: Sequence[Copy]) -> list[bytes | None] | None:
    """None when none has an id: then the batch has no column of them."""
    ids = [copy.message_id for copy in copies]
    return ids if any(each is not None for each in ids) else None


def _marked_later(
    row: broker_pb2.ProducerRow, route: TopicRoute, known: Mapping[int, broker_pb2.ProducerRow]
) -> bool:
    """A queue that descends from the row's has a mark of its own: progress behind everything that
    was sent before is durable."""
    lineage = {row.queue.queue_id}
    for queue in route.every:
        number = queue.key.queue_id
        if queue.parent in lineage:
            lineage.add(number)
            window = known[number].window if number in known else ()
            if any(not entry.count and entry.base_offset >= 0 for entry in window):
                return True
    return False


def _behind_last_mark(row: broker_pb2.ProducerRow) -> list[broker_pb2.WindowEntry]:
    batches: list[broker_pb2.WindowEntry] = []
    for entry in row.window:
        if entry.count:
            batches.append(entry)
        else:
            batches.clear()
    return batches


def relay_name(purpose: str, scope: str, key: QueueKey) -> str:
    """Name of the producer that copies out of one queue; a re-created topic has another id."""
    name = f"semel.{purpose}:{key.topic_id:x}:{key.queue_id}:{scope}"
    if len(name) <= NAME_CHARACTERS_MAX:
        return name
    return f"{name[:180]}-{hashlib.sha256(name.encode()).hexdigest()}"
