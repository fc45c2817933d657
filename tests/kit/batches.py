"""Makes, checks and reads batches for tests, where the product has no such function.

Not here: the format (`semel.protos.batch`, `semel.protos.columns`).
"""

from __future__ import annotations

import pyarrow as pa

from semel.protos.arrow_records import RECORD_SCHEMA, record_arrays
from semel.protos.batch import (
    BROKER_HEADER_BYTES,
    BatchFlags,
    BatchHeader,
    Codec,
    check_batch,
    decode_broker_header,
)
from semel.protos.body import BodyReader, chain_crc, unpack_body
from semel.protos.columns import decode_columns
from semel.protos.errors import CorruptBatch, InvalidRequest
from semel.protos.ids import ProducerId, QueueId, Sequence, TopicId


def encode_position_mark(
    *,
    topic_id: TopicId | int,
    queue_id: QueueId | int,
    producer_id: ProducerId | int,
    epoch: int,
    session: int,
    previous_sequence: Sequence | int,
    last_sequence: Sequence | int,
    timestamp_us: int,
) -> bytes:
    """A batch without messages that moves the producer's last sequence on an idle queue.

    `previous_sequence < last_sequence` is the caller's to keep.
    """
    return BatchHeader(
        codec=Codec.NONE,
        flags=BatchFlags.POSITION_MARK | BatchFlags.SOURCE_POSITIONS,
        body_length=0,
        uncompressed_length=0,
        body_crc=0,
        content_crc=0,
        topic_id=TopicId(topic_id),
        queue_id=QueueId(queue_id),
        count=0,
        producer_id=ProducerId(producer_id),
        epoch=epoch,
        session=session,
        previous_sequence=Sequence(previous_sequence),
        base_sequence=Sequence(previous_sequence + 1),
        last_sequence=Sequence(last_sequence),
        first_timestamp_us=timestamp_us,
        max_timestamp_us=timestamp_us,
        deliver_at_us=0,
    ).encode()


def check_content(batch: bytes | bytearray | memoryview) -> BatchHeader:
    """The header of a batch whose `content_crc` was checked against its body.

    Raises CorruptBatch when anything is damaged or the content is not what the header says.
    """
    header = check_batch(batch)
    crc = 0
    if not header.flags & BatchFlags.POSITION_MARK:
        crc = chain_crc(_content(BodyReader(unpack_body(batch, header), header)))
    if crc != header.content_crc:
        raise CorruptBatch("batch content is not what its header says: the CRC differs")
    return header


def _content(reader: BodyReader) -> list[pa.Buffer]:
    """The buffers that `content_crc` covers."""
    key_and_headers = 2 + bool(reader.flags & BatchFlags.NULL_VALUES)
    key_and_headers += 3 * bool(reader.flags & BatchFlags.KEY)
    key_and_headers += 5 * bool(reader.flags & BatchFlags.HEADERS)
    found = reader.buffers[:key_and_headers]
    if reader.flags & BatchFlags.MESSAGE_ID:
        at = key_and_headers + bool(reader.flags & BatchFlags.TIMESTAMP)
        found += reader.buffers[at : at + 3]
    return found


def to_record_batch(
    stored_batch: bytes | bytearray | memoryview,
    row_start: int = 0,
    row_end: int | None = None,
    *,
    base_offset: int | None = None,
) -> pa.RecordBatch:
    """Rows `[row_start, row_end)` of a stored batch as RECORD_SCHEMA, after all its checks.

    Row r, counted from the batch's first, has offset `base_offset + r`. `base_offset` defaults to
    the broker header's; a fetch reply names the offset of row `row_start`, so pass that minus
    `row_start`. Raises CorruptBatch; InvalidRequest for rows that the batch does not have.
    """
    broker = decode_broker_header(stored_batch)
    batch = memoryview(stored_batch)[BROKER_HEADER_BYTES:]
    header = check_batch(batch)
    row_end = header.count if row_end is None else row_end
    if not 0 <= row_start <= row_end <= header.count:
        raise InvalidRequest(f"rows {row_start} to {row_end} of a batch of {header.count}")
    if header.flags & BatchFlags.POSITION_MARK:
        return pa.RecordBatch.from_pylist([], RECORD_SCHEMA)
    columns = decode_columns(batch, header)
    if row_end - row_start != header.count:
        columns = columns.slice(row_start, row_end)
    first = (broker.base_offset if base_offset is None else base_offset) + row_start
    return pa.RecordBatch.from_arrays(
        record_arrays(columns, header, row_start, first), schema=RECORD_SCHEMA
    )
