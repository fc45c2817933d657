"""A batch read of the tier: plans like a read of the cluster, and reads files in the tasks.

How it works. Ranges, packing, filters and columns are those of a read of the cluster. A task gets
its ranges and the pointers of their queues. It fetches the columns and row groups that it needs,
straight from the store, and holds one row group at a time.

Invariants
1. A task yields exactly its ranges, each queue in offset order, or raises.

Not here: what the tier holds (`tier_view.py`), reading of files (`semel.tier`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.spark_connector.filters import RowFilter, take_filters
from semel.spark_connector.offsets import QueueRange, plan_ranges, times_asked
from semel.spark_connector.options import ReadOptions
from semel.spark_connector.packing import pack, tasks_wanted
from semel.spark_connector.reader import cores, on_loss
from semel.spark_connector.rows import Projection, numbered
from semel.spark_connector.tier_view import describe_tier, look_up_tier, tier_store
from semel.tier import SCHEMA, Pointer, QueueReader, Store, Wanted, read_manifest

Pointers = Mapping[QueueKey, Pointer]


class TierPartition(InputPartition):
    """The ranges that one task reads, and the pointers of their queues."""

    def __init__(self, ranges: Sequence[QueueRange], pointers: Pointers) -> None:
        super().__init__(tuple(ranges))
        self.ranges = tuple(ranges)
        self.pointers = {_key(each): pointers[_key(each)] for each in ranges}


class TierReader(DataSourceReader):
    """Reads the tier of `options` with the columns of `schema`, which was checked before."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._filter = RowFilter()

    def partitions(self) -> list[InputPartition]:
        """Tasks of about equal size; empty when there is nothing to read."""
        options = self._options
        assert options.starting is not None
        queues = describe_tier(options)
        states = [queue.state for queue in queues]
        asked = times_asked(options.starting, states) | times_asked(options.ending, states)
        times = look_up_tier(tier_store(options), queues, asked)
        ranges = self._filter.ranges(plan_ranges(states, options, times, on_loss(options)))
        tasks = tasks_wanted(
            sum(each.count for each in ranges),
            cores=cores(),
            tasks_min=options.partitions_min,
            records_max=options.records_per_partition_max,
        )
        pointers = {queue.pointer.queue: queue.pointer for queue in queues}
        return [TierPartition(lot, pointers) for lot in pack(ranges, tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        # Spark passes a partition of its own making when the plan has none.
        if not isinstance(partition, TierPartition):
            return
        projection = Projection(self._schema)
        for each in partition.ranges:
            reader = _reader(tier_store(self._options), partition.pointers[_key(each)])
            if projection.needs_no_bodies and reader.manifest.dense:
                batches = numbered(each)
            else:
                batches = _stored(reader, each, self._names(), self._filter)
            for batch in batches:
                kept = self._filter.rows(batch)
                if kept.num_rows:
                    yield projection.apply(kept)

    def _names(self) -> list[str]:
        """The columns to fetch: those of the schema, and those that the filter looks at."""
        wanted = {*self._schema.names, *self._filter.row_columns}
        return [name for name in SCHEMA.names if name in wanted]


class FilteringTierReader(TierReader):
    """A TierReader that applies comparisons of offset, queue and timestamp itself."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Accepts the filters that it can apply exactly and returns the others to Spark."""
        self._filter, others = take_filters(filters)
        return others


def _key(each: QueueRange) -> QueueKey:
    return QueueKey(TopicId(each.topic_id), QueueId(each.queue))


def _stored(
    reader: QueueReader, each: QueueRange, names: list[str], rows: RowFilter
) -> Iterator[pa.RecordBatch]:
    """Rows of a range, with the columns topic and queue before those of the files."""
    least, most = rows.timestamp.span
    wanted = Wanted(start=each.start, end=each.end, min_timestamp_us=least, max_timestamp_us=most)
    for table in reader.rows(wanted, names):
        for batch in table.combine_chunks().to_batches():
            count = batch.num_rows
            yield pa.RecordBatch.from_arrays(
                [
                    pa.repeat(pa.scalar(each.topic, pa.string()), count),
                    pa.repeat(pa.scalar(each.queue, pa.int32()), count),
                    *batch.columns,
                ],
                names=["topic", "queue", *names],
            )


@lru_cache(maxsize=64)
def _reader(store: Store, pointer: Pointer) -> QueueReader:
    """The reader of one manifest, with the pages that it has read; kept between tasks."""
    return QueueReader(store, read_manifest(store, pointer))
