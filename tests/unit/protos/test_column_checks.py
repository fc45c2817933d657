"""What brokers look for in a batch before they store it, beside what `decode_columns` finds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import google_crc32c
import pytest

from semel.protos.batch import (
    COPY_BYTES_MAX,
    HEADER_BYTES,
    MESSAGE_BYTES_MAX,
    BatchFlags,
    Codec,
    check_batch,
)
from semel.protos.column_checks import check_columns
from semel.protos.columns import Columns, encode_batch
from semel.protos.errors import InvalidRequest, MessageTooLarge
from tests.fuzz.wire_targets import BATCHES
from tests.kit.batches import encode_position_mark

FIELDS: Any = {
    "topic_id": 1,
    "queue_id": 2,
    "producer_id": 3,
    "epoch": 4,
    "session": 5,
    "previous_sequence": -1,
    "base_sequence": 0,
    "timestamp_us": 0,
}


def made(columns: Columns, **fields: Any) -> bytes:
    return encode_batch(columns, last_sequence=len(columns) - 1, **FIELDS, **fields)


def check(batch: bytes) -> None:
    check_columns(batch, check_batch(batch))


@pytest.mark.parametrize("batch", BATCHES)
def test_every_kind_of_batch_passes(batch: bytes) -> None:
    check(batch)


def test_a_position_mark_passes() -> None:
    mark = dict(FIELDS, last_sequence=9)
    del mark["base_sequence"]
    check(encode_position_mark(**mark))


@pytest.mark.parametrize("count", [3, 100])
def test_a_message_with_neither_value_nor_key_is_refused(count: int) -> None:
    values = [None, *[b"v"] * (count - 1)]
    batch = made(Columns.from_arrow(values, keys=[b"k"] * count))
    check(batch)
    body = bytearray(batch[HEADER_BYTES:])
    # the bitmap of the keys: behind the table of five lengths, and values of three buffers
    table = 24
    offsets = table + 8 * -(-(count + 7) // 8 // 8)
    bitmap = offsets + (4 * (count + 1) + 7 & ~7) + (count - 1 + 7 & ~7)
    bitmap += (28 + 7 & ~7) - table  # the table has six buffers and their number
    assert body[bitmap] & 1, "the first key is there"
    body[bitmap] &= 0xFE
    header = replace(check_batch(batch), body_crc=int(google_crc32c.value(bytes(body))))
    assert header.flags == BatchFlags.NULL_VALUES | BatchFlags.KEY
    with pytest.raises(InvalidRequest, match="needs a key"):
        check(header.encode() + bytes(body))


@pytest.mark.parametrize("codec", Codec)
def test_a_message_over_the_hard_limit_is_refused(codec: Codec) -> None:
    most = MESSAGE_BYTES_MAX + COPY_BYTES_MAX
    columns = Columns.from_arrow([b"v", bytes(most)])
    check(made(columns, codec=codec, message_bytes_max=1 << 30))
    columns = Columns.from_arrow([b"v", bytes(most + 1)])
    with pytest.raises(MessageTooLarge):
        check(made(columns, codec=codec, message_bytes_max=1 << 30))
    check(made(Columns.from_arrow([bytes(most // 2)] * 6), codec=codec))
