"""Rows as messages: every row in one lot in its order, and refusals that name the column."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from semel.protos.errors import InvalidRequest
from semel.spark_connector.rows import HEADERS_TYPE
from semel.spark_connector.sink_rows import check_write_schema, lots

BINARY, STRING, INT = BinaryType(), StringType(), IntegerType()
PAIRS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def of(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_schemas_that_fit() -> None:
    check_write_schema(of(value=BINARY), "orders")
    check_write_schema(of(VALUE=STRING, Topic=STRING), "")
    for queue in (ByteType(), ShortType(), INT, LongType()):
        columns = {"key": STRING, "value": BINARY, "topic": STRING, "headers": HEADERS_TYPE}
        check_write_schema(of(**columns, queue=queue), "")
    for due in (TimestampType(), LongType()):
        for kind in (STRING, BINARY):
            check_write_schema(of(value=BINARY, deliver_at=due, Message_ID=kind), "orders")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": BINARY}, "column 'value' is missing"),
        ({"value": INT}, "column 'value' must be binary or string, not int"),
        ({"value": BINARY, "key": INT}, "column 'key' must be binary or string, not int"),
        ({"value": BINARY, "queue": STRING}, "column 'queue' must be int"),
        ({"value": BINARY, "topic": BINARY}, "column 'topic' must be string"),
        ({"value": BINARY, "headers": ArrayType(STRING)}, "column 'headers' must be array<struct"),
        ({"value": BINARY, "Value": STRING}, "column 'value' is there twice"),
        ({"value": BINARY, "offset": LongType()}, "a message has no column 'offset'"),
        ({"value": BINARY, "deliver_at": INT}, "'deliver_at' must be timestamp or bigint, not int"),
        ({"value": BINARY, "deliver_at": TimestampNTZType()}, "not timestamp_ntz; cast it"),
        ({"value": BINARY, "deliver_at": DateType()}, "not date; cast it"),
        ({"value": BINARY, "deliver_at": STRING}, "not string; cast it"),
        ({"value": BINARY, "message_id": INT}, "'message_id' must be string or binary, not int"),
    ],
)
def test_schemas_that_do_not(columns: dict[str, DataType], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_write_schema(of(**columns), "orders")
    assert message in str(caught.value)


def test_a_topic_is_named_somewhere() -> None:
    with pytest.raises(InvalidRequest, match="give the topic as option 'topic'"):
        check_write_schema(of(value=BINARY), "")


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(columns)


def test_one_destination_passes_as_it_is() -> None:
    values = pa.array([b"a", b"b"])
    (lot,) = lots(batch(Value=values, topic=pa.array(["x", None])), "orders")
    assert (lot.topic, lot.queue, lot.keys, lot.headers) == ("orders", None, None, None)
    assert (lot.deliver_at, lot.message_ids) == (None, None)
    assert lot.values.buffers()[2].address == values.buffers()[2].address  # no copy
    assert list(lots(batch(value=values.slice(0, 0)), "orders")) == []


@pytest.mark.parametrize("seed", range(20))
def test_every_row_is_in_one_lot_and_in_order(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randrange(1, 60)
    topics = [chance.choice(["a", "b", "c"]) for _ in range(count)]
    queues = [chance.choice([None, 0, 1, 65_535]) for _ in range(count)]
    headers = [[{"key": "n", "value": b"%d" % n}] * chance.randrange(3) for n in range(count)]
    keys = [chance.choice([None, b"k%d" % n]) for n in range(count)]
    dues = [chance.choice([None, n]) for n in range(count)]
    ids = [chance.choice([None, f"id{n}"]) for n in range(count)]
    whole = batch(
        value=pa.array([b"%d" % n for n in range(count)]),
        key=pa.array(keys, pa.binary()),
        topic=pa.array(topics),
        queue=pa.array(queues, pa.int32()),
        headers=pa.array(headers, PAIRS),
        deliver_at=pa.array(dues, pa.timestamp("us", "UTC")),
        message_id=pa.array(ids, pa.string()),
    )
    seen = []
    start = chance.randrange(count)  # sliced, as Spark may hand it over
    for lot in lots(whole.slice(start), ""):
        numbers = [int(value) for value in lot.values.to_pylist()]
        assert numbers == sorted(numbers)
        assert {topics[n] for n in numbers} == {lot.topic}
        assert {queues[n] for n in numbers} == {lot.queue}
        assert lot.keys is not None
        assert lot.headers is not None
        assert lot.deliver_at is not None
        assert lot.message_ids is not None
        assert lot.keys.to_pylist() == [keys[n] for n in numbers]
        assert lot.headers.to_pylist() == [headers[n] for n in numbers]
        assert lot.deliver_at.cast(pa.int64()).to_pylist() == [dues[n] for n in numbers]
        assert lot.message_ids.to_pylist() == [ids[n] for n in numbers]
        seen += numbers
    assert sorted(seen) == list(range(start, count))


NULL_PAIRS: list[list[Any]] = [
    [[None]],
    [[{"key": None, "value": b""}]],
    [[{"key": "a", "value": b""}], [{"key": "a", "value": None}]],
]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": pa.array([b"a", None, None])}, "column 'value' is null in 2 of 3 rows"),
        (
            {"value": pa.array([None, None], pa.binary()), "key": pa.array([b"k", None])},
            "column 'value' is null in 1 of 2 rows",
        ),
        (
            {"value": pa.array([b"a"]), "topic": pa.array([None], pa.string())},
            "column 'topic' is null in 1 of 1 rows",
        ),
        ({"value": pa.array([b"a"]), "topic": pa.array([""])}, "column 'topic' is empty"),
        (
            {"value": pa.array([b"a"]), "topic": pa.array(["a"]), "queue": pa.array([-1])},
            "column 'queue' has -1",
        ),
        (
            {"value": pa.array([b"a"]), "topic": pa.array(["a"]), "queue": pa.array([65_536])},
            "column 'queue' has 65536",
        ),
        *(
            (
                {"value": pa.array([b"a"] * len(pairs)), "headers": pa.array(pairs, PAIRS)},
                "column 'headers' holds a null",
            )
            for pairs in NULL_PAIRS
        ),
    ],
)
def test_rows_that_cannot_be_stored(columns: dict[str, pa.Array], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        list(lots(batch(**columns), ""))
    assert message in str(caught.value)


def test_a_null_value_with_a_key_is_a_message() -> None:
    columns = {"value": pa.array([b"a", None]), "key": pa.array([None, b"k"])}
    (lot,) = lots(batch(**columns), "orders")
    assert lot.values.to_pylist() == [b"a", None]


def test_null_keys_and_null_headers_are_messages_without() -> None:
    columns = {"value": pa.array([b"a"]), "key": pa.array([None], pa.binary())}
    (lot,) = lots(batch(**columns, headers=pa.array([None], PAIRS)), "orders")
    assert lot.keys is not None
    assert lot.headers is not None
    assert lot.keys.to_pylist() == [None]
    assert lot.headers.to_pylist() == [None]
