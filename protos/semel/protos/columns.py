"""The body of a record batch: columns in Arrow's own buffer layout.

How it works. `encode_batch` writes the buffers of arrays one behind the other, and
`decode_columns` makes arrays over those bytes. Without a codec neither touches a single message:
encoding costs one copy and two CRCs, decoding a vectorised check of the offsets.

Format. `docs/formats/batch.md`, "Body".

Invariants
1. For any bytes, even with matching CRCs, decoding returns columns in which every offset lies
   inside its data, or raises CorruptBatch. It raises nothing else and never reads out of bounds.
2. Offsets start at 0 and bitmaps end in zero bits, so equal messages have an equal `content_crc`,
   no matter how their arrays were sliced or chunked.
3. Keys and message ids may be null; header names and header values may not. A value may be null if
   its message has a key.

Not here: the headers (`batch.py`), arrays of either kind (`arrays.py`), a few messages without
arrays (`few_rows.py`), record batches for
readers (`arrow_records.py`). The buffers are little-endian as on disk, so this module refuses to
load on a big-endian machine.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from semel.protos.arrays import (
    Array,
    as_binary,
    as_headers,
    as_numbers,
    binary_array,
    binary_buffers,
    header_buffers,
    nullable_buffers,
    numbers_of,
    offsets_of,
    valid_of,
)
from semel.protos.batch import (
    BATCH_BYTES_MAX,
    BODY_BYTES_MAX,
    CONTEXT_BYTES_MAX,
    HEADER_BYTES,
    MESSAGE_BYTES_MAX,
    UNCOMPRESSED_BYTES_MAX,
    BatchFlags,
    BatchHeader,
    Codec,
    decode_header,
)
from semel.protos.body import BodyReader, Buffer, chain_crc, lay_out, unpack_body
from semel.protos.codecs import pack
from semel.protos.errors import CorruptBatch, InvalidRequest, MessageTooLarge
from semel.protos.few_rows import FewRows
from semel.protos.ids import ProducerId, QueueId, Sequence, TopicId

if sys.byteorder != "little":
    raise ImportError("semel stores little-endian columns and needs a little-endian machine")

NO_VALUE_NO_KEY: Final = "a null value says that its key has no value any more, so it needs a key"
"""Why a message with neither value nor key is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The messages of one batch, column by column, all of one length.

    Build it from anything with `from_arrow`; plain construction takes the exact types below.
    """

    values: Array
    """binary; a null says that its key has no value any more, and needs a key"""
    keys: Array | None = None
    """binary; a null is a message without a key"""
    headers: Array | None = None
    """HEADERS_TYPE; a null is written as no headers"""
    timestamps: Array | None = None
    """int64, microseconds; None: all messages have the batch's"""
    message_ids: Array | None = None
    """binary; a null is a message without an id"""
    slots: Array | None = None
    """uint16"""
    sequences: Array | None = None
    """int64, strictly rising; None: contiguous from the batch's base"""
    deliver_at: Array | None = None
    """int64, microseconds; 0 is at once"""
    offsets: Array | None = None
    """int64, strictly rising; only in batches that brokers have compacted"""
    context: bytes | None = None
    """what counts for all messages, as `batch_context.py` of the client writes it; any of them keep
    it"""

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def of_few(cls, rows: FewRows) -> Columns:
        """Returns the same messages as arrays."""
        keys = None if rows.keys is None else binary_array(rows.keys)
        ids = None if rows.message_ids is None else binary_array(rows.message_ids)
        return cls(values=binary_array(rows.values), keys=keys, message_ids=ids)

    @classmethod
    def from_arrow(
        cls,
        values: Any,
        *,
        keys: Any = None,
        headers: Any = None,
        timestamps: Any = None,
        message_ids: Any = None,
        slots: Any = None,
        sequences: Any = None,
        deliver_at: Any = None,
    ) -> Columns:
        """Makes columns from Arrow arrays of any related type (large, view, string, dictionary,
        chunked, sliced), where Arrow is installed, from numpy arrays or from Python lists.

        Headers may be a list of mappings, of lists of pairs, or of None. Raises InvalidRequest
        for another type, a null where none is allowed, or lengths that differ.
        """
        columns = cls(
            values=as_binary("value", values),
            keys=as_binary("key", keys),
            headers=as_headers(headers),
            timestamps=as_numbers("timestamp", timestamps),
            message_ids=as_binary("message id", message_ids),
            slots=as_numbers("slot", slots, np.uint16),
            sequences=as_numbers("sequence", sequences),
            deliver_at=as_numbers("deliver_at", deliver_at),
        )
        columns.check()
        return columns

    def check(self) -> None:
        """Raises InvalidRequest for lengths that differ, or a null where none is allowed."""
        count = len(self.values)
        for name, column in self._present():
            if len(column) != count:
                raise InvalidRequest(f"{len(column)} {name} for {count} values")
            if name not in _NULLABLE and column.null_count:
                raise InvalidRequest(f"{column.null_count} of the {name} are null")
        if self.values.null_count:
            _check_null_values(self.values, self.keys)

    def slice(self, row_start: int, row_end: int) -> Columns:
        """Returns rows `[row_start, row_end)`, without a copy."""
        length = row_end - row_start
        found = {name: each.slice(row_start, length) for name, each in self._present()}
        return Columns(**found, context=self.context)

    def filter(self, kept: Array) -> Columns:
        """Returns the rows that `kept`, an array of booleans, marks."""
        found = {name: each.filter(kept) for name, each in self._present()}
        return Columns(**found, context=self.context)

    def take(self, rows: Array) -> Columns:
        """Returns the rows with these numbers, in their order."""
        found = {name: each.take(rows) for name, each in self._present()}
        return Columns(**found, context=self.context)

    def _present(self) -> list[tuple[str, Array]]:
        found = ((name, getattr(self, name)) for name in _COLUMN_NAMES)
        return [(name, column) for name, column in found if column is not None]


_COLUMN_NAMES: Final = tuple(field.name for field in fields(Columns) if field.name != "context")
_NULLABLE: Final = frozenset({"values", "keys", "headers", "message_ids"})


def _check_null_values(values: Array, keys: Array | None) -> None:
    """Raises InvalidRequest for a message with neither value nor key."""
    told = valid_of(values)
    if keys is not None:
        told = told | valid_of(keys)
    if not told.all():
        raise InvalidRequest(f"message {int(np.argmin(told))}: {NO_VALUE_NO_KEY}")


# --- encoding -----------------------------------------------------------------------------------


def encode_batch(
    columns: Columns | FewRows,
    *,
    topic_id: TopicId | int,
    queue_id: QueueId | int,
    producer_id: ProducerId | int,
    epoch: int,
    session: int,
    previous_sequence: Sequence | int,
    base_sequence: Sequence | int,
    last_sequence: Sequence | int,
    timestamp_us: int,
    codec: Codec = Codec.NONE,
    deliver_at_us: int = 0,
    source_positions: bool = False,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
    front: bytes = b"",
) -> bytes:
    """Returns one batch, header and body, ready to send; `front` stands in front of it.

    `timestamp_us` and `deliver_at_us` count for all messages unless the columns have their own.
    A codec that does not make the body smaller is left out. Raises MessageTooLarge for a message
    or a batch over the hard limits, and InvalidRequest for columns or sequences that contradict
    each other.
    """
    count = len(columns)
    if not count:
        raise InvalidRequest("a batch needs a message")
    flags, buffers, content = _buffers(columns)
    if source_positions:
        flags |= BatchFlags.SOURCE_POSITIONS
    parts = lay_out(buffers)
    uncompressed_length = sum(memoryview(part).nbytes for part in parts)
    if uncompressed_length > message_bytes_max:
        check_message_sizes(columns, message_bytes_max)
        if uncompressed_length > UNCOMPRESSED_BYTES_MAX:
            raise MessageTooLarge(
                f"batch of {uncompressed_length} bytes before compression;"
                f" the limit is {UNCOMPRESSED_BYTES_MAX}",
                limit_bytes=UNCOMPRESSED_BYTES_MAX,
            )
    body_length = uncompressed_length
    if codec is not Codec.NONE:
        packed = pack(b"".join(parts), codec)
        if len(packed) < uncompressed_length:
            parts, body_length = [packed], len(packed)
        else:
            codec = Codec.NONE
    if body_length > BODY_BYTES_MAX:
        raise MessageTooLarge(
            f"batch of {HEADER_BYTES + body_length} bytes; the limit is {BATCH_BYTES_MAX}",
            limit_bytes=BATCH_BYTES_MAX,
        )
    first_timestamp_us = max_timestamp_us = timestamp_us
    if columns.timestamps is not None:
        stamps = numbers_of(columns.timestamps, np.int64)
        first_timestamp_us, max_timestamp_us = int(stamps[0]), int(stamps.max())
    if columns.deliver_at is not None:
        deliver_at_us = int(numbers_of(columns.deliver_at, np.int64).min())
    head = BatchHeader(
        codec=codec,
        flags=flags,
        body_length=body_length,
        uncompressed_length=uncompressed_length,
        body_crc=chain_crc(parts),
        content_crc=chain_crc(content),
        topic_id=TopicId(topic_id),
        queue_id=QueueId(queue_id),
        count=count,
        producer_id=ProducerId(producer_id),
        epoch=epoch,
        session=session,
        previous_sequence=Sequence(previous_sequence),
        base_sequence=Sequence(base_sequence),
        last_sequence=Sequence(last_sequence),
        first_timestamp_us=first_timestamp_us,
        max_timestamp_us=max_timestamp_us,
        deliver_at_us=deliver_at_us,
    )
    try:
        packed_head = head.encode()
        # A receiver must never refuse a batch that was written here, so it makes the same checks.
        decode_header(packed_head)
        _check_sequences(head, columns.sequences)
    except (struct.error, CorruptBatch) as error:
        raise InvalidRequest(f"batch cannot be built: {error}") from error
    return b"".join((front, packed_head, *parts))


def _buffers(columns: Columns | FewRows) -> tuple[int, list[Buffer], list[Buffer]]:
    """Returns the flags of the columns present, all buffers in the order of the body, and the
    buffers that `content_crc` covers."""
    if isinstance(columns, FewRows):
        flags, buffers = columns.buffers()
        return flags, buffers, buffers
    columns.check()
    flags = 0
    if columns.values.null_count:
        flags |= BatchFlags.NULL_VALUES
        buffers = nullable_buffers(columns.values)
    else:
        buffers = binary_buffers(columns.values)
    if columns.keys is not None:
        flags |= BatchFlags.KEY
        buffers += nullable_buffers(columns.keys)
    if columns.headers is not None:
        flags |= BatchFlags.HEADERS
        buffers += header_buffers(columns.headers)
    content = list(buffers)
    if columns.timestamps is not None:
        flags |= BatchFlags.TIMESTAMP
        buffers.append(numbers_of(columns.timestamps, np.int64))
    if columns.message_ids is not None:
        flags |= BatchFlags.MESSAGE_ID
        ids = nullable_buffers(columns.message_ids)
        buffers += ids
        content += ids
    if columns.slots is not None:
        flags |= BatchFlags.SLOT
        buffers.append(numbers_of(columns.slots, np.uint16))
    if columns.sequences is not None:
        flags |= BatchFlags.SEQUENCE
        buffers.append(numbers_of(columns.sequences, np.int64))
    if columns.deliver_at is not None:
        flags |= BatchFlags.DELIVER_AT
        buffers.append(numbers_of(columns.deliver_at, np.int64))
    if columns.offsets is not None:
        flags |= BatchFlags.OFFSET
        buffers.append(numbers_of(columns.offsets, np.int64))
    if columns.context is not None:
        assert 0 < len(columns.context) <= CONTEXT_BYTES_MAX, "a context is bounded"
        flags |= BatchFlags.CONTEXT
        buffers.append(columns.context)
    return flags, buffers, content


def check_message_sizes(columns: Columns | FewRows, limit: int) -> None:
    """Raises MessageTooLarge when key, value and headers of one message exceed the limit."""
    if isinstance(columns, FewRows):
        columns = Columns.of_few(columns)
    sizes = np.diff(offsets_of(columns.values)).astype(np.int64)
    if columns.keys is not None:
        sizes += np.diff(offsets_of(columns.keys))
    if columns.headers is not None:
        lists, names, _, values, _ = header_buffers(columns.headers)
        sizes += np.diff(names[lists]) + np.diff(values[lists])
    row = int(np.argmax(sizes))
    largest = int(sizes[row])
    if largest > limit:
        raise MessageTooLarge(
            f"message {row} of the batch has {largest} bytes; the limit is {limit}",
            limit_bytes=limit,
        )


# --- decoding -----------------------------------------------------------------------------------


def decode_columns(batch: bytes | bytearray | memoryview, header: BatchHeader) -> Columns:
    """Returns the columns of `batch` (client header and body), over its own memory if it has no
    codec.

    `header` must be the result of `check_batch`: CRCs are not checked again. Raises CorruptBatch
    when a length, an offset or a sequence contradicts another, and for a position mark.
    """
    reader = BodyReader(unpack_body(batch, header), header)
    flags = header.flags
    count = header.count
    has_nulls = flags & BatchFlags.NULL_VALUES
    values = reader.nullable(count) if has_nulls else reader.binary(count)
    keys = reader.nullable(count) if flags & BatchFlags.KEY else None
    headers = reader.headers(count) if flags & BatchFlags.HEADERS else None
    timestamps = reader.numbers(count, np.int64) if flags & BatchFlags.TIMESTAMP else None
    ids = reader.nullable(count) if flags & BatchFlags.MESSAGE_ID else None
    slots = reader.numbers(count, np.uint16) if flags & BatchFlags.SLOT else None
    sequences = reader.numbers(count, np.int64) if flags & BatchFlags.SEQUENCE else None
    deliver_at = reader.numbers(count, np.int64) if flags & BatchFlags.DELIVER_AT else None
    offsets = reader.numbers(count, np.int64) if flags & BatchFlags.OFFSET else None
    context = reader.context() if flags & BatchFlags.CONTEXT else None
    _check_sequences(header, sequences)
    if offsets is not None:
        numbers = numbers_of(offsets, np.int64)
        if numbers[0] < 0 or (numbers[1:] <= numbers[:-1]).any():
            raise CorruptBatch("batch offsets of compacted messages do not rise")
    return Columns(
        values=values,
        keys=keys,
        headers=headers,
        timestamps=timestamps,
        message_ids=ids,
        slots=slots,
        sequences=sequences,
        deliver_at=deliver_at,
        offsets=offsets,
        context=context,
    )


def _check_sequences(header: BatchHeader, sequences: Array | None) -> None:
    """Raises CorruptBatch unless the sequences rise inside the header's range."""
    if sequences is None:
        return
    numbers = numbers_of(sequences, np.int64)
    if (
        numbers[0] < header.base_sequence
        or numbers[-1] > header.last_sequence
        or (numbers[1:] <= numbers[:-1]).any()
    ):
        raise CorruptBatch("batch sequences do not rise inside the range its header names")
