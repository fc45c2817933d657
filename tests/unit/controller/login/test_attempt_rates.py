"""How many logins a second are looked at: from one address, in all; and what is remembered."""

from __future__ import annotations

from semel.controller.login.attempt_rates import IN_ALL, PER_ADDRESS, AttemptRates


def test_one_address_gets_so_many_a_second_and_others_theirs() -> None:
    rates = AttemptRates()
    first = [rates.attempt("a", 50.0) for _ in range(int(PER_ADDRESS) + 2)]
    assert first[: int(PER_ADDRESS)] == [0] * int(PER_ADDRESS)
    wait_ms = first[-1]
    assert 0 < wait_ms <= 20
    assert rates.attempt("b", 50.0) == 0
    assert rates.attempt("a", 50.001 + wait_ms / 1000) == 0


def test_there_are_so_many_in_all() -> None:
    rates = AttemptRates()
    let_in = sum(rates.attempt(f"a{number}", 50.0) == 0 for number in range(1_000))
    assert let_in <= IN_ALL + 1
    passed = sum(rates.attempt(f"a{number}", 50.0 + number / 1_000) == 0 for number in range(1_000))
    assert IN_ALL * 0.9 < passed <= IN_ALL + 1


def test_who_is_refused_uses_up_nothing() -> None:
    rates = AttemptRates()
    for _ in range(10_000):
        rates.attempt("a", 50.0)
    assert rates.attempt("a", 50.1) == 0
    assert rates.attempt("b", 50.1) == 0


def test_so_many_addresses_are_remembered() -> None:
    rates = AttemptRates(addresses_max=2)
    for address in ("a", "b", "c"):
        rates.attempt(address, 50.0)
    assert list(rates._of) == ["b", "c"]
    rates.attempt("b", 51.0)
    rates.attempt("d", 51.0)
    assert list(rates._of) == ["b", "d"]
