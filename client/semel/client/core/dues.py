"""Due times of messages: turns a caller's time into microseconds, or refuses it.

How it works. A due time is rounded up to a whole second, so that messages which are due together
share a batch, and none is early. A time that has passed by the caller's clock means at once, as if
no time had been given. A bulk call with many due times is sorted into runs with one due time each;
each run becomes a chunk.

Invariants
1. A due time is never before the time that was asked for, and less than `DUE_STEP_US` after it.
2. Runs hold every row exactly once, and rows of one due time keep their order. Where rows must keep
   their places, a run ends at each change of the due time instead.

Not here: the wait itself (the brokers), chunks (`producer/intake.py`).
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import numpy as np

from semel.client.core.batching import Rows
from semel.protos.arrow import INSTALLED
from semel.protos.errors import InvalidRequest

if INSTALLED:
    from semel.client.core.arrow_times import column_us
else:
    from semel.protos.plain_arrays import listed

When: TypeAlias = datetime | int
"""A time with a zone, or microseconds since 1970."""
After: TypeAlias = timedelta | float
"""A length of time, or seconds."""

DUE_STEP_US: Final = 1_000_000
"""Due times are rounded up to a multiple of this."""
AHEAD_DAYS_MAX: Final = 3_650
"""Ten years: a time further ahead is usually a mistake of units. Brokers allow a day more."""
AHEAD_US_MAX: Final = AHEAD_DAYS_MAX * 86_400_000_000
AT_ONCE: Final = 0

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_COARSER: Final = {"milliseconds": 1_000, "seconds": 1_000_000}
"""Units that are often taken for microseconds; as such they would always have passed."""


class Run(NamedTuple):
    """Rows `[start, end)` that are due together."""

    due_us: int
    start: int
    end: int


def due_of(deliver_at: When | None, deliver_after: After | None, now_us: int) -> int:
    """Returns when one message is due, 0 for at once. Raises InvalidRequest."""
    if deliver_after is None:
        return AT_ONCE if deliver_at is None else due_at(deliver_at, now_us)
    if deliver_at is not None:
        raise InvalidRequest(
            "deliver_at and deliver_after contradict each other: give one of them, a time or how"
            " long from now"
        )
    return _rounded(now_us + _after_us(deliver_after), now_us)


def due_at(deliver_at: object, now_us: int) -> int:
    """Returns the due time for a time that a caller gave, 0 for at once. Raises InvalidRequest."""
    at_us = _at_us(deliver_at, now_us)
    ahead = at_us > now_us + AHEAD_US_MAX
    if at_us < 0 or ahead or (AT_ONCE < at_us <= now_us and _likely_unit(at_us, now_us)):
        _refuse(at_us, now_us, "deliver_at")
    return _rounded(at_us, now_us)


def due_column(deliver_at: Any, count: int, now_us: int) -> Rows:
    """Returns when each of `count` messages is due, 0 for at once. `deliver_at` is an Arrow array
    (of timestamps with a zone or of whole microseconds) or a list; a null is at once. Raises
    InvalidRequest."""
    if not INSTALLED:
        deliver_at = _without_arrow(deliver_at)
    if isinstance(deliver_at, list | tuple):
        try:
            times = np.array(
                [AT_ONCE if each is None else _at_us(each, now_us) for each in deliver_at], np.int64
            )
        except OverflowError as error:
            raise InvalidRequest(f"deliver_at holds a number that is no time: {error}") from error
    else:
        times = column_us(deliver_at, now_us)
    if len(times) != count:
        raise InvalidRequest(f"{len(times)} deliver_at for {count} values")
    wrong = (times < 0) | (times > now_us + AHEAD_US_MAX)
    for per_unit in _COARSER.values():
        least, most = ((now_us + ahead) // per_unit for ahead in (-AHEAD_US_MAX, AHEAD_US_MAX))
        wrong |= (times > max(least, AT_ONCE)) & (times <= most)
    if wrong.any():
        row = int(np.argmax(wrong))
        _refuse(int(times[row]), now_us, f"deliver_at of row {row}")
    late = times <= now_us
    times = -(-times // DUE_STEP_US) * DUE_STEP_US
    times[late] = AT_ONCE
    return times


def _without_arrow(deliver_at: Any) -> list[Any]:
    """Returns a column of times as a list. Raises InvalidRequest for one of Arrow."""
    try:
        return listed("deliver_at", deliver_at)
    except TypeError as error:
        raise InvalidRequest(f"deliver_at cannot be read as times: {error}") from error


def bulk_runs(
    deliver_at: Any, count: int, now_us: int, *, in_place: bool
) -> tuple[Rows | None, list[Run]]:
    """Returns `runs_of` for the argument of a bulk call: one time for all rows, or a column.
    Raises InvalidRequest."""
    if isinstance(deliver_at, datetime | int | np.integer | str | float):
        return None, [Run(due_at(deliver_at, now_us), 0, count)]
    return runs_of(due_column(deliver_at, count, now_us), in_place=in_place)


def runs_of(dues: Rows, *, in_place: bool) -> tuple[Rows | None, list[Run]]:
    """Returns the order that puts rows of one due time together, and the runs in that order.

    The order is None if rows keep their places. With `in_place` they always do, and one due time
    may have several runs.
    """
    if not len(dues):
        return None, []
    order = None
    steps = np.diff(dues)
    if not in_place and bool((steps < 0).any()):
        order = np.argsort(dues, kind="stable")
        dues = dues[order]
        steps = np.diff(dues)
    starts = [0, *(np.flatnonzero(steps) + 1).tolist()]
    ends = [*starts[1:], len(dues)]
    return order, [
        Run(int(dues[start]), start, end) for start, end in zip(starts, ends, strict=True)
    ]


def _rounded(at_us: int, now_us: int) -> int:
    return AT_ONCE if at_us <= now_us else -(-at_us // DUE_STEP_US) * DUE_STEP_US


def _at_us(value: Any, now_us: int) -> int:
    """Returns a time as microseconds since 1970, not yet checked; 0 for a datetime that passed."""
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise InvalidRequest(
                f"deliver_at {value.isoformat()} has no time zone, so nobody knows when that is:"
                " give it one, such as datetime.now(UTC) + timedelta(hours=1)"
            )
        at_us: int = (value - _EPOCH) // _MICROSECOND
        return at_us if at_us > now_us else AT_ONCE
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    raise InvalidRequest(
        "deliver_at must be a datetime with a time zone or whole microseconds since 1970,"
        f" not {value!r}"
    )


def _after_us(value: Any) -> int:
    """Returns a length of time as microseconds, rounded up."""
    if isinstance(value, timedelta):
        after_us = value // _MICROSECOND
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        after_us = math.ceil(value * 1_000_000)
    else:
        raise InvalidRequest(f"deliver_after must be a timedelta or seconds, not {value!r}")
    if after_us < 0:
        raise InvalidRequest(
            f"deliver_after {value} is negative; leave it out for a message that is due at once"
        )
    if after_us > AHEAD_US_MAX:
        raise InvalidRequest(
            f"deliver_after {value} is more than ten years; a number is in seconds"
        )
    return after_us


def _refuse(at_us: int, now_us: int, name: str) -> NoReturn:
    """Raises InvalidRequest for a number that cannot be microseconds, or is too far ahead."""
    if at_us < 0:
        raise InvalidRequest(
            f"{name} is {at_us}: a time is in microseconds since 1970 and not negative; leave it"
            " out for a message that is due at once"
        )
    ahead = at_us > now_us + AHEAD_US_MAX
    why = "is more than ten years ahead" if ahead else "is no time in microseconds since 1970"
    unit = _likely_unit(at_us, now_us)
    guess = f"; it looks like {unit}" if unit else ""
    raise InvalidRequest(
        f"{name} {at_us} {why}{guess}: give microseconds, or a datetime with a time zone"
    )


def _likely_unit(value: int, now_us: int) -> str:
    """Names the other unit in which a number is a time within ten years of now, if there is one."""
    if abs(value // 1_000 - now_us) <= AHEAD_US_MAX:
        return "nanoseconds"
    for unit, per_unit in _COARSER.items():
        if abs(value * per_unit - now_us) <= AHEAD_US_MAX:
            return unit
    return ""
