"""Filters taken from Spark: exactly those that are understood, applied exactly."""

from __future__ import annotations

import datetime
import operator
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
)

from semel.spark_connector.filters import take_filters
from semel.spark_connector.offsets import QueueRange

COMPARISONS = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}
QUEUES = range(3)
OFFSETS = range(40)


def moment(us: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(microseconds=us)


def fits(each: Any, row: dict[str, int]) -> bool:
    value = row[each.attribute[0]]
    numbers = [
        int(number.timestamp() * 1e6) if isinstance(number, datetime.datetime) else number
        for number in (each.value if isinstance(each, In) else (each.value,))
    ]
    if isinstance(each, In):
        return value in numbers
    compare: Callable[[int, int], bool] = COMPARISONS[type(each)]
    return compare(value, numbers[0])


@st.composite
def comparisons(draw: st.DrawFn) -> Filter:
    name = draw(st.sampled_from(["offset", "queue", "timestamp"]))
    number = st.integers(-2, 45)
    value = number.map(moment) if name == "timestamp" else number
    if draw(st.booleans()):
        return In((name,), tuple(draw(st.lists(value, max_size=4))))
    return draw(st.sampled_from(list(COMPARISONS)))((name,), draw(value))


@given(st.lists(comparisons(), max_size=4))
def test_what_is_taken_is_applied_exactly(filters: list[Filter]) -> None:
    taken, others = take_filters(filters)
    assert others == []
    whole = [
        QueueRange(topic="t", topic_id=1, queue=queue, start=0, end=len(OFFSETS))
        for queue in QUEUES
    ]
    found = []
    for part in taken.ranges(whole):
        rows = range(part.start, part.end)
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array(rows, pa.int64()),
                pa.array([(at * 7) % 40 for at in rows], pa.timestamp("us", "UTC")),
            ],
            names=["offset", "timestamp"],
        )
        kept = taken.rows(batch)
        found += [(part.queue, at) for at in kept.column("offset").to_pylist()]
    assert found == [
        (queue, at)
        for queue in QUEUES
        for at in OFFSETS
        if all(
            fits(each, {"queue": queue, "offset": at, "timestamp": (at * 7) % 40})
            for each in filters
        )
    ]


@pytest.mark.parametrize(
    "other",
    [
        EqualTo(("value",), b"x"),
        EqualTo(("offset", "deep"), 5),
        EqualTo(("offset",), None),
        EqualTo(("offset",), 5.5),
        EqualTo(("offset",), True),
        In(("queue",), (1, None)),
        GreaterThan(("timestamp",), datetime.datetime(2024, 1, 1)),
        Not(EqualTo(("offset",), 5)),
        IsNull(("offset",)),
        StringContains(("topic",), "x"),
    ],
)
def test_what_is_not_understood_is_given_back(other: Filter) -> None:
    known = IsNotNull(("offset",))
    taken, others = take_filters([other, known])
    assert others == [other]
    assert taken == take_filters([])[0]
