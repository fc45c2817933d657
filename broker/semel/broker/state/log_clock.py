"""Log time: the clock of the log, which the master writes into every entry.

How it works. A new master starts from the later of two times: that of the log's last entry, and the
time that a majority of the broker group's clocks has passed. Each vote carries its voter's clock
(`VoterClocks`), so one node whose clock is an hour ahead does not move log time. From there log
time follows the wall clock, but its speed stays within one percent of the monotonic clock. If the
wall clock is set an hour forward or back, log time follows slowly, instead of expiring everything
or standing still.

Invariants
1. `now` never falls, and is never below the log time that it started from.
2. Between two calls it rises by 0.99 to 1.01 times the monotonic clock.

Not here: reading clocks. Both clocks come in as arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

SLEW: Final = 0.01
_FAST: Final = 1 + SLEW
_SLOW: Final = 1 - SLEW


class LogClock:
    """Log time while this node is master."""

    __slots__ = ("_monotonic_us", "_time_us")

    def __init__(self, log_time_us: int, *, wall_us: int, monotonic_us: int) -> None:
        """`log_time_us` is that of the last entry, applied or not; `wall_us` the group's time."""
        self._time_us = max(log_time_us, wall_us)
        self._monotonic_us = monotonic_us

    def now(self, *, wall_us: int, monotonic_us: int) -> int:
        """Log time in microseconds since the epoch, for the next entry."""
        elapsed = max(0, monotonic_us - self._monotonic_us)
        slowest = self._time_us + int(elapsed * _SLOW)
        fastest = self._time_us + int(elapsed * _FAST)
        self._time_us = min(max(wall_us, slowest), fastest)
        self._monotonic_us = max(monotonic_us, self._monotonic_us)
        return self._time_us


class VoterClocks:
    """The wall clocks of the other members, from their votes."""

    __slots__ = ("_heard",)

    def __init__(self) -> None:
        self._heard: dict[int, tuple[int, int, int]] = {}
        """By node: term of the vote, the voter's clock, the own monotonic clock at that time."""

    def on_vote(self, node: int, *, term: int, clock_us: int, monotonic_us: int) -> None:
        """A vote has arrived; `clock_us` is 0 if it carries no clock."""
        if clock_us:
            self._heard[node] = (term, clock_us, monotonic_us)

    def now(self, voters: Collection[int], *, term: int, wall_us: int, monotonic_us: int) -> int:
        """The time that a majority of `voters` has passed, for the master elected in `term`.

        `wall_us` is its own clock, which alone counts if too few votes carried a clock.
        """
        clocks = [wall_us]
        for node in voters:
            vote_term, clock_us, heard_us = self._heard.get(node, (0, 0, 0))
            if vote_term == term:
                clocks.append(clock_us + max(0, monotonic_us - heard_us))
        if len(clocks) <= len(voters) // 2:
            return wall_us
        return majority_time_us(clocks, len(voters))


def majority_time_us(clocks_us: Sequence[int], members: int) -> int:
    """The latest time that a majority of `members` clocks has passed.

    `clocks_us` are the known clocks, at least a majority of them (asserted).
    """
    majority = members // 2 + 1
    assert len(clocks_us) >= majority
    return sorted(clocks_us, reverse=True)[majority - 1]
