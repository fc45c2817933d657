"""The queues of a group by topic: what `of_topic` gives is what a look at all queues would give."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.broker.state import QueueSettings, QueueState
from semel.broker.state.apply.queue_table import QueueTable
from semel.protos.ids import QueueId, QueueKey, TopicId

KEYS = [QueueKey(TopicId(topic), QueueId(queue)) for topic in range(3) for queue in range(3)]
STEPS = st.lists(st.tuples(st.sampled_from(["set", "pop", "del"]), st.sampled_from(KEYS)))


def queue(key: QueueKey) -> QueueState:
    return QueueState(key, "orders", 0, 1, QueueSettings())


@given(STEPS)
def test_each_topic_has_its_queues(steps: list[tuple[str, QueueKey]]) -> None:
    table = QueueTable()
    for step, key in steps:
        if step == "set":
            table[key] = queue(key)
        elif step == "pop":
            found = table.get(key)
            assert table.pop(key, None) is found
        elif key in table:
            del table[key]
    for kept in (table, copy.deepcopy(table)):
        for topic in range(4):
            assert kept.has_topic(topic) == any(key.topic_id == topic for key in table)
            keys = [one.key for one in kept.of_topic(topic)]
            assert sorted(keys) == sorted(key for key in table if key.topic_id == topic)
            assert kept.slots_of(topic) == len(keys), "each of these has one slot"
            assert kept.newest_of(topic) == (keys[-1] if keys else None)
        assert sorted(kept.topics()) == sorted({key.topic_id for key in table})


def test_a_queue_that_is_not_there() -> None:
    table = QueueTable()
    with pytest.raises(KeyError):
        table.pop(KEYS[0])
    with pytest.raises(KeyError):
        del table[KEYS[0]]
    assert table.pop(KEYS[0], None) is None


def test_ways_around_the_topics_are_closed() -> None:
    table = QueueTable()
    for way in (table.clear, table.popitem, table.update, table.setdefault):
        with pytest.raises(TypeError, match="one by one"):
            way()
