"""Passwords: hashes as they are stored, and checks that cost little when they repeat.

How it works. A password is stored as an argon2id hash, which says its own parameters. To check one
costs tens of milliseconds and as many megabytes by intention, and is done in a thread. A pair of
user and password that was right is remembered under a key that only this process has, together with
the hash it was right for: with another hash it is checked anew.

Invariants
1. No error, log or repr has a password or a hash.
2. A user that does not exist costs as much time as a wrong password.

Not here: where hashes are stored, how a password travels (`authentication.py`).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from typing import Final

import argon2

from semel.protos.errors import InvalidRequest

PASSWORD_CHARACTERS_MIN: Final = 8
PASSWORD_BYTES_MAX: Final = 1_024
REMEMBERED_MAX: Final = 10_000

_HASHER: Final = argon2.PasswordHasher()


def new_hash(password: str) -> str:
    """The hash to store. Raises InvalidRequest for a password that is too short or too long."""
    if (
        len(password) < PASSWORD_CHARACTERS_MIN
        or len(password.encode("utf-8", "replace")) > PASSWORD_BYTES_MAX
    ):
        raise InvalidRequest(
            f"a password has {PASSWORD_CHARACTERS_MIN} or more characters, and at most"
            f" {PASSWORD_BYTES_MAX} bytes"
        )
    return _HASHER.hash(password)


class PasswordChecks:
    """Checks of passwords in one process. `right` may run in any thread."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, str] = OrderedDict()
        self._nobodys = _HASHER.hash(secrets.token_hex())

    def known(self, user: str, password: str, stored: str | None) -> bool:
        """Whether this was found right before, for the same hash; costs next to nothing."""
        return stored is not None and self._known.get(self._digest(user, password)) == stored

    def right(self, user: str, password: str, stored: str | None) -> bool:
        """Whether `password` is the one of `stored`; None for a user that does not exist."""
        try:
            _HASHER.verify(self._nobodys if stored is None else stored, password)
        except (argon2.exceptions.VerificationError, ValueError):
            return False  # a ValueError is what is no hash, or text that is no UTF-8
        if stored is None:
            return False
        self._known[self._digest(user, password)] = stored
        while len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)
        return True

    def _digest(self, user: str, password: str) -> bytes:
        text = f"{len(user)}:{user}{password}".encode("utf-8", "replace")
        return hmac.digest(self._key, text, hashlib.sha256)
