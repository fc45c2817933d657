"""Reads the stored batches of a range of offsets, a piece at a time, for the tier.

How it works. The pool that reads the log gets a piece of about a megabyte, and other reads in
between. What is read is in memory until its file is written, so a range ends early when its rows
would take too much: batches may be compressed.

Not here: which range (`tiering.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from semel.broker.log import Log
from semel.broker.replica.replica import Replica
from semel.broker.replica.stored_batches import read_batch
from semel.broker.state import Extent
from semel.protos.batch import BROKER_HEADER_BYTES, Codec, decode_header
from semel.protos.ids import QueueKey
from semel.tier import OffsetRange, StoredRows

PIECE_BYTES: Final = 1 << 20
PIECE_EXTENTS: Final = 1_024
SHARE: Final = 2
"""Divisor: stored batches and their rows take at most this part of what may be under way; the
rest is for the file that is made of them."""


@dataclass(slots=True)
class _Read:
    """A piece."""

    rows: list[StoredRows]
    messages: int
    cost: int
    """Bytes that the batches and their columns take in memory."""


async def read_range(
    replica: Replica, key: QueueKey, term: int, wanted: OffsetRange, bytes_max: int
) -> list[StoredRows] | None:
    """The batches from the start of a range on: all, or as many as `bytes_max` allows. They have
    one message at least, for which they may go beyond its end.

    None if the queue has changed meanwhile, or another master has it. Raises CorruptBatch,
    CorruptSegment.
    """
    found: list[StoredRows] = []
    at, messages, room = wanted.start, 0, bytes_max // SHARE
    while at < wanted.end or not messages:
        queue = replica.state.queues.get(key)
        if not replica.is_master or replica.term != term or queue is None or queue.frozen:
            return None
        # The first extent may begin below the queue's start.
        extents = queue.extents_from(max(at, queue.local_start), PIECE_BYTES)[:PIECE_EXTENTS]
        extents = [each for each in extents if each.base_offset < wanted.end] or extents[:1]
        if not extents or extents[0].base_offset != at:
            return None
        piece = await replica.in_reader(_reads(replica.log, extents, room))
        found += piece.rows
        messages += piece.messages
        room -= piece.cost
        last = extents[len(piece.rows) - 1]
        at = last.base_offset + last.count
        if messages and room <= 0:
            break
    return found


def _reads(log: Log, extents: Sequence[Extent], room: int) -> Callable[[], _Read]:
    """Work for a reader thread: reads the extents, one at least, until they take `room` bytes."""

    def work() -> _Read:
        piece = _Read([], 0, 0)
        for extent in extents:
            place = extent.index, extent.position, extent.length
            stored = read_batch(log, place, f"offsets from {extent.base_offset} are")
            header = decode_header(stored, BROKER_HEADER_BYTES)
            end = extent.first_row + extent.count
            rows = StoredRows(
                stored, extent.base_offset, extent.first_row, end, extent.append_time_us
            )
            piece.rows.append(rows)
            piece.messages += min(header.count, extent.count)
            decoded = 0 if header.codec is Codec.NONE else header.uncompressed_length
            piece.cost += extent.length + decoded
            if piece.cost >= room:
                break
        return piece

    return work
