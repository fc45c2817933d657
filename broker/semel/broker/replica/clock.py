"""The clocks of the machine, as the whole broker reads them."""

from __future__ import annotations

import time


def monotonic_ms() -> int:
    """The clock of elections, locks and waits."""
    return time.monotonic_ns() // 1_000_000


def monotonic_us() -> int:
    """The same clock in microseconds; log time is held to its speed."""
    return time.monotonic_ns() // 1000


def wall_us() -> int:
    """The machine's wall clock, which may jump; only log time looks at it."""
    return time.time_ns() // 1000
