"""Planning: ranges resolved against what the cluster has, and split without loss."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.protos.errors import InvalidRequest, OffsetOutOfRange
from semel.spark_connector.offsets import QueueRange, QueueState, plan_ranges, split_ranges
from semel.spark_connector.options import EARLIEST, LATEST, ReadOptions

ORDERS = QueueState(topic="orders", topic_id=7, queue=0, log_start_offset=10, log_end_offset=30)
SECOND = dataclasses.replace(ORDERS, queue=1, log_start_offset=0, log_end_offset=5)
EMPTY = dataclasses.replace(ORDERS, queue=2, log_start_offset=4, log_end_offset=4)
STATES = [ORDERS, SECOND, EMPTY]


def options(**changes: object) -> ReadOptions:
    return ReadOptions(bootstrap="a:1", topics=("orders",), **changes)


def plan(**changes: object) -> list[tuple[int, int, int]]:
    ranges = plan_ranges(STATES, options(**changes))
    assert all((each.topic, each.topic_id) == ("orders", 7) for each in ranges)
    return [(each.queue, each.start, each.end) for each in ranges]


def test_everything_by_default_and_no_range_for_an_empty_queue():
    assert plan() == [(0, 10, 30), (1, 0, 5)]


def test_latest_to_latest_is_nothing():
    assert plan(starting=LATEST) == []


def test_offsets_for_each_queue():
    starting = {"orders": {0: 12, 1: EARLIEST, 2: LATEST}}
    ending = {"orders": {0: 20, 1: 5, 2: LATEST}}
    assert plan(starting=starting, ending=ending) == [(0, 12, 20), (1, 0, 5)]


def test_the_bounds_themselves_are_in_range():
    starting = {"orders": {0: 10, 1: 5, 2: 4}}
    ending = {"orders": {0: 30, 1: 5, 2: 4}}
    assert plan(starting=starting, ending=ending) == [(0, 10, 30)]


@pytest.mark.parametrize("offset", [9, 31])
@pytest.mark.parametrize("side", ["starting", "ending"])
def test_an_offset_that_the_queue_does_not_have(side, offset):
    with pytest.raises(OffsetOutOfRange, match="has 10 to 30") as caught:
        plan(**{side: {"orders": {0: offset, 1: LATEST, 2: LATEST}}})
    assert (caught.value.log_start_offset, caught.value.log_end_offset) == (10, 30)


def test_an_end_before_the_start():
    ending = {"orders": {0: 15, 1: LATEST, 2: LATEST}}
    with pytest.raises(InvalidRequest, match=r"ends queue 0 .* at 15, before its start at 30"):
        plan(starting=LATEST, ending=ending)


def test_queues_that_do_not_exist_or_are_missing():
    with pytest.raises(InvalidRequest, match="has no queue 3"):
        plan(starting={"orders": {0: 10, 1: 0, 2: 4, 3: 0}})
    with pytest.raises(
        InvalidRequest, match=r"queue 2 .* is missing; .*\(-1 latest, -2 earliest\)"
    ):
        plan(starting={"orders": {0: 10, 1: 0}})
    with pytest.raises(InvalidRequest, match=r"queue 2 .* is missing; .*\(-1 latest\)"):
        plan(ending={"orders": {0: 10, 1: 0}})


ranges = st.builds(
    lambda start, count, queue: QueueRange(
        topic="t", topic_id=1, queue=queue, start=start, end=start + count
    ),
    st.integers(0, 1 << 50),
    st.integers(1, 500),
    st.integers(0, 3),
)


@given(whole=st.lists(ranges, max_size=5), limit=st.integers(1, 60))
def test_splitting_loses_and_repeats_nothing(whole, limit):
    def offsets(parts):
        return [(part.queue, at) for part in parts for at in range(part.start, part.end)]

    parts = split_ranges(whole, limit)
    assert offsets(parts) == offsets(whole)
    assert all(1 <= part.count <= limit for part in parts)


@given(whole=ranges, limit=st.integers(1, 60))
def test_parts_are_as_equal_as_can_be(whole, limit):
    counts = [part.count for part in split_ranges([whole], limit)]
    assert len(counts) == -(-whole.count // limit)
    assert max(counts) - min(counts) <= 1


def test_no_limit_splits_nothing():
    whole = [QueueRange(topic="t", topic_id=1, queue=0, start=0, end=1 << 40)]
    assert split_ranges(whole, None) == whole
