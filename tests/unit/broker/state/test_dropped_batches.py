"""The window remembers which messages of the newest batches were dropped, within its bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.broker.state.apply.codec import Reader
from semel.broker.state.apply.dropped_batches import (
    BATCH,
    BYTES_MAX,
    STRETCH,
    BatchName,
    DroppedBatches,
)
from semel.protos.dropped import DROPPED
from semel.protos.errors import CorruptSegment

NAME = BatchName(0, 1, 0)


def packed(rows: list[tuple[int, int]]) -> bytes:
    return np.array(rows, DROPPED).tobytes()


def restored(batches: DroppedBatches) -> DroppedBatches:
    data = b"".join(batches.parts())
    reader = Reader(data)
    made = DroppedBatches.read(reader)
    assert reader.at == len(data)
    assert b"".join(made.parts()) == data
    assert (len(made), made.bytes) == (len(batches), batches.bytes)
    return made


@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(-20, 20)),
        min_size=1,
        unique_by=lambda row: row[0],
    )
)
def test_every_list_comes_back_as_it_was(rows: list[tuple[int, int]]) -> None:
    batches = DroppedBatches()
    batches.remember(NAME, packed(sorted(rows)))
    assert batches.find(NAME) == packed(sorted(rows))
    assert restored(batches).find(NAME) == packed(sorted(rows))


def test_messages_that_follow_one_another_take_no_room() -> None:
    batches = DroppedBatches()
    rows = [(5 + number, 900 + number) for number in range(10_000)]
    batches.remember(NAME, packed(rows))
    assert batches.bytes == BATCH.size + STRETCH.size
    batches.remember(BatchName(0, 1, 1), packed([*rows[:5], *rows[6:], (99_999, -1)]))
    assert batches.bytes == 2 * BATCH.size + 4 * STRETCH.size
    assert batches.find(NAME) == packed(rows)


def test_the_oldest_are_forgotten_first() -> None:
    batches = DroppedBatches()
    kept = BYTES_MAX // (BATCH.size + STRETCH.size)
    for number in range(kept + 3):
        batches.remember(NAME._replace(base_sequence=number), packed([(number, 1)]))
    assert len(batches) == kept
    assert batches.bytes <= BYTES_MAX
    assert batches.find(NAME._replace(base_sequence=2)) is None
    assert batches.find(NAME._replace(base_sequence=3)) == packed([(3, 1)])
    restored(batches)


def test_a_batch_under_a_name_that_was_used_before_is_the_newest() -> None:
    batches = DroppedBatches()
    batches.remember(NAME, packed([(0, 1)]))
    batches.remember(NAME._replace(queue_id=4), packed([(0, 2)]))
    batches.remember(NAME, packed([(0, 3), (2, 9)]))
    assert batches.find(NAME) == packed([(0, 3), (2, 9)])
    assert batches.bytes == 2 * BATCH.size + 3 * STRETCH.size
    assert list(restored(batches)._packed) == [NAME._replace(queue_id=4), NAME]


def test_one_that_is_too_large_alone_pushes_no_other_out() -> None:
    batches = DroppedBatches()
    batches.remember(NAME, packed([(0, 1)]))
    huge = BatchName(0, 1, 1)
    batches.remember(huge, packed([(2 * number, 7) for number in range(60_000)]))
    assert batches.find(huge) is None
    assert batches.find(NAME) == packed([(0, 1)])


def test_malformed_bytes_are_refused() -> None:
    one = BATCH.pack(*NAME, 1) + STRETCH.pack(0, 0, 1)
    many = BYTES_MAX // STRETCH.size
    wrong = [
        b"\x02\0\0\0" + one + one,
        b"\x01\0\0\0" + BATCH.pack(*NAME, 0),
        b"\x01\0\0\0" + one[:-1],
        b"\x01\0\0\0" + BATCH.pack(*NAME, many) + bytes(many * STRETCH.size),
    ]
    for data in wrong:
        with pytest.raises(CorruptSegment):
            DroppedBatches.read(Reader(data))
