"""Limits how much of the available data one trigger takes. Pure.

How it works. `share` divides a number of rows over the queues in proportion to what each has: a
queue with nine tenths of the backlog gets nine tenths. Where there are more queues than rows, the
queues take turns. `rows_within` turns a limit of bytes into one of rows, by the average size of
each queue's messages. `Pacer` lets a trigger wait until enough rows have arrived, within a bound.

Invariants
1. `share` gives out exactly min(limit, all available rows), and no queue more than it has.
2. No queue with available rows waits for ever while others are served.

Not here: which queues may be read at all (`progress.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

_Key = TypeVar("_Key")


def share(available: Mapping[_Key, int], limit: int | None, turn: int = 0) -> dict[_Key, int]:
    """Rows to take of each queue.

    `turn` is any number that grows by the rows taken; it decides which queues are served when there
    are more queues than rows.
    """
    total = sum(available.values())
    if limit is None or limit >= total:
        return dict(available)
    waiting = [key for key, rows in available.items() if rows]
    if limit <= len(waiting):
        first = turn % len(waiting)
        served = {*(waiting[first:] + waiting[:first])[:limit]}
        return {key: int(key in served) for key in available}
    # One row each, the rest in proportion, and the rounding remainder to the largest fractions.
    spare, rest = limit - len(waiting), total - len(waiting)
    exact = {key: divmod((available[key] - 1) * spare, rest) for key in waiting}
    taken = {key: 1 + whole for key, (whole, _) in exact.items()}
    left = limit - sum(taken.values())
    for key in sorted(waiting, key=lambda key: -exact[key][1])[:left]:
        taken[key] += 1
    return {key: taken.get(key, 0) for key in available}


def rows_within(
    available: Mapping[_Key, int], row_bytes: Mapping[_Key, float], bytes_max: int
) -> int:
    """The number of rows, shared in proportion, that have about `bytes_max`; at least one."""
    volume = sum(rows * row_bytes[key] for key, rows in available.items())
    rows = sum(available.values())
    if volume <= bytes_max:
        return rows
    return max(1, int(rows * (bytes_max / volume)))


class Pacer:
    """Makes triggers wait for `rows_min`, but no longer than `delay_ms_max` after the last one."""

    def __init__(self, rows_min: int | None, delay_ms_max: int) -> None:
        self._rows_min = rows_min
        self._delay_ms_max = delay_ms_max
        self._last_ms: float | None = None

    def ready(self, rows: int, now_ms: float) -> bool:
        """Whether to run a trigger now; the first one after a start always runs."""
        if self._rows_min is None or rows >= self._rows_min or self._last_ms is None:
            return True
        return now_ms - self._last_ms >= self._delay_ms_max

    def on_trigger(self, now_ms: float) -> None:
        """Notes that a trigger was begun."""
        self._last_ms = now_ms
