"""Slots: our vectorised hash is mmh3's, and ranges cover all slots once."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise

import mmh3
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.protos.errors import InvalidRequest
from semel.protos.slots import (
    SLOT_COUNT,
    queue_for_slots,
    slot_of_key,
    slots_of_column,
    slots_of_keys,
    slots_of_positions,
    split_slots,
)

POSITIONS = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(POSITIONS, max_size=50))
def test_positions_hash_as_mmh3_hashes_their_bytes(positions: list[int]) -> None:
    slots = slots_of_positions(np.array(positions, np.int64))
    assert slots.dtype == np.uint16
    assert slots.tolist() == [
        mmh3.hash(struct.pack("<q", position), 0, signed=False) & 0xFFFF for position in positions
    ]


def test_many_positions_hash_as_mmh3_does() -> None:
    drawn = np.random.default_rng(7).integers(-(2**63), 2**63 - 1, 20_000)
    edges = [0, 1, -1, 2**31, 2**32, 2**32 - 1, 2**63 - 1, -(2**63)]
    positions = np.concatenate([drawn, np.arange(20_000), np.array(edges)])
    expected = [slot_of_key(int(each).to_bytes(8, "little", signed=True)) for each in positions]
    assert slots_of_positions(positions).tolist() == expected
    assert slots_of_positions(positions[::3]).tolist() == expected[::3]


def test_known_hashes() -> None:
    """From the published algorithm: routing may never change between versions."""
    assert slot_of_key(b"") == 0
    assert slot_of_key(b"hello") == 0x248BFA47 & 0xFFFF
    assert slot_of_key(b"hello, world") == 0x149BBB7F & 0xFFFF
    assert slot_of_key(b"The quick brown fox jumps over the lazy dog") == 0x2E4FF723 & 0xFFFF


@given(st.lists(st.binary(max_size=40), max_size=30))
def test_keys_have_one_slot_in_whatever_container(keys: list[bytes]) -> None:
    expected = [slot_of_key(key) for key in keys]
    assert slots_of_keys(keys).tolist() == expected
    assert slots_of_keys(tuple(keys)).dtype == np.uint16
    array = pa.array(keys, pa.binary())
    assert slots_of_keys(array).tolist() == expected
    assert slots_of_keys(array.slice(1)).tolist() == expected[1:]
    assert slots_of_keys(pa.chunked_array([array, array], pa.binary())).tolist() == expected * 2


@pytest.mark.parametrize(
    "lengths",
    [[0], [1], [4], [16], [19], [36], [1_025], [16, 17, 36], [0, 5], range(200), [8, 1_024, 2_000]],
    ids=str,
)
def test_many_keys_of_few_and_of_many_lengths_hash_as_mmh3_does(lengths: Sequence[int]) -> None:
    random = np.random.default_rng(3)
    keys = [
        random.bytes(lengths[row % len(lengths)])
        for row in range(min(3_000, 2_000_000 // (max(lengths) + 1)))
    ]
    keys += [random.bytes(lengths[0]) for _ in range(70)]
    expected = [slot_of_key(key) for key in keys]
    column = pa.array(keys, pa.binary())
    for found in (slots_of_column(column), slots_of_keys(column)):
        assert found.dtype == np.uint16
        assert found.tolist() == expected
    assert slots_of_column(column.slice(3, 60)).tolist() == expected[3:63]


def test_more_keys_than_are_hashed_at_once() -> None:
    keys = [b"%016d" % number for number in range(40_000)]
    found = slots_of_column(pa.array(keys, pa.binary()))
    assert found.tolist() == [slot_of_key(key) for key in keys]


def test_a_null_in_a_column_has_any_slot_and_the_others_theirs() -> None:
    for keys in ([b"a", None, b"bc"] * 100, [b"abcd", None] * 100, [None, b"x" * 2_000]):
        found = slots_of_column(pa.array(keys, pa.binary())).tolist()
        assert [found[row] for row, key in enumerate(keys) if key is not None] == [
            slot_of_key(key) for key in keys if key is not None
        ]


def test_string_keys_are_their_utf8() -> None:
    assert (
        slots_of_keys(pa.array(["é", "b"])).tolist() == slots_of_keys(["é".encode(), b"b"]).tolist()
    )


def test_a_message_without_a_key_goes_by_its_position() -> None:
    positions = np.array([10, 11, 12])
    slots = slots_of_keys(pa.array([b"k", None, "b"], pa.binary()), positions)
    assert slots.tolist() == [
        slot_of_key(b"k"),
        slots_of_positions(positions)[1],
        slot_of_key(b"b"),
    ]
    with pytest.raises(InvalidRequest, match="message 1"):
        slots_of_keys([b"k", None])


@given(st.integers(1, SLOT_COUNT))
def test_split_covers_every_slot_once_and_evenly(queues: int) -> None:
    ranges = split_slots(queues)
    assert len(ranges) == queues
    assert ranges[0][0] == 0
    assert ranges[-1][1] == SLOT_COUNT
    assert all(left[1] == right[0] for left, right in pairwise(ranges))
    sizes = [end - start for start, end in ranges]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("queues", [0, -1, SLOT_COUNT + 1])
def test_a_topic_cannot_have_that_many_queues(queues: int) -> None:
    with pytest.raises(InvalidRequest):
        split_slots(queues)


@given(st.integers(1, 300), st.lists(st.integers(0, SLOT_COUNT - 1), max_size=50))
def test_each_slot_falls_into_the_range_that_holds_it(queues: int, slots: list[int]) -> None:
    ranges = split_slots(queues)
    places = queue_for_slots([start for start, _ in ranges], np.array(slots, np.uint16))
    for slot, place in zip(slots, places, strict=True):
        start, end = ranges[place]
        assert start <= slot < end


def test_every_slot_has_a_queue() -> None:
    ranges = split_slots(7)
    starts = np.array([start for start, _ in ranges], np.int64)
    places = queue_for_slots(starts, np.arange(SLOT_COUNT))
    assert np.bincount(places).tolist() == [end - start for start, end in ranges]


def test_a_hash_with_another_constant_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug."""
    monkeypatch.setattr("semel.protos.slots._F2", np.uint32(0xC2B2AE3D))
    assert slots_of_positions(np.array([1])).tolist() != [slot_of_key(struct.pack("<q", 1))]
