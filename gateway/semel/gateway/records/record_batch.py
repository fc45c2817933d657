"""The header of Kafka's record batch (magic 2): its layout, and the checks that need it alone.

Format. `docs/formats/kafka-records.md`. All numbers are big-endian, and those of records are
zigzag varints.

Not here: the records (`decoding.py`, `encoding.py`), their compression (`record_codecs.py`).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from semel.gateway.records.record_errors import (
    CorruptRecords,
    InvalidRecords,
    InvalidRecordTime,
    RecordsTooLarge,
    UnsupportedCompression,
    UnsupportedMagic,
)
from semel.protos.crc import crc32c_range

MAGIC: Final = 2
MAGIC_AT: Final = 16
"""Where older message sets have their magic, too."""
HEAD_STRUCT: Final = struct.Struct(">qiibIhiqqqhii")
HEAD_BYTES: Final = 61
LENGTH_ENDS_AT: Final = 12
"""The length in the header counts the bytes from here on."""
CRC_AT: Final = 17
CRC_FROM: Final = 21
"""The CRC covers the bytes from here on."""
RECORD_BYTES_MIN: Final = 7
"""A record without key, value and headers whose offset delta is below 64."""

RECORDS_MAX: Final = 1 << 18
"""The places of the fields take about 100 bytes a record while it is read, however small it is."""

CODEC_MASK: Final = 7
APPEND_TIME_BIT: Final = 8
TRANSACTIONAL_BIT: Final = 16
CONTROL_BIT: Final = 32
KNOWN_BITS: Final = CODEC_MASK | APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT
"""The bits that mean something in a batch of a producer."""

NO_PRODUCER: Final = -1


class RecordCodec(IntEnum):
    """How the records of a batch are compressed."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class RecordHead(NamedTuple):
    """The header, field by field in the order of the bytes."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def codec(self) -> RecordCodec:
        return RecordCodec(self.attributes & CODEC_MASK)


def read_head(record_set: memoryview, at: int) -> tuple[RecordHead, int]:
    """Returns the checked header of the batch at `record_set[at:]`, and where the batch ends.

    Raises UnsupportedMagic, UnsupportedCompression, InvalidRecordTime, RecordsTooLarge,
    InvalidRecords or CorruptRecords.
    """
    room = len(record_set) - at
    if room > MAGIC_AT and record_set[at + MAGIC_AT] in (0, 1):
        raise UnsupportedMagic(
            f"message set with magic {record_set[at + MAGIC_AT]}: send record batches (magic 2)"
        )
    if room < HEAD_BYTES:
        raise CorruptRecords(f"record batch is cut: {room} bytes are no header")
    head = RecordHead._make(HEAD_STRUCT.unpack_from(record_set, at))
    if head.magic != MAGIC:
        raise CorruptRecords(f"record batch has the unknown magic {head.magic}")
    end = at + LENGTH_ENDS_AT + head.length
    if not at + HEAD_BYTES <= end <= len(record_set):
        raise CorruptRecords(f"record batch claims {head.length} bytes, {room} are there")
    if crc32c_range(record_set, at + CRC_FROM, end) != head.crc:
        raise CorruptRecords("record batch is damaged: its CRC does not match")
    _check_fields(head)
    return head, end


def _check_fields(head: RecordHead) -> None:
    attributes = head.attributes
    if attributes & CODEC_MASK > RecordCodec.ZSTD:
        raise UnsupportedCompression(f"codec {attributes & CODEC_MASK} of a batch is unknown")
    if attributes & CONTROL_BIT:
        raise InvalidRecords("control batches are the broker's to write")
    if attributes & APPEND_TIME_BIT:
        raise InvalidRecordTime("log append time is the broker's to give: send creation times")
    if attributes & ~KNOWN_BITS:
        raise InvalidRecords(f"record batch has the unknown attributes {attributes & 0xFFFF:#x}")
    if head.record_count < 1 or head.last_offset_delta != head.record_count - 1:
        raise CorruptRecords(
            f"record batch of {head.record_count} records ends at {head.last_offset_delta}"
        )
    if head.record_count > RECORDS_MAX:
        raise RecordsTooLarge(
            f"record batch of {head.record_count} records: send at most {RECORDS_MAX} in one"
        )
    if head.producer_id < NO_PRODUCER:
        raise InvalidRecords(f"producer id {head.producer_id} is none")
    if head.producer_id == NO_PRODUCER:
        if attributes & TRANSACTIONAL_BIT:
            raise InvalidRecords("a transactional batch has no producer id")
    elif head.producer_epoch < 0 or head.base_sequence < 0:
        raise InvalidRecords(
            f"producer {head.producer_id} sent epoch {head.producer_epoch} and"
            f" sequence {head.base_sequence}: both are 0 or above"
        )
