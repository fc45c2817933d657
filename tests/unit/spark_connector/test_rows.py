"""Arrow batches put into Spark's shape, and those that need no fetch."""

from __future__ import annotations

import dataclasses
import datetime

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from semel.client import ARROW_SCHEMA
from semel.protos.errors import InvalidRequest
from semel.spark_connector.offsets import QueueRange
from semel.spark_connector.rows import ROW_SCHEMA, Projection, check_schema, numbered, row_schema

SOURCE = QueueRange(topic="orders", topic_id=7, queue=3, start=100, end=200)


def stored(first: int, count: int) -> pa.RecordBatch:
    """A batch as the SDK's readers give it."""
    rows = [
        {
            "key": None if at % 2 else b"k%d" % at,
            "value": b"v%d" % at,
            "offset": at,
            "timestamp": datetime.datetime.fromtimestamp(at, datetime.UTC),
            "headers": [{"key": "h", "value": b"%d" % at}] if at % 3 else [],
            "producer": 5,
            "sequence": at * 10,
            "topic": "orders",
            "queue": 3,
        }
        for at in range(first, first + count)
    ]
    return pa.RecordBatch.from_pylist(rows, ARROW_SCHEMA)


def test_all_columns_have_the_schema_that_spark_expects() -> None:
    found = Projection(ROW_SCHEMA).apply(stored(100, 2))
    assert found.schema.equals(to_arrow_schema(ROW_SCHEMA, timezone="UTC"))
    found.validate(full=True)
    assert found.to_pylist() == [
        {
            "key": b"k100",
            "value": b"v100",
            "topic": "orders",
            "queue": 3,
            "offset": 100,
            "timestamp": datetime.datetime.fromtimestamp(100, datetime.UTC),
            "headers": [{"key": "h", "value": b"100"}],
            "producer": 5,
            "sequence": 1000,
        },
        {
            "key": None,
            "value": b"v101",
            "topic": "orders",
            "queue": 3,
            "offset": 101,
            "timestamp": datetime.datetime.fromtimestamp(101, datetime.UTC),
            "headers": [{"key": "h", "value": b"101"}],
            "producer": 5,
            "sequence": 1010,
        },
    ]


def test_values_are_not_copied() -> None:
    batch = stored(100, 50)
    found = Projection(row_schema(include_headers=True)).apply(batch)
    for name in ("key", "value"):
        mine, theirs = found.column(name).buffers()[2], batch.column(name).buffers()[2]
        assert mine.address == theirs.address


def test_a_users_schema_picks_orders_and_pins_nullability() -> None:
    schema = StructType(
        [StructField("offset", LongType(), nullable=False), StructField("topic", StringType())]
    )
    check_schema(schema)
    found = Projection(schema).apply(stored(100, 2))
    assert found.schema.equals(to_arrow_schema(schema, timezone="UTC"))
    assert found.to_pylist() == [
        {"offset": 100, "topic": "orders"},
        {"offset": 101, "topic": "orders"},
    ]


@pytest.mark.parametrize("count", [1, 65_536, 200_000])
def test_offsets_are_known_without_a_fetch(count: int) -> None:
    schema = StructType([ROW_SCHEMA["queue"], ROW_SCHEMA["offset"], ROW_SCHEMA["topic"]])
    projection = Projection(schema)
    assert projection.needs_no_bodies
    source = dataclasses.replace(SOURCE, end=SOURCE.start + count)
    batches = [projection.apply(batch) for batch in numbered(source)]
    whole = pa.Table.from_batches(batches)
    assert whole.schema.equals(to_arrow_schema(schema, timezone="UTC"))
    assert whole.column("offset").to_pylist() == list(range(100, 100 + count))
    assert set(whole.column("queue").to_pylist()) == {3}
    assert set(whole.column("topic").to_pylist()) == {"orders"}


@pytest.mark.parametrize("name", ["key", "value", "timestamp", "headers", "producer", "sequence"])
def test_other_columns_need_one(name: str) -> None:
    assert not Projection(StructType([ROW_SCHEMA["offset"], ROW_SCHEMA[name]])).needs_no_bodies


def test_ids_are_read_by_those_who_name_them() -> None:
    schema = StructType([ROW_SCHEMA["value"], StructField("message_id", BinaryType())])
    check_schema(schema)
    batch = stored(100, 3)
    ids = pa.array([b"a", None, b"c"], pa.binary())
    batch = batch.set_column(batch.schema.get_field_index("message_id"), "message_id", ids)
    found = Projection(schema).apply(batch)
    assert found.schema.equals(to_arrow_schema(schema, timezone="UTC"))
    assert found.column("message_id").to_pylist() == [b"a", None, b"c"]
    assert not Projection(schema).needs_no_bodies
    assert "message_id" not in row_schema(include_headers=True).names


def test_headers_are_a_choice() -> None:
    assert "headers" in row_schema(include_headers=True).names
    assert "headers" not in row_schema(include_headers=False).names


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (StructType([]), "no columns"),
        (StructType([StructField("partition", LongType())]), "no column 'partition'; it has key"),
        (StructType([StructField("value", StringType())]), "'value' is binary, not string"),
        (StructType([StructField("message_id", StringType())]), "'message_id' is binary, not str"),
        (StructType([StructField("deliver_at", LongType())]), "no column 'deliver_at'"),
    ],
)
def test_schemas_that_cannot_be_read(schema: StructType, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        check_schema(schema)
