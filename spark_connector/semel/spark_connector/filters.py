"""Filters that are applied before rows reach Spark: on offset, queue and timestamp. Pure.

How it works. Spark offers the comparisons of a query's WHERE. Those on `offset` and `queue` shrink
the ranges to read. Those on `timestamp` are applied to each batch in the task: the times are the
producers' own, in any order, so they do not translate into ranges of offsets, but rows that do not
match never travel to the JVM. Spark applies all other comparisons.

Invariants
1. A filter that is accepted is applied exactly; any other is returned, and Spark applies it.

Not here: that Spark offers none unless `spark.sql.python.filterPushdown.enabled` (`source.py`).
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from semel.spark_connector.offsets import QueueRange

COLUMNS: Final = ("offset", "queue", "timestamp")
_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The values that a column may have: in [least, most], and in `only` unless that is None."""

    least: int = _LEAST
    most: int = _MOST
    only: frozenset[int] | None = None

    def within(self, other: Bounds) -> Bounds:
        """The bounds that satisfy both."""
        only = self.only if other.only is None else other.only
        if self.only is not None and other.only is not None:
            only = self.only & other.only
        return Bounds(
            least=max(self.least, other.least), most=min(self.most, other.most), only=only
        )

    @property
    def span(self) -> tuple[int | None, int | None]:
        """The least and the most that it allows; None for a side without a bound."""
        least, most = self.least, self.most
        if self.only is not None:
            least, most = (
                max(least, min(self.only, default=most)),
                min(most, max(self.only, default=least)),
            )
        return None if least == _LEAST else least, None if most == _MOST else most

    def holds(self, value: int) -> bool:
        return self.least <= value <= self.most and (self.only is None or value in self.only)


EVERYTHING: Final = Bounds()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """The condition that rows must satisfy."""

    offset: Bounds = EVERYTHING
    queue: Bounds = EVERYTHING
    timestamp: Bounds = EVERYTHING
    """Microseconds since the epoch."""

    def ranges(self, whole: Iterable[QueueRange]) -> list[QueueRange]:
        """The parts of `whole` that must be read."""
        found = []
        for each in whole:
            low, high = self.offset.least, self.offset.most
            if self.offset.only is not None:
                low = max(low, min(self.offset.only, default=high))
                high = min(high, max(self.offset.only, default=low - 1))
            start, end = max(each.start, low), min(each.end, high + 1)
            if self.queue.holds(each.queue) and start < end:
                found.append(dataclasses.replace(each, start=start, end=end))
        return found

    @property
    def row_columns(self) -> set[str]:
        """Columns that `rows` looks at."""
        looked_at = {"offset"} if self.offset.only is not None else set()
        return looked_at | ({"timestamp"} if self.timestamp != EVERYTHING else set())

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The matching rows of a batch that came from one of the SDK's readers."""
        kept = None
        for name, bounds in (("offset", self.offset), ("timestamp", self.timestamp)):
            by_range = bounds.least != _LEAST or bounds.most != _MOST
            if bounds.only is None and (name == "offset" or not by_range):
                continue  # ranges of offsets are cut already
            column = batch.column(name).cast(pa.int64())
            fits = pc.and_(
                pc.greater_equal(column, bounds.least), pc.less_equal(column, bounds.most)
            )
            if bounds.only is not None:
                only = pa.array(sorted(bounds.only), pa.int64())
                fits = pc.and_(fits, pc.is_in(column, value_set=only))
            kept = fits if kept is None else pc.and_(kept, fits)
        return batch if kept is None else batch.filter(kept)


def take_filters(filters: Iterable[Filter]) -> tuple[RowFilter, list[Filter]]:
    """The filters that can be applied here, combined into one, and the others."""
    found = dict.fromkeys(COLUMNS, EVERYTHING)
    others = []
    for each in filters:
        name = _column(each)
        bounds = _bounds(each) if name in COLUMNS else None
        if bounds is None:
            others.append(each)
        else:
            found[name] = found[name].within(bounds)
    return RowFilter(**found), others


def _column(each: Filter) -> str:
    attribute: tuple[str, ...] = getattr(each, "attribute", ())
    return attribute[0] if len(attribute) == 1 else ""


def _bounds(each: Filter) -> Bounds | None:
    """The bounds that a comparison sets; None for one that is not supported."""
    if isinstance(each, IsNotNull):
        return EVERYTHING  # none of the three is ever null
    if isinstance(each, In):
        numbers = [_number(value) for value in each.value]
        known = frozenset(number for number in numbers if number is not None)
        return Bounds(only=known) if len(numbers) == len([*filter(_is_number, numbers)]) else None
    number = _number(getattr(each, "value", None))
    if number is None:
        return None
    match each:
        case EqualTo() | EqualNullSafe():
            return Bounds(only=frozenset([number]))
        case GreaterThan():
            return Bounds(least=number + 1)
        case GreaterThanOrEqual():
            return Bounds(least=number)
        case LessThan():
            return Bounds(most=number - 1)
        case LessThanOrEqual():
            return Bounds(most=number)
    return None


def _is_number(value: int | None) -> bool:
    return value is not None


def _number(value: Any) -> int | None:
    """A whole number, or a moment in microseconds since the epoch."""
    if isinstance(value, bool):
        return None
    if isinstance(value, datetime.datetime):
        return (value - _EPOCH) // _MICROSECOND if value.tzinfo is not None else None
    return value if isinstance(value, int) else None
