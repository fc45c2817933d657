"""The index of seconds says what a count over all delayed batches says."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.broker.state.apply.due_seconds import SECOND_US, DueLoad, DueSeconds
from semel.protos.v1 import control_pb2
from tests.kit.due_counts import counted
from tests.kit.state_log import KEY, Group, control, ref
from tests.unit.broker.state.delaying import OTHER, delaying_group, late, restarted

SECONDS = st.integers(0, 2_000)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(SECONDS, st.integers(1, 9)), max_size=300), st.randoms())
def test_it_agrees_with_a_count(added: list[tuple[int, int]], order: random.Random) -> None:
    index, model = DueSeconds(), Counter[int]()
    for second, messages in added:
        index.change(7, second, messages, messages * 10)
        model[second] += messages
    order.shuffle(added)
    gone = added[: len(added) // 2]
    for second, messages in gone:
        index.change(7, second, -messages, -messages * 10)
        model[second] -= messages
    expected = {second: DueLoad(n, n * 10) for second, n in model.items() if n}
    assert index.all() == {(7, second): load for second, load in expected.items()}
    for second in {each for each, _ in added}:
        assert index.load(7, second) == expected.get(second, DueLoad())
    assert index.load(8, 0) == DueLoad()


def test_many_seconds_in_any_order_split_blocks() -> None:
    index = DueSeconds()
    order = list(range(5_000))
    random.Random(1).shuffle(order)
    for second in order:
        index.change(7, second, second % 5 + 1, 1)
    assert index.all() == {(7, second): DueLoad(second % 5 + 1, 1) for second in range(5_000)}
    random.Random(2).shuffle(order)
    for second in order:
        index.change(7, second, -(second % 5 + 1), -1)
    assert index.all() == {}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(SECONDS, st.integers(1, 9)), min_size=1, max_size=100))
def test_many_at_once_are_as_one_by_one(added: list[tuple[int, int]]) -> None:
    one, many = DueSeconds(), DueSeconds()
    for second, messages in added:
        one.change(7, second, messages, 100)
    columns = np.array(added, np.int64)
    dues = columns[:, 0] * SECOND_US + 5
    many.change_many(7, dues, columns[:, 1], np.full(len(added), 100, np.int64), 1)
    assert many.all() == one.all()
    many.change_many(7, dues, columns[:, 1], np.full(len(added), 100, np.int64), -1)
    assert many.all() == {}


def test_to_take_away_what_was_never_there_is_a_bug() -> None:
    index = DueSeconds()
    with pytest.raises(AssertionError):
        index.change(7, 1, -1, 0)
    with pytest.raises(AssertionError):
        index.change_many(7, np.array([0]), np.array([1]), np.array([1]), -1)


@pytest.mark.parametrize("seed", range(20))
def test_it_follows_all_that_happens_to_delayed_batches(seed: int) -> None:
    group, chance = delaying_group(), random.Random(seed)
    last = {KEY: -1, OTHER: -1}
    for _ in range(60):
        key = chance.choice((KEY, OTHER))
        match chance.randrange(6):
            case 0 | 1 | 2 if key in group.state.queues:
                count = chance.randrange(1, 4)
                due_s = (group.now_us - 1_700_000_000_000_000) / 1e6 + chance.uniform(-1, 5)
                group.produce(late(last[key], due_s, last=last[key] + count, key=key))
                last[key] += count
            case 3:
                group.now_us += chance.randrange(2 * SECOND_US)
                if key in group.state.queues:
                    group.release(key, batches_max=chance.randrange(1, 5))
            case 4:
                assert restarted(group.state).delays.seconds.all() == counted(group.state.delays)
            case 5 if chance.random() < 0.05:
                group.apply(control(delete_queue=control_pb2.DeleteQueue(queue=ref(OTHER))))
        assert group.state.delays.seconds.all() == counted(group.state.delays)


def test_a_forgotten_batch_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail."""
    group = Group()
    group.raise_level(5)
    group.fence()
    monkeypatch.setattr(DueSeconds, "change", lambda *_: None)
    group.produce(late(-1, 5))
    assert group.state.delays.seconds.all() != counted(group.state.delays)
