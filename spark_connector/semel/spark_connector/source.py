"""The data source `semel` as Spark uses it: a name, a schema, readers, writers.

How it works. Spark creates a `SemelSource` from the user's options, asks for its schema unless the
user gave one, and pickles the readers and sends them to the processes that plan and to every task.
So the options are parsed as early as possible, where a bad option becomes one clear line: in
`schema`, which is part of `load()` and also checks that the topics exist; with a user's schema,
when the reader is made.

    spark.read.format("semel").option("subscribe", "orders").load()
    spark.read.format("semel").option("manifest", "s3://bucket/prefix").load()
    spark.readStream.format("semel").option("subscribe", "orders").load()
    frame.write.format("semel").option("topic", "orders").mode("append").save()
    frame.writeStream.format("semel").option("topic", "orders").start()

need no registration: Spark finds the package `pyspark_semel`, which names this class.

Not here: options (`options.py`, `sink_options.py`), rows (`rows.py`, `sink_rows.py`), batches
(`reader.py`, `tier_tasks.py`), streams (`stream.py`), writes (`writer.py`).
"""

from __future__ import annotations

import os

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from semel.spark_connector.connections import discard, shared_client
from semel.spark_connector.options import ReadOptions, parse_options
from semel.spark_connector.reader import FilteringReader, SemelReader
from semel.spark_connector.rows import check_schema, row_schema
from semel.spark_connector.sink_options import parse_write_options
from semel.spark_connector.stream import SemelStreamReader
from semel.spark_connector.tier_tasks import FilteringTierReader, TierReader
from semel.spark_connector.tier_view import describe_tier
from semel.spark_connector.writer import SemelStreamWriter, SemelWriter


class SemelSource(DataSource):
    """Topics of a Semel cluster as rows. Errors are SemelError, which Spark wraps in its own."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "semel"

    def schema(self) -> StructType:
        """All columns; headers only with `includeHeaders`. Raises UnknownTopic, Unavailable."""
        options = self._parsed()
        if options.manifest:
            describe_tier(options)
            return row_schema(include_headers=options.include_headers)
        client = shared_client(options.client, options.timeout_ms)
        try:
            client.admin.describe_topics(options.topics.names)
        finally:
            discard(options.client)  # this process is not used again
        return row_schema(include_headers=options.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader of the columns in `schema`."""
        check_schema(schema)
        options = self._parsed().for_batch()
        if options.manifest:
            return (FilteringTierReader if options.push_down_filters else TierReader)(
                options, schema
            )
        return (FilteringReader if options.push_down_filters else SemelReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A stream's reader of the columns in `schema`."""
        check_schema(schema)
        return SemelStreamReader(self._parsed().for_stream(), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch's writer. Spark passes the arguments by keyword, here and in `streamWriter`."""
        options = parse_write_options(dict(self.options), os.environ).for_batch()
        return SemelWriter(options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """The writer of one micro-batch of a stream."""
        options = parse_write_options(dict(self.options), os.environ).for_stream()
        return SemelStreamWriter(options, schema, overwrite=overwrite)

    def _parsed(self) -> ReadOptions:
        return parse_options(dict(self.options), os.environ)
