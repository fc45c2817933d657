"""Stored batches of every kind that a queue may have, for tests of the tier.

Not here: the rows that are made of them (`semel.tier.rows`).
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from semel.protos.batch import BrokerHeader, Codec, decode_header
from semel.protos.columns import Columns, decode_columns, encode_batch
from semel.protos.compacted_rows import compact_rows, gap_mark, offsets_of_rows
from semel.protos.ids import Offset, QueueId, QueueKey, Term, TopicId
from semel.protos.kept_rows import keep_rows
from semel.tier.rows import StoredRows

QUEUE = QueueKey(TopicId(0x1234_5678_9ABC_DEF0), QueueId(3))
TIME_US = 1_800_000_000_000_000


def stored(batch: bytes, base_offset: int, arrival_us: int) -> bytes:
    """The batch with a broker header in front."""
    return BrokerHeader(Offset(base_offset), arrival_us, Term(7)).encode() + batch


def plain_rows(
    count: int, *, base_offset: int = 0, value_bytes: int = 100, producer: int = 5
) -> StoredRows:
    """One batch of values and keys without a codec."""
    values = [b"%d " % (base_offset + row) + b"v" * value_bytes for row in range(count)]
    batch = encode_batch(
        Columns.from_arrow(values, keys=[b"k%d" % (row % 7) for row in range(count)]),
        topic_id=QUEUE.topic_id,
        queue_id=QUEUE.queue_id,
        producer_id=producer,
        epoch=1,
        session=1,
        previous_sequence=base_offset - 1,
        base_sequence=base_offset,
        last_sequence=base_offset + count - 1,
        timestamp_us=TIME_US + base_offset,
    )
    append_us = TIME_US + base_offset + 10
    return StoredRows(stored(batch, base_offset, append_us), base_offset, 0, count, append_us)


def random_rows(
    seed: int, batches: int, *, base_offset: int = 0, compacted: bool = False
) -> list[StoredRows]:
    """Batches that follow each other: with and without each column and codec, with source positions
    that jump, with null values and dropped messages, delayed ones, ones of transactions, parts of
    batches, and compacted ones if that is asked for."""
    rng = random.Random(seed)
    sequences: dict[int, int] = {}
    append_us = TIME_US + base_offset
    found: list[StoredRows] = []
    for _ in range(batches):
        producer = rng.choice((1, 2, (1 << 62) + 9))
        append_us += rng.choice((0, 0, 1, 1_000_000))
        count = rng.choice((1, 1, 2, 5, 40))
        previous = sequences.get(producer, -1)
        batch, sequences[producer] = _batch(rng, producer, previous, count, append_us)
        start, end = 0, decode_header(batch).count
        if rng.random() < 0.2 and end > 2:  # some of its rows were cancelled
            start, end = rng.randrange(1, end - 1), end - 1
        arrival_us = append_us - rng.choice((0, 0, 3_600_000_000))
        span = 0
        if compacted and rng.random() < 0.4:
            batch, span = _compacted(rng, batch, base_offset, start, end), end - start
            start, end = 0, span
        whole = BrokerHeader(Offset(base_offset), arrival_us, Term(7), span).encode() + batch
        found.append(StoredRows(whole, base_offset, start, end, append_us))
        base_offset += end - start
    return found


def _compacted(rng: random.Random, batch: bytes, base_offset: int, start: int, end: int) -> bytes:
    """What compaction leaves of rows `[start, end)` of a batch."""
    header = decode_header(batch)
    columns = decode_columns(batch, header)
    offsets = offsets_of_rows(columns, base_offset, start, end - start)
    kept = (offsets >= 0) & np.array([rng.random() < 0.5 for _ in offsets])
    made = compact_rows(header, columns, offsets, kept)
    assert len(made) <= 1
    return made[0][1] if made else gap_mark(header)


def _batch(
    rng: random.Random, producer: int, previous: int, count: int, now_us: int
) -> tuple[bytes, int]:
    """A batch, and the last sequence that it covers."""

    def some(make: object) -> bool:
        return rng.random() < 0.4

    def pieces(null: bool, size: int) -> list[bytes | None]:
        return [
            None if null and rng.random() < 0.3 else rng.randbytes(rng.randrange(size))
            for _ in range(count)
        ]

    jumps = rng.random() < 0.3
    sequences = np.cumsum([rng.randrange(1, 9) for _ in range(count)]) + previous
    keys = pieces(True, 9) if some("keys") else [None] * count
    nulls = rng.random() < 0.3
    values = [
        None if nulls and key is not None and rng.random() < 0.5 else value
        for key, value in zip(keys, pieces(False, 60), strict=True)
    ]
    columns = Columns.from_arrow(
        values,
        keys=None if keys == [None] * count else keys,
        headers=[
            [(rng.choice(("", "a", "näme")), rng.randbytes(rng.randrange(5)))] * rng.randrange(3)
            for _ in range(count)
        ]
        if some("headers")
        else None,
        timestamps=[now_us - rng.randrange(10**9) for _ in range(count)] if some("times") else None,
        message_ids=pieces(True, 20) if some("ids") else None,
        sequences=sequences if jumps else None,
    )
    last = int(sequences[-1]) + rng.randrange(3) if jumps else previous + count
    delayed = rng.random() < 0.2
    batch = encode_batch(
        columns,
        topic_id=QUEUE.topic_id,
        queue_id=QUEUE.queue_id,
        producer_id=producer,
        epoch=rng.choice((1, 2)),
        session=3,
        previous_sequence=previous,
        base_sequence=int(sequences[0]) if jumps else previous + 1,
        last_sequence=last,
        timestamp_us=now_us - rng.randrange(10**9),
        codec=rng.choice((Codec.NONE, Codec.LZ4, Codec.ZSTD)),
        deliver_at_us=now_us if delayed else 0,
        source_positions=jumps,
    )
    if count > 1 and rng.random() < 0.3:  # some messages had known ids
        kept = np.array([row == 0 or rng.random() < 0.5 for row in range(count)])
        header = decode_header(batch)
        batch = keep_rows(header, decode_columns(batch, header), kept)
    return batch, last


def messages(rows: pa.Table | Iterable[pa.Table]) -> list[dict[str, object]]:
    """Every row as a dict, the slow and obvious way."""
    tables = [rows] if isinstance(rows, pa.Table) else list(rows)
    return [row for table in tables for row in table.to_pylist()]
