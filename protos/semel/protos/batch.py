"""The record batch, version 1: both headers, and the checks that every receiver makes.

A batch is the unit of produce, storage, replication, fetch and dedup: a 128-byte header written by
the client, then a body of columns. Brokers put a header of their own in front (a *stored batch*).
It is outside the client's CRCs, so the client's bytes stay as they were sent.

Format. `docs/formats/batch.md`; tests compare its tables with the structs below.

Invariants (of every BatchHeader that `decode_header` returns)
1. `previous_sequence < base_sequence <= last_sequence`, and all three are -1 or above.
2. Contiguous batches: base = previous + 1 and last = base + count - 1. With SOURCE_POSITIONS the
   sequences may jump; if they do, the SEQUENCE column is present.
3. A POSITION_MARK has count 0 and no body; any other batch has count 1 or more. Only with OFFSET
   is it a batch of the queue: all of its messages were removed by compaction.
4. The stored body is at most `BODY_BYTES_MAX`, uncompressed at most `UNCOMPRESSED_BYTES_MAX`;
   without a codec both lengths are equal.

Not here: the body (`columns.py`), which only clients and a few features of topics decode;
producers, offsets and duplicates (the broker's state).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

import google_crc32c

from semel.protos.crc import crc32c_range
from semel.protos.errors import CorruptBatch
from semel.protos.ids import Offset, ProducerId, QueueId, QueueKey, Sequence, Term, TopicId
from semel.protos.levels import COMPACTION_LEVEL, CONTEXT_LEVEL, NULL_LEVEL
from semel.protos.values import value

BATCH_MAGIC: Final = b"SMB1"
BATCH_VERSION: Final = 1

HEADER_STRUCT: Final = struct.Struct("<4sBBHIIIIQIIQIIqqqqqq20sI")
HEADER_BYTES: Final = 128
HEADER_CRC_AT: Final = 124
BROKER_HEADER_STRUCT: Final = struct.Struct("<qqQII")
BROKER_HEADER_BYTES: Final = 32
BROKER_HEADER_CRC_AT: Final = 28

MESSAGE_BYTES_MAX: Final = 1 << 20
"""Key, value and headers of one message together."""
COPY_BYTES_MAX: Final = 8 << 10
"""The bytes that the copy of a message (a retry, a dead letter) may have beyond that."""
BATCH_BYTES_DEFAULT: Final = 4 << 20
"""Header and stored body together. A topic may choose less, or more up to BATCH_BYTES_MAX."""
BATCH_BYTES_MAX: Final = 8 << 20
BODY_BYTES_MAX: Final = BATCH_BYTES_MAX - HEADER_BYTES
UNCOMPRESSED_BYTES_MAX: Final = 64 << 20
"""The most that a reader unpacks: it bounds the reader's memory, whatever a batch claims."""

_CRC_STRUCT: Final = struct.Struct("<I")
_RESERVED: Final = bytes(20)


class Codec(IntEnum):
    """How the body is compressed."""

    NONE = 0
    LZ4 = 1
    """LZ4 frame format."""
    ZSTD = 2


class BatchFlags(IntEnum):
    """Bits for what the columns are (low byte), and for properties of the batch. It is no IntFlag
    because IntFlag's "and" costs ten times an integer's."""

    KEY = 1
    HEADERS = 2
    TIMESTAMP = 4
    MESSAGE_ID = 8
    SLOT = 16
    SEQUENCE = 32
    DELIVER_AT = 64
    NULL_VALUES = 128
    SOURCE_POSITIONS = 256
    POSITION_MARK = 512
    OFFSET = 1024
    """Each message has its own offset: the batch was compacted (`compacted_rows.py`)."""
    CONTEXT = 2048
    """The batch has a context, once for all its messages."""


ALL_FLAGS: Final = sum(BatchFlags)
COLUMN_FLAGS: Final = 0xFF | BatchFlags.CONTEXT
CONTEXT_BYTES_MAX: Final = 2_048
"""A copy of a message, as a dead letter, has the context in its headers, and has some kilobytes
more than the message may have."""
NEWER_FLAGS: Final = {
    BatchFlags.NULL_VALUES: NULL_LEVEL,
    BatchFlags.OFFSET: COMPACTION_LEVEL,
    BatchFlags.CONTEXT: CONTEXT_LEVEL,
}
"""Flags that only programs from a level on know."""
_CODECS: Final = tuple(Codec)
"""The codecs by number. `Codec(number)` costs ten times as much."""


@value
class BatchHeader:
    """The client's header. Plain construction checks nothing; `decode_header` does."""

    codec: Codec
    flags: int
    """BatchFlags."""
    body_length: int
    """Bytes behind the header, as stored."""
    uncompressed_length: int
    body_crc: int
    """CRC32C of the stored body."""
    content_crc: int
    """CRC32C of the messages' contents (value, key, headers, id), without timestamps, before
    compression."""
    topic_id: TopicId
    queue_id: QueueId
    count: int
    producer_id: ProducerId
    epoch: int
    session: int
    previous_sequence: Sequence
    base_sequence: Sequence
    last_sequence: Sequence
    first_timestamp_us: int
    max_timestamp_us: int
    deliver_at_us: int
    """0: at once. With a DELIVER_AT column: the earliest of its rows."""

    @property
    def batch_length(self) -> int:
        """Header and stored body together."""
        return HEADER_BYTES + self.body_length

    @property
    def stored_length(self) -> int:
        """The batch behind the broker's header, as it is in the log."""
        return BROKER_HEADER_BYTES + self.batch_length

    @property
    def queue_key(self) -> QueueKey:
        return QueueKey(self.topic_id, self.queue_id)

    def encode(self) -> bytes:
        """Returns the 128 bytes. Raises struct.error when a field does not fit its place."""
        packed = HEADER_STRUCT.pack(
            BATCH_MAGIC,
            BATCH_VERSION,
            self.codec,
            self.flags,
            self.body_length,
            self.uncompressed_length,
            self.body_crc,
            self.content_crc,
            self.topic_id,
            self.queue_id,
            self.count,
            self.producer_id,
            self.epoch,
            self.session,
            self.previous_sequence,
            self.base_sequence,
            self.last_sequence,
            self.first_timestamp_us,
            self.max_timestamp_us,
            self.deliver_at_us,
            _RESERVED,
            0,
        )[:HEADER_CRC_AT]
        return packed + _CRC_STRUCT.pack(google_crc32c.value(packed))


@value
class BrokerHeader:
    """The broker's header: the batch's offset, and when and by which master it was appended."""

    base_offset: Offset
    append_time_us: int
    term: Term
    span: int = 0
    """How many offsets from `base_offset` on a batch with the OFFSET flag stands for, gaps
    included. 0 for any other batch."""

    def encode(self) -> bytes:
        fields = self.base_offset, self.append_time_us, self.term, self.span, 0
        packed = BROKER_HEADER_STRUCT.pack(*fields)
        packed = packed[:BROKER_HEADER_CRC_AT]
        return packed + _CRC_STRUCT.pack(google_crc32c.value(packed))


def decode_header(data: bytes | bytearray | memoryview, at: int = 0) -> BatchHeader:
    """Returns the client header at `data[at:]` after checking it alone; the body is not read.

    Raises CorruptBatch: too short, wrong magic, version or CRC, or fields that contradict.
    """
    raw = bytes(data[at : at + HEADER_BYTES])
    if len(raw) < HEADER_BYTES:
        raise CorruptBatch(f"batch header is cut: {len(raw)} of {HEADER_BYTES} bytes")
    (
        magic,
        version,
        codec,
        flags,
        body_length,
        uncompressed_length,
        body_crc,
        content_crc,
        topic_id,
        queue_id,
        count,
        producer_id,
        epoch,
        session,
        previous_sequence,
        base_sequence,
        last_sequence,
        first_timestamp_us,
        max_timestamp_us,
        deliver_at_us,
        reserved,
        header_crc,
    ) = HEADER_STRUCT.unpack(raw)
    if magic != BATCH_MAGIC:
        raise CorruptBatch(f"not a record batch: it starts with {magic!r}")
    if header_crc != google_crc32c.value(raw[:HEADER_CRC_AT]):
        raise CorruptBatch("batch header is damaged: its CRC does not match")
    if version != BATCH_VERSION:
        raise CorruptBatch(f"batch version {version} is unknown; this side knows {BATCH_VERSION}")
    if codec > 2 or flags & ~ALL_FLAGS or reserved != _RESERVED:
        raise CorruptBatch(f"batch has an unknown codec {codec}, flags {flags:#x} or field")
    if (
        body_length > BODY_BYTES_MAX
        or uncompressed_length > UNCOMPRESSED_BYTES_MAX
        or (codec == 0 and body_length != uncompressed_length)
    ):
        raise CorruptBatch(f"batch lengths are wrong: {body_length} from {uncompressed_length}")
    if (
        topic_id >> 63
        or producer_id >> 63
        or producer_id == 0
        or deliver_at_us < 0
        or first_timestamp_us > max_timestamp_us
    ):
        raise CorruptBatch("batch has an id or a time that is out of range")
    if not -1 <= previous_sequence < base_sequence <= last_sequence:
        raise CorruptBatch(
            f"batch sequences do not rise: {previous_sequence}, {base_sequence}, {last_sequence}"
        )
    if flags & BatchFlags.POSITION_MARK:
        if count or body_length or uncompressed_length or flags & COLUMN_FLAGS or deliver_at_us:
            raise CorruptBatch("position mark has messages, columns or a body")
    else:
        # The cheapest column there is, the value's offsets, needs four bytes a message.
        if not 1 <= count < uncompressed_length // 4:
            raise CorruptBatch(f"batch count {count} does not fit {uncompressed_length} bytes")
        jumps = last_sequence - base_sequence != count - 1
        if flags & BatchFlags.SOURCE_POSITIONS:
            if last_sequence - base_sequence < count - 1 or (
                jumps and not flags & BatchFlags.SEQUENCE
            ):
                raise CorruptBatch("batch with source positions does not name them all")
        elif jumps or base_sequence != previous_sequence + 1:
            raise CorruptBatch(
                f"batch of {count} is not contiguous:"
                f" {previous_sequence}, {base_sequence}, {last_sequence}"
            )
    return BatchHeader(  # by keywords it would take three times as long
        _CODECS[codec],
        flags,
        body_length,
        uncompressed_length,
        body_crc,
        content_crc,
        topic_id,
        queue_id,
        count,
        producer_id,
        epoch,
        session,
        previous_sequence,
        base_sequence,
        last_sequence,
        first_timestamp_us,
        max_timestamp_us,
        deliver_at_us,
    )


def check_batch(
    data: bytes | bytearray | memoryview, at: int = 0, length: int | None = None
) -> BatchHeader:
    """Returns the header of the batch that fills `data[at : at + length]` exactly. The body's CRC
    is checked, its columns are not.

    `length` defaults to the rest of `data`. Raises CorruptBatch.
    """
    header = decode_header(data, at)
    given = len(data) - at if length is None else length
    end = at + header.batch_length
    if header.batch_length != given or end > len(data):
        raise CorruptBatch(f"batch is {header.batch_length} bytes long, {given} were given")
    if crc32c_range(data, at + HEADER_BYTES, end) != header.body_crc:
        raise CorruptBatch("batch body is damaged: its CRC does not match")
    return header


def decode_broker_header(data: bytes | bytearray | memoryview, at: int = 0) -> BrokerHeader:
    """Returns the broker header at `data[at:]`. Raises CorruptBatch."""
    raw = bytes(data[at : at + BROKER_HEADER_BYTES])
    if len(raw) < BROKER_HEADER_BYTES:
        raise CorruptBatch(f"broker header is cut: {len(raw)} of {BROKER_HEADER_BYTES} bytes")
    base_offset, append_time_us, term, span, crc = BROKER_HEADER_STRUCT.unpack(raw)
    if crc != google_crc32c.value(raw[:BROKER_HEADER_CRC_AT]):
        raise CorruptBatch("broker header is damaged: its CRC does not match")
    if base_offset < -1 or (span and base_offset < 0):
        raise CorruptBatch("broker header has a field that is out of range")
    return BrokerHeader(base_offset, append_time_us, term, span)
