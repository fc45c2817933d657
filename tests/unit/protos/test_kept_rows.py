"""Batches of kept rows are ordinary batches, with the sequences that were sent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from semel.protos.batch import BatchFlags, BatchHeader, Codec, check_batch
from semel.protos.columns import Columns, decode_columns, encode_batch
from semel.protos.dropped import ANSWER, Dropped, Verdict, read_answer
from semel.protos.errors import CorruptBatch, MessageTooLarge
from semel.protos.kept_rows import keep_rows, part_of, sequences_of


def batch_of(
    columns: Columns, *, last: int | None = None, codec: Codec = Codec.NONE, deliver_at_us: int = 0
) -> tuple[BatchHeader, Columns]:
    data = encode_batch(
        columns,
        topic_id=9,
        queue_id=3,
        producer_id=77,
        epoch=2,
        session=5,
        previous_sequence=99,
        base_sequence=100,
        last_sequence=99 + len(columns) if last is None else last,
        timestamp_us=1_000,
        codec=codec,
        deliver_at_us=deliver_at_us,
        source_positions=last is not None,
    )
    header = check_batch(data)
    return header, decode_columns(data, header)


def full(count: int) -> Columns:
    return Columns.from_arrow(
        [b"v%d" % n * 20 for n in range(count)],
        keys=[None if n % 3 else b"k%d" % n for n in range(count)],
        headers=[[("h", b"%d" % n)] * (n % 2) for n in range(count)],
        timestamps=list(range(5_000, 5_000 + count)),
        message_ids=[b"id%d" % n for n in range(count)],
        slots=[n % 7 for n in range(count)],
    )


SAME = (
    "topic_id",
    "queue_id",
    "producer_id",
    "epoch",
    "session",
    "previous_sequence",
    "base_sequence",
    "last_sequence",
    "deliver_at_us",
)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("deliver_at_us", [0, 7_000_000])
def test_kept_rows_keep_all_that_they_were(codec: Codec, deliver_at_us: int) -> None:
    header, columns = batch_of(full(40), codec=codec, deliver_at_us=deliver_at_us)
    kept = np.arange(40) % 5 != 2
    stored = keep_rows(header, columns, kept)
    after = check_batch(stored)
    assert all(getattr(after, name) == getattr(header, name) for name in SAME)
    assert after.count == 32
    assert after.codec is codec
    assert after.flags & BatchFlags.SOURCE_POSITIONS
    assert (after.first_timestamp_us, after.max_timestamp_us) == (5_000, 5_039)
    found, wanted = decode_columns(stored, after), columns.filter(pa.array(kept))
    for name in ("values", "keys", "headers", "timestamps", "message_ids", "slots"):
        assert getattr(found, name).equals(getattr(wanted, name)), name
    assert found.sequences is not None
    assert found.sequences.to_pylist() == [100 + n for n in range(40) if n % 5 != 2]


def test_sequences_that_jump_stay_as_they_were() -> None:
    columns = Columns.from_arrow([b"a", b"b", b"c"], sequences=[100, 150, 170])
    header, columns = batch_of(columns, last=180)
    assert sequences_of(header, columns).tolist() == [100, 150, 170]
    stored = keep_rows(header, columns, np.array([False, True, True]))
    after = check_batch(stored)
    assert (after.base_sequence, after.last_sequence) == (100, 180)
    found = decode_columns(stored, after).sequences
    assert found is not None
    assert found.to_pylist() == [150, 170]


def test_if_nothing_is_kept_a_mark_covers_the_sequences() -> None:
    header, columns = batch_of(full(3), deliver_at_us=5, codec=Codec.LZ4)
    after = check_batch(keep_rows(header, columns, np.zeros(3, np.bool_)))
    assert after.flags == BatchFlags.POSITION_MARK | BatchFlags.SOURCE_POSITIONS
    assert (after.count, after.deliver_at_us) == (0, 0)
    assert all(getattr(after, name) == getattr(header, name) for name in SAME[:-1])


def test_a_batch_that_sequences_make_too_large_is_refused() -> None:
    header, columns = batch_of(Columns(values=pa.array([b"1234"] * 1_000_000, pa.binary())))
    with pytest.raises(MessageTooLarge):
        keep_rows(header, columns, np.arange(1_000_000) > 0)


def test_answers_are_read_back() -> None:
    table = np.array([(5, 70, 0, 2, 1), (6, -1, 9_000, 1, 2)], ANSWER)
    assert read_answer(table.tobytes()) == [
        Dropped(5, 70, 0, 2, Verdict.DUPLICATE),
        Dropped(6, -1, 9_000, 1, Verdict.CONFLICT),
    ]
    assert read_answer(b"") == []


@pytest.mark.parametrize("data", [b"x", bytes(31), bytes(32)])
def test_malformed_answers_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptBatch):
        read_answer(data)


@pytest.mark.parametrize("last", [None, 500])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_parts_of_a_delayed_batch_are_batches_of_their_own(codec: Codec, last: int | None) -> None:
    columns = full(10)
    if last is not None:
        numbers = pa.array([100 + 40 * n for n in range(9)] + [500])
        columns = replace(columns, sequences=numbers)
    header, whole = batch_of(columns, last=last, codec=codec, deliver_at_us=9_000_000)
    before = -1
    for start, end in ((0, 1), (2, 7), (8, 10)):
        data = part_of(header, whole, start, end)
        part = check_batch(data)
        found = decode_columns(data, part)
        numbers = sequences_of(header, whole)[start:end]
        assert sequences_of(part, found).tolist() == numbers.tolist()
        assert (part.count, part.base_sequence, part.last_sequence) == (
            end - start,
            numbers[0],
            numbers[-1],
        )
        assert part.base_sequence > before
        before = part.last_sequence
        assert found.values.equals(whole.values.slice(start, end - start))
        assert found.message_ids is not None
        assert whole.message_ids is not None
        assert found.message_ids.equals(whole.message_ids.slice(start, end - start))
        assert (part.deliver_at_us, part.producer_id, part.codec) == (9_000_000, 77, header.codec)
