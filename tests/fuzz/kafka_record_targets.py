"""What strangers send to the Kafka gateway as records: whole record sets, and records alone.

What is taken must be storable, and be given to consumers as it was sent. Both ways of finding the
fields of records must say the same of any bytes.

Not here: what else comes to the gateway's port, the requests.
"""

from __future__ import annotations

import gzip
import random
from functools import partial
from typing import Any

import pyarrow as pa

from semel.gateway.records import DecodedBatch, RefusedRecords, decode, encode
from semel.gateway.records.few_records import parse_few
from semel.gateway.records.field_places import Places
from semel.gateway.records.many_records import parse_many
from semel.protos.batch import check_batch
from semel.protos.columns import decode_columns, encode_batch
from semel.protos.errors import MessageTooLarge
from tests.fuzz.targets import Target
from tests.kit.kafka_batches import (
    HEAD_BYTES,
    Record,
    Sender,
    of_aiokafka,
    packed_with,
    read_by_kafka_python,
    sealed,
    with_records,
)

_BYTES_MAX = 4 << 20
_COUNT_BYTES = 2
_OWN = [("semel-deliver-at", b"1893499200000"), ("semel-message-id", b"id"), ("n", None)]


def _batches() -> list[bytes]:
    """Batches without compression, of few and of many records."""
    found = []
    for count in (1, 5, 90):
        rows = [Record(1_000 + row, b"k%d" % row, b"v" * (row % 70)) for row in range(count)]
        headed = [row._replace(headers=[("name", b"value")] * 2) for row in rows]
        owned = [row._replace(headers=[*_OWN]) for row in rows]
        plain = [Record(5, None, b"x" * 90)] * count
        found += [of_aiokafka(each) for each in (rows, headed, owned, plain)]
    return found


def _record_sets() -> list[bytes]:
    plain = _batches()
    sender = Sender(producer_id=5, epoch=1, sequence=(1 << 31) - 2, transactional=True)
    packed = [packed_with(plain[4], 1, gzip.compress)]
    for codec, name in ((2, "snappy"), (3, "lz4"), (4, "zstd")):
        packed.append(packed_with(plain[8], codec, partial(_pack, name)))
    return [*plain, *packed, of_aiokafka([Record(1, None, b"v")] * 3, sender)]


def _pack(codec: str, data: bytes) -> bytes:
    return bytes(pa.compress(data, codec, asbytes=True))


def _use(found: DecodedBatch) -> None:
    """Stores the batch and gives it to a consumer, as the gateway does."""
    columns, count = found.columns, len(found)
    assert len(columns) == count
    assert [row for start, end, _ in found.due_runs() for row in range(start, end)] == list(
        range(count)
    )
    batch = encode_batch(
        columns,
        topic_id=1,
        queue_id=0,
        producer_id=1,
        epoch=0,
        session=0,
        previous_sequence=-1,
        base_sequence=0,
        last_sequence=count - 1,
        timestamp_us=found.timestamp_us,
    )
    stored = decode_columns(batch, check_batch(batch))
    given = encode(stored, base_offset=9, next_offset=9 + count, timestamp_us=found.timestamp_us)
    read = read_by_kafka_python(given)
    assert [record.value for record in read.records] == columns.values.to_pylist()
    assert read.next_offset == 9 + count


def _run_record_set(data: bytes) -> None:
    for found in decode(data, bytes_max=_BYTES_MAX):
        _use(found)


def _run_records(data: bytes) -> None:
    """The first two bytes say how many records follow."""
    count = int.from_bytes(data[:_COUNT_BYTES], "little")
    records = data[_COUNT_BYTES:]
    if count and count * 7 <= len(records):
        assert _outcome(parse_few, records, count) == _outcome(parse_many, records, count)
    _run_record_set(with_records(_FRAME, records, count=count))


def _outcome(parse: Any, records: bytes, count: int) -> Any:
    try:
        fields = parse(records, count)
    except RefusedRecords as error:
        return error.kafka_code
    found: list[Any] = []
    for field in fields:
        if isinstance(field, Places):
            found += (field.starts.tolist(), field.lengths.tolist(), field.has_nulls)
        else:
            found.append(field.tolist())
    return found


_FRAME = of_aiokafka([Record(1, None, b"")])


def _seal(data: bytes, _: random.Random) -> bytes:
    return sealed(data)


def kafka_record_targets() -> list[Target]:
    """All targets of this module."""
    refusals = (RefusedRecords, MessageTooLarge)
    records = [
        int.from_bytes(batch[HEAD_BYTES - 2 : HEAD_BYTES], "big").to_bytes(_COUNT_BYTES, "little")
        + batch[HEAD_BYTES:]
        for batch in _batches()
    ]
    return [
        Target(
            name="kafka record set",
            corpus=_record_sets(),
            run=_run_record_set,
            refusals=refusals,
            seal=_seal,
        ),
        Target(name="kafka records", corpus=records, run=_run_records, refusals=refusals),
    ]
