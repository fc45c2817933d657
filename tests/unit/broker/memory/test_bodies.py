"""The batches of topics in memory that a node has, and those that it knows to lack."""

from __future__ import annotations

import pytest

from semel.broker.memory import BodyStore, Carried, Lacking
from semel.protos.v1 import control_pb2
from tests.kit.memory_log import MemoryGroup
from tests.kit.state_log import KEY, control, ref


@pytest.fixture
def group() -> MemoryGroup:
    made = MemoryGroup()
    for number in range(5):
        made.send(number - 1)
    return made


def filled(group: MemoryGroup) -> BodyStore:
    store = BodyStore(0)
    for place, stored in group.bodies.items():
        store.put(*place, stored)
    store.missing_to = 0
    return store


def here(group: MemoryGroup, store: BodyStore) -> list[int]:
    """Base offsets of the batches that are here."""
    places = enumerate(sorted(group.bodies))
    found = [offset for offset, place in places if store.get(*place) is not None]
    assert store.bytes == sum(
        len(stored) for place, stored in group.bodies.items() if store.get(*place) is not None
    )
    assert store.bytes == sum(store.entry_bytes(index) for index in range(99))
    return found


def lacking(group: MemoryGroup, store: BodyStore) -> list[int]:
    found = [one for one in store.lacking(group.state) if one is not None]
    assert all(isinstance(one, Lacking) and one.key == KEY for one in found)
    return [one.extent.base_offset for one in found]


def test_what_is_trimmed_goes(group: MemoryGroup) -> None:
    store = filled(group)
    store.on_applied(group.state, group.trim(2))
    assert here(group, store) == [2, 3, 4]
    assert lacking(group, store) == []
    store.on_applied(group.state, group.trim(5))
    assert here(group, store) == []
    assert store.bytes == 0


def test_what_is_lost_goes_and_is_not_sought(group: MemoryGroup) -> None:
    store = filled(group)
    store.on_applied(group.state, group.lose(1, 3))
    assert here(group, store) == [0, 3, 4]
    assert lacking(group, store) == []
    empty = BodyStore(99)
    assert lacking(group, empty) == [0, 3, 4]


def test_a_deleted_queue_leaves_nothing(group: MemoryGroup) -> None:
    store = filled(group)
    store.on_applied(group.state, group.trim(1))
    results = group.apply(control(delete_queue=control_pb2.DeleteQueue(queue=ref())))
    store.on_applied(group.state, results)
    assert store.bytes == 0
    assert lacking(group, store) == []


def test_a_truncated_entry_takes_its_batches_along(group: MemoryGroup) -> None:
    store = filled(group)
    last = max(group.bodies)
    store.truncate(last[0])
    assert here(group, store) == [0, 1, 2, 3]
    other = b"".join([group.bodies[last][:160], bytes(16)])
    store.put(*last, other)
    assert store.get(*last) == other
    store.on_applied(group.state, group.trim(5))
    assert store.bytes == 0


def test_batches_that_are_pulled_in_any_order_go_as_well(group: MemoryGroup) -> None:
    store = BodyStore(99)
    for place in sorted(group.bodies, reverse=True):
        store.put(*place, group.bodies[place])
    store.on_applied(group.state, group.trim(4))
    assert here(group, store) == [4]


def test_a_sender_that_lacks_a_body_leaves_it_missing(group: MemoryGroup) -> None:
    store = BodyStore(3)
    place = max(group.bodies)
    store.missing_to = 0
    store.put_carried(place[0], [Carried(place[1], None)])
    assert store.missing_to == place[0]
    assert store.records_of(place[0]), "its records must be told to other nodes"
    store.put_again(place[0], [Carried(place[1], group.bodies[place])], group.state)
    assert store.get(*place) == group.bodies[place]


def test_what_is_lost_or_trimmed_does_not_come_back(group: MemoryGroup) -> None:
    store = BodyStore(0)
    group.lose(1, 2)
    group.trim(1)
    for place, stored in group.bodies.items():
        store.put_again(place[0], [Carried(place[1], stored)], group.state)
    assert here(group, store) == [2, 3, 4]


def test_an_entry_of_which_nothing_is_known_may_have_records() -> None:
    store = BodyStore(10)
    assert store.records_of(10)
    assert not store.records_of(11)
    store.truncate(5)
    assert not store.records_of(7)
    store.clear(20)
    assert store.records_of(20)
    assert (store.missing_to, store.bytes) == (20, 0)


def test_a_long_queue_is_looked_through_in_pieces(group: MemoryGroup) -> None:
    for number in range(5, 5_000):
        group.send(number - 1)
    found = list(BodyStore(9_999).lacking(group.state))
    assert found.count(None) == 2
    assert len(found) - 2 == 5_000
