"""Rows of a batch as Arrow's record batches, which `poll_arrow` gives out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from semel.protos.arrow_records import (
    RECORD_SCHEMA,
    REPEATED_INT64,
    REPEATED_STRING,
    Repeater,
    record_arrays,
)
from semel.protos.batch import BatchHeader
from semel.protos.columns import Columns

ARROW_SCHEMA: Final = pa.schema(
    [
        *RECORD_SCHEMA,
        pa.field("topic", pa.string()),
        pa.field("queue", pa.int64()),
        pa.field("message_id", pa.binary()),
    ]
)
"""Columns of `poll_arrow`."""
_NO_IDS: Final = Repeater(pa.binary())


def record_batch(
    columns: Columns, header: BatchHeader, first_row: int, base_offset: int, topic: str, queue: int
) -> pa.RecordBatch:
    """Returns decoded columns as ARROW_SCHEMA. The first of their rows is row `first_row` of the
    batch and has offset `base_offset`, unless the columns have offsets."""
    count = len(columns)
    ids = columns.message_ids
    return pa.RecordBatch.from_arrays(
        [
            *record_arrays(columns, header, first_row, base_offset),
            REPEATED_STRING(topic, count),
            REPEATED_INT64(queue, count),
            _NO_IDS(None, count) if ids is None else ids,
        ],
        schema=ARROW_SCHEMA,
    )


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Returns the rows of several batches as one."""
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
