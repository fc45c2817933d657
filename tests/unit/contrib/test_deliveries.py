"""What may be committed when messages are settled in any order, and locks are lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from semel.contrib.kombu.deliveries import Deliveries
from tests.unit.contrib.given_messages import delivery


def test_messages_settled_in_order_are_committed_one_by_one() -> None:
    deliveries = Deliveries()
    given = [delivery(offset) for offset in range(3)]
    for each in given:
        deliveries.give(each)
    assert [deliveries.settle(each) for each in given] == given
    assert len(deliveries) == 0


def test_a_message_settled_before_its_turn_waits_for_those_before_it() -> None:
    deliveries = Deliveries()
    first, second, third = (delivery(offset) for offset in range(3))
    for each in (first, second, third):
        deliveries.give(each)
    assert deliveries.settle(third) is None
    assert deliveries.settle(second) is None
    assert len(deliveries) == 1
    assert deliveries.settle(first) is third


def test_queues_do_not_wait_for_each_other() -> None:
    deliveries = Deliveries()
    here, there = delivery(5, queue=0), delivery(9, queue=1)
    deliveries.give(here)
    deliveries.give(there)
    assert deliveries.settle(there) is there
    assert deliveries.settle(here) is here


def test_what_was_given_out_under_an_older_lock_is_lost() -> None:
    deliveries = Deliveries()
    old = [delivery(0, token=1), delivery(1, token=1)]
    for each in old:
        deliveries.give(each)
    again = delivery(0, token=2)
    deliveries.give(again)
    assert [each.lost for each in old] == [True, True]
    assert [deliveries.settle(each) for each in old] == [None, None]
    assert deliveries.settle(again) is again


def test_a_lost_lock_drops_nothing_that_a_newer_one_gave() -> None:
    deliveries = Deliveries()
    old, newer = delivery(0, token=1), delivery(0, token=2)
    deliveries.give(old)
    deliveries.give(newer)
    deliveries.lose(old)
    assert deliveries.settle(newer) is newer


def test_settling_twice_says_nothing_the_second_time() -> None:
    deliveries = Deliveries()
    first, second = delivery(0), delivery(1)
    deliveries.give(first)
    deliveries.give(second)
    assert deliveries.settle(second) is None
    assert deliveries.settle(second) is None
    assert deliveries.settle(first) is second
    assert deliveries.settle(first) is None


@given(order=st.permutations(range(8)), queues=st.lists(st.integers(0, 2), min_size=8, max_size=8))
def test_a_commit_never_reaches_past_what_is_not_settled(
    order: list[int], queues: list[int]
) -> None:
    deliveries = Deliveries()
    given_out = [delivery(offset, queue=queue) for offset, queue in enumerate(queues)]
    for each in given_out:
        deliveries.give(each)
    committed: dict[int, int] = {}
    settled: set[int] = set()
    for number in order:
        settled.add(number)
        newest = deliveries.settle(given_out[number])
        if newest is not None:
            committed[newest.place.queue] = newest.offset
        for queue, end in committed.items():
            below = [n for n, of in enumerate(queues) if of == queue and n <= end]
            assert set(below) <= settled
    for queue in set(queues):
        assert committed[queue] == max(n for n, of in enumerate(queues) if of == queue)
