"""Guesses of passwords wait longer and longer; whoever is right does not wait."""

from __future__ import annotations

import pytest

from semel.controller.login.slowdown import ADDRESS, PAIR, QUIET_MS, USER, Slowdown
from semel.protos.security.guesses import Patience


def wrong_until(slow: Slowdown, end_ms: int, *, users: int = 1, addresses: int = 1) -> int:
    """Attempts that get through when everybody tries as soon as it may."""
    now_ms = made = 0
    while now_ms < end_ms:
        waits = []
        for number in range(max(users, addresses)):
            user, place = f"u{number % users}", number % addresses
            if not (wait_ms := slow.attempt(user, f"10.0.0.{place}", now_ms)):
                made += 1
            waits.append(max(wait_ms, 1))
        now_ms += min(waits)
    return made


def test_the_first_attempts_are_free_and_then_waits_double() -> None:
    slow = Slowdown()
    waits = []
    now_ms = 0
    for _ in range(PAIR.free + 8):
        wait_ms = slow.attempt("alice", "10.0.0.1", now_ms)
        waits.append(wait_ms)
        if wait_ms:
            assert slow.attempt("alice", "10.0.0.1", now_ms + wait_ms - 1) == 1
            now_ms += wait_ms
            assert slow.attempt("alice", "10.0.0.1", now_ms) == 0
    assert waits[: PAIR.free] == [0] * PAIR.free
    assert waits[PAIR.free :] == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]


def test_an_hour_is_worth_few_guesses() -> None:
    hour_ms = 3_600_000
    assert wrong_until(Slowdown(), hour_ms) < 70
    assert wrong_until(Slowdown(), hour_ms, users=50) < 100
    # A user who is guessed at from everywhere is kept out for two seconds at most.
    assert wrong_until(Slowdown(), 60_000, addresses=100) <= USER.free + 60_000 // USER.first_ms


def test_attempts_at_once_are_no_way_around() -> None:
    slow = Slowdown()
    assert [slow.attempt("alice", "10.0.0.1", 0) == 0 for _ in range(50)].count(True) == PAIR.free


def test_whoever_is_right_waits_for_nobody() -> None:
    slow = Slowdown()
    for now_ms in range(0, 100_000, 10):
        assert slow.attempt("alice", "10.0.0.1", now_ms) == 0
        slow.on_right("alice", "10.0.0.1")


def test_a_right_password_does_not_pay_for_guesses_at_others() -> None:
    slow = Slowdown()
    for number in range(ADDRESS.free):
        assert slow.attempt(f"u{number}", "10.0.0.1", 0) == 0
    assert slow.attempt("eve", "10.0.0.1", 0) > 0
    assert slow.attempt("eve", "10.0.0.1", 1_000) == 0
    slow.on_right("eve", "10.0.0.1")
    assert slow.attempt("u1", "10.0.0.1", 1_000) > 0


def test_a_count_is_forgotten_after_a_quiet_time() -> None:
    slow = Slowdown()
    while not slow.attempt("alice", "10.0.0.1", 0):
        pass
    assert slow.attempt("alice", "10.0.0.1", QUIET_MS) == 0


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("", "10.0.0.1", False),
        ("fe80::1%eth0", "fe80::2", True),
    ],
)
def test_one_subscriber_is_one_address(one: str, other: str, same: bool) -> None:
    slow = Slowdown()
    for _ in range(PAIR.free):
        assert slow.attempt("alice", one, 0) == 0
    assert (slow.attempt("alice", other, 0) > 0) is same


def test_only_so_many_counts_are_kept() -> None:
    slow = Slowdown(keys_max=30)
    for number in range(1_000):
        slow.attempt(f"u{number}", f"10.0.0.{number % 9}", 0)
    assert len(slow._counts) == 30


def test_patience_has_an_end() -> None:
    assert Patience(free=1, first_ms=1, most_ms=5).wait_ms(10_000) == 5
