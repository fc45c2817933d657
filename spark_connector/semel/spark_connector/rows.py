"""A message as a row of Spark: the columns, and Arrow batches in exactly that shape.

How it works. A stored batch already has Arrow's layout, so single rows are never touched: columns
are picked, and types are cast where Spark's are narrower or have another name. A user's schema
picks and orders columns; it is the only pruning that Spark offers to Python sources, and it saves
most of the time of a read that needs few columns.

Invariants
1. Every batch has the Arrow schema that Spark derives from the read's schema, in order, type and
   nullability. Spark checks only the first batch and trusts the others.

Not here: the source of the batches (`tasks.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
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
NUMBER_COLUMNS: Final = frozenset({"topic", "queue", "offset"})
"""Columns whose values a range alone determines, without fetching a message."""
_NUMBERED_ROWS: Final = 65_536
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
"""The columns of a read whose user names none."""
EVERY_COLUMN: Final = StructType([*ROW_SCHEMA.fields, StructField("message_id", BinaryType())])
"""The columns that a user may name."""


def row_schema(*, include_headers: bool) -> StructType:
    """The schema of a read whose user gives none."""
    return StructType([each for each in ROW_SCHEMA if include_headers or each.name != "headers"])


def check_schema(schema: StructType) -> None:
    """Raises InvalidRequest unless `schema` has only existing columns with their types."""
    if not schema.fields:
        raise InvalidRequest(f"the schema has no columns; give some of {_names()}")
    for column in schema.fields:
        if column.name not in EVERY_COLUMN.names:
            raise InvalidRequest(f"format semel has no column {column.name!r}; it has {_names()}")
        wanted = EVERY_COLUMN[column.name].dataType.simpleString()
        given = column.dataType.simpleString()
        if given != wanted:
            raise InvalidRequest(f"column {column.name!r} is {wanted}, not {given}; cast it later")


def _names() -> str:
    return ", ".join(EVERY_COLUMN.names)


class Projection:
    """Turns the SDK's batches into batches of one Spark schema."""

    def __init__(self, schema: StructType) -> None:
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._columns = [(field.name, field.type) for field in self._schema]

    @property
    def needs_no_bodies(self) -> bool:
        """True when all columns are known without fetching anything."""
        return NUMBER_COLUMNS.issuperset(self._schema.names)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """All rows of `batch`, without copying keys, values or headers."""
        columns = []
        for name, kind in self._columns:
            column = batch.column(name)
            if name == "queue":  # numpy takes a tenth of the time of a cast
                column = pa.array(column.to_numpy().astype(np.int32))
            elif column.type != kind:
                column = column.cast(kind)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def numbered(source: QueueRange) -> Iterator[pa.RecordBatch]:
    """Topic, queue and offset of every message of a range: offsets are dense."""
    for start in range(source.start, source.end, _NUMBERED_ROWS):
        count = min(_NUMBERED_ROWS, source.end - start)
        yield pa.RecordBatch.from_arrays(
            [
                pa.repeat(pa.scalar(source.topic, pa.string()), count),
                pa.repeat(pa.scalar(source.queue, pa.int32()), count),
                pa.array(np.arange(start, start + count, dtype=np.int64)),
            ],
            names=["topic", "queue", "offset"],
        )
