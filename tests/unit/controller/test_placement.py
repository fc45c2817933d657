"""Placing a new topic's queues on broker groups."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from semel.controller.placement import place
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
