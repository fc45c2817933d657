"""Produce: from a request to the outcome of each partition.

How it works. The batch of each partition is decoded, and goes out as one batch of this project or
several: where it is larger than the topic's batches may be, or where its records are due at
different times. An idempotent producer's are numbered as the client numbered them
(`kafka_lanes.py`), those of a transaction wait beside the log for its end (`stage_lanes.py`), and
the others go through the gateway's own producer (`plain_producer.py`).

Whatever `acks` says, a partition is answered once its batch is durable on a majority, and with acks
0 nothing is answered.

Invariants
1. A partition that is answered without an error is stored as a whole.
2. Batches of one connection for one queue go out in the order of its requests, but for those that
   were on their way when their topic was made anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from kio.schema.errors import ErrorCode

from semel.client.core.batching import cuts, row_sizes
from semel.client.core.routing import QueueRoute, TopicRoute
from semel.client.transport.cluster import Cluster
from semel.gateway.dispatch import Handler, RequestContext
from semel.gateway.partitions import PartitionedTopic, PartitionLine
from semel.gateway.producing.kafka_lanes import BatchOutcome, KafkaProducers, NumberedBatch
from semel.gateway.producing.kafka_numbers import EPOCHS, Numbers, table_epoch
from semel.gateway.producing.plain_producer import PlainProducers
from semel.gateway.producing.produce_response import Produced, encode_produced
from semel.gateway.producing.stage_lanes import StageProducers
from semel.gateway.records import DecodedBatch, RecordCodec, RefusedRecords, decode_produced
from semel.gateway.records.wide_sequences import SEQUENCE_SPAN
from semel.gateway.refusals import error_code
from semel.gateway.topic_book import TopicBook
from semel.gateway.versions import ApiKey
from semel.protos.batch import (
    BATCH_BYTES_DEFAULT,
    HEADER_BYTES,
    MESSAGE_BYTES_MAX,
    Codec,
)
from semel.protos.columns import Columns, encode_batch
from semel.protos.errors import InvalidRequest, SemelError
from semel.protos.ids import ProducerId, QueueKey
from semel.protos.levels import DELAY_LEVEL, LEVEL_MIN, NULL_LEVEL

ACKS: Final = (-1, 0, 1)
TIMEOUT_S_MAX: Final = 120.0
RECORDS_BYTES_MAX: Final = 16 << 20
"""Bytes of a batch's records after decompression."""
_BODY_ROOM: Final = HEADER_BYTES + 64 * 1024
"""Bytes that a batch stays below the topic's limit, for offsets and padding."""
_ATTRIBUTES_AT: Final = 22
"""The byte of a record batch whose lowest bits name the codec."""
_STORED_AS: Final = {
    RecordCodec.NONE: Codec.NONE,
    RecordCodec.GZIP: Codec.ZSTD,
    RecordCodec.SNAPPY: Codec.LZ4,
    RecordCodec.LZ4: Codec.LZ4,
    RecordCodec.ZSTD: Codec.ZSTD,
}
"""A batch that came compressed is stored compressed, as fast or as small as it was meant."""


class Piece(NamedTuple):
    """Rows of a batch that are stored as one batch."""

    start: int
    end: int
    due_us: int


class _Wait(NamedTuple):
    """A batch that is on its way."""

    outcomes: dict[int, Produced]
    """Those of its topic, by partition."""
    topic: str
    partition: Any
    """What the request has for it."""
    future: asyncio.Future[Produced]


class Producing:
    """Stores what Kafka's producers send. Lives on the client's I/O thread."""

    def __init__(self, cluster: Cluster, topics: TopicBook) -> None:
        self.numbered = KafkaProducers(cluster, topics.on_sealed)
        self.staged = StageProducers(cluster, topics.on_sealed, topics.is_split)
        self.plain = PlainProducers(cluster)
        self.records = 0
        """Records that were stored."""
        self.bytes = 0
        """Bytes of their record batches, as they came."""
        self._topics = topics

    def start(self) -> None:
        self.numbered.start()
        self.staged.start()

    def close(self) -> None:
        """Ends at once; what is on its way may still be stored."""
        self.plain.close()

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.PRODUCE: self.produce}

    async def produce(self, request: Any, context: RequestContext) -> Any:
        """Answers Produce, versions 3 to 8."""
        refused = _refusal_of(request)
        waits: list[_Wait] = []
        answers: list[tuple[str, dict[int, Produced]]] = []
        before = self._throttled_ms
        for topic in request.topic_data:
            outcomes: dict[int, Produced] = {}
            answers.append((topic.name, outcomes))
            highest = max((each.index for each in topic.partition_data), default=0)
            found = refused or await self._find(topic.name, highest)
            for partition in topic.partition_data:
                if isinstance(found, Produced):
                    outcomes[partition.index] = found
                    continue
                outcome = self._send(found, partition, request.transactional_id)
                if isinstance(outcome, Produced):
                    outcomes[partition.index] = outcome
                else:
                    outcomes[partition.index] = Produced(ErrorCode.request_timed_out)
                    waits.append(_Wait(outcomes, topic.name, partition, outcome))
        deadline = time.monotonic() + min(TIMEOUT_S_MAX, request.timeout.total_seconds())
        await _settle(waits, deadline)
        unknown = [
            wait
            for wait in waits
            if wait.outcomes[wait.partition.index].error is ErrorCode.unknown_topic_or_partition
        ]
        if unknown:
            await _settle(await self._send_anew(unknown, request.transactional_id), deadline)
        if request.acks == 0:
            return None
        throttled_ms = self._throttled_ms - before
        return encode_produced(answers, throttle_ms=throttled_ms, version=context.version)

    @property
    def _throttled_ms(self) -> int:
        return self.numbered.throttled_ms + self.staged.throttled_ms

    async def _find(self, name: str, partition: int) -> PartitionedTopic | Produced:
        try:
            return await self._topics.find_with(name, partition)
        except SemelError as error:
            return _refused(error)

    async def _send_anew(self, unknown: list[_Wait], transaction_id: str | None) -> list[_Wait]:
        """Sends batches that brokers have refused because they do not know the topic: it may have
        been deleted and made anew elsewhere, unknown to this gateway or to its producers. Returns
        those that are on their way again."""
        topics: dict[str, PartitionedTopic] = {}
        for name in {wait.topic for wait in unknown}:
            with contextlib.suppress(SemelError):  # it is gone, or nobody can tell
                topics[name] = await self._topics.renewed(name)
        sent: list[_Wait] = []
        for outcomes, name, partition, _ in unknown:
            if (topic := topics.get(name)) is None:
                continue  # the refusal stays
            outcome = self._send(topic, partition, transaction_id)
            if isinstance(outcome, Produced):
                outcomes[partition.index] = outcome
            else:
                sent.append(_Wait(outcomes, name, partition, outcome))
        return sent

    def _send(
        self, topic: PartitionedTopic, partition: Any, transaction_id: str | None
    ) -> Produced | asyncio.Future[Produced]:
        """Sends the batch of one partition of a request. Returns the refusal, or what will be the
        outcome."""
        record_set: memoryview | None = partition.records
        try:
            line = topic.partition(partition.index)
            if record_set is None:
                raise InvalidRequest(f"partition {partition.index} has no record batch")
            batch = decode_produced(record_set, bytes_max=RECORDS_BYTES_MAX)
            codec = _STORED_AS[RecordCodec(record_set[_ATTRIBUTES_AT] & 7)]
            if batch.transactional != (transaction_id is not None):
                raise InvalidRequest(
                    "batches of a transactional id are transactional, and no other"
                )
            if batch.is_idempotent and not 0 <= batch.producer_epoch < EPOCHS:
                raise InvalidRequest(f"producer epoch {batch.producer_epoch} is out of range")
        except RefusedRecords as error:
            return Produced(error.kafka_code, message=error.message)
        except SemelError as error:
            return _refused(error)
        pieces = _pieces(batch, topic.route)
        gathered = _Gathered(len(pieces), self, len(batch), len(record_set), line.shift)
        if batch.is_idempotent:
            for place, piece in enumerate(pieces):
                self._send_numbered(
                    line, topic.route, batch, piece, codec, gathered, place, transaction_id
                )
        else:
            work = self._send_plain(line, topic, batch, pieces, codec, gathered)
            gathered.task = asyncio.get_running_loop().create_task(work)
        return gathered.future

    def _send_numbered(
        self,
        line: PartitionLine,
        topic: TopicRoute,
        batch: DecodedBatch,
        piece: Piece,
        codec: Codec,
        gathered: _Gathered,
        place: int,
        transaction_id: str | None,
    ) -> None:
        columns = batch.columns.slice(piece.start, piece.end)
        numbered = NumberedBatch(
            base_sequence=(batch.base_sequence + piece.start) % SEQUENCE_SPAN,
            count=piece.end - piece.start,
            encode=functools.partial(
                _encode,
                line.open,
                columns,
                batch.timestamp_us,
                piece.due_us,
                codec,
                topic.message_bytes_max or MESSAGE_BYTES_MAX,
            ),
            level=_level_of(columns, piece),
            tell=functools.partial(gathered.on_outcome, place),
        )
        if transaction_id is None:
            self.numbered.put(line, batch.producer_id, table_epoch(batch.producer_epoch), numbered)
        else:
            self.staged.stage(
                line, transaction_id, batch.producer_id, batch.producer_epoch, numbered
            )

    async def _send_plain(
        self,
        line: PartitionLine,
        topic: PartitionedTopic,
        batch: DecodedBatch,
        pieces: list[Piece],
        codec: Codec,
        gathered: _Gathered,
    ) -> None:
        queue = line.open.key
        for place, piece in enumerate(pieces):
            try:
                stored = await self.plain.send(
                    topic.name,
                    queue,
                    batch.columns.slice(piece.start, piece.end),
                    time_us=batch.timestamp_us,
                    due_us=piece.due_us,
                    codec=codec,
                )
            except SemelError as error:
                for left in range(place, len(pieces)):
                    gathered.on_outcome(left, BatchOutcome(error=error))
                return
            if place == 0 and stored.queue != queue:  # it was split meanwhile
                gathered.shift = await self._start_of(topic.name, line.number, stored.queue)
            gathered.on_outcome(place, BatchOutcome(stored.offset))

    async def _start_of(self, name: str, partition: int, queue: QueueKey) -> int | None:
        """Returns the partition offset at which a queue begins; None if nobody can tell now."""
        try:
            line = (await self._topics.find(name)).partition(partition)
        except SemelError:
            return None
        for each, start in zip(line.queues, line.starts, strict=True):
            if each.key == queue:
                return start
        return None


class _Gathered:
    """The outcome of one partition, from those of its pieces."""

    def __init__(self, pieces: int, owner: Producing, records: int, size: int, shift: int) -> None:
        self.future: asyncio.Future[Produced] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        self.shift: int | None = shift
        """The partition offset of the queue's offset 0; None if it is not known."""
        self._left = pieces
        self._owner = owner
        self._records = records
        self._size = size
        self._base_offset = -1
        self._error: SemelError | None = None

    def on_outcome(self, place: int, outcome: BatchOutcome) -> None:
        if place == 0 and outcome.base_offset >= 0 and self.shift is not None:
            self._base_offset = self.shift + outcome.base_offset
        self._error = self._error or outcome.error
        self._left -= 1
        if self._left or self.future.done():
            return
        if self._error is not None:
            self.future.set_result(_refused(self._error))
            return
        self._owner.records += self._records
        self._owner.bytes += self._size
        self.future.set_result(Produced(base_offset=self._base_offset))


async def _settle(waits: list[_Wait], deadline: float) -> None:
    """Notes the outcomes of batches, as far as they are known by then."""
    if waits:
        left_s = max(0.001, deadline - time.monotonic())
        await asyncio.wait([wait.future for wait in waits], timeout=left_s)
    for wait in waits:
        if wait.future.done():
            wait.outcomes[wait.partition.index] = wait.future.result()


def _refusal_of(request: Any) -> Produced | None:
    """Returns why nothing of a request is stored, if that is so."""
    if request.acks not in ACKS:
        return Produced(ErrorCode.invalid_required_acks, message=f"acks {request.acks} is none")
    return None


def _refused(error: SemelError) -> Produced:
    return Produced(error_code(error), message=error.message)


def _pieces(batch: DecodedBatch, topic: TopicRoute) -> list[Piece]:
    """Returns the rows of the batches to store, in order."""
    limit = (topic.batch_bytes_max or BATCH_BYTES_DEFAULT) - _BODY_ROOM
    sizes = row_sizes(batch.columns)
    runs = batch.due_runs()
    if len(runs) == 1 and int(sizes.sum()) <= limit:
        return [Piece(*runs[0])]
    rising = np.concatenate(([0], np.cumsum(sizes)))
    return [
        Piece(low, high, due_us)
        for start, end, due_us in runs
        for low, high in cuts(rising, start, end, max(1, limit))
    ]


def _level_of(columns: Columns, piece: Piece) -> int:
    """Returns the feature level that a broker group needs to store a piece."""
    if columns.values.null_count:
        return NULL_LEVEL
    return DELAY_LEVEL if piece.due_us else LEVEL_MIN


def _encode(
    queue: QueueRoute,
    columns: Columns,
    timestamp_us: int,
    due_us: int,
    codec: Codec,
    message_bytes_max: int,
    producer_id: ProducerId,
    epoch: int,
    session: int,
    numbers: Numbers,
) -> bytes:
    """Returns a piece as a batch. Raises SemelError."""
    return encode_batch(
        columns,
        topic_id=queue.key.topic_id,
        queue_id=queue.key.queue_id,
        producer_id=producer_id,
        epoch=epoch,
        session=session,
        previous_sequence=numbers.previous,
        base_sequence=numbers.base,
        last_sequence=numbers.last,
        timestamp_us=timestamp_us,
        codec=codec,
        deliver_at_us=due_us,
        source_positions=numbers.base != numbers.previous + 1,
        message_bytes_max=message_bytes_max,
    )
