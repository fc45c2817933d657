"""Rows of Spark as messages: which columns are allowed, and Arrow batches cut by destination.

How it works. `check_write_schema` checks the columns once, before anything runs. A task then cuts
each Arrow batch into *lots*, one for each topic and queue that the rows name, with a stable sort of
numbers; a batch with one destination passes through unchanged. No row is handled by itself. The SDK
takes care of due times: it stages the rows of a lot by due second.

Invariants
1. Every row of a batch is in exactly one lot, and rows of one lot keep their order; or the whole
   batch is refused with the column's name.
2. A column that could not be stored is refused, never left out.

Not here: sending (`writer.py`), times and ids that are out of range (`semel.client`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from semel.protos.errors import InvalidRequest

_TYPES: Final = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "topic": ("string",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "queue": ("int", "bigint", "smallint", "tinyint"),
    "deliver_at": ("timestamp", "bigint"),
    "message_id": ("string", "binary"),
}
_BODY: Final = ("value", "key", "headers", "deliver_at", "message_id")
_QUEUES_MAX: Final = 65_536


class Lot(NamedTuple):
    """Messages with one destination, as `send_many` takes them."""

    topic: str
    queue: int | None
    """None: the SDK chooses by key, or in turn."""
    values: pa.Array
    """A null says that its key has no value any more."""
    keys: pa.Array | None
    headers: pa.Array | None
    deliver_at: pa.Array | None
    """Timestamps, or microseconds since 1970; null means at once."""
    message_ids: pa.Array | None


def check_write_schema(schema: StructType, topic: str) -> None:
    """Raises InvalidRequest unless rows of `schema` can be stored; `topic` is the option's."""
    seen: set[str] = set()
    for column in schema.fields:
        name = column.name.lower()
        if name not in _TYPES:
            raise InvalidRequest(
                f"a message has no column {column.name!r}; select value and, if there are any,"
                " key, headers, topic, queue, deliver_at and message_id"
            )
        if name in seen:
            raise InvalidRequest(f"column {name!r} is there twice")
        seen.add(name)
        given = column.dataType.simpleString()
        if given not in _TYPES[name]:
            raise InvalidRequest(
                f"column {column.name!r} must be {' or '.join(_TYPES[name])}, not {given}; cast it"
            )
    if "value" not in seen:
        raise InvalidRequest("column 'value' is missing: it is what a message consists of")
    if not topic and "topic" not in seen:
        raise InvalidRequest(
            "give the topic as option 'topic', or a topic for each row in a column 'topic'"
        )


def lots(batch: pa.RecordBatch, topic: str) -> Iterator[Lot]:
    """The rows of one batch by destination; the option `topic` takes precedence over the column.

    Raises InvalidRequest for a null or a number that is not allowed.
    """
    if not batch.num_rows:
        return
    columns = {name.lower(): batch.column(at) for at, name in enumerate(batch.schema.names)}
    _check_values(columns["value"], columns.get("key"))
    if "headers" in columns:
        _check_headers(columns["headers"])
    body = {name: columns.get(name) for name in _BODY}
    names, by_topic = _topics(columns, topic, batch.num_rows)
    by_queue = _queues(columns, batch.num_rows)
    places = by_topic * (_QUEUES_MAX + 1) + by_queue
    order = np.argsort(places, kind="stable")
    found, starts = np.unique(places[order], return_index=True)
    ends = [*starts[1:], batch.num_rows]
    for place, start, end in zip(found, starts, ends, strict=True):
        name, queue = divmod(int(place), _QUEUES_MAX + 1)
        rows = None if len(found) == 1 else pa.array(order[start:end])
        picked = {
            column: array if array is None or rows is None else array.take(rows)
            for column, array in body.items()
        }
        yield Lot(
            names[name],
            queue - 1 if queue else None,
            picked["value"],
            picked["key"],
            picked["headers"],
            picked["deliver_at"],
            picked["message_id"],
        )


def _topics(columns: dict[str, Any], topic: str, rows: int) -> tuple[list[str], Any]:
    """The topics' names, and for each row the index into them."""
    if topic:
        return [topic], np.zeros(rows, np.int64)
    _require(columns["topic"], "topic")
    encoded = columns["topic"].dictionary_encode()
    names: list[str] = encoded.dictionary.to_pylist()
    if "" in names:
        raise InvalidRequest("column 'topic' is empty in a row")
    return names, encoded.indices.to_numpy().astype(np.int64)


def _queues(columns: dict[str, Any], rows: int) -> Any:
    """One more than the queue of each row; 0 where none is given."""
    if "queue" not in columns:
        return np.zeros(rows, np.int64)
    numbers = columns["queue"].cast(pa.int64())
    given = numbers.drop_null().to_numpy()
    if given.size and not 0 <= given.min() <= given.max() < _QUEUES_MAX:
        bad = given.min() if given.min() < 0 else given.max()
        raise InvalidRequest(f"column 'queue' has {bad}, which is no number of a queue")
    return numbers.fill_null(-1).to_numpy() + 1


def _require(column: pa.Array, name: str) -> None:
    if column.null_count:
        raise InvalidRequest(
            f"column {name!r} is null in {column.null_count:,} of {len(column):,} rows of a batch;"
            " nothing is written"
        )


def _check_values(values: pa.Array, keys: pa.Array | None) -> None:
    if not values.null_count:
        return
    empty = values.is_null() if keys is None else pc.and_(values.is_null(), keys.is_null())
    if count := empty.true_count:
        raise InvalidRequest(
            f"column 'value' is null in {count:,} of {len(values):,} rows of a batch that have no"
            " key: a null value says that its key has no value any more; nothing is written"
        )


def _check_headers(headers: pa.Array) -> None:
    pairs = headers.flatten()
    nulls = pairs.null_count + sum(part.null_count for part in pairs.flatten())
    if nulls:
        raise InvalidRequest(
            "column 'headers' holds a null name or value, or a header that is null; nothing is"
            " written"
        )
