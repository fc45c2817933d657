"""Stored batches as a partition's record batches: with the partition's offsets."""

from __future__ import annotations

import pyarrow as pa
import pytest

from semel.gateway.fetching.stored_batches import kafka_batch
from semel.gateway.records import RecordCodec
from semel.protos.batch import BrokerHeader
from semel.protos.columns import Columns, encode_batch
from semel.protos.ids import Offset, Term


def stored() -> memoryview:
    batch = encode_batch(
        Columns(values=pa.array([b"one", b"two", b"three"], pa.binary())),
        topic_id=7,
        queue_id=0,
        producer_id=1,
        epoch=1,
        session=1,
        previous_sequence=-1,
        base_sequence=0,
        last_sequence=2,
        timestamp_us=1_700_000_000_000_000,
    )
    header = BrokerHeader(base_offset=Offset(10), append_time_us=1, term=Term(1))
    return memoryview(header.encode() + batch)


@pytest.mark.parametrize("codec", [RecordCodec.NONE, RecordCodec.ZSTD])
def test_a_queue_that_goes_on_behind_another_has_higher_offsets(codec: RecordCodec) -> None:
    own = kafka_batch(stored(), 11, 1, 3, codec)
    shifted = kafka_batch(stored(), 11, 1, 3, codec, 1 << 33)
    assert shifted[8:] == own[8:]
    assert int.from_bytes(own[:8], "big") == 11
    assert int.from_bytes(shifted[:8], "big") == 11 + (1 << 33)
