"""Each row of a delayed batch is in the part of the child that has its slot, and in no other."""

from __future__ import annotations

from typing import Any

import mmh3
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.protos import parted_rows
from semel.protos.batch import BatchFlags, Codec, check_batch
from semel.protos.columns import Columns, decode_columns, encode_batch
from semel.protos.kept_rows import sequences_of
from semel.protos.parted_rows import Heir, part_rows
from semel.protos.slots import SLOT_MASK, slot_of_key, slots_of_column

HEIRS = (Heir(11, 0, 20_000), Heir(12, 20_000, 50_000), Heir(13, 50_000, 65_536))


def batch_of(columns: Columns, *, codec: Codec = Codec.NONE, positions: bool = False) -> bytes:
    count = len(columns)
    return encode_batch(
        columns,
        topic_id=9,
        queue_id=3,
        producer_id=77,
        epoch=2,
        session=5,
        previous_sequence=99,
        base_sequence=100,
        last_sequence=99 + count,
        timestamp_us=1_000,
        codec=codec,
        deliver_at_us=5_000_000,
        source_positions=positions,
    )


def full(count: int) -> Columns:
    return Columns.from_arrow(
        [b"v%d" % n * 5 for n in range(count)],
        keys=[None if n % 3 == 0 else b"k%d" % n for n in range(count)],
        headers=[[("h", b"%d" % n)] * (n % 2) for n in range(count)],
        timestamps=list(range(5_000, 5_000 + count)),
        message_ids=[b"id%d" % n for n in range(count)],
    )


def rows_of(batch: bytes) -> list[tuple[Any, ...]]:
    header = check_batch(batch)
    columns = decode_columns(batch, header)
    given = (columns.values, columns.keys, columns.headers, columns.timestamps, columns.message_ids)
    lists = [[None] * len(columns) if each is None else each.to_pylist() for each in given]
    return list(zip(sequences_of(header, columns).tolist(), *lists, strict=True))


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("cancelled", [(), (0,), (2, 3, 29)])
def test_the_parts_have_all_rows_once_but_for_the_cancelled_ones(
    codec: Codec, cancelled: tuple[int, ...]
) -> None:
    batch = batch_of(full(30), codec=codec)
    parts = part_rows(batch, cancelled, HEIRS, by_id=False)
    assert [number for number, _ in parts] == [11, 12, 13]
    found = [row for _, part in parts for row in rows_of(part)]
    assert sorted(found) == [row for at, row in enumerate(rows_of(batch)) if at not in cancelled]
    whole = check_batch(batch)
    for number, part in parts:
        header = check_batch(part)
        sequences = [row[0] for row in rows_of(part)]
        assert sequences == sorted(sequences)
        assert (header.queue_id, header.topic_id, header.deliver_at_us) == (number, 9, 5_000_000)
        assert (header.producer_id, header.epoch, header.session) == (77, 2, 5)
        assert header.base_sequence == header.previous_sequence + 1 == sequences[0]
        assert header.last_sequence == sequences[-1]
        assert header.flags & BatchFlags.SOURCE_POSITIONS
        assert header.first_timestamp_us >= whole.first_timestamp_us


def test_keys_decide_then_ids_if_the_topic_compares_them_then_sequences() -> None:
    batch = batch_of(full(200))
    rows = {row[0]: row for row in rows_of(batch)}
    for by_id in (False, True):
        for number, part in part_rows(batch, (), HEIRS, by_id=by_id):
            (heir,) = (each for each in HEIRS if each.queue_id == number)
            for sequence, *_ in rows_of(part):
                _, _, key, _, _, message_id = rows[sequence]
                decisive = key if key is not None else message_id if by_id else None
                if decisive is not None:
                    assert heir.slot_start <= slot_of_key(decisive) < heir.slot_end


def test_rows_without_a_key_are_spread_over_children_of_a_few_slots() -> None:
    narrow = (Heir(1, 100, 110), Heir(2, 110, 120))
    batch = batch_of(Columns.from_arrow([b"v"] * 1_000))
    parts = part_rows(batch, (), narrow, by_id=False)
    assert [number for number, _ in parts] == [1, 2]
    assert all(len(rows_of(part)) > 300 for _, part in parts)


def test_keys_of_other_slots_stay_together() -> None:
    """Somebody has named the queue."""
    narrow = (Heir(1, 100, 110), Heir(2, 110, 120))
    keys = [b"k%d" % (n % 5) for n in range(50)]
    batch = batch_of(Columns.from_arrow([b"v"] * 50, keys=keys))
    homes: dict[bytes, set[int]] = {}
    for number, part in part_rows(batch, (), narrow, by_id=False):
        for row in rows_of(part):
            homes.setdefault(row[2], set()).add(number)
    assert sorted(homes) == sorted(set(keys))
    assert all(len(each) == 1 for each in homes.values())


def test_a_batch_for_one_child_keeps_its_body() -> None:
    batch = batch_of(Columns.from_arrow([b"v"] * 9, keys=[b"same"] * 9), codec=Codec.LZ4)
    ((number, part),) = part_rows(batch, (3,), HEIRS, by_id=False)
    assert rows_of(part) == rows_of(batch)
    assert part[128:] == batch[128:]
    assert check_batch(part).queue_id == number
    assert check_batch(part).previous_sequence == 99


def test_what_does_not_fit_one_entry_goes_to_one_child() -> None:
    batch = batch_of(full(300))
    assert len(part_rows(batch, (), HEIRS, by_id=False)) == 3
    ((number, part),) = part_rows(batch, (), HEIRS, by_id=False, bytes_max=1_000)
    assert number == 12, "it has the most slots"
    assert rows_of(part) == rows_of(batch)


def test_another_codec_is_tried_before_that(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [b"the same value " * 20] * 300
    keys = [b"k%d" % n for n in range(300)]
    batch = batch_of(Columns.from_arrow(values, keys=keys))
    parts = part_rows(batch, (), HEIRS, by_id=False, bytes_max=len(batch) // 2)
    assert len(parts) == 3
    assert {check_batch(part).codec for _, part in parts} == {Codec.ZSTD}
    monkeypatch.setattr(parted_rows, "PARTS_MAX", 2)
    assert len(part_rows(batch, (), HEIRS, by_id=False)) == 1


KEYS = st.lists(st.none() | st.binary(max_size=40) | st.binary(min_size=1_000, max_size=1_100))


@given(keys=KEYS, cut=st.integers(0, 3))
def test_the_slots_of_a_column_are_those_of_its_keys(keys: list[bytes | None], cut: int) -> None:
    column = pa.array(keys, pa.binary()).slice(cut)
    found = slots_of_column(column)
    assert found.dtype == np.uint16
    for slot, key in zip(found.tolist(), column.to_pylist(), strict=True):
        if key is not None:
            assert slot == mmh3.hash(key, 0, signed=False) & SLOT_MASK
