"""The columns of a file of the tier.

A row is a message. Rows of one file are all that a queue has of a whole range of offsets, in offset
order; a range has gaps only where messages were compacted away. The columns are those that readers
of the cluster get, and those from which a stored batch can be made again (`cold_batches.py`).

Format. `docs/formats/tier.md`, "Columns"; a test compares that table with `SCHEMA`.

Invariants
1. `offset` rises; `append_time` never falls.
2. A message without headers has an empty list, never a null.
3. A null value says that its key has no value any more.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from semel.protos.arrow_arrays import HEADERS_TYPE

FORMAT: Final = 1
"""The version of everything in the tier: files, manifests, names. A reader refuses a higher one."""

TIMESTAMP: Final = pa.timestamp("us", "UTC")

SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE, nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", TIMESTAMP, nullable=False),
        pa.field("producer", pa.int64(), nullable=False),
        pa.field("producer_epoch", pa.int64(), nullable=False),
        pa.field("producer_session", pa.int64(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("message_id", pa.binary()),
        pa.field("append_time", TIMESTAMP, nullable=False),
        pa.field("arrival_time", TIMESTAMP, nullable=False),
    ]
)

NUMBERS: Final = tuple(field.name for field in SCHEMA if field.type in (pa.int64(), TIMESTAMP))
"""Columns of 64-bit numbers."""
