"""Kafka's record batches as columns of Semel's batches.

How it works. The header is checked, the records are decompressed up to a limit, and the places of
their fields are found: of a few one by one, of many with numpy. Arrow then takes the bytes of each
field out of the records at once. Semel's own fields leave the headers (`own_headers.py`).

Invariants
1. For any bytes `decode` returns batches that can be encoded, or raises RefusedRecords.
2. A batch is refused whole: nothing of it is left out or changed without a word.

Format. `docs/formats/kafka-records.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.gateway.records.few_records import parse_few
from semel.gateway.records.field_places import Numbers, RecordFields, picked
from semel.gateway.records.many_records import MANY_RECORDS, parse_many
from semel.gateway.records.own_headers import TakenHeaders, take_out
from semel.gateway.records.record_batch import (
    HEAD_BYTES,
    NO_PRODUCER,
    RECORD_BYTES_MIN,
    TRANSACTIONAL_BIT,
    RecordHead,
    read_head,
)
from semel.gateway.records.record_codecs import decompress
from semel.gateway.records.record_errors import (
    CorruptRecords,
    InvalidRecords,
    InvalidRecordTime,
)
from semel.protos.columns import NO_VALUE_NO_KEY, Columns
from semel.protos.values import value

TIME_MS_MAX: Final = ((1 << 63) - 1) // 1000
"""A timestamp further from 1970 has no number of microseconds."""
_NO_HEADERS: Final = TakenHeaders(None, None, None)


@value
class DecodedBatch:
    """One record batch of a producer."""

    columns: Columns
    """Values, keys, headers, timestamps and message ids; those that no record has are None. If all
    records have one timestamp, the column is None, and `timestamp_us` has it."""
    timestamp_us: int
    """The time of the first record."""
    deliver_at_us: Numbers | None
    """When each record is due, microseconds since 1970 as the producer gave them, 0 for at once.
    None if no record names a time. Brokers take one time a batch: see `due_runs`."""
    producer_id: int
    """-1 without an idempotent producer, and then the next two are -1, too."""
    producer_epoch: int
    base_sequence: int
    """0 to 2^31 - 1; sequences wrap (`wide_sequences.py`)."""
    transactional: bool

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def is_idempotent(self) -> bool:
        """The producer numbers its records."""
        return self.producer_id != NO_PRODUCER

    def due_runs(self) -> list[tuple[int, int, int]]:
        """Returns (row_start, row_end, deliver_at_us) for consecutive rows that are due together,
        in the order of the rows, so that each run can be a batch with its own sequences."""
        dues = self.deliver_at_us
        if dues is None:
            return [(0, len(self), 0)]
        starts = [0, *(np.flatnonzero(np.diff(dues)) + 1).tolist()]
        ends = [*starts[1:], len(self)]
        return [(start, end, int(dues[start])) for start, end in zip(starts, ends, strict=True)]


def decode(record_set: bytes | bytearray | memoryview, *, bytes_max: int) -> list[DecodedBatch]:
    """Returns the batches of a record set, one after the other.

    `bytes_max` bounds what the records of each batch may have after decompression; memory is not
    spent beyond it. Raises RefusedRecords, whose `kafka_code` is the code for the client.
    """
    return list(_batches(memoryview(record_set).cast("B"), bytes_max))


def decode_produced(record_set: bytes | bytearray | memoryview, *, bytes_max: int) -> DecodedBatch:
    """Returns the one batch that a partition of a produce request has since version 3.

    Raises RefusedRecords, as `decode` does, and for another number of batches.
    """
    whole = memoryview(record_set).cast("B")
    if not len(whole):
        raise InvalidRecords("a partition of a produce request has no record batch")
    found, end = _batch(whole, 0, bytes_max)
    if end != len(whole):
        raise InvalidRecords("a partition of a produce request has more than one record batch")
    return found


def _batches(record_set: memoryview, bytes_max: int) -> Iterator[DecodedBatch]:
    at = 0
    while at < len(record_set):
        found, at = _batch(record_set, at, bytes_max)
        yield found


def _batch(record_set: memoryview, at: int, bytes_max: int) -> tuple[DecodedBatch, int]:
    """Returns the batch at `record_set[at:]` and where it ends."""
    head, end = read_head(record_set, at)
    records = decompress(record_set[at + HEAD_BYTES : end], head.codec, bytes_max)
    if head.record_count * RECORD_BYTES_MIN > len(records):
        raise CorruptRecords(
            f"record batch of {len(records)} bytes claims {head.record_count} records"
        )
    parse = parse_few if head.record_count < MANY_RECORDS else parse_many
    return _decoded(head, records, parse(records, head.record_count)), end


def _decoded(head: RecordHead, records: bytes | memoryview, fields: RecordFields) -> DecodedBatch:
    values = picked(records, fields.values)
    keyless = fields.keys.has_nulls and not (fields.keys.lengths >= 0).any()
    keys = None if keyless else picked(records, fields.keys)
    if fields.values.has_nulls:
        nothing = values.is_null() if keys is None else pc.and_(values.is_null(), keys.is_null())
        if (row := nothing.index(True).as_py()) >= 0:
            raise InvalidRecords(f"record {row}: {NO_VALUE_NO_KEY}")
    taken = _NO_HEADERS
    if len(fields.header_names.starts):
        try:
            names = picked(records, fields.header_names).cast(pa.string())
        except pa.ArrowException as error:
            raise InvalidRecords("a header's name is not UTF-8") from error
        taken = take_out(fields.header_lists, names, picked(records, fields.header_values))
    timestamp_us, stamps = _times(head.base_timestamp, fields.time_deltas)
    columns = Columns(
        values=values,
        keys=keys,
        headers=taken.headers,
        timestamps=stamps,
        message_ids=taken.message_ids,
    )
    idempotent = head.producer_id != NO_PRODUCER
    return DecodedBatch(
        columns=columns,
        timestamp_us=timestamp_us,
        deliver_at_us=taken.deliver_at_us,
        producer_id=head.producer_id,
        producer_epoch=head.producer_epoch if idempotent else NO_PRODUCER,
        base_sequence=head.base_sequence if idempotent else NO_PRODUCER,
        transactional=bool(head.attributes & TRANSACTIONAL_BIT),
    )


def _times(base_ms: int, deltas: Numbers) -> tuple[int, pa.Array | None]:
    """Returns the first timestamp, and the column unless all are the same, in microseconds."""
    least, most = int(deltas.min()), int(deltas.max())
    if base_ms + least < -TIME_MS_MAX or base_ms + most > TIME_MS_MAX:
        raise InvalidRecordTime(f"timestamps from {base_ms + least} to {base_ms + most} ms")
    first = int(deltas[0])
    if least == most:
        return (base_ms + first) * 1000, None
    # Both may be huge where their sum is not: numbers of 64 bits that wrap give the same sum.
    stamps = (deltas.view(np.uint64) + np.uint64(base_ms % (1 << 64))) * np.uint64(1000)
    return (base_ms + first) * 1000, pa.array(stamps.view(np.int64))
