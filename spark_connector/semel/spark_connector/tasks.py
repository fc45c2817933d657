"""The work of one Spark task: reads ranges as Arrow batches. Batch reads and streams share it.

How it works. A task holds ranges of one or more queues. The ranges of one topic are read together,
by one reader without a consumer group that is pinned to the topic's id; its batches are passed on
as they arrive, with Spark's columns picked. There is no loop over rows anywhere, and the SDK's
prefetching bounds what a task holds in memory, whatever the length of its ranges.

A read that needs only `topic`, `queue` and `offset` fetches nothing: offsets are dense, so the plan
knows them all. The task only checks that the range still exists. Compaction leaves gaps in offsets;
what may have some is read in any case.

Invariants
1. A task yields exactly its ranges, each queue in offset order, or raises. Reading them again (a
   task that Spark retries, a trigger that is repeated) yields the same rows.
2. With `failOnDataLoss=false` it leaves out the messages that retention removed since the plan was
   made, or a whole deleted topic, logs that, and yields the rest.
3. No task waits for ever: without a batch for `timeout_ms` it fails and says how far it came.

Not here: ranges (`offsets.py`, `progress.py`, `packing.py`), columns (`rows.py`).
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from semel.client import Client
from semel.protos.errors import (
    OffsetOutOfRange,
    OffsetsLost,
    SemelError,
    TimedOut,
    UnknownQueue,
    UnknownTopic,
)
from semel.spark_connector.connections import discard, shared_client
from semel.spark_connector.filters import RowFilter
from semel.spark_connector.offsets import QueueRange
from semel.spark_connector.options import ReadOptions
from semel.spark_connector.rows import Projection, numbered

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.5


class RangesPartition(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, ranges: Sequence[QueueRange]) -> None:
        super().__init__(tuple(ranges))
        self.ranges = tuple(ranges)


def read_ranges(
    partition: InputPartition,
    options: ReadOptions,
    schema: StructType,
    rows: RowFilter | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of one partition with the columns of `schema`. Raises SemelError."""
    # Spark passes a partition of its own making when the plan has none.
    if not isinstance(partition, RangesPartition):
        return
    projection = Projection(schema)
    try:
        for _, some in groupby(partition.ranges, key=lambda each: (each.topic, each.topic_id)):
            reading = _TopicReading(list(some), options)
            batches = reading.numbers() if projection.needs_no_bodies else reading.batches()
            for batch in batches:
                kept = batch if rows is None else rows.rows(batch)
                if kept.num_rows:
                    yield projection.apply(kept)
    except GeneratorExit:
        raise
    except BaseException:
        discard(options.client)
        raise


class _TopicReading:
    """The ranges of one topic."""

    def __init__(self, ranges: list[QueueRange], options: ReadOptions) -> None:
        self._options = options
        self._client: Client = shared_client(options.client, options.timeout_ms)
        self._topic, self._topic_id = ranges[0].topic, ranges[0].topic_id
        self._left = {each.queue: each for each in ranges}
        """The ranges that were not yielded yet, by queue."""
        self._rows_due = sum(each.count for each in ranges)
        self._gaps_to: dict[int, int] = {}
        """By queue, the offset below which there may be gaps, as far as that was asked for."""

    def numbers(self) -> Iterator[pa.RecordBatch]:
        """Batches of topics, queues and offsets, without a fetch."""
        if not self._drop_what_is_gone():
            return
        if any(each.start < self._gaps_to.get(queue, 0) for queue, each in self._left.items()):
            yield from self.batches()
            return
        for each in self._left.values():
            yield from numbered(each)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The SDK's batches; removed messages are an error, or are left out in another try."""
        while self._left:
            try:
                for batch in self._fetch():
                    self._rows_due -= batch.num_rows
                    yield batch
            except (OffsetOutOfRange, UnknownTopic, UnknownQueue) as error:
                if self._options.fail_on_data_loss:
                    raise
                before = dict(self._left)
                if not self._drop_what_is_gone():
                    return
                if before == self._left:
                    raise error  # something else is wrong
        if self._rows_due and self._drop_what_is_gone():
            assert any(self._gaps_to.values()), f"{self._rows_due} rows too few of {self._topic!r}"

    def _fetch(self) -> Iterator[pa.RecordBatch]:
        silent_since = time.monotonic()
        with self._client.reader(
            self._topic,
            queues=list(self._left),
            start={queue: each.start for queue, each in self._left.items()},
            end={queue: each.end for queue, each in self._left.items()},
            topic_id=self._topic_id,
            read_from=self._options.read_from,
        ) as reader:
            while self._left:
                try:
                    batch = reader.poll_arrow(POLL_SECONDS)
                except OffsetsLost as error:
                    self._on_loss(error)
                    before = sum(each.count for each in self._left.values())
                    self._advance(reader.positions())
                    self._rows_due -= before - sum(each.count for each in self._left.values())
                    silent_since = time.monotonic()
                    continue
                self._advance(reader.positions())
                if batch is not None and batch.num_rows:
                    yield batch
                    silent_since = time.monotonic()
                elif time.monotonic() - silent_since > self._options.timeout_ms / 1e3:
                    each = next(iter(self._left.values()))
                    raise TimedOut(
                        f"queue {each.queue} of topic {each.topic!r} gave nothing for "
                        f"{self._options.timeout_ms} ms at offset {each.start} of {each.end}"
                    )

    def _advance(self, positions: dict[int, int]) -> None:
        for queue, position in positions.items():
            each = self._left.get(queue)
            if each is not None and position >= each.end:
                del self._left[queue]
            elif each is not None and position > each.start:
                self._left[queue] = dataclasses.replace(each, start=position)

    def _drop_what_is_gone(self) -> bool:
        """Checks that the topic is the planned one and still has the ranges.

        Returns False when the topic is gone. Raises the loss unless the options allow it.
        """
        try:
            topic = self._client.admin.describe_topic(self._topic)
            if topic.topic_id != self._topic_id:
                raise UnknownTopic(f"topic {self._topic!r} was deleted and created again")
        except (UnknownTopic, UnknownQueue) as error:
            self._on_loss(error)
            return False
        starts = {queue.queue: queue.log_start_offset for queue in topic.queues}
        self._gaps_to = {queue.queue: queue.gaps_to for queue in topic.queues}
        for queue, each in list(self._left.items()):
            start = starts.get(queue, each.end)
            if each.start < start:
                self._on_loss(
                    OffsetOutOfRange(
                        f"offsets {each.start} to {min(start, each.end)} of queue {queue} of topic "
                        f"{self._topic!r} were trimmed before they were read",
                        log_start_offset=start,
                    )
                )
                self._rows_due -= min(start, each.end) - each.start
                del self._left[queue]
                if start < each.end:
                    self._left[queue] = dataclasses.replace(each, start=start)
        return True

    def _on_loss(self, error: SemelError) -> None:
        if self._options.fail_on_data_loss:
            raise error
        logger.warning("data is lost, the read goes on without it: %s", error.message)
