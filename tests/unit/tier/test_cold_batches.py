"""What a broker serves of the tier: batches that clients take for any other, with the same rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from semel.client.message import Rows
from semel.protos.batch import BROKER_HEADER_BYTES, Codec, check_batch, decode_broker_header
from semel.tier import StoredRows, cold_batches, digest_of, rows_of
from semel.tier.files import decode_whole, encode
from tests.kit.batches import check_content
from tests.kit.tier_rows import QUEUE, TIME_US, plain_rows, random_rows


def served(rows: pa.Table, **options: object) -> pa.Table:
    """The rows of the cold batches, with the append times that the extents had."""
    times = rows.column("append_time").cast(pa.int64()).to_pylist()
    at, pieces = 0, []
    for batch in cold_batches(QUEUE, rows, **options):  # type: ignore[arg-type]
        for row in range(batch.row_count):  # one extent never had two append times
            piece = StoredRows(batch.stored, batch.base_offset + row, row, row + 1, times[at + row])
            pieces.append(piece)
        at += batch.row_count
    return rows_of(pieces)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("seed", range(8))
def test_cold_batches_have_the_rows_of_the_log(seed: int, codec: Codec) -> None:
    rows = rows_of(random_rows(seed, 25, base_offset=10_000))
    entry, data = encode(QUEUE, rows)
    stored = decode_whole("file", entry, data.to_pybytes())
    assert digest_of(served(stored, codec=codec)) == digest_of(rows)


@pytest.mark.parametrize("seed", range(8))
def test_the_client_reads_the_same_messages_from_them(seed: int) -> None:
    pieces = random_rows(seed, 25, base_offset=10_000)

    def seen(stored: bytes | memoryview, base_offset: int, start: int, end: int) -> list[object]:
        rows = Rows("t", QUEUE, memoryview(stored), base_offset, start, end)
        arrival_us = decode_broker_header(stored).append_time_us
        return [
            (m.offset, m.key, m.value, m.headers, m.timestamp_us, m.message_id, arrival_us)
            for m in rows.messages()
        ]

    hot = [each for piece in pieces for each in seen(*piece[:4])]
    cold = [
        each
        for batch in cold_batches(QUEUE, rows_of(pieces))
        for each in seen(batch.stored, batch.base_offset, 0, batch.row_count)
    ]
    assert cold == hot


def test_every_cold_batch_passes_every_check() -> None:
    for batch in cold_batches(QUEUE, rows_of(random_rows(11, 60)), bytes_max=500):
        header = check_content(batch.stored[BROKER_HEADER_BYTES:])
        assert header.count == batch.row_count
        assert header.queue_key == QUEUE
        assert decode_broker_header(batch.stored).base_offset == batch.base_offset


def test_batches_of_one_producer_that_arrived_together_become_one() -> None:
    first, second = plain_rows(5), plain_rows(5, base_offset=5)
    together = TIME_US + 10
    second = second._replace(
        stored=bytes(first.stored[:BROKER_HEADER_BYTES])
        + bytes(second.stored[BROKER_HEADER_BYTES:]),
        append_time_us=together,
    )
    (batch,) = cold_batches(QUEUE, rows_of([first, second]))
    assert (batch.base_offset, batch.row_count) == (0, 10)


def test_batches_are_bounded_by_bytes_and_a_large_message_has_its_own() -> None:
    rows = rows_of([plain_rows(100, value_bytes=10_000)])
    sizes = [batch.row_count for batch in cold_batches(QUEUE, rows, bytes_max=30_500)]
    assert sizes == [3] * 33 + [1]
    assert [batch.row_count for batch in cold_batches(QUEUE, rows, bytes_max=1)] == [1] * 100
    large = rows_of([plain_rows(1, value_bytes=(1 << 20) - 40)])
    (batch,) = cold_batches(QUEUE, large)
    assert check_batch(batch.stored[BROKER_HEADER_BYTES:]).count == 1


def test_no_rows_are_no_batches() -> None:
    assert cold_batches(QUEUE, rows_of([])) == []
