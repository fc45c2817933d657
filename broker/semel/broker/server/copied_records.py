"""Stored batches of a queue as another broker group, or another cluster, will store them.

Not here: who asks for them (`moves_service.py`, `mirrors_service.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from semel.broker.log import Log
from semel.broker.replica.stored_batches import read_batch
from semel.broker.state import DelayedExtent, Extent, header_of_copy
from semel.protos.batch import (
    BROKER_HEADER_BYTES,
    BrokerHeader,
    decode_broker_header,
    decode_header,
)
from semel.protos.columns import decode_columns
from semel.protos.ids import Offset
from semel.protos.kept_rows import part_of


def read_copies(log: Log, extents: Sequence[Extent]) -> list[bytes]:
    """BLOCKING. The batches of these extents, with their offsets. Raises CorruptBatch,
    CorruptSegment."""
    found = []
    for extent in extents:
        place = extent.index, extent.position, extent.length
        stored = read_batch(log, place, f"offsets from {extent.base_offset} are")
        head = decode_broker_header(stored)
        batch = decode_header(stored, BROKER_HEADER_BYTES)
        if not head.span and extent.count != batch.count:  # others of it are cancelled
            data = stored[BROKER_HEADER_BYTES:]
            row_end = extent.first_row + extent.count
            part = part_of(batch, decode_columns(data, batch), extent.first_row, row_end)
            stored = stored[:BROKER_HEADER_BYTES] + part
        if (head.base_offset, head.append_time_us) != (extent.base_offset, extent.append_time_us):
            head = BrokerHeader(
                base_offset=Offset(extent.base_offset),
                append_time_us=extent.append_time_us,
                term=head.term,
                span=head.span,
            )
            stored = head.encode() + stored[BROKER_HEADER_BYTES:]
        found.append(stored)
    return found


def read_delayed_copies(log: Log, extents: Sequence[DelayedExtent]) -> list[bytes]:
    """BLOCKING. Delayed batches, whole: the slice says which rows are cancelled. Raises
    CorruptBatch, CorruptSegment."""
    found = []
    for extent in extents:
        place = extent.entry, extent.position, extent.length
        stored = read_batch(log, place, f"a batch that is due at {extent.due_us} is")
        head = header_of_copy(decode_broker_header(stored), extent.ordinal)
        found.append(head.encode() + stored[BROKER_HEADER_BYTES:])
    return found
