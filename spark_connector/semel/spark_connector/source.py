"""The data source `semel` as Spark meets it: a name, a schema, a reader.

How it works. Spark creates a `SemelSource` from the user's options, asks for its schema unless the
user gave one, and pickles what `reader` returns to the process that plans the partitions and to
every task. All options are therefore parsed in `reader`, where bad ones become one clear line.

    spark.read.format("semel").option("subscribe", "orders").load()

needs no registration: Spark finds the package `pyspark_semel`, which names this class.

Not here: options (`options.py`), rows (`rows.py`), planning (`offsets.py`), reading (`reader.py`).
"""

from __future__ import annotations

import os

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from semel.spark_connector.options import ReadOptions, parse_options
from semel.spark_connector.reader import SemelReader
from semel.spark_connector.rows import check_schema, row_schema


class SemelSource(DataSource):
    """Topics of a Semel cluster as rows. Errors are SemelError, which Spark wraps in its own."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "semel"

    def schema(self) -> StructType:
        """All columns; without headers when `includeHeaders` is false."""
        return row_schema(include_headers=self._parsed().include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader of the columns in `schema`."""
        check_schema(schema)
        return SemelReader(self._parsed(), schema)

    def _parsed(self) -> ReadOptions:
        return parse_options(dict(self.options), os.environ)
