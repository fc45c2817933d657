"""Guesses of passwords are slowed down: each wrong one makes the wait longer.

How it works. Every attempt counts before its password is looked at, so that many at once are no way
around it; a right password takes the count back. Three things are counted: the attempts for a user
from an address, those from an address, and those for a user. Each has some attempts that are free;
then each attempt doubles the wait before the next one, up to a limit. The limit for a user alone is
low: whoever knows a name must not be able to keep its owner out. After a quiet time the count is
forgotten.

Invariants
1. `attempt` either counts or returns how long to wait, never both.
2. At most `keys_max` counts are kept; the one that was used least recently goes first.

Not here: the checks of passwords (`login_service.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from semel.protos.security.guesses import Patience, origin_of

QUIET_MS: Final = 15 * 60_000
"""After so long without an attempt a count is forgotten."""
KEYS_MAX: Final = 100_000

PAIR: Final = Patience(free=3, first_ms=1_000, most_ms=60_000)
"""For one user from one address."""
ADDRESS: Final = Patience(free=20, first_ms=1_000, most_ms=60_000)
"""For all users from one address, which may be that of many people."""
USER: Final = Patience(free=10, first_ms=500, most_ms=2_000)
"""For one user from all addresses."""


@dataclass(slots=True)
class _Count:
    attempts: int
    at_ms: int
    """When the last one was."""


class Slowdown:
    """Counts of wrong attempts."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._counts: OrderedDict[tuple[Patience, str], _Count] = OrderedDict()
        """Used least recently first."""

    def attempt(self, user: str, address: str, now_ms: int) -> int:
        """Counts an attempt and returns 0; or returns the milliseconds to wait before it may be
        made."""
        keys = _keys(user, address)
        wait_ms = max(self._wait_ms(key, now_ms) for key in keys)
        if wait_ms > 0:
            return wait_ms
        for key in keys:
            count = self._counts.setdefault(key, _Count(0, now_ms))
            count.attempts += 1
            count.at_ms = now_ms
            self._counts.move_to_end(key)
        while len(self._counts) > self._keys_max:
            self._counts.popitem(last=False)
        return 0

    def on_right(self, user: str, address: str) -> None:
        """The password of the attempt was right: whoever made it is no guesser."""
        pair, of_address, of_user = _keys(user, address)
        self._counts.pop(pair, None)
        # Others may guess at the same time, from there or for this user.
        for key in (of_address, of_user):
            if (count := self._counts.get(key)) is not None:
                count.attempts -= 1

    def _wait_ms(self, key: tuple[Patience, str], now_ms: int) -> int:
        count = self._counts.get(key)
        if count is None:
            return 0
        if now_ms - count.at_ms >= QUIET_MS:
            del self._counts[key]
            return 0
        return count.at_ms + key[0].wait_ms(count.attempts) - now_ms


def _keys(user: str, address: str) -> tuple[tuple[Patience, str], ...]:
    place = origin_of(address)
    return (PAIR, f"{len(user)}:{user}{place}"), (ADDRESS, place), (USER, user)
