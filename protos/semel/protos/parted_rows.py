"""Makes the batches of those messages of a delayed batch that each child of a split gets.

How it works. A message belongs to the child that has the slot of its key, as in the client: a
message without a key goes by its id if the topic compares ids, else by its sequence. Arrow takes
the rows of each child from all columns. The part names their sequences and covers no others. It has
the producer, the delivery time and the message ids of the batch.

If one child gets all rows the batch stays as it is but for the number of its queue. So it does if
its parts would not fit into one entry of the log: a batch of very many tiny messages may double by
their sequences. Its messages all go to the child that has most of them then, so that nothing is
stuck.

Invariants
1. Each row is in exactly one part, but for the cancelled ones. Those are in none, or the only part
   has all rows.

Not here: when a queue's batches are parted (the broker's `background/delayed_parting.py`).
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semel.protos.arrays import numbers_of
from semel.protos.batch import (
    COPY_BYTES_MAX,
    HEADER_BYTES,
    MESSAGE_BYTES_MAX,
    BatchHeader,
    Codec,
    check_batch,
)
from semel.protos.columns import Columns, decode_columns
from semel.protos.errors import MessageTooLarge
from semel.protos.ids import QueueId, Sequence
from semel.protos.kept_rows import encode_rows, sequences_of
from semel.protos.slots import queue_for_slots, slots_of_column, slots_of_positions

PARTS_BYTES_MAX: Final = 12 << 20
"""All parts of one batch together have no more: they are in one entry."""

PARTS_MAX: Final = 16_384
"""A batch has no more parts; an entry of the log has at most 65,535 records."""


class Heir(NamedTuple):
    """A child and its slots."""

    queue_id: int
    slot_start: int
    slot_end: int


def part_rows(
    batch: bytes,
    cancelled: Many[int],
    heirs: Many[Heir],
    *,
    by_id: bool,
    bytes_max: int = PARTS_BYTES_MAX,
) -> list[tuple[int, bytes]]:
    """Returns queue and batch of each part, by rising slots; `heirs` are in this order, too.

    `cancelled` are the rows that go to nobody, fewer than there are; `by_id`: the topic compares
    message ids. Raises CorruptBatch.
    """
    header = check_batch(batch)
    columns = decode_columns(batch, header)
    owners = owners_of(header, columns, heirs, by_id=by_id)
    kept = np.ones(len(columns), np.bool_)
    kept[np.array(cancelled, np.int64)] = False
    shares = np.bincount(owners[kept], minlength=len(heirs))
    if 1 < np.count_nonzero(shares) <= PARTS_MAX:
        for codec in (header.codec, Codec.ZSTD):
            try:
                parts = [
                    (heirs[owner].queue_id, _part(header, columns, kept & (owners == owner), codec))
                    for owner in np.flatnonzero(shares).tolist()
                ]
            except MessageTooLarge:
                continue
            named = [(number, _named(header, part, number)) for number, part in parts]
            if sum(len(part) for _, part in named) <= bytes_max:
                return named
    number = heirs[int(np.argmax(shares))].queue_id
    return [(number, _named(header, batch, number))]


def owners_of(
    header: BatchHeader, columns: Columns, heirs: Many[Heir], *, by_id: bool
) -> npt.NDArray[np.int64]:
    """Returns the index of each row's heir. Rows of one key stay together, also if somebody sent
    them to the parent by its number, whatever their slot."""
    starts = [heir.slot_start for heir in heirs]
    start, end = starts[0], heirs[-1].slot_end
    if columns.slots is not None:
        slots = numbers_of(columns.slots, np.uint16).astype(np.int64)
        return np.clip(queue_for_slots(starts, slots), 0, len(heirs) - 1)
    free = slots_of_positions(sequences_of(header, columns)).astype(np.int64)
    free = np.where((free >= start) & (free < end), free, start + free % (end - start))
    keys = columns.keys
    if by_id and columns.message_ids is not None:
        keys = columns.message_ids if keys is None else pc.coalesce(keys, columns.message_ids)
    slots = free
    if keys is not None:
        has_key = keys.is_valid().to_numpy(zero_copy_only=False)
        slots = np.where(has_key, slots_of_column(keys).astype(np.int64), free)
    return np.clip(queue_for_slots(starts, slots), 0, len(heirs) - 1)


def _part(
    header: BatchHeader, columns: Columns, chosen: npt.NDArray[np.bool_], codec: Codec
) -> bytes:
    sequences = sequences_of(header, columns)[chosen]
    covering = replace(
        header,
        codec=codec,
        previous_sequence=Sequence(int(sequences[0]) - 1),
        base_sequence=Sequence(int(sequences[0])),
        last_sequence=Sequence(int(sequences[-1])),
    )
    rows = replace(columns.filter(pa.array(chosen)), sequences=pa.array(sequences))
    return encode_rows(covering, rows, message_bytes_max=MESSAGE_BYTES_MAX + COPY_BYTES_MAX)


def _named(header: BatchHeader, batch: bytes, queue_id: int) -> bytes:
    """Returns a batch with the number of another queue."""
    assert header.queue_id != queue_id, "a child has a number of its own"
    renamed = replace(check_batch(batch), queue_id=QueueId(queue_id))
    return renamed.encode() + batch[HEADER_BYTES:]
