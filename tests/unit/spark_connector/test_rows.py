"""Arrow batches cut to a range and put into Spark's shape."""

import datetime

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from semel.client import ARROW_SCHEMA
from semel.protos.errors import InvalidRequest
from semel.spark_connector.offsets import QueueRange
from semel.spark_connector.rows import ROW_SCHEMA, Projection, check_schema, row_schema, within

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


@pytest.mark.parametrize(
    ("first", "count", "kept"),
    [
        (100, 10, range(100, 110)),
        (95, 10, range(100, 105)),
        (195, 10, range(195, 200)),
        (90, 200, range(100, 200)),
        (50, 50, range(0)),
        (200, 5, range(0)),
    ],
)
def test_a_batch_is_cut_to_its_range(first, count, kept):
    assert within(stored(first, count), 100, 200).column("offset").to_pylist() == list(kept)


def test_a_gap_in_the_offsets_is_noticed():
    gap = pa.concat_batches([stored(100, 1), stored(102, 1)])
    with pytest.raises(AssertionError, match="not dense"):
        within(gap, 100, 200)


def test_all_columns_have_the_schema_that_spark_expects():
    found = Projection(ROW_SCHEMA).apply(stored(98, 4), SOURCE)
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


def test_values_are_not_copied():
    batch = stored(100, 50)
    found = Projection(row_schema(include_headers=True)).apply(batch, SOURCE)
    for name in ("key", "value"):
        mine, theirs = found.column(name).buffers()[2], batch.column(name).buffers()[2]
        assert mine.address == theirs.address


def test_a_users_schema_picks_orders_and_pins_nullability():
    schema = StructType(
        [StructField("offset", LongType(), nullable=False), StructField("topic", StringType())]
    )
    check_schema(schema)
    found = Projection(schema).apply(stored(100, 2), SOURCE)
    assert found.schema.equals(to_arrow_schema(schema, timezone="UTC"))
    assert found.to_pylist() == [
        {"offset": 100, "topic": "orders"},
        {"offset": 101, "topic": "orders"},
    ]


def test_headers_are_a_choice():
    assert "headers" in row_schema(include_headers=True).names
    assert "headers" not in row_schema(include_headers=False).names


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (StructType([]), "no columns"),
        (StructType([StructField("partition", LongType())]), "no column 'partition'; it has key"),
        (StructType([StructField("value", StringType())]), "'value' is binary, not string"),
    ],
)
def test_schemas_that_cannot_be_read(schema, message):
    with pytest.raises(InvalidRequest, match=message):
        check_schema(schema)
