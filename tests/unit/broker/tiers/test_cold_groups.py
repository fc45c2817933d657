"""Cold batches in memory: found by offset, cut by bytes, dropped when there is no room."""

from __future__ import annotations

import random

from semel.broker.tiers.cold_groups import ColdGroup, ColdGroups
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.tier import ColdBatch

KEY = QueueKey(TopicId(7), QueueId(0))
OTHER = QueueKey(TopicId(7), QueueId(1))


def group(start: int, *sizes: int, count: int = 10) -> ColdGroup:
    """One batch of `count` offsets for each size."""
    batches = [ColdBatch(bytes(size), start + at * count, count) for at, size in enumerate(sizes)]
    return ColdGroup(start, start + count * len(sizes), batches)


def test_a_part_begins_with_the_offset_and_is_as_large_as_asked() -> None:
    whole = group(100, 50, 60, 70)
    bases = [[each.base_offset for each in whole.part(at, 1 << 20)] for at in (100, 109, 110, 129)]
    assert bases == [[100, 110, 120], [100, 110, 120], [110, 120], [120]]
    sizes = [len(whole.part(100, most)) for most in (1, 50, 109, 110, 179, 180)]
    assert sizes == [1, 1, 1, 2, 2, 3]


def test_what_was_not_used_for_longest_goes_first() -> None:
    groups = ColdGroups(1_000)
    for start in (0, 10, 20):
        groups.put(KEY, group(start, 300))
    assert groups.find(KEY, 5) is not None, "now it is the newest"
    groups.put(OTHER, group(0, 300))
    assert groups.find(KEY, 15) is None
    assert groups.find(KEY, 0) is not None
    assert groups.find(KEY, 29) is not None
    assert groups.find(OTHER, 9) is not None
    assert groups.bytes == 900
    groups.put(KEY, group(40, 5_000))
    assert groups.bytes == 5_000, "the newest stays"
    assert groups.find(KEY, 49) is not None
    assert groups.find(OTHER, 0) is None


def test_offsets_outside_are_not_found() -> None:
    groups = ColdGroups(1_000)
    assert groups.find(KEY, 0) is None
    groups.put(KEY, group(10, 100))
    assert [groups.find(KEY, at) is not None for at in (9, 10, 19, 20)] == [
        *(False, True, True, False)
    ]
    assert groups.find(OTHER, 10) is None
    groups.put(KEY, group(10, 100, 100))
    assert groups.bytes == 200, "the same again takes the place of the first"
    assert groups.find(KEY, 20) is not None


def test_what_came_last_is_found_though_others_begin_behind_it() -> None:
    """Files are merged: `[0, 40)` comes from one that has what was read from small ones before.
    Whoever asked for offset 30 had it read again and again, and never found it."""
    groups = ColdGroups(10_000)
    for start in (0, 10, 20, 60):
        groups.put(KEY, group(start, 100))
    groups.put(OTHER, group(20, 100))
    groups.put(KEY, group(0, 100, 100, 100, 100))
    assert all(groups.find(KEY, at) is not None for at in range(40))
    assert groups.find(KEY, 40) is None
    assert groups.find(KEY, 60) is not None, "it has no offset in common"
    assert groups.find(OTHER, 20) is not None
    assert groups.bytes == 600


def test_a_group_takes_the_places_of_those_that_it_meets_at_its_ends() -> None:
    groups = ColdGroups(10_000)
    for start in (0, 20, 40):
        groups.put(KEY, group(start, 100, 100))
    groups.put(KEY, group(10, 100, 100, 100, 100))
    found = [at for at in range(0, 60, 10) if groups.find(KEY, at) is not None]
    assert found == [10, 20, 30, 40]
    assert groups.bytes == 400
    groups.put(KEY, group(50, 100))
    groups.put(KEY, group(0, 100))
    assert all(groups.find(KEY, at) is not None for at in range(60)), "they only touch each other"


def test_whatever_comes_what_is_found_has_the_offset_and_fits() -> None:
    chance = random.Random(1)
    groups = ColdGroups(2_000)
    for _ in range(2_000):
        key = chance.choice((KEY, OTHER))
        if chance.random() < 0.5:
            put = group(10 * chance.randrange(20), *[100] * chance.randrange(1, 5))
            groups.put(key, put)
            assert all(groups.find(key, at) is put for at in range(put.start, put.end))
        else:
            at = chance.randrange(220)
            found = groups.find(key, at)
            assert found is None or found.start <= at < found.end
        assert groups.bytes <= 2_000
        assert groups.bytes == sum(each.size for each in groups._groups.values())
