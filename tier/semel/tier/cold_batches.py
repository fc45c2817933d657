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
   the extent says.
2. The batches stand for all of the offsets, one behind the other. One that stands for an offset
   without a row is a compacted batch, and needs a client of feature level 8.
3. Every batch passes `check_batch` and `decode_columns`.

Not here: the fetch that takes them.
"""

from __future__ import annotations

import itertools
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.protos.batch import (
    COPY_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    BatchHeader,
    BrokerHeader,
    Codec,
)
from semel.protos.columns import Columns, encode_batch
from semel.protos.compacted_rows import gap_mark
from semel.protos.ids import NO_SEQUENCE, Offset, ProducerId, QueueKey, Sequence, Term
from semel.tier.rows import cuts, row_bytes

COLD_BATCH_BYTES: Final = 1 << 20
"""About the most that a batch has before compression, unless one message has more."""

_NOBODY: Final = Term(0)


class ColdBatch(NamedTuple):
    """A stored batch, all of which counts. A reply to a fetch names its rows from 0 to
    `offset_count`."""

    stored: bytes
    base_offset: int
    offset_count: int
    """It stands for the offsets `[base_offset, base_offset + offset_count)`."""


def cold_batches(
    queue: QueueKey,
    rows: pa.Table,
    covers: tuple[int, int],
    *,
    bytes_max: int = COLD_BATCH_BYTES,
    codec: Codec = Codec.NONE,
) -> list[ColdBatch]:
    """Returns batches that have `rows`, which have SCHEMA, in the same order. They stand for the
    offsets from `covers[0]` to before `covers[1]`, of which these are all rows."""
    start_offset, end_offset = covers
    if not rows.num_rows:
        return [_gap(queue, *covers)] if start_offset < end_offset else []
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
    for name in ("producer", "producer_epoch", "producer_session", "arrival_time"):
        breaks |= numbers[name][1:] != numbers[name][:-1]
    sizes = row_bytes(rows)
    spans: list[tuple[int, int]] = []
    edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), rows.num_rows]
    for start, end in itertools.pairwise(edges):
        first = start
        for last in cuts(sizes[start:end], bytes_max):
            spans.append((first, start + last))
            first = start + last
    offsets = numbers["offset"]
    bases = [start_offset, *(int(offsets[first]) for first, _ in spans[1:]), end_offset]
    assert bases[0] <= offsets[0] and offsets[-1] < end_offset, "the rows lie in what they cover"
    return [
        _batch(queue, rows, numbers, span, (base, base_after), codec)
        for span, (base, base_after) in zip(spans, pairwise(bases), strict=True)
    ]


def _batch(
    queue: QueueKey,
    rows: pa.Table,
    numbers: dict[str, Any],
    span: tuple[int, int],
    covers: tuple[int, int],
    codec: Codec,
) -> ColdBatch:
    """The batch of the rows of a span, which are all of the offsets in `covers`."""
    start, end = span
    columns = {
        name: rows.column(name).chunk(0).slice(start, end - start)
        for name in ("key", "value", "headers", "message_id")
    }
    sequences = numbers["sequence"][start:end]
    timestamps = numbers["timestamp"][start:end]
    first, last = int(sequences[0]), int(sequences[-1])
    gaps = covers[1] - covers[0] != end - start
    jumps = gaps or last - first != end - start - 1
    one_time = bool((timestamps == timestamps[0]).all())
    broker_header = _header(covers, int(numbers["arrival_time"][start]), gaps=gaps)
    stored = encode_batch(
        Columns(
            values=columns["value"],
            keys=_unless_empty(columns["key"]),
            headers=columns["headers"] if _any_headers(columns["headers"]) else None,
            timestamps=None if one_time else pa.array(timestamps),
            message_ids=_unless_empty(columns["message_id"]),
            sequences=pa.array(sequences) if jumps else None,
            offsets=pa.array(numbers["offset"][start:end]) if gaps else None,
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
        front=broker_header.encode(),
    )
    return ColdBatch(stored, covers[0], covers[1] - covers[0])


def _gap(queue: QueueKey, start: int, end: int) -> ColdBatch:
    """The batch that stands for offsets of which there is no row."""
    nobody = BatchHeader(
        codec=Codec.NONE,
        flags=0,
        body_length=0,
        uncompressed_length=0,
        body_crc=0,
        content_crc=0,
        topic_id=queue.topic_id,
        queue_id=queue.queue_id,
        count=0,
        producer_id=ProducerId(1),
        epoch=0,
        session=0,
        previous_sequence=NO_SEQUENCE,
        base_sequence=Sequence(0),
        last_sequence=Sequence(0),
        first_timestamp_us=0,
        max_timestamp_us=0,
        deliver_at_us=0,
    )
    header = _header((start, end), 0, gaps=True)
    return ColdBatch(header.encode() + gap_mark(nobody), start, end - start)


def _header(covers: tuple[int, int], arrival_us: int, *, gaps: bool) -> BrokerHeader:
    count = covers[1] - covers[0]
    return BrokerHeader(Offset(covers[0]), arrival_us, _NOBODY, count if gaps else 0)


def _unless_empty(column: pa.Array) -> pa.Array | None:
    """None for a column of nulls alone."""
    return None if column.null_count == len(column) else column


def _any_headers(column: pa.Array) -> bool:
    return bool(pc.max(pc.list_value_length(column)).as_py())
