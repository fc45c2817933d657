"""Waits between the attempts of a call.

Waits grow exponentially from `initial_ms` to `max_ms`. Each is shortened by a random part, so that
many clients that lost the same master do not return in the same instant. The first attempt after a
success waits the least: a master that was elected at once is found at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffPolicy:
    """Bounds of the waits."""

    initial_ms: float = 20
    max_ms: float = 250
    factor: float = 2
    jitter: float = 0.5
    """Share of each wait that is random, 0 to 1."""


LOST_S: Final = 2.0
LOOK_POLICY: Final = BackoffPolicy(initial_ms=8_000, max_ms=30_000)


class Backoff:
    """The waits in one series of attempts."""

    __slots__ = ("_next_ms", "_policy", "_random")

    def __init__(self, policy: BackoffPolicy, random: Callable[[], float]) -> None:
        """`random` returns numbers in `[0, 1)`."""
        self._policy = policy
        self._random = random
        self._next_ms = policy.initial_ms

    def next_ms(self) -> float:
        """Returns the next wait, in milliseconds."""
        wait = self._next_ms
        self._next_ms = min(wait * self._policy.factor, self._policy.max_ms)
        return wait * (1 - self._policy.jitter * self._random())

    def reset(self) -> None:
        """An attempt succeeded: the next wait is the shortest."""
        self._next_ms = self._policy.initial_ms


class Looks:
    """When to look whether something that is lost is elsewhere by now: each time that `LOST_S` have
    passed. One of many looks later, at a random time, and then ever more seldom."""

    __slots__ = ("_due_s", "_pauses", "_random")

    def __init__(self, random: Callable[[], float]) -> None:
        """`random` returns numbers in `[0, 1)`."""
        self._pauses = Backoff(LOOK_POLICY, random)
        self._random = random
        self._due_s = 0.0
        """0 while nothing is lost."""

    def is_due(self, lost_s: float, many: bool) -> bool:
        """Whether to look now, when it has been lost for `lost_s` seconds, 0 for not at all."""
        if not lost_s:
            self._due_s = 0.0
            self._pauses.reset()
            return False
        if not self._due_s:
            self._due_s = LOST_S * (5 + 5 * self._random()) if many else LOST_S
        if lost_s <= self._due_s:
            return False
        self._due_s = lost_s + (self._pauses.next_ms() / 1000 if many else LOST_S)
        return True
