"""Which values of a file are compressed, and that chunks and sizes of rows do not matter."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.tier.files import decode_whole, encode
from semel.tier.schema import SCHEMA

QUEUE = QueueKey(TopicId(1), QueueId(0))


def table(values: Sequence[bytes | None], first: int = 0) -> pa.Table:
    count = len(values)
    offsets = np.arange(first, first + count)
    columns = {
        "key": pa.array([b"k"] * count),
        "value": pa.array(values, pa.binary()),
        "headers": pa.array([[("name", b"x")]] * count, SCHEMA.field("headers").type)
        if count % 2
        else pa.array([[]] * count, SCHEMA.field("headers").type),
        "message_id": pa.nulls(count, pa.binary()),
    }
    for field in SCHEMA:
        if field.name not in columns:
            columns[field.name] = pa.array(offsets).cast(field.type)
    return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def codecs(data: pa.Buffer) -> dict[str, str]:
    group = pq.read_metadata(pa.BufferReader(data)).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {column.path_in_schema: column.compression for column in columns}


@pytest.mark.parametrize(
    ("values", "codec"),
    [
        ([os.urandom(1_000) for _ in range(301)], "UNCOMPRESSED"),
        ([b"the same again and again " * 40 for _ in range(300)], "ZSTD"),
        ([b"", None, b"x"], "UNCOMPRESSED"),
        ([None] * 7, "UNCOMPRESSED"),
    ],
)
def test_values_are_compressed_where_that_saves_anything(
    values: list[bytes | None], codec: str
) -> None:
    entry, data = encode(QUEUE, table(values))
    found = codecs(data)
    assert found.pop("value") == codec
    assert set(found.values()) == {"ZSTD"}
    assert decode_whole("file", entry, data.to_pybytes()).equals(table(values))


@pytest.mark.parametrize("size", [10, 40_000])
def test_chunks_do_not_matter(size: int) -> None:
    """Large ones are written where they are, small ones are joined first."""
    values = [os.urandom(size // 2) + bytes(size // 2) for _ in range(32)]
    parts = [table(values[at : at + 8], at) for at in range(0, 32, 8)]
    entry, data = encode(QUEUE, pa.concat_tables(parts), row_group_bytes=5 * size)
    whole, _ = encode(QUEUE, table(values), row_group_bytes=5 * size)
    assert (entry.rows_sha256, entry.row_bytes) == (whole.rows_sha256, whole.row_bytes)
    assert pq.read_metadata(pa.BufferReader(data)).num_row_groups > 5
    assert decode_whole("file", entry, data.to_pybytes()).equals(pa.concat_tables(parts))


def test_a_file_fits_into_its_buffer_whatever_the_rows_are() -> None:
    """Numbers of which none repeats, and rows that are nothing but headers."""
    count = 5_000
    random = np.random.default_rng(1)
    rows = table([b""] * count)
    for name in ("producer", "producer_epoch", "producer_session"):
        numbers = pa.array(random.integers(0, 1 << 62, count))
        rows = rows.set_column(SCHEMA.get_field_index(name), SCHEMA.field(name), numbers)
    headers = [[("", b"")] * 20] * count
    at = SCHEMA.get_field_index("headers")
    column = pa.array(headers, SCHEMA.field("headers").type)
    rows = rows.set_column(at, SCHEMA.field("headers"), column)
    entry, data = encode(QUEUE, rows, row_group_bytes=4_096)
    assert decode_whole("file", entry, data.to_pybytes()).equals(rows)
