"""Waits between the attempts of a call.

Waits grow exponentially from `initial_ms` to `max_ms`. Each is shortened by a random part, so that
many clients that lost the same master do not return in the same instant. The first attempt after a
success waits the least: a master that was elected at once is found at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffPolicy:
    """Bounds of the waits."""

    initial_ms: float = 20
    max_ms: float = 250
    factor: float = 2
    jitter: float = 0.5
    """Share of each wait that is random, 0 to 1."""


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
