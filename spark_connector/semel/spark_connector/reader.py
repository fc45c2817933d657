"""Batch read: plans ranges once, then reads each range as Arrow batches.

How it works. `partitions` runs once, in a process of the driver: it asks the cluster for the start
and end of every queue and fixes what the query covers. Each partition is one range of one queue.
`read` runs in a task: it opens a reader without a consumer group on that range and passes the SDK's
Arrow batches on, cut to the range and to the schema. There is no loop over rows anywhere.

Invariants
1. A partition yields exactly its range, in offset order, or raises. Reading it again (a task that
   Spark retries) yields the same rows.
2. Nothing waits for ever: without a batch for `timeout_ms` the task fails and says where it stood.

Not here: ranges (`offsets.py`), columns (`rows.py`), connections (`connections.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from semel.client import Client
from semel.protos.errors import TimedOut, UnknownTopic
from semel.spark_connector.connections import discard, shared_client
from semel.spark_connector.offsets import QueueRange, QueueState, plan_ranges, split_ranges
from semel.spark_connector.options import ReadOptions
from semel.spark_connector.rows import Projection

POLL_SECONDS = 0.5


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, source: QueueRange) -> None:
        super().__init__(source)
        self.source = source


class SemelReader(DataSourceReader):
    """Reads the topics of `options` with the columns of `schema`, which was checked before."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """One for each range that has messages."""
        options = self._options
        client = shared_client(options.bootstrap, options.timeout_ms)
        try:
            ranges = plan_ranges(_describe(client, options.topics), options)
        except BaseException:
            discard(options.bootstrap)
            raise
        return [
            RangePartition(part) for part in split_ranges(ranges, options.records_per_partition_max)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        # Spark makes up a partition of its own when there is none at all.
        if not isinstance(partition, RangePartition):
            return
        projection = Projection(self._schema)
        try:
            for batch in self._batches(partition.source):
                yield projection.apply(batch, partition.source)
        except GeneratorExit:
            raise
        except BaseException:
            discard(self._options.bootstrap)
            raise

    def _batches(self, source: QueueRange) -> Iterator[pa.RecordBatch]:
        """The SDK's batches, from the first that has rows of `source` to the last."""
        client = shared_client(self._options.bootstrap, self._options.timeout_ms)
        _require_same_topic(client, source)
        position = source.start
        silent_since = time.monotonic()
        with client.reader(
            source.topic,
            queues=[source.queue],
            start={source.queue: source.start},
            end={source.queue: source.end},
        ) as reader:
            while position < source.end:
                batch = reader.poll_arrow(POLL_SECONDS)
                if batch is not None and batch.num_rows:
                    position = batch.column("offset")[-1].as_py() + 1
                    yield batch
                    silent_since = time.monotonic()
                elif time.monotonic() - silent_since > self._options.timeout_ms / 1e3:
                    raise TimedOut(
                        f"queue {source.queue} of topic {source.topic!r} gave nothing for "
                        f"{self._options.timeout_ms} ms at offset {position} of {source.end}"
                    )


def _describe(client: Client, topics: tuple[str, ...]) -> list[QueueState]:
    """Every queue of the topics, as of now. Raises UnknownTopic."""
    states = []
    for name in topics:
        topic = client.admin.describe_topic(name)
        for queue in topic.queues:
            states.append(
                QueueState(
                    topic=name,
                    topic_id=topic.topic_id,
                    queue=queue.queue,
                    log_start_offset=queue.log_start_offset,
                    log_end_offset=queue.log_end_offset,
                )
            )
    return states


def _require_same_topic(client: Client, source: QueueRange) -> None:
    if client.admin.describe_topic(source.topic).topic_id != source.topic_id:
        raise UnknownTopic(
            f"topic {source.topic!r} was deleted and created again during the query; run it again"
        )
