"""Stored messages and batches, as the checkers of raw logs compare them.

How it works. Rows are read with the format's own decoder. What moves to another broker group is
compared byte by byte, but for a *part* of a batch, other messages of which were cancelled: that
becomes a batch of its own, so its messages are compared.

Not here: where they get their offsets (`raw_log.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from semel.protos.batch import BatchHeader
from semel.protos.columns import Columns, decode_columns
from tests.checking.history import digest_of

Queue: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Row:
    """One stored message."""

    queue: Queue
    offset: int
    digest: str
    producer_id: int
    epoch: int
    session: int
    sequence: int
    index: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A batch without the header of the broker that stored it."""

    content: bytes
    """Digest of its bytes, or of the messages if it is a part of a batch."""
    append_time_us: int


def stored(batch: bytes, append_time_us: int) -> Stored:
    """A whole batch."""
    return Stored(_digest(batch), append_time_us)


def stored_part(batch: bytes, header: BatchHeader, rows: range, append_time_us: int) -> Stored:
    """These rows of a batch."""
    columns = decode_columns(batch, header)
    producer = int(header.producer_id), header.epoch, header.session, header.deliver_at_us
    messages = [
        column[rows.start : rows.stop]
        for column in (
            columns.values.to_pylist(),
            *(
                [None] * header.count if column is None else column.to_pylist()
                for column in (columns.keys, columns.headers, columns.message_ids)
            ),
            timestamps_of(columns, header),
            sequences_of(columns, header),
        )
    ]
    return Stored(_digest(repr((producer, messages)).encode()), append_time_us)


def sequences_of(columns: Columns, header: BatchHeader) -> list[int]:
    """The sequence of each message."""
    if columns.sequences is None:
        return list(range(header.base_sequence, header.base_sequence + header.count))
    return [int(each) for each in columns.sequences.to_pylist()]


def timestamps_of(columns: Columns, header: BatchHeader) -> list[Any]:
    """The timestamp of each message."""
    if columns.timestamps is None:
        return [header.first_timestamp_us] * header.count
    return list(columns.timestamps.to_pylist())


def rows_of(
    queue: Queue, base_offset: int, header: BatchHeader, batch: bytes, chosen: range, index: int
) -> Iterator[Row]:
    """The chosen rows of a batch, which have the offsets from `base_offset` on."""
    columns = decode_columns(batch, header)
    keys = columns.keys.to_pylist() if columns.keys is not None else [None] * header.count
    values, sequences = columns.values.to_pylist(), sequences_of(columns, header)
    for at, row in enumerate(chosen):
        yield Row(
            queue,
            base_offset + at,
            digest_of(values[row], keys[row]),
            int(header.producer_id),
            header.epoch,
            header.session,
            sequences[row],
            index,
        )


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
