"""The order of ids: rows are sorted by whole keys, also where keys differ in their lowest bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.broker.dedup.sorted_ids import order_of

KEYS = st.one_of(
    st.integers(0, (1 << 64) - 1), st.integers(0, 40), st.integers(0, 3).map(lambda x: x << 62)
)


@given(st.lists(KEYS, max_size=200))
def test_any_keys_are_put_in_order(keys: list[int]) -> None:
    first = np.array(keys, np.uint64)
    rows = order_of(first)
    assert sorted(rows.tolist()) == list(range(len(keys)))
    assert first[rows].tolist() == sorted(keys)


@pytest.mark.parametrize("pairs", [1, 3, 5_000])
def test_neighbours_that_differ_in_their_lowest_bits_alone(pairs: int) -> None:
    random = np.random.default_rng(3)
    first = random.integers(0, 1 << 63, 20_000, dtype=np.uint64) << np.uint64(1)
    first[pairs : 2 * pairs] = first[:pairs] | np.uint64(1)
    shuffled = random.permutation(first)
    assert (shuffled[order_of(shuffled)] == np.sort(first)).all()
