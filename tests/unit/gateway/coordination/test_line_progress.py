"""A group's place on a partition whose queues were split: no commit passes a message over."""

from __future__ import annotations

import itertools

import pytest

from semel.client.core.routing import QueueRoute
from semel.gateway.coordination.line_progress import STEPS, Progress, joined
from semel.gateway.partitions import PartitionLine
from semel.protos.ids import GroupId, QueueId, QueueKey, TopicId

ENDS = (5, 0, 3)
"""Ends of the queues that were split; the last one is open."""
STARTS = (0, 5, 5, 8)
OFFSETS = range(12)


def queue(number: int) -> QueueRoute:
    return QueueRoute(
        key=QueueKey(TopicId(7), QueueId(number)),
        group_id=GroupId(1),
        slot_start=0,
        slot_end=1,
        parent=number - 1 if number else None,
        sealed=number < len(ENDS),
    )


LINE = PartitionLine(0, tuple(queue(number) for number in range(len(STARTS))), STARTS)


class Stored:
    """What brokers have of a group, and what a commit makes of it."""

    def __init__(self) -> None:
        self.found: dict[QueueKey, Progress] = {}

    @property
    def place(self) -> int:
        return joined(LINE.queues, self.found, LINE.end).offset

    def commit(self, offset: int, steps: int = len(STEPS), *, known: bool = True) -> None:
        """Carries out the first `steps` steps."""
        wanted = Progress(offset, b"m")
        for step in STEPS[:steps]:
            committed = {key: each.offset for key, each in self.found.items()} if known else {}
            stores = step(LINE, wanted, committed)
            self.found |= {key: progress for key, (_, progress) in stores.items()}


def test_nothing_is_committed_at_first() -> None:
    assert Stored().place == -1


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("first", "second"), list(itertools.product(OFFSETS, OFFSETS)))
def test_a_commit_is_found_whatever_was_committed_before(
    first: int, second: int, known: bool
) -> None:
    stored = Stored()
    stored.commit(first, known=known)
    assert stored.place == first
    stored.commit(second, known=known)
    assert stored.place == second
    assert stored.found[LINE.queues[LINE.spot(second).place].key].metadata == b"m"


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(("first", "second"), list(itertools.product(OFFSETS, OFFSETS)))
def test_a_commit_that_breaks_off_leaves_a_place_between_the_two(
    first: int, second: int, steps: int
) -> None:
    stored = Stored()
    stored.commit(first)
    stored.commit(second, steps)
    assert min(first, second) <= stored.place <= max(first, second)


@pytest.mark.parametrize(("first", "second"), list(itertools.product(OFFSETS, OFFSETS)))
def test_a_group_that_reads_on_from_there_meets_every_message(first: int, second: int) -> None:
    """Queue by queue, as it is found after each commit."""
    stored = Stored()
    stored.commit(first)
    stored.commit(second)
    place = stored.place
    while place < OFFSETS[-1]:
        stored.commit(place + 1)
        assert stored.place == place + 1, "a message was passed over, or comes again"
        place += 1


def test_a_commit_that_leaves_what_is_behind_it_is_caught() -> None:
    """Planted: step 1 is left out. Then the group jumps, once it has read its queue to the end."""
    stored = Stored()
    stored.commit(11)
    wanted = Progress(2, b"")
    for step in STEPS[1:]:
        stored.found |= {key: each for key, (_, each) in step(LINE, wanted, {}).items()}
    assert stored.place == 2
    own = STEPS[2](LINE, Progress(4, b""), {})
    stored.found |= {key: each for key, (_, each) in own.items()}
    stored.found[LINE.queues[0].key] = Progress(5, b"")
    assert stored.place == 11


def test_what_was_not_read_of_an_heir_begins_at_its_start() -> None:
    found = {LINE.queues[0].key: Progress(5, b"a")}
    assert joined(LINE.queues, found, LINE.end) == Progress(5, b"")
