"""What a broker serves of the tier: batches that clients take for any other, with the same rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from semel.client.message import Rows
from semel.protos.batch import (
    BROKER_HEADER_BYTES,
    BatchFlags,
    Codec,
    check_batch,
    decode_broker_header,
)
from semel.tier import StoredRows, cold_batches, digest_of, rows_of
from semel.tier.files import decode_whole, encode
from tests.kit.batches import check_content
from tests.kit.tier_rows import QUEUE, TIME_US, plain_rows, random_rows


def covered(pieces: list[StoredRows]) -> tuple[int, int]:
    last = pieces[-1]
    return pieces[0].base_offset, last.base_offset + last.row_end - last.row_start


def served(rows: pa.Table, covers: tuple[int, int], **options: object) -> pa.Table:
    """The rows of the cold batches, with the append times that the extents had."""
    times = dict(
        zip(
            rows.column("offset").to_pylist(),
            rows.column("append_time").cast(pa.int64()).to_pylist(),
            strict=True,
        )
    )
    pieces, time_us = [], 0
    for batch in cold_batches(QUEUE, rows, covers, **options):  # type: ignore[arg-type]
        for row in range(batch.offset_count):  # one extent never had two append times
            offset = batch.base_offset + row
            time_us = times.get(offset, time_us)
            pieces.append(StoredRows(batch.stored, offset, row, row + 1, time_us))
    assert covered(pieces) == covers
    return rows_of(pieces)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("seed", range(8))
def test_cold_batches_have_the_rows_of_the_log(seed: int, codec: Codec) -> None:
    pieces = random_rows(seed, 25, base_offset=10_000, compacted=seed % 2 == 1)
    covers = covered(pieces)
    entry, data = encode(QUEUE, rows_of(pieces), covers)
    assert (entry.rows < entry.end - entry.start) == (seed % 2 == 1)
    rows = decode_whole("file", entry, data.to_pybytes())
    assert digest_of(served(rows, covers, codec=codec)) == digest_of(rows_of(pieces))


@pytest.mark.parametrize("seed", range(8))
def test_the_client_reads_the_same_messages_from_them(seed: int) -> None:
    pieces = random_rows(seed, 25, base_offset=10_000, compacted=seed % 2 == 1)

    def seen(stored: bytes | memoryview, base_offset: int, start: int, end: int) -> list[object]:
        rows = Rows("t", QUEUE, memoryview(stored), base_offset, start, end)
        arrival_us = decode_broker_header(stored).append_time_us
        return [
            (m.offset, m.key, m.value, m.headers, m.timestamp_us, m.message_id, arrival_us)
            for m in rows.messages()
        ]

    hot = [
        each
        for piece in pieces
        for each in seen(piece.stored, piece.base_offset, piece.row_start, piece.row_end)
    ]
    cold = [
        each
        for batch in cold_batches(QUEUE, rows_of(pieces), covered(pieces))
        for each in seen(batch.stored, batch.base_offset, 0, batch.offset_count)
    ]
    assert cold == hot


@pytest.mark.parametrize("compacted", [False, True])
def test_every_cold_batch_passes_every_check(compacted: bool) -> None:
    pieces = random_rows(11, 60, compacted=compacted)
    for batch in cold_batches(QUEUE, rows_of(pieces), covered(pieces), bytes_max=500):
        header = check_content(batch.stored[BROKER_HEADER_BYTES:])
        named = bool(header.flags & BatchFlags.OFFSET)
        assert named or header.count == batch.offset_count
        assert header.queue_key == QUEUE
        broker = decode_broker_header(batch.stored)
        assert (broker.base_offset, broker.span) == (
            batch.base_offset,
            batch.offset_count if named else 0,
        )


def test_offsets_without_a_row_are_one_batch_that_brings_readers_past_them() -> None:
    (batch,) = cold_batches(QUEUE, rows_of([]), (7, 12))
    rows = Rows("t", QUEUE, memoryview(batch.stored), 7, 0, batch.offset_count)
    assert (rows.count, rows.end_offset) == (0, 12)
    assert cold_batches(QUEUE, rows_of([]), (7, 7)) == []


def test_batches_of_one_producer_that_arrived_together_become_one() -> None:
    first, second = plain_rows(5), plain_rows(5, base_offset=5)
    together = TIME_US + 10
    second = second._replace(
        stored=bytes(first.stored[:BROKER_HEADER_BYTES])
        + bytes(second.stored[BROKER_HEADER_BYTES:]),
        append_time_us=together,
    )
    (batch,) = cold_batches(QUEUE, rows_of([first, second]), (0, 10))
    assert (batch.base_offset, batch.offset_count) == (0, 10)


def test_batches_are_bounded_by_bytes_and_a_large_message_has_its_own() -> None:
    rows = rows_of([plain_rows(100, value_bytes=10_000)])
    sizes = [each.offset_count for each in cold_batches(QUEUE, rows, (0, 100), bytes_max=30_500)]
    assert sizes == [3] * 33 + [1]
    assert [each.offset_count for each in cold_batches(QUEUE, rows, (0, 100), bytes_max=1)] == [
        1
    ] * 100
    large = rows_of([plain_rows(1, value_bytes=(1 << 20) - 40)])
    (batch,) = cold_batches(QUEUE, large, (0, 1))
    assert check_batch(batch.stored[BROKER_HEADER_BYTES:]).count == 1
