"""Makes the batches of those messages of a batch that compaction keeps.

How it works. Arrow takes the kept rows of all columns. The batch says of each message which offset
and which sequence it has, and keeps the identity of its producer. What no message has is simply not
there: a *gap* in the offsets. If nothing is kept, a position mark with the OFFSET flag stands for
the offsets, so that readers get past them.

A batch stands for the offsets `[base_offset, base_offset + span)` of its broker header. Its
messages are those rows whose offsets lie in there.

Not here: which messages are kept (the broker's `compaction` room).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semel.protos.arrays import numbers_of
from semel.protos.batch import (
    COPY_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    BatchFlags,
    BatchHeader,
)
from semel.protos.columns import Columns
from semel.protos.errors import MessageTooLarge
from semel.protos.kept_rows import encode_rows, mark_for, sequences_of

Offsets = npt.NDArray[np.int64]


def offsets_of_rows(columns: Columns, base_offset: int, first_row: int, count: int) -> Offsets:
    """Returns the offset of each row of a whole batch; -1 for rows outside of an extent.

    The extent has offsets `[base_offset, base_offset + count)`. They belong to the rows from
    `first_row` on, unless the batch was compacted and names them.
    """
    if columns.offsets is not None:
        offsets = numbers_of(columns.offsets, np.int64)
        inside = (offsets >= base_offset) & (offsets < base_offset + count)
        return np.where(inside, offsets, -1)
    offsets = np.full(len(columns), -1, np.int64)
    offsets[first_row : first_row + count] = np.arange(base_offset, base_offset + count)
    return offsets


def compact_rows(
    header: BatchHeader, columns: Columns, offsets: Offsets, kept: npt.NDArray[np.bool_]
) -> list[tuple[int, bytes]]:
    """Returns the batches of the rows that `kept` marks, each with the offset of its first row.

    There is one, or several if the offsets and sequences, 16 bytes a message, make it too large.
    """
    rows = np.flatnonzero(kept)
    if not len(rows):
        return []
    try:
        return [(int(offsets[rows[0]]), _encoded(header, columns, offsets, rows))]
    except MessageTooLarge:
        half = len(rows) // 2
        if not half:
            raise
    found = []
    for part in (rows[:half], rows[half:]):
        chosen = np.zeros(len(kept), np.bool_)
        chosen[part] = True
        found += compact_rows(header, columns, offsets, chosen)
    return found


def _encoded(
    header: BatchHeader, columns: Columns, offsets: Offsets, rows: npt.NDArray[np.int64]
) -> bytes:
    chosen = replace(
        columns.take(pa.array(rows)),
        sequences=pa.array(sequences_of(header, columns)[rows]),
        offsets=pa.array(offsets[rows]),
        deliver_at=None,
    )
    came = replace(header, deliver_at_us=0)
    return encode_rows(came, chosen, message_bytes_max=MESSAGE_BYTES_MAX + COPY_BYTES_MAX)


def gap_mark(header: BatchHeader) -> bytes:
    """Returns the batch that stands for offsets without messages, in the place of a batch of which
    nothing is kept."""
    return mark_for(header, BatchFlags.OFFSET)
