"""Stored batches made of rows of the tier, for a broker that serves what it no longer has.

How it works. A run of rows of one producer incarnation that arrived together becomes one batch,
with the codec that the broker likes, and with a broker header. It is an ordinary stored batch:
every client checks and decodes it as it does any other, and finds in it the same messages under the
same offsets, with the same timestamps, producers, sequences, ids and arrival time. It is not the
batch that the producer sent, byte for byte. It may hold rows of several of them, its previous
sequence is the one before its first, and its term is 0, for nobody appended it. So it is for
readers: a broker never stores or replicates it, and never compares it with a retry.

Invariants
1. `rows_of` of the batches returns the rows that they were made of, but for `append_time`, which
   the extent says. No batch spans a gap in offsets.
2. Every batch passes `check_batch` and `decode_columns`.

Not here: the fetch that takes them.
"""

from __future__ import annotations

import itertools
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.protos.batch import COPY_BYTES_MAX, MESSAGE_BYTES_MAX, BrokerHeader, Codec
from semel.protos.columns import Columns, encode_batch
from semel.protos.ids import Offset, QueueKey, Term
from semel.tier.rows import cuts, row_bytes

COLD_BATCH_BYTES: Final = 1 << 20
"""About the most that a batch has before compression, unless one message has more."""

_NOBODY: Final = Term(0)


class ColdBatch(NamedTuple):
    """A stored batch whose rows all count, from row 0 on."""

    stored: bytes
    base_offset: int
    row_count: int


def cold_batches(
    queue: QueueKey,
    rows: pa.Table,
    *,
    bytes_max: int = COLD_BATCH_BYTES,
    codec: Codec = Codec.NONE,
) -> list[ColdBatch]:
    """Returns batches that have `rows`, which have SCHEMA, in the same order."""
    if not rows.num_rows:
        return []
    rows = rows.combine_chunks()
    numbers = {
        name: rows.column(name).cast(pa.int64()).to_numpy()
        for name in (
            "offset",
            "timestamp",
            "producer",
            "producer_epoch",
            "producer_session",
            "sequence",
            "arrival_time",
        )
    }
    breaks = numbers["sequence"][1:] <= numbers["sequence"][:-1]
    breaks |= np.diff(numbers["offset"]) != 1
    for name in ("producer", "producer_epoch", "producer_session", "arrival_time"):
        breaks |= numbers[name][1:] != numbers[name][:-1]
    sizes = row_bytes(rows)
    found: list[ColdBatch] = []
    edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), rows.num_rows]
    for start, end in itertools.pairwise(edges):
        first = start
        for last in cuts(sizes[start:end], bytes_max):
            found.append(_batch(queue, rows, numbers, first, start + last, codec))
            first = start + last
    return found


def _batch(
    queue: QueueKey, rows: pa.Table, numbers: dict[str, Any], start: int, end: int, codec: Codec
) -> ColdBatch:
    """The batch of rows `[start, end)`."""
    columns = {
        name: rows.column(name).chunk(0).slice(start, end - start)
        for name in ("key", "value", "headers", "message_id")
    }
    sequences = numbers["sequence"][start:end]
    timestamps = numbers["timestamp"][start:end]
    first, last = int(sequences[0]), int(sequences[-1])
    jumps = last - first != end - start - 1
    one_time = bool((timestamps == timestamps[0]).all())
    batch = encode_batch(
        Columns(
            values=columns["value"],
            keys=_unless_empty(columns["key"]),
            headers=columns["headers"] if _any_headers(columns["headers"]) else None,
            timestamps=None if one_time else pa.array(timestamps),
            message_ids=_unless_empty(columns["message_id"]),
            sequences=pa.array(sequences) if jumps else None,
        ),
        topic_id=queue.topic_id,
        queue_id=queue.queue_id,
        producer_id=int(numbers["producer"][start]),
        epoch=int(numbers["producer_epoch"][start]),
        session=int(numbers["producer_session"][start]),
        previous_sequence=first - 1,
        base_sequence=first,
        last_sequence=last,
        timestamp_us=int(timestamps[0]),
        codec=codec,
        source_positions=jumps,
        message_bytes_max=MESSAGE_BYTES_MAX + COPY_BYTES_MAX,
    )
    offset = int(numbers["offset"][start])
    header = BrokerHeader(Offset(offset), int(numbers["arrival_time"][start]), _NOBODY)
    return ColdBatch(header.encode() + batch, offset, end - start)


def _unless_empty(column: pa.Array) -> pa.Array | None:
    """None for a column of nulls alone."""
    return None if column.null_count == len(column) else column


def _any_headers(column: pa.Array) -> bool:
    return bool(pc.max(pc.list_value_length(column)).as_py())
