"""Batch read: plans once which messages are read, then hands them out in tasks.

How it works. `partitions` runs once, in a process of the driver: it asks the cluster for the start
and end of every queue, fixes the ranges of the query and packs them into tasks. `read` runs in a
task.

With `pushDownFilters` Spark gets a `FilteringReader`. It is a separate class because Spark fails
every query whose reader has `pushFilters` unless `spark.sql.python.filterPushdown.enabled` is set.

Not here: ranges (`offsets.py`), tasks (`packing.py`, `tasks.py`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from semel.protos.errors import SemelError
from semel.spark_connector.connections import discard, shared_client
from semel.spark_connector.filters import RowFilter, take_filters
from semel.spark_connector.offsets import OnLoss, plan_ranges, raise_loss, times_asked
from semel.spark_connector.options import ReadOptions
from semel.spark_connector.packing import pack, tasks_wanted
from semel.spark_connector.tasks import RangesPartition, read_ranges
from semel.spark_connector.view import describe, look_up

logger = logging.getLogger(__name__)


def cores() -> int:
    """Cores of the driver's machine: Spark does not tell a Python source those of the executors."""
    return len(os.sched_getaffinity(0))


def on_loss(options: ReadOptions) -> OnLoss:
    """The reaction to a loss that the option `failOnDataLoss` selects."""

    def note(error: SemelError) -> None:
        logger.warning("data is lost, the read goes on without it: %s", error.message)

    return raise_loss if options.fail_on_data_loss else note


class SemelReader(DataSourceReader):
    """Reads the topics of `options` with the columns of `schema`, which was checked before."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._filter: RowFilter | None = None

    def partitions(self) -> list[InputPartition]:
        """Tasks of about equal size; empty when there is nothing to read."""
        options = self._options
        assert options.starting is not None
        client = shared_client(options.client, options.timeout_ms)
        try:
            states = describe(client, options.topics)
            asked = times_asked(options.starting, states) | times_asked(options.ending, states)
            ranges = plan_ranges(states, options, look_up(client, asked), on_loss(options))
        except BaseException:
            discard(options.client)
            raise
        if self._filter is not None:
            ranges = self._filter.ranges(ranges)
        tasks = tasks_wanted(
            sum(each.count for each in ranges),
            cores=cores(),
            tasks_min=options.partitions_min,
            records_max=options.records_per_partition_max,
        )
        return [RangesPartition(lot) for lot in pack(ranges, tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        return read_ranges(partition, self._options, self._schema, self._filter)


class FilteringReader(SemelReader):
    """A SemelReader that applies comparisons of offset, queue and timestamp itself."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Accepts the filters that it can apply exactly and returns the others to Spark."""
        self._filter, others = take_filters(filters)
        return others
