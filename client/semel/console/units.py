"""Durations, sizes, rates and places as people write them on a command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:  # generic only in newer versions of click
    _Whole = click.ParamType[int]
    _Place = click.ParamType[str | int | datetime]
    _TopicQueue = click.ParamType[tuple[str, int | None]]
else:
    _Whole = _Place = _TopicQueue = click.ParamType

_BYTES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_MS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}


class Size(_Whole):
    """Bytes: `500000`, `800k`, `5M`, `1.5GiB`."""

    name = "size"

    def __init__(self, *, unlimited: bool = False, none: bool = False) -> None:
        self._unlimited = unlimited
        self._none = none

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes as a whole number; where they are allowed, -1 for `unlimited` and 0 for `none`."""
        if isinstance(value, int):
            return value
        if self._none and value == "none":
            return 0
        if self._unlimited and value == "unlimited":
            return -1
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt]?)(?:i?b)?", str(value).lower())
        amount = int(float(match[1]) * _BYTES[match[2]]) if match else 0
        if amount < 1:
            self.fail(f"{value!r} is no size such as 800k or 5M", param, ctx)
        return amount


class Count(_Whole):
    """A whole number from 1: `50000`, `50_000`."""

    name = "count"

    def __init__(self, *, none: bool = False) -> None:
        self._none = none

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number; where it is allowed, -1 for `none`."""
        if isinstance(value, int):
            return value
        if self._none and value == "none":
            return -1
        if not re.fullmatch(r"\d+(_\d+)*", str(value)) or int(value) < 1:
            self.fail(f"{value!r} is no whole number from 1", param, ctx)
        return int(value)


class Duration(_Whole):
    """Milliseconds: `90s`, `15m`, `12h`, `7d`; a bare number needs a unit."""

    name = "duration"

    def __init__(self, *, unlimited: bool = False, none: bool = False) -> None:
        self._unlimited = unlimited
        self._none = none

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Milliseconds as a whole number; -1 for `unlimited` and for `none` where that is
        allowed."""
        if isinstance(value, int):
            return value
        if (self._unlimited and value == "unlimited") or (self._none and value == "none"):
            return -1
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", str(value).lower())
        amount = int(float(match[1]) * _MS[match[2]]) if match else 0
        if amount < 1:
            self.fail(f"{value!r} is no duration such as 90s, 12h or 7d", param, ctx)
        return amount


class Place(_Place):
    """A place in a queue: earliest, latest, an offset, or a time in ISO 8601."""

    name = "place"

    def __init__(self, *, time_only: bool = False) -> None:
        self._time_only = time_only

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | int | datetime:
        """The form that the SDK takes: a word, a whole number, or a datetime with a time zone."""
        if isinstance(value, int | datetime):
            return value
        if not self._time_only and value in ("earliest", "latest"):
            return str(value)
        if not self._time_only and str(value).isdecimal():
            return int(value)
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            wrong = "no" if self._time_only else "neither earliest, latest, an offset, nor a"
            self.fail(
                f"{value!r} is {wrong} time such as 2026-01-31T12:00:00Z",
                param,
                ctx,
            )
        return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


class TopicQueue(_TopicQueue):
    """A topic, or one of its queues: `orders`, `orders:3`."""

    name = "topic[:queue]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int | None]:
        """The topic and the queue's number; None for all queues."""
        topic, colon, queue = str(value).partition(":")
        if not topic or (colon and not queue.isdecimal()):
            self.fail(f"{value!r} is neither TOPIC nor TOPIC:QUEUE", param, ctx)
        return topic, int(queue) if colon else None


def duration(milliseconds: int) -> str:
    """A duration for people: 604800000 -> 7d; -1 -> unlimited."""
    if milliseconds < 0:
        return "unlimited"
    for unit in ("d", "h", "m", "s"):
        if milliseconds % _MS[unit] == 0:
            return f"{milliseconds // _MS[unit]}{unit}"
    return f"{milliseconds}ms"
