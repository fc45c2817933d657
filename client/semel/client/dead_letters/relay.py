"""Copies messages from one queue to other topics, so that none is lost and none is copied twice.

How it works. The progress of copying is stored elsewhere (a group's committed offset, a database, a
ledger), and a crash between a copy and its progress must be noticed. So a producer with a unique id
sends the copies, and its caller stores beforehand what it is about to do:

    1. prepare   the producer is known in all topics, and where their queues end
    2. (caller)  the *attempt* (producer, topics, ends) is durable under a fencing token
    3. send      the copies are durable in their topics
    4. (caller)  progress behind the copied messages is durable, and the attempt is over

A new owner finds the attempt that is not over. `settle` ends the attempt's producer with a higher
epoch: from then on none of its copies can land. Then it reads, from the recorded ends on, which
copies the producer has stored. Nothing is derived from send windows, from rows that may expire, or
from present settings.

Sequences are the relay's own rising numbers, shared by its topics: originals may be copied again
(after an operator's reset), and must not be taken for duplicates then.

Invariants
1. An owner submits a copy once. An owner in doubt gives up the ownership and takes over again,
   under a new token.
2. No copy is sent to a topic that the durable attempt does not name.
3. A relay's epoch rises only while nothing of it is under way.

Limit. A copy that a topic's retention has dropped cannot be found any more: its original counts as
not copied.

Not here: which messages are copied, and where to (`dead_letters/retrying.py`,
`dead_letters/redrive.py`), the bytes of an attempt (`core/copies.py`).
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from semel.client.config import ProducerConfig, ReaderConfig
from semel.client.core.batching import Chunk, Rows, row_sizes
from semel.client.core.letters import Headers
from semel.client.core.routing import QueueRoute, TopicRoute
from semel.client.message import Message, Value
from semel.client.producer.futures import await_settled
from semel.client.producer.identity import Identity
from semel.client.producer.intake import Intake
from semel.client.producer.producer import ProducerCore
from semel.client.producer.topic import ProducerTopic
from semel.client.reading.offsets import list_offsets
from semel.client.reading.pulling import await_ready
from semel.client.reading.reader import ReaderCore
from semel.client.transport.cluster import Cluster
from semel.client.transport.runtime import Runtime
from semel.protos.batch import COPY_BYTES_MAX, MESSAGE_BYTES_MAX
from semel.protos.columns import Columns
from semel.protos.errors import (
    Closed,
    DedupStateExpired,
    OffsetOutOfRange,
    ProducerFenced,
    QueueSealed,
    UnknownQueue,
    UnknownTopic,
)
from semel.protos.ids import ProducerId, QueueKey
from semel.protos.v1 import broker_pb2, control_pb2, controller_pb2
from semel.protos.v1.copies_pb2 import CopyAttempt, CopyTarget, CopyTargetQueue

logger = logging.getLogger(__name__)

FIRST_EPOCH: Final = 1
SESSION: Final = 1
READ_S: Final = 10.0
NAME_CHARACTERS_MAX: Final = 249


class Copy(NamedTuple):
    """One message on its way to another topic."""

    topic: str
    key: bytes | None
    value: Value
    headers: Headers
    timestamp_us: int
    message_id: bytes | None = None


class _OneUse(Identity):
    """A producer id that is used here alone, so its owner chooses the epochs."""

    floor = 0
    """The highest epoch that a queue has refused."""

    async def _fence(
        self, queues: list[QueueRoute], template: broker_pb2.FenceProducerRequest, timeout_s: float
    ) -> list[broker_pb2.ProducerRow]:
        try:
            return await super()._fence(queues, template, timeout_s)
        except DedupStateExpired as error:
            self.floor = max(self.floor, error.epoch_floor)
            raise


class _RelayProducer(ProducerCore):
    """A producer whose messages do not pass the intake, and may be somewhat larger than their
    originals."""

    def submit(self, name: str, columns: Columns, positions: Rows) -> Chunk:
        """Sends messages to an open topic. Raises the producer's failure, UnknownTopic."""
        topic = self._opened(name)
        chunk = Chunk(name, time.time_ns() // 1000, self._deadline())
        chunk.values, chunk.keys = columns.values, columns.keys
        chunk.headers, chunk.timestamps = columns.headers, columns.timestamps
        if not topic.route.id_rules.compared:  # with its id, a copy would be one of its original
            chunk.message_ids = columns.message_ids
        chunk.positions = positions
        chunk.message_bytes_max = MESSAGE_BYTES_MAX + COPY_BYTES_MAX
        chunk.count = len(columns)
        chunk.bytes = int(row_sizes(columns).sum())
        self._keep(chunk)
        self._route(topic, chunk, 0)
        return chunk

    def _opened(self, name: str) -> ProducerTopic:
        failure = self.intake.failure()
        if failure is not None:
            raise failure
        topic = self._topics.get(name)
        if topic is None:
            raise UnknownTopic(f"topic {name!r} is gone")
        return topic


class Relay:
    """The copies that one owner makes out of one queue. Lives on the I/O thread."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        """`name` is for people: the producer is identified by its id."""
        self._cluster = cluster
        self._name = name
        self._producer_id = ProducerId(0)
        self._epoch = FIRST_EPOCH
        self._core: _RelayProducer | None = None
        self._position = 0
        """The next sequence to assign."""
        self._targets: dict[str, CopyTarget] = {}
        self._closed = False

    async def prepare(self, topics: Iterable[str], *, afresh: bool) -> None:
        """Prepares copies to these topics, which may be sent once the caller has made `attempt`
        durable.

        `afresh` says that the attempt before is over, so the next one begins at the present ends.
        Raises SemelError; then no further copy is on its way.
        """
        if afresh:
            self._targets = {}
        missing = [topic for topic in dict.fromkeys(topics) if topic not in self._targets]
        if missing:
            await self._open(missing)
            self._targets.update({topic: await self._ends_of(topic) for topic in missing})

    async def _open(self, topics: Sequence[str]) -> None:
        if not self._producer_id:
            request = controller_pb2.OpenProducerRequest(open_id=os.urandom(16))
            reply = await self._cluster.controller("OpenProducer", request)
            self._producer_id = ProducerId(reply.producer_id)
        while True:
            core = self._core or self._begin_core()
            try:
                for topic in topics:
                    await core.open_topic(topic)
            except (DedupStateExpired, ProducerFenced):
                floor = core.identity.floor if isinstance(core.identity, _OneUse) else 0
                if floor < self._epoch or self._targets:
                    raise
                self._end_core()
                self._epoch = floor + 1
            else:
                self._check_open()
                return

    def _begin_core(self) -> _RelayProducer:
        self._check_open()
        identity = _OneUse.given(self._cluster, self._name, self._producer_id, self._epoch)
        config = ProducerConfig(source_positions=True, after_expiry="restart")
        intake = Intake(config, wake=lambda: None, open_topic=None)
        core = _RelayProducer(self._cluster, self._name, config, intake, identity=identity)
        self._core = core
        core.start()
        return core

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("what was to be copied belongs to another owner by now")

    async def _ends_of(self, name: str) -> CopyTarget:
        route = await self._cluster.topic(name)
        found = await list_offsets(self._cluster, list(route.every))
        return CopyTarget(
            topic=name,
            topic_id=route.topic_id,
            queues=[
                CopyTargetQueue(queue_id=queue, end=offsets.log_end_offset)
                for queue, offsets in sorted(found.items())
            ],
        )

    def attempt(self, end: int) -> CopyAttempt:
        """Returns the attempt that must be durable before `send`: copies of messages below `end` go
        to the topics that were prepared."""
        return CopyAttempt(
            producer_id=self._producer_id,
            epoch=self._epoch,
            end=end,
            targets=self._targets.values(),
        )

    def send(self, copies: Sequence[Copy]) -> list[Chunk]:
        """Sends copies in the order given, one chunk per topic; `wait` for them.

        Raises ProducerFenced when a newer owner exists, UnknownTopic; then some may be on their
        way.
        """
        chunks = []
        for topic in dict.fromkeys(copy.topic for copy in copies):
            self._check_open()
            assert self._core is not None
            assert topic in self._targets
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
            chunks.append(self._core.submit(topic, columns, positions))
        return chunks

    async def wait(self, chunks: Sequence[Chunk]) -> None:
        """Returns once the copies are durable. Raises the error of the first that failed."""
        for chunk in chunks:
            await await_settled(chunk, lambda chunk=chunk: chunk.settled)  # type: ignore[misc]
        for chunk in chunks:
            for _, outcome in chunk.outcomes(0, chunk.count) or ():
                if outcome.error is not None:
                    raise outcome.error
                dropped = outcome.dropped
                if dropped is not None and (error := dropped.first_conflict(chunk.topic)):
                    raise error

    def close(self) -> None:
        """Ends the relay at once. Copies on their way may still land."""
        self._closed = True
        self._end_core()

    def _end_core(self) -> None:
        if self._core is not None:
            self._core.close()
            self._core = None


async def settle(cluster: Cluster, runtime: Runtime, attempt: CopyAttempt) -> list[Message]:
    """Ends an attempt for good and returns its stored copies. May be repeated. Raises
    SemelError."""
    found: list[Message] = []
    for target in attempt.targets:
        try:
            route = await _end_producer(cluster, target, attempt)
            if route is not None:
                found += await _stored_by(cluster, runtime, route, target, attempt.producer_id)
        except UnknownTopic:
            continue  # deleted, with the copies
    return found


async def _end_producer(
    cluster: Cluster, target: CopyTarget, attempt: CopyAttempt
) -> TopicRoute | None:
    """Fences the producer, so that none of its copies can land in the topic any more. Returns the
    topic's queues, or None if another topic has the name now."""
    epoch = attempt.epoch + 1
    timeout_s = cluster.config.request_timeout_ms / 1000
    route = await cluster.topic(target.topic, refresh=True)
    while route.topic_id == target.topic_id:
        identity = Identity.given(cluster, "", ProducerId(attempt.producer_id), epoch)
        try:
            await identity.fence(list(route.queues), SESSION, timeout_s, after_expiry=True)
        except QueueSealed as error:
            split = control_pb2.SplitQueue.FromString(error.split_record)
            route = route.after_split(split)
            cluster.routes.on_split(target.topic, split)
        except DedupStateExpired as error:  # its row has expired in a queue
            epoch = max(epoch, error.epoch_floor) + 1
        except ProducerFenced as error:  # another process ends it, too
            epoch = max(epoch, error.current_epoch) + 1
        except UnknownQueue:
            route = await cluster.topic(target.topic, refresh=True)
        else:
            return route
    return None


async def _stored_by(
    cluster: Cluster, runtime: Runtime, route: TopicRoute, target: CopyTarget, producer_id: int
) -> list[Message]:
    """Returns a producer's messages from the recorded ends on, sealed queues included."""
    ends = {queue.queue_id: queue.end for queue in target.queues}
    while True:
        known = await list_offsets(cluster, list(route.every))
        starts = {
            number: max(ends.get(number, 0), offsets.log_start_offset)
            for number, offsets in known.items()
        }
        if any(start > ends.get(number, 0) for number, start in starts.items()):
            logger.warning("copies may be trimmed, and are made again topic=%s", route.name)
        until = {
            number: known[number].log_end_offset
            for number, start in starts.items()
            if start < known[number].log_end_offset
        }
        if not until:
            return []
        starts = {number: starts[number] for number in until}
        reader = ReaderCore(cluster, runtime, ReaderConfig())
        found: list[Message] = []
        try:
            await reader.open(route.name, list(starts), starts, until)
            while not reader.puller.finished:
                await await_ready(reader.feed, READ_S)
                found += [
                    message
                    for message in reader.puller.messages(1_000)
                    if message.producer_id == producer_id
                ]
        except OffsetOutOfRange:
            continue  # trimmed meanwhile: read from the new start
        finally:
            reader.close()
        return found


def _ids_of(copies: Sequence[Copy]) -> list[bytes | None] | None:
    """Returns the ids, or None if no message has one: the batch has no such column then."""
    ids = [copy.message_id for copy in copies]
    return ids if any(each is not None for each in ids) else None


def relay_name(purpose: str, scope: str, key: QueueKey) -> str:
    """Returns the name that people see of the producer that copies out of one queue."""
    name = f"semel.{purpose}:{key.topic_id:x}:{key.queue_id}:{scope}"
    if len(name) <= NAME_CHARACTERS_MAX:
        return name
    return f"{name[:180]}-{hashlib.sha256(name.encode()).hexdigest()}"
