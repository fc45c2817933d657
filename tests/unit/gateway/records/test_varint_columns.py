"""Numbers of many records at once, against the same one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.gateway.records import CorruptRecords
from semel.gateway.records.varint_columns import (
    INT_BYTES_MAX,
    LONG_BYTES_MAX,
    read,
    size_of,
    sizes,
    written,
    written_one,
)
from tests.kit.kafka_batches import varint

# Where numbers get another byte, on both sides.
edges = [
    edge
    for bits in range(6, 63, 7)
    for edge in ((1 << bits) - 1, 1 << bits, -(1 << bits), -(1 << bits) - 1)
]
longs = st.sampled_from(edges) | st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.lists(longs, min_size=1, max_size=30), st.lists(longs, min_size=1, max_size=30))
def test_columns_are_written_row_by_row(one: list[int], other: list[int]) -> None:
    count = min(len(one), len(other))
    columns = np.array(one[:count]), np.array(other[:count])
    found = written(columns[0], -300, columns[1], 0)
    assert found.to_pylist() == [
        varint(left) + varint(-300) + varint(right) + b"\0"
        for left, right in zip(one, other, strict=False)
    ]


@pytest.mark.parametrize("edge", edges)
def test_neighbours_that_differ_in_size_are_written(edge: int) -> None:
    numbers = np.array([edge, edge - 1, edge + 1, edge // 2])
    for row in (numbers, numbers[:2], numbers[1:3], numbers[[0, 3]]):
        assert written(row).to_pylist() == list(map(varint, row.tolist()))


@given(st.lists(longs, min_size=1, max_size=30), st.integers(0, 3))
def test_what_is_written_is_read(numbers: list[int], gap: int) -> None:
    pieces = [varint(number) + b"\xff" * gap for number in numbers]
    ends = np.cumsum([len(piece) for piece in pieces])
    starts = np.concatenate(([0], ends[:-1]))
    data = np.frombuffer(b"".join(pieces), np.uint8)
    found, after = read(data, starts, LONG_BYTES_MAX)
    assert found.tolist() == numbers
    assert (after == ends - gap).all()


@given(st.lists(longs, min_size=1, max_size=30))
def test_sizes_are_those_of_the_bytes(numbers: list[int]) -> None:
    expected = [len(varint(number)) for number in numbers]
    found = sizes(np.array(numbers))
    assert (
        [found] * len(numbers) == expected if isinstance(found, int) else found.tolist() == expected
    )
    assert [size_of(number) for number in numbers] == expected
    assert sizes(numbers[0]) == expected[0]
    assert [len(written_one(number)) for number in numbers] == expected
    assert [written_one(number) for number in numbers] == list(map(varint, numbers))


@pytest.mark.parametrize("others", [[], [b"\0"], [b"\xff\0"]])
@pytest.mark.parametrize(
    ("data", "bytes_max"),
    [
        (b"\xff\xff\xff\xff\x10", INT_BYTES_MAX),
        (b"\xff\xff\xff\xff\xff\0", INT_BYTES_MAX),
        (b"\xff" * 9 + b"\x02", LONG_BYTES_MAX),
        (b"\xff" * 10 + b"\0", LONG_BYTES_MAX),
    ],
)
def test_too_many_bits_are_refused(data: bytes, bytes_max: int, others: list[bytes]) -> None:
    pieces = [*others, data]
    starts = np.concatenate(([0], np.cumsum([len(piece) for piece in pieces])[:-1]))
    with pytest.raises(CorruptRecords):
        read(np.frombuffer(b"".join(pieces), np.uint8), starts, bytes_max)


def test_the_largest_numbers_are_taken() -> None:
    for data, bytes_max, number in (
        (b"\xfe\xff\xff\xff\x0f", INT_BYTES_MAX, (1 << 31) - 1),
        (b"\xff\xff\xff\xff\x0f", INT_BYTES_MAX, -(1 << 31)),
        (b"\xfe" + b"\xff" * 8 + b"\x01", LONG_BYTES_MAX, (1 << 63) - 1),
    ):
        found, after = read(np.frombuffer(data, np.uint8), np.array([0]), bytes_max)
        assert found.tolist() == [number]
        assert after.tolist() == [len(data)]


def test_a_start_behind_the_data_gives_some_number() -> None:
    read(np.frombuffer(b"\0\1\2", np.uint8), np.array([0, 99, 2]))
