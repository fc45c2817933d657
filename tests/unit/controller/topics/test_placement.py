"""Placing a new topic's queues on broker groups."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from semel.controller.topics.placement import place, weigh
from semel.protos.ids import GroupId

LOADS = st.dictionaries(st.integers(0, 9).map(GroupId), st.integers(0, 30), min_size=1)


@given(st.integers(0, 100), LOADS)
def test_no_group_gets_a_queue_while_another_has_fewer(
    queues: int, loads: dict[GroupId, int]
) -> None:
    placement = place(queues, loads)
    assert len(placement) == queues
    now = dict(loads)
    for group in placement:
        assert now[group] == min(now.values())
        now[group] += 1
    assert place(queues, dict(reversed(loads.items()))) == placement


def test_equal_groups_take_turns() -> None:
    loads = {GroupId(3): 0, GroupId(1): 0, GroupId(2): 0}
    assert place(5, loads) == [1, 2, 3, 1, 2]


@given(LOADS)
def test_without_traffic_queues_are_the_load(counts: dict[GroupId, int]) -> None:
    assert weigh(counts, {}) == counts
    assert weigh(counts, dict.fromkeys(counts, 1)) == counts  # a whisper is no traffic


@given(LOADS, st.dictionaries(st.integers(0, 9).map(GroupId), st.integers(0, 1 << 32)))
def test_traffic_weighs_as_much_as_all_queues_together(
    counts: dict[GroupId, int], written: dict[GroupId, int]
) -> None:
    loads = weigh(counts, written)
    assert loads.keys() == counts.keys()
    assert all(loads[group] >= counts[group] for group in counts)
    assert sum(loads.values()) <= 2 * sum(counts.values())


def test_a_busy_group_gets_fewer_of_the_next_queues() -> None:
    counts = {GroupId(1): 4, GroupId(2): 4}
    loads = weigh(counts, {GroupId(1): 100 << 20})
    assert loads == {1: 12, 2: 4}
    assert place(8, loads) == [2] * 8
