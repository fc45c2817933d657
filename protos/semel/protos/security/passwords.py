"""Passwords: hashes as they are stored, and their checks.

How it works. A password is stored as an argon2id hash, which says its own parameters. To check one
costs tens of milliseconds and as many megabytes by intention, and is done in a thread.

Invariants
1. No error, log or repr has a password or a hash.
2. A user that does not exist costs as much time as a wrong password.

Not here: where hashes are stored (the controller's `users.py`), how guesses are slowed down (its
`login/slowdown.py`).
"""

from __future__ import annotations

import secrets
from typing import Final

import argon2

from semel.protos.errors import InvalidRequest

PASSWORD_CHARACTERS_MIN: Final = 8
PASSWORD_BYTES_MAX: Final = 1_024

_HASHER: Final = argon2.PasswordHasher()


def check_new(password: str) -> None:
    """Raises InvalidRequest for a password that is too short or too long."""
    if (
        len(password) < PASSWORD_CHARACTERS_MIN
        or len(password.encode("utf-8", "replace")) > PASSWORD_BYTES_MAX
    ):
        raise InvalidRequest(
            f"a password has {PASSWORD_CHARACTERS_MIN} or more characters, and at most"
            f" {PASSWORD_BYTES_MAX} bytes"
        )


def new_hash(password: str) -> str:
    """BLOCKING. The hash to store. Raises InvalidRequest as `check_new` does."""
    check_new(password)
    return _HASHER.hash(password)


class PasswordChecks:
    """Checks of passwords. `right` may run in any thread."""

    def __init__(self) -> None:
        """BLOCKING."""
        self._nobodys = _HASHER.hash(secrets.token_hex())

    def right(self, password: str, stored: str | None) -> bool:
        """BLOCKING. Whether `password` is the one of `stored`; None for a user that does not
        exist."""
        if len(password.encode("utf-8", "replace")) > PASSWORD_BYTES_MAX:
            return False
        try:
            _HASHER.verify(self._nobodys if stored is None else stored, password)
        except (argon2.exceptions.VerificationError, ValueError):
            return False  # a ValueError is what is no hash, or text that is no UTF-8
        return stored is not None
