"""The history of releases: every message in one row, and never more rows than there is room for."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from semel.broker.state.apply import release_history
from semel.broker.state.apply.codec import Reader
from semel.broker.state.apply.release_history import ROW, SPANS_S, ReleaseHistory, ReleaseRow
from semel.protos.errors import CorruptSegment
from semel.protos.ids import Offset, QueueId, QueueKey, TopicId
from semel.protos.levels import DELAY_LEVEL, LEVEL_MAX
from tests.kit.state_log import KEY, START_US
from tests.unit.broker.state.delaying import OTHER, SECOND_US, delaying_group, late, restarted

ALL = 1 << 30


def again(history: ReleaseHistory) -> ReleaseHistory:
    """The history of a node that starts from the other one's bytes."""
    data = b"".join(history.parts())
    reader = Reader(data)
    read = ReleaseHistory.read_parts(reader)
    reader.finish()
    assert b"".join(read.parts()) == data
    return read


def rows(history: ReleaseHistory, topic_id: int = 7) -> list[ReleaseRow]:
    return history.newest(topic_id, 0, ALL)


def test_a_release_is_a_row_for_each_second() -> None:
    history = ReleaseHistory()
    dues = [(SECOND_US, 3), (SECOND_US + 7, 1), (2 * SECOND_US, 5)]
    history.record(KEY, Offset(10), dues, 2 * SECOND_US + 9)
    late_us = SECOND_US + 9
    assert rows(history) == [
        ReleaseRow(7, 0, 1, *(2 * SECOND_US,) * 2, *(2 * SECOND_US + 9,) * 2, 14, 5, 9, 9),
        ReleaseRow(
            *(7, 0, 1, SECOND_US, SECOND_US + 7),
            *(2 * SECOND_US + 9,) * 2,
            *(10, 4, late_us - 7, late_us),
        ),
    ]


def test_releases_of_one_second_are_one_row_of_each_queue() -> None:
    history = ReleaseHistory()
    for number in range(50):
        for at, key in enumerate((KEY, OTHER)):
            history.record(key, Offset(number * 100), [(SECOND_US, 100)], SECOND_US + number + at)
    first, second = sorted(rows(history), key=lambda row: row.queue_id)
    assert (first.messages, second.messages) == (5_000, 5_000)
    assert (first.base_offset, first.late_min_us, first.late_max_us) == (0, 0, 49)
    assert (second.late_min_us, second.late_max_us) == (1, 50)
    assert (first.released_first_us, first.released_last_us) == (SECOND_US, SECOND_US + 49)


def test_it_is_told_newest_first_from_a_time_on_and_so_many() -> None:
    history = ReleaseHistory()
    for second in range(1, 11):
        history.record(KEY, Offset(second), [(second * SECOND_US, 1)], second * SECOND_US + 5)
        history.record(QueueKey(TopicId(8), QueueId(0)), Offset(0), [(SECOND_US, 1)], second)
    assert [row.base_offset for row in history.newest(7, 0, 3)] == [10, 9, 8]
    since = history.newest(7, 9 * SECOND_US + 5, ALL)
    assert [row.base_offset for row in since] == [10, 9]
    assert history.newest(9, 0, ALL) == []


@pytest.mark.parametrize("seed", range(8))
def test_no_message_is_lost_while_rows_grow_coarser(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release_history, "ROWS_MAX", 40)
    history, chance = ReleaseHistory(), random.Random(seed)
    keys = [QueueKey(TopicId(7), QueueId(number)) for number in range(chance.randrange(1, 6))]
    now_us, ends, late_max = 1_000 * SECOND_US, dict.fromkeys(keys, 0), 0
    for _ in range(1_500):
        now_us += chance.randrange(20 * SECOND_US)
        key = chance.choice(keys)
        dues = sorted(
            {now_us - chance.randrange(5 * SECOND_US): 0 for _ in range(chance.randrange(1, 4))}
        )
        counts = [(due_us, chance.randrange(1, 9)) for due_us in dues]
        history.record(key, Offset(ends[key]), counts, now_us)
        ends[key] += sum(count for _, count in counts)
        late_max = max(late_max, now_us - dues[0])
        if chance.random() < 0.02:
            history = again(history)
    found = rows(history)
    assert sum(row.messages for row in found) == sum(ends.values())
    assert {row.span_s for row in found} == set(SPANS_S[:3])
    assert max(row.late_max_us for row in found) == late_max
    for span_s in SPANS_S:
        assert sum(row.span_s == span_s for row in found) <= 40
    for key in keys:
        mine = sorted(
            (row for row in found if row.queue_id == key.queue_id), key=lambda row: row.base_offset
        )
        assert mine[0].base_offset == 0
        for row, following in pairwise(mine):
            assert row.base_offset + row.messages == following.base_offset
    newest = [row.released_first_us for row in found]
    assert newest == sorted(newest, reverse=True)


def test_a_node_that_restarts_has_the_same_rows_as_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(release_history, "ROWS_MAX", 10)
    one, other = ReleaseHistory(), ReleaseHistory()
    for number in range(200):
        key = (KEY, OTHER)[number % 3 == 0]
        now_us = number * 700_000
        for history in (one, other):
            history.record(key, Offset(number), [(now_us // SECOND_US * SECOND_US, 1)], now_us)
        if number % 7 == 0:
            other = again(other)
        assert b"".join(one.parts()) == b"".join(other.parts())


def test_a_day_of_many_queues_is_kept_whatever_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_history, "ROWS_MAX", 100)
    history = ReleaseHistory()
    keys = [QueueKey(TopicId(7), QueueId(number)) for number in range(20)]
    for step in range(24 * 60):  # every queue releases once a minute, for a day
        for key in keys:
            now_us = step * 60 * SECOND_US
            history.record(key, Offset(step), [(now_us, 1)], now_us)
    assert sum(row.messages for row in rows(history)) == 24 * 60 * len(keys)
    assert sum(map(len, history.parts())) <= 4 * (100 * ROW.size + 4)


def test_the_last_tier_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_history, "ROWS_MAX", 4)
    history = ReleaseHistory()
    for day in range(100):
        now_us = day * 86_400 * SECOND_US
        history.record(KEY, Offset(day), [(now_us, 1)], now_us)
    found = rows(history)
    assert len(found) <= 4 * len(SPANS_S)
    assert [row.base_offset for row in found] == list(range(99, 99 - len(found), -1))


def test_malformed_rows_are_refused() -> None:
    history = ReleaseHistory()
    history.record(KEY, Offset(0), [(SECOND_US, 1)], SECOND_US)
    data = bytearray(b"".join(history.parts()))
    data[4 + 12] = 9  # the span of the first row
    with pytest.raises(CorruptSegment):
        ReleaseHistory.read_parts(Reader(bytes(data)))


def test_a_group_remembers_its_releases_from_its_level_on() -> None:
    group = delaying_group()
    assert group.state.feature_level == DELAY_LEVEL
    group.produce(late(-1, 1, last=2))
    group.now_us += 2 * SECOND_US
    group.release()
    assert rows(group.state.releases) == [], "a log below the level has the bytes of that level"
    group.raise_level(LEVEL_MAX)
    group.produce(late(2, 3, last=4))
    group.now_us += 2 * SECOND_US
    group.release()
    (row,) = rows(restarted(group.state).releases)
    assert (row.due_first_us, row.messages, row.base_offset) == (START_US + 3 * SECOND_US, 2, 3)
    assert (row.late_min_us, row.late_max_us) == (SECOND_US, SECOND_US)
