"""Stored batches of every kind become the rows that readers of the cluster get."""

from __future__ import annotations

import pytest

from semel.client.message import Rows
from semel.protos.errors import CorruptBatch
from semel.tier import SCHEMA, StoredRows, rows_of
from semel.tier.rows import cuts, row_bytes
from tests.kit.tier_rows import QUEUE, plain_rows, random_rows

SEEDS = range(20)


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_say_what_the_client_reads_from_the_same_batches(seed: int) -> None:
    pieces = random_rows(seed, 30, base_offset=1000, compacted=seed % 2 == 1)
    table = rows_of(pieces)
    table.validate(full=True)
    assert table.schema.equals(SCHEMA)
    found = iter(table.to_pylist())
    for piece in pieces:
        rows = Rows("t", QUEUE, memoryview(piece.stored), *piece[1:4])
        for row in rows.messages():
            own = next(found)
            assert own["key"] == row.key
            assert own["value"] == row.value
            assert [(each["key"], each["value"]) for each in own["headers"]] == row.headers
            assert own["offset"] == row.offset
            assert own["producer"] == rows.header.producer_id
            assert (own["producer_epoch"], own["producer_session"]) == (
                rows.header.epoch,
                rows.header.session,
            )
            assert own["sequence"] == row.sequence
            assert own["message_id"] == row.message_id
    assert next(found, None) is None


def test_append_time_is_the_extents_and_arrival_time_the_batchs() -> None:
    piece = plain_rows(3)._replace(append_time_us=1_900_000_000_000_000)
    (row, *_) = rows_of([piece]).slice(1).to_pylist()
    assert row["append_time"].timestamp() == 1_900_000_000
    assert row["arrival_time"].timestamp() == pytest.approx(1_800_000_000.00001, abs=1e-6)


def test_no_rows_are_an_empty_table() -> None:
    assert rows_of([]).num_rows == 0


def test_a_gap_between_pieces_is_a_bug_of_the_caller() -> None:
    with pytest.raises(AssertionError, match="offset 4, not at 3"):
        rows_of([plain_rows(3), plain_rows(3, base_offset=4)])


@pytest.mark.parametrize("at", [3, 40, 130, 170, 400])
def test_a_damaged_batch_is_noticed(at: int) -> None:
    piece = plain_rows(10)
    damaged = bytearray(piece.stored)
    damaged[at] ^= 1
    with pytest.raises(CorruptBatch):
        rows_of([piece._replace(stored=bytes(damaged))])


def test_rows_that_the_batch_does_not_have_are_refused() -> None:
    whole = plain_rows(10)
    with pytest.raises(CorruptBatch, match="has 10 rows, an extent names 0 to 11"):
        rows_of([StoredRows(whole.stored, 0, 0, 11, whole.append_time_us)])


def test_sizes_of_rows_count_everything() -> None:
    rows = rows_of(random_rows(4, 50)).combine_chunks()
    expected = [
        32
        + len(row["key"] or b"")
        + len(row["value"] or b"")
        + len(row["message_id"] or b"")
        + sum(len(each["key"].encode()) + len(each["value"]) for each in row["headers"])
        for row in rows.to_pylist()
    ]
    assert row_bytes(rows).tolist() == expected


def test_cuts_are_as_large_as_they_may_be() -> None:
    import numpy as np

    assert cuts(np.array([4, 4, 4, 20, 1, 1]), 8) == [2, 3, 4, 6]
    assert cuts(np.array([], np.int64), 8) == []
