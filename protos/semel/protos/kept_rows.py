"""Makes the batch of those messages that are stored of a batch, when others have known ids.

How it works. Arrow takes the kept rows of all columns. The batch says of each message which
sequence it has, as one with source positions does, and covers the sequences of all messages that
were sent. So the chain of the producer's batches is as if all had been stored, and a reader sees
an ordinary batch. If nothing is kept, a position mark covers the sequences.

Not here: which messages are kept (the broker's `dedup` room).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semel.protos.arrays import numbers_of
from semel.protos.batch import MESSAGE_BYTES_MAX, BatchFlags, BatchHeader, Codec
from semel.protos.columns import Columns, encode_batch
from semel.protos.ids import Sequence


def sequences_of(header: BatchHeader, columns: Columns) -> npt.NDArray[np.int64]:
    """Returns the sequence of each message."""
    if columns.sequences is not None:
        return numbers_of(columns.sequences, np.int64)
    return np.arange(header.base_sequence, header.base_sequence + header.count, dtype=np.int64)


def keep_rows(header: BatchHeader, columns: Columns, kept: npt.NDArray[np.bool_]) -> bytes:
    """Returns the batch of the rows that `kept` marks; `columns` are those of the whole batch.

    Raises MessageTooLarge: the sequences need 8 bytes a message, which may be too much for a batch
    of many tiny messages that is as large as a batch may be.
    """
    if not kept.any():
        return mark_for(header)
    sequences = pa.array(sequences_of(header, columns)[kept])
    chosen = replace(columns.filter(pa.array(kept)), sequences=sequences)
    return encode_rows(header, chosen)


def part_of(header: BatchHeader, columns: Columns, row_start: int, row_end: int) -> bytes:
    """Returns a batch of its own for rows `[row_start, row_end)` of a delayed one, others of which
    are cancelled. It covers the sequences of its rows only, so no two parts overlap.

    Raises MessageTooLarge.
    """
    sequences = sequences_of(header, columns)[row_start:row_end]
    covering = replace(
        header,
        previous_sequence=Sequence(int(sequences[0]) - 1),
        base_sequence=Sequence(int(sequences[0])),
        last_sequence=Sequence(int(sequences[-1])),
    )
    chosen = replace(columns.slice(row_start, row_end), sequences=pa.array(sequences))
    return encode_rows(covering, chosen)


def encode_rows(
    header: BatchHeader, rows: Columns, *, message_bytes_max: int = MESSAGE_BYTES_MAX
) -> bytes:
    """Returns a batch of these rows, with sequences of their own, that covers the sequences of
    `header` and is its producer's. Raises MessageTooLarge."""
    return encode_batch(
        rows,
        topic_id=header.topic_id,
        queue_id=header.queue_id,
        producer_id=header.producer_id,
        epoch=header.epoch,
        session=header.session,
        previous_sequence=header.previous_sequence,
        base_sequence=header.base_sequence,
        last_sequence=header.last_sequence,
        timestamp_us=header.first_timestamp_us,
        codec=header.codec,
        deliver_at_us=0 if rows.deliver_at is not None else header.deliver_at_us,
        source_positions=True,
        message_bytes_max=message_bytes_max,
    )


def mark_for(header: BatchHeader, flags: int = 0) -> bytes:
    """Returns a position mark, with other `flags` beside, in the place of a batch of which nothing
    is kept."""
    mark = replace(
        header,
        codec=Codec.NONE,
        flags=BatchFlags.SOURCE_POSITIONS | BatchFlags.POSITION_MARK | flags,
        body_length=0,
        uncompressed_length=0,
        body_crc=0,
        content_crc=0,
        count=0,
        deliver_at_us=0,
    )
    return mark.encode()
