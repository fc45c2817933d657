"""Planning a batch: places resolved against what the cluster has."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from semel.protos.errors import InvalidRequest, OffsetOutOfRange
from semel.spark_connector.client_options import ClientOptions
from semel.spark_connector.offsets import QueueState, plan_ranges, times_asked
from semel.spark_connector.option_values import EARLIEST, LATEST
from semel.spark_connector.options import AtOffsets, AtTimes, ReadOptions, Topics

ORDERS = QueueState(topic="orders", topic_id=7, queue=0, log_start_offset=10, log_end_offset=30)
SECOND = dataclasses.replace(ORDERS, queue=1, log_start_offset=0, log_end_offset=5)
EMPTY = dataclasses.replace(ORDERS, queue=2, log_start_offset=4, log_end_offset=4)
STATES = [ORDERS, SECOND, EMPTY]
TIMES = {
    ("orders", 100): {0: 12, 1: 0, 2: 4},
    ("orders", 200): {0: 30, 1: 3, 2: 4},
    ("orders", 300): {0: 44, 1: 7, 2: 4},
}


def plan(
    losses: list[Exception] | None = None, late: str = "error", **places: Any
) -> list[tuple[int, int, int]]:
    asked: dict[str, Any] = {
        side: place if isinstance(place, AtTimes) else AtOffsets(place)
        for side, place in places.items()
    }
    asked.setdefault("starting", AtOffsets(EARLIEST))
    options = ReadOptions(
        client=ClientOptions(bootstrap="a:1"),
        topics=Topics(names=("orders",)),
        late_start=late,
        **asked,
    )
    more = [] if losses is None else [losses.append]
    ranges = plan_ranges(STATES, options, TIMES, *more)
    assert all((each.topic, each.topic_id) == ("orders", 7) for each in ranges)
    return [(each.queue, each.start, each.end) for each in ranges]


def test_everything_by_default_and_no_range_for_an_empty_queue() -> None:
    assert plan() == [(0, 10, 30), (1, 0, 5)]


def test_latest_to_latest_is_nothing() -> None:
    assert plan(starting=LATEST) == []


def test_offsets_for_each_queue() -> None:
    starting = {"orders": {0: 12, 1: EARLIEST, 2: LATEST}}
    ending = {"orders": {0: 20, 1: 5, 2: LATEST}}
    assert plan(starting=starting, ending=ending) == [(0, 12, 20), (1, 0, 5)]


def test_the_bounds_themselves_are_in_range() -> None:
    starting = {"orders": {0: 10, 1: 5, 2: 4}}
    ending = {"orders": {0: 30, 1: 5, 2: 4}}
    assert plan(starting=starting, ending=ending) == [(0, 10, 30)]


@pytest.mark.parametrize("offset", [9, 31])
@pytest.mark.parametrize("side", ["starting", "ending"])
def test_an_offset_that_the_queue_does_not_have(side: str, offset: int) -> None:
    place: dict[str, Any] = {side: {"orders": {0: offset, 1: LATEST, 2: LATEST}}}
    with pytest.raises(OffsetOutOfRange, match="has 10 to 30") as caught:
        plan(**place)
    assert (caught.value.log_start_offset, caught.value.log_end_offset) == (10, 30)


def test_what_retention_took_may_be_left_out_and_is_told() -> None:
    losses: list[Exception] = []
    assert plan(losses, starting={"orders": {0: 3, 1: 0, 2: 4}}) == [(0, 10, 30), (1, 0, 5)]
    assert len(losses) == 1
    assert "startingOffsets 3 of queue 0" in str(losses[0])
    with pytest.raises(OffsetOutOfRange):
        plan(losses, starting={"orders": {0: 31, 1: 0, 2: 4}})


def test_an_end_before_the_start() -> None:
    ending = {"orders": {0: 15, 1: LATEST, 2: LATEST}}
    with pytest.raises(InvalidRequest, match=r"ends in queue 0 .* at 15, before its start at 30"):
        plan(starting=LATEST, ending=ending)


def test_queues_that_do_not_exist_or_are_missing() -> None:
    with pytest.raises(InvalidRequest, match="has no queue 3"):
        plan(starting={"orders": {0: 10, 1: 0, 2: 4, 3: 0}})
    with pytest.raises(
        InvalidRequest, match=r"queue 2 .* is missing; .*\(-1 latest, -2 earliest\)"
    ):
        plan(starting={"orders": {0: 10, 1: 0}})
    with pytest.raises(InvalidRequest, match=r"queue 2 .* is missing; .*\(-1 latest\)"):
        plan(ending={"orders": {0: 10, 1: 0}})
    with pytest.raises(InvalidRequest, match="'more', which is not subscribed"):
        plan(starting={"orders": {0: 10, 1: 0, 2: 4}, "more": {0: 1}})
    with pytest.raises(InvalidRequest, match="says nothing of topic 'orders'"):
        plan(starting={})


def test_times() -> None:
    assert plan(late="latest", starting=AtTimes(100)) == [(0, 12, 30), (1, 0, 5)]
    assert plan(ending=AtTimes(200)) == [(0, 10, 30), (1, 0, 3)]
    by_queue = AtTimes({"orders": {0: 200, 1: 100, 2: 100}})
    assert plan(late="latest", starting=by_queue) == [(1, 0, 5)]


def test_a_time_that_was_looked_up_after_more_had_come_ends_where_the_plan_does() -> None:
    assert plan(ending=AtTimes(300)) == [(0, 10, 30), (1, 0, 5)]


def test_a_start_after_the_newest_message() -> None:
    with pytest.raises(OffsetOutOfRange, match=r"queue 0 .* at or after the starting time 200"):
        plan(starting=AtTimes(200))
    assert plan(late="latest", starting=AtTimes(200)) == [(1, 3, 5)]


def test_only_times_that_are_asked_for_are_looked_up() -> None:
    assert times_asked(AtOffsets(EARLIEST), STATES) == set()
    assert times_asked(AtTimes(5), STATES) == {("orders", 5)}
    by_queue = AtTimes({"orders": {0: 5, 1: 6, 2: 5}})
    assert times_asked(by_queue, STATES) == {("orders", 5), ("orders", 6)}
