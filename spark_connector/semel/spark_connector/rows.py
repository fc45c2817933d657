"""What a message looks like in Spark: the columns, and Arrow batches in exactly that shape.

How it works. A stored batch already lies in Arrow's layout, so a row is never touched: columns are
picked, and types are cast where Spark's are narrower or named otherwise. A user's schema picks and
orders columns; it is the only pruning Spark offers to Python sources, and it saves most of the
time of a read that needs few columns.

Invariants
1. Every batch has the Arrow schema that Spark derives from the read's schema, in order, type and
   nullability. Spark checks the first batch only and reads the others blindly.

Not here: where batches come from (`reader.py`).
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from semel.protos.errors import InvalidRequest
from semel.spark_connector.offsets import QueueRange

HEADERS_TYPE: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
ROW_SCHEMA: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("queue", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("headers", HEADERS_TYPE),
        StructField("producer", LongType()),
        StructField("sequence", LongType()),
    ]
)


def row_schema(*, include_headers: bool) -> StructType:
    """The schema of a read whose user gives none."""
    return StructType([each for each in ROW_SCHEMA if include_headers or each.name != "headers"])


def check_schema(schema: StructType) -> None:
    """Raises InvalidRequest unless `schema` is made of columns that there are, with their types."""
    if not schema.fields:
        raise InvalidRequest(f"the schema has no columns; give some of {_names()}")
    for column in schema.fields:
        if column.name not in ROW_SCHEMA.names:
            raise InvalidRequest(f"format semel has no column {column.name!r}; it has {_names()}")
        wanted = ROW_SCHEMA[column.name].dataType.simpleString()
        given = column.dataType.simpleString()
        if given != wanted:
            raise InvalidRequest(f"column {column.name!r} is {wanted}, not {given}; cast it later")


def _names() -> str:
    return ", ".join(ROW_SCHEMA.names)


class Projection:
    """Turns the SDK's batches of one queue into batches of one Spark schema."""

    def __init__(self, schema: StructType) -> None:
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")

    def apply(self, batch: pa.RecordBatch, source: QueueRange) -> pa.RecordBatch:
        """Those rows of `batch` that lie in `source`; no copy of keys, values or headers."""
        batch = within(batch, source.start, source.end)
        columns = []
        for field in self._schema:
            column = batch.column(field.name)
            columns.append(column if column.type == field.type else column.cast(field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def within(batch: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
    """The rows of `batch` with offsets in [start, end); offsets in a batch are dense."""
    if not batch.num_rows:
        return batch
    offsets = batch.column("offset")
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    assert last - first == batch.num_rows - 1, f"offsets {first} to {last} are not dense"
    skipped = max(0, start - first)
    return batch.slice(skipped, max(0, min(end, last + 1) - max(start, first)))
