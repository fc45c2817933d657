"""Sequences that wrap, against a producer that counts on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.gateway.records import narrow, widen

SPAN = 1 << 31


@given(st.integers(0, 1 << 62), st.integers(-(1 << 30) + 1, 1 << 30))
def test_a_sequence_near_the_expected_one_is_found(meant: int, ahead: int) -> None:
    last = meant - ahead - 1
    if last >= -1:
        assert widen(narrow(meant), last) == meant


@pytest.mark.parametrize(
    ("sequence", "last", "wide"),
    [
        (0, -1, 0),
        (5, -1, 5),
        (0, SPAN - 1, SPAN),
        (SPAN - 1, SPAN, SPAN - 1),
        (SPAN - 1, SPAN - 2, SPAN - 1),
        (3, 5 * SPAN + 2, 5 * SPAN + 3),
        (0, 5 * SPAN + 2, 5 * SPAN),
        (SPAN - 1, -1, SPAN - 1),
    ],
)
def test_sequences_wrap_as_kafkas(sequence: int, last: int, wide: int) -> None:
    assert widen(sequence, last) == wide
    assert narrow(wide) == sequence


@given(st.integers(0, SPAN - 1), st.integers(-1, 1 << 62))
def test_the_result_is_a_sequence_with_the_same_lowest_bits(sequence: int, last: int) -> None:
    found = widen(sequence, last)
    assert found >= 0
    assert narrow(found) == sequence
    assert abs(found - last - 1) <= SPAN // 2 or found < SPAN
