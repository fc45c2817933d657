"""Record batches as kafka-python and aiokafka write and read them, and damage to such batches.

Both are the judges of the gateway's records: nobody who wrote those wrote these.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import google_crc32c
from aiokafka.record import default_records as aiokafka  # type: ignore[import-untyped]

with warnings.catch_warnings():
    # It reads its own files by a call that newer Pythons will not have.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record import default_records as kafka_python  # type: ignore[import-untyped]

Pairs: TypeAlias = list[tuple[str, bytes | None]]

HEAD_BYTES = 61
COUNT_AT = 57
_LENGTH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_BATCH_BYTES = 64 << 20


class Record(NamedTuple):
    """What one record says."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Pairs = []  # noqa: RUF012


class ReadBatch(NamedTuple):
    """What a judge finds in a batch."""

    base_offset: int
    next_offset: int
    max_timestamp: int
    offsets: list[int]
    records: list[Record]


class Sender(NamedTuple):
    """The producer's fields of a batch."""

    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1
    transactional: bool = False


NOBODY = Sender()


def of_kafka_python(records: Sequence[Record], sender: Sender = NOBODY) -> bytes:
    """A batch without compression, with offsets from 0 on, as kafka-python makes it."""
    return _built(kafka_python.DefaultRecordBatchBuilder, records, sender)


def of_aiokafka(records: Sequence[Record], sender: Sender = NOBODY) -> bytes:
    """The same as aiokafka makes it, in C where that is compiled."""
    return _built(aiokafka.DefaultRecordBatchBuilder, records, sender)


MAKERS: tuple[Callable[..., bytes], ...] = (of_kafka_python, of_aiokafka)


def _built(builder: Any, records: Sequence[Record], sender: Sender) -> bytes:
    made = builder(
        magic=2,
        compression_type=0,
        is_transactional=sender.transactional,
        producer_id=sender.producer_id,
        producer_epoch=sender.epoch,
        base_sequence=sender.sequence,
        batch_size=_BATCH_BYTES,
    )
    for offset, record in enumerate(records):
        assert made.append(offset, record.timestamp, record.key, record.value, record.headers), (
            "a judge's batch is full"
        )
    return bytes(made.build())


def read_by_kafka_python(batch: bytes) -> ReadBatch:
    """What kafka-python finds; AssertionError for a wrong CRC."""
    return _read(kafka_python.DefaultRecordBatch(batch))


def read_by_aiokafka(batch: bytes) -> ReadBatch:
    """What aiokafka finds; AssertionError for a wrong CRC."""
    return _read(aiokafka.DefaultRecordBatch(batch))


READERS: tuple[Callable[[bytes], ReadBatch], ...] = (read_by_kafka_python, read_by_aiokafka)


def _read(found: Any) -> ReadBatch:
    assert found.validate_crc(), "a judge finds a wrong CRC"
    records = list(found)
    return ReadBatch(
        found.base_offset,
        found.next_offset,
        found.max_timestamp,
        [each.offset for each in records],
        [Record(each.timestamp, each.key, each.value, list(each.headers)) for each in records],
    )


def sealed(batch: bytes) -> bytes:
    """The batch with the right length and CRC, whatever else is wrong."""
    if len(batch) < HEAD_BYTES:
        return batch
    length, crc = _LENGTH.pack(len(batch) - 12), _CRC.pack(google_crc32c.value(batch[21:]))
    return batch[:8] + length + batch[12:17] + crc + batch[21:]


def with_bytes(batch: bytes, at: int, changed: bytes) -> bytes:
    """The batch with other bytes at a place, sealed."""
    return sealed(batch[:at] + changed + batch[at + len(changed) :])


def with_records(
    batch: bytes, records: bytes, *, codec: int = 0, count: int | None = None
) -> bytes:
    """The batch with other records, as they are compressed, sealed."""
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.unpack_from(batch, 21)[0] & ~7 | codec)
    head = batch[:21] + attributes + batch[23:HEAD_BYTES]
    if count is not None:
        head = head[:23] + _LENGTH.pack(count - 1) + head[27:COUNT_AT] + _LENGTH.pack(count)
    return sealed(head + records)


def packed_with(batch: bytes, codec: int, pack: Callable[[bytes], bytes]) -> bytes:
    """The batch with its records compressed."""
    return with_records(batch, pack(batch[HEAD_BYTES:]), codec=codec)


def varint(number: int, width: int = 0) -> bytes:
    """A number as records have it, in more bytes than needed if `width` says so."""
    code = number << 1 ^ number >> 63
    found: list[int] = []
    while code > 0x7F or len(found) + 1 < width:
        found.append(code & 0x7F | 0x80)
        code >>= 7
    return bytes([*found, code])


def record_bytes(
    offset: int = 0,
    *,
    delta: int = 0,
    key: bytes | None = None,
    value: bytes | None = b"v",
    headers: Sequence[tuple[bytes | None, bytes | None]] = (),
    header_count: int | None = None,
    behind: bytes = b"",
) -> bytes:
    """One record, field by field, also one that no client sends."""
    body = b"\0" + varint(delta) + varint(offset) + _field(key) + _field(value)
    body += varint(len(headers) if header_count is None else header_count)
    body += b"".join(_field(name) + _field(data) for name, data in headers) + behind
    return varint(len(body)) + body


def _field(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data
