"""Passwords: right, wrong, and never shown."""

from __future__ import annotations

import argon2
import pytest

from semel.protos.errors import InvalidRequest
from semel.protos.security import passwords
from semel.protos.security.passwords import PasswordChecks, new_hash

QUICK = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "_HASHER", QUICK)


def test_the_password_of_a_hash_is_right_and_no_other_is() -> None:
    checks, stored = PasswordChecks(), new_hash("correct horse")
    assert checks.right("correct horse", stored)
    for wrong in ("", "correct hors", "Correct horse", "correct horse ", "\ud800"):
        assert not checks.right(wrong, stored)


def test_two_hashes_of_one_password_differ_and_do_not_hold_it() -> None:
    one, two = new_hash("correct horse"), new_hash("correct horse")
    assert one != two
    assert one.startswith("$argon2id$")
    assert "horse" not in one


def test_nobody_has_no_password() -> None:
    assert not PasswordChecks().right("correct horse", None)


def test_what_is_no_hash_is_nobodys() -> None:
    assert not PasswordChecks().right("correct horse", "correct horse")


def test_a_user_that_does_not_exist_costs_a_check_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    checks, seen = PasswordChecks(), []

    class Noting:
        def verify(self, stored: str, password: str) -> None:
            seen.append(stored)
            raise argon2.exceptions.VerifyMismatchError

    monkeypatch.setattr(passwords, "_HASHER", Noting())
    assert not checks.right("correct horse", None)
    assert len(seen) == 1


@pytest.mark.parametrize("password", ["", "short", "x" * 1_025, "é" * 513])
def test_a_password_that_is_too_short_or_too_long_is_refused(password: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        new_hash(password)
    assert not password or password not in str(refused.value)
