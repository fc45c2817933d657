"""Encodes parts as batches, and changes the header or the rows of batches that are encoded.

A batch is encoded once and sent again as it is. Only a fence changes its header (`rebase`), and
only rows that the queue already has are cut off (`trim`).

Not here: which rows belong together (`core/batching.py`), which sequences (`core/sequences.py`).
"""

from __future__ import annotations

import dataclasses

import numpy as np

from semel.client.core.batching import Part
from semel.protos.arrays import number_array, numbers_of
from semel.protos.batch import (
    COPY_BYTES_MAX,
    HEADER_BYTES,
    MESSAGE_BYTES_MAX,
    BatchFlags,
    BatchHeader,
    Codec,
    decode_header,
)
from semel.protos.columns import Columns, decode_columns, encode_batch
from semel.protos.few_rows import FewRows
from semel.protos.ids import ProducerId, QueueKey, Sequence
from semel.protos.levels import CONTEXT_LEVEL, DELAY_LEVEL, LEVEL_MAX, LEVEL_MIN, NULL_LEVEL


def level_of(part: Part) -> int:
    """Returns the feature level that a broker group needs to store the part."""
    if isinstance(part.columns, Columns) and part.columns.values.null_count:
        return NULL_LEVEL
    return DELAY_LEVEL if part.chunk.due_us else LEVEL_MIN


def encode_part(
    part: Part,
    *,
    level: int = LEVEL_MAX,
    producer_id: ProducerId,
    epoch: int,
    session: int,
    previous_sequence: Sequence,
    codec: Codec,
) -> tuple[bytes, Sequence, Sequence]:
    """Returns the batch of a part after `previous_sequence`, and its first and last sequence.
    `level` is the feature level of the broker group; one that lacks contexts gets none.

    Raises MessageTooLarge or InvalidRequest, and changes nothing then.
    """
    columns = part.columns
    assert columns is not None, "part was encoded before"
    if part.positions is None:
        base = Sequence(previous_sequence + 1)
        last = Sequence(previous_sequence + part.count)
    else:
        base, last = Sequence(int(part.positions[0])), Sequence(int(part.positions[-1]))
        if last - base != part.count - 1:
            assert not isinstance(columns, FewRows), "positions are columns"
            columns = dataclasses.replace(columns, sequences=number_array(part.positions))
    if level < CONTEXT_LEVEL and isinstance(columns, Columns):
        columns = dataclasses.replace(columns, context=None)
    payload = encode_batch(
        columns,
        topic_id=part.queue.topic_id,
        queue_id=part.queue.queue_id,
        producer_id=producer_id,
        epoch=epoch,
        session=session,
        previous_sequence=previous_sequence,
        base_sequence=base,
        last_sequence=last,
        timestamp_us=part.chunk.created_us,
        codec=codec,
        deliver_at_us=part.chunk.due_us,
        source_positions=part.positions is not None,
        message_bytes_max=part.chunk.message_bytes_max,
    )
    part.columns = None
    return payload, base, last


def encode_mark(
    queue: QueueKey,
    *,
    producer_id: ProducerId,
    epoch: int,
    session: int,
    previous_sequence: Sequence,
    position: Sequence,
    timestamp_us: int,
) -> bytes:
    """Returns an empty batch that moves the queue's last sequence to `position`."""
    return BatchHeader(
        codec=Codec.NONE,
        flags=BatchFlags.SOURCE_POSITIONS | BatchFlags.POSITION_MARK,
        body_length=0,
        uncompressed_length=0,
        body_crc=0,
        content_crc=0,
        topic_id=queue.topic_id,
        queue_id=queue.queue_id,
        count=0,
        producer_id=producer_id,
        epoch=epoch,
        session=session,
        previous_sequence=previous_sequence,
        base_sequence=position,
        last_sequence=position,
        first_timestamp_us=timestamp_us,
        max_timestamp_us=timestamp_us,
        deliver_at_us=0,
    ).encode()


def rebase(
    payload: bytes,
    *,
    producer_id: ProducerId,
    epoch: int,
    session: int,
    previous_sequence: Sequence,
    base_sequence: Sequence,
    last_sequence: Sequence,
) -> bytes:
    """Returns the batch under another identity and other sequences, with the same body."""
    header = dataclasses.replace(
        decode_header(payload),
        producer_id=producer_id,
        epoch=epoch,
        session=session,
        previous_sequence=previous_sequence,
        base_sequence=base_sequence,
        last_sequence=last_sequence,
    )
    return header.encode() + payload[HEADER_BYTES:]


def trim(payload: bytes, last_stored: Sequence) -> tuple[bytes, int, Sequence]:
    """Returns a batch without its rows up to `last_stored`, the rows cut, and the new base.

    `last_stored` lies inside the batch: base <= last_stored < last.
    """
    header = decode_header(payload)
    columns = decode_columns(payload, header)
    if columns.sequences is not None:
        numbers = numbers_of(columns.sequences, np.int64)
        cut = int(np.searchsorted(numbers, last_stored, side="right"))
        base = Sequence(int(numbers[cut]))
    else:
        cut = last_stored - header.base_sequence + 1
        base = Sequence(last_stored + 1)
    rest = encode_batch(
        columns.slice(cut, header.count),
        topic_id=header.topic_id,
        queue_id=header.queue_id,
        producer_id=header.producer_id,
        epoch=header.epoch,
        session=header.session,
        previous_sequence=last_stored,
        base_sequence=base,
        last_sequence=header.last_sequence,
        timestamp_us=header.first_timestamp_us,
        codec=header.codec,
        deliver_at_us=header.deliver_at_us,
        source_positions=bool(header.flags & BatchFlags.SOURCE_POSITIONS),
        message_bytes_max=MESSAGE_BYTES_MAX + COPY_BYTES_MAX,
    )
    return rest, cut, base
