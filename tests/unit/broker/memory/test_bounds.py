"""Beyond a bound the oldest messages of topics in memory go, whatever queue they are in."""

from __future__ import annotations

import pytest

from semel.broker.memory.bounds import excess, is_crowded, oldest, share
from semel.broker.state import QueueSettings, QueueState
from semel.protos.ids import QueueId, QueueKey, TopicId


def queue(number: int, *batches: tuple[int, int, int]) -> QueueState:
    """A queue of batches: append time, messages, bytes."""
    key = QueueKey(TopicId(7), QueueId(number))
    made = QueueState(key, "t", 0, 65_536, QueueSettings(memory_bytes=1))
    for at, (time_us, count, length) in enumerate(batches):
        made.append(count, 1 + at, 48, length, time_us)
    return made


def test_the_oldest_batches_of_all_queues_go_first() -> None:
    first = queue(0, (10, 5, 100), (30, 5, 100), (50, 5, 100))
    second = queue(1, (20, 3, 100), (25, 3, 100), (60, 3, 100))
    keys = first.key, second.key
    assert oldest([first, second], 1) == {keys[0]: 5}
    assert oldest([first, second], 250) == {keys[0]: 5, keys[1]: 6}
    assert oldest([first, second], 301) == {keys[0]: 10, keys[1]: 6}
    assert oldest([first, second], 9_999) == {keys[0]: 15, keys[1]: 9}
    assert oldest([first, second], 0) == {}


def test_what_is_lost_frees_nothing() -> None:
    one = queue(0, (10, 5, 100), (20, 5, 100), (30, 5, 100))
    one.lose(0, 5)
    assert oldest([one], 100) == {one.key: 10}


def test_a_batch_that_is_partly_trimmed_counts_as_a_whole() -> None:
    one = queue(0, (10, 5, 100), (20, 5, 100))
    one.trim(3)
    assert oldest([one], 100) == {one.key: 5}


def test_a_queue_without_batches_gives_nothing() -> None:
    assert oldest([queue(0)], 100) == {}


def test_a_group_has_the_share_of_its_slots() -> None:
    assert share(1 << 30, 65_536, 1 << 20) == 1 << 30
    assert share(1 << 30, 16_384, 1 << 20) == 1 << 28
    assert share(1 << 30, 64, 1 << 20) == share(1 << 30, 0, 1 << 20) == 4 << 20


@pytest.mark.parametrize(
    ("held", "surplus", "crowded"),
    [(1_600, 0, False), (1_601, 101, False), (2_000, 500, False), (2_001, 501, True)],
)
def test_a_sixteenth_more_goes_and_a_quarter_more_makes_producers_wait(
    held: int, surplus: int, crowded: bool
) -> None:
    assert excess(held, 1_600) == surplus
    assert is_crowded(held, 1_600) is crowded
