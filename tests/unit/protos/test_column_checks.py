"""What brokers look for in a batch before they store it, beside what `decode_columns` finds."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import google_crc32c
import pytest

from semel.protos.batch import (
    CONTEXT_BYTES_MAX,
    COPY_BYTES_MAX,
    HEADER_BYTES,
    MESSAGE_BYTES_MAX,
    BatchFlags,
    Codec,
    check_batch,
)
from semel.protos.column_checks import check_columns
from semel.protos.columns import Columns, decode_columns, encode_batch
from semel.protos.errors import CorruptBatch, InvalidRequest, MessageTooLarge
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


@pytest.mark.parametrize("codec", Codec)
def test_a_context_is_kept_and_is_no_part_of_what_the_messages_say(codec: Codec) -> None:
    columns = Columns.from_arrow([b"v" * 50] * 40, keys=[b"k"] * 40)
    plain = check_batch(made(columns, codec=codec))
    batch = made(replace(columns, context=b"c" * CONTEXT_BYTES_MAX), codec=codec)
    header = check_batch(batch)
    assert header.flags == plain.flags | BatchFlags.CONTEXT
    assert header.content_crc == plain.content_crc
    check_columns(batch, header)
    assert decode_columns(batch, header).context == b"c" * CONTEXT_BYTES_MAX


@pytest.mark.parametrize("size", [0, CONTEXT_BYTES_MAX + 1])
def test_a_context_has_a_bounded_size(size: int) -> None:
    batch = made(replace(Columns.from_arrow([b"v"]), context=b"c"))
    table = struct.pack("<4I", 3, 8, 1, size) + b"\0\0\0\0\1\0\0\0" + b"v".ljust(8, b"\0")
    body = table + (b"c" * size).ljust(-(-size // 8) * 8, b"\0")
    header = replace(
        check_batch(batch),
        body_length=len(body),
        uncompressed_length=len(body),
        body_crc=int(google_crc32c.value(body)),
    )
    for read in (check_columns, decode_columns):
        with pytest.raises(CorruptBatch, match=f"a context of {size} bytes"):
            read(header.encode() + body, header)
