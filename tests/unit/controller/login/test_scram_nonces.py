"""Nonces of SCRAM: good for what they were made for, for a while, at whoever knows the secret."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.controller.login.scram_nonces import GOOD_S, RANDOM_BYTES, is_good, new_nonce

SECRET, BOUND, NOW_S = b"k" * 32, (b"SCRAM-SHA-256", b"n,,n=u,r=x", b"key"), 1_800_000_000.0
NONCE = new_nonce(SECRET, BOUND, NOW_S, b"r" * RANDOM_BYTES)


def test_it_is_good_for_a_while_also_by_a_clock_that_is_behind() -> None:
    for after_s in (0, GOOD_S - 1, 1 - GOOD_S):
        assert is_good(SECRET, BOUND, NOW_S + after_s, NONCE)
    for after_s in (GOOD_S + 1, -GOOD_S - 1, 86_400):
        assert not is_good(SECRET, BOUND, NOW_S + after_s, NONCE)


@pytest.mark.parametrize("part", range(3))
def test_it_is_good_for_one_exchange_alone(part: int) -> None:
    other = tuple(b"other" if number == part else each for number, each in enumerate(BOUND))
    assert not is_good(SECRET, other, NOW_S, NONCE)


def test_parts_do_not_run_into_each_other() -> None:
    made = new_nonce(SECRET, (b"ab", b"c"), NOW_S, b"r" * RANDOM_BYTES)
    assert not is_good(SECRET, (b"a", b"bc"), NOW_S, made)


def test_another_secret_makes_another_one() -> None:
    assert not is_good(b"K" * 32, BOUND, NOW_S, NONCE)
    assert not is_good(b"", BOUND, NOW_S, NONCE)


@given(st.integers(0, 55), st.integers(1, 255))
def test_every_byte_counts(position: int, difference: int) -> None:
    data = bytearray(base64.b64decode(NONCE))
    assert len(data) == 56
    data[position] ^= difference
    assert not is_good(SECRET, BOUND, NOW_S, base64.b64encode(data).decode())


@given(st.text(max_size=100))
def test_any_text_is_none(text: str) -> None:
    assert not is_good(SECRET, BOUND, NOW_S, text)


def test_it_has_what_a_nonce_may_have() -> None:
    assert NONCE.isascii()
    assert NONCE.isprintable()
    assert "," not in NONCE
