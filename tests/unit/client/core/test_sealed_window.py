"""The send window of a queue that is split at any moment, behind a bad network."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.client.core.sequences import Decision, Failed, InFlight, Sealed, SendWindow, Settled
from semel.protos.batch import BatchHeader
from semel.protos.errors import (
    DedupStateExpired,
    InvalidRequest,
    OutOfOrderSequence,
    QueueSealed,
    SemelError,
)
from semel.protos.ids import Sequence
from semel.protos.v1 import control_pb2
from tests.kit.send_window import PRODUCER, STEPS, World, run
from tests.kit.simulated_broker import Answer, SimulatedQueue

SPLIT = control_pb2.SplitQueue(children=[control_pb2.ChildQueue(queue_id=1, slot_end=65_536)])
ERROR = QueueSealed("split", split_record=SPLIT.SerializeToString())


class SplittingQueue(SimulatedQueue):
    """Answers as the judge does: what is stored is known first, all else is refused for good."""

    sealed = False

    def _judge(self, batch: bytes, header: BatchHeader, answer: Answer) -> None:
        row = self.row
        if (
            self.sealed
            and row is not None
            and (header.epoch, header.session) == (row.epoch, row.session)
            and header.base_sequence > row.last
        ):
            raise ERROR
        super()._judge(batch, header, answer)


class SplitWorld(World):
    """What the window gives up goes to `moved`, once."""

    def __init__(self, *, positions: bool, window_class: type[SendWindow] = SendWindow) -> None:
        super().__init__(positions=positions, window_class=window_class)
        self.split_queue = SplittingQueue()
        self.split_queue.row = self.queue.row
        self.queue = self.split_queue
        self.moved: list[bytes] = []
        self.ends = 0

    def perform(self, decisions: list[Any]) -> None:
        for decision in decisions:
            if isinstance(decision, Sealed):
                self.ends += 1
                assert decision.split == SPLIT
                for batch in decision.batches:
                    self.moved += batch.tag[batch.trimmed :]  # type: ignore[index]
        super().perform(decisions)

    def check(self) -> None:
        super().check()
        assert self.ends <= 1
        assert not set(self.moved) & set(self.queue.stored), "in the parent and in a child"
        assert self.queue.stored + self.moved == self.sent[: len(self.queue.stored + self.moved)]


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, positions=st.booleans(), split_at=st.integers(0, 45))
def test_what_is_not_stored_moves_once_and_in_order(
    steps: list[Any], positions: bool, split_at: int
) -> None:
    world = SplitWorld(positions=positions)
    count = 0

    def split(world: Any) -> None:
        nonlocal count
        count += 1
        world.split_queue.sealed |= count >= split_at

    run(world, steps, split)
    assert world.queue.stored + world.moved == world.sent
    assert {world.outcome[value] for value in world.queue.stored} <= {"stored"}
    assert not set(world.moved) & world.outcome.keys()


class HastyWindow(SendWindow):
    """Leaves as soon as any batch is turned away."""

    def on_refused(self, base: int, last: int, error: SemelError) -> list[Decision]:
        if isinstance(error, QueueSealed):
            batches = self.batches()
            return [self._end(SPLIT, batches)] if batches else []
        return super().on_refused(base, last, error)


def test_planted_a_window_that_leaves_too_early_is_noticed() -> None:
    world = SplitWorld(positions=False, window_class=HastyWindow)
    world.add(1, 0)
    world.add(1, 0)
    world.transmit(2)
    world.arrive()
    world.split_queue.sealed = True
    world.arrive()
    world.answer(1)
    with pytest.raises(AssertionError, match="in the parent and in a child"):
        world.check()


def window_of(*values: str) -> tuple[SendWindow, list[InFlight]]:
    window = SendWindow(
        producer_id=PRODUCER,
        epoch=1,
        session=1,
        last_sequence=-1,
        max_in_flight=8,
        positions=False,
    )
    batches = []
    for number, value in enumerate(values):
        batch = InFlight(
            previous=Sequence(number - 1),
            base=Sequence(number),
            last=Sequence(number),
            count=1,
            payload=b"",
            tag=value,
        )
        window.add(batch)
        assert window.next_to_send() is batch
        batches.append(batch)
    return window, batches


def test_nothing_new_comes_in_once_a_batch_was_turned_away() -> None:
    window, (first, second) = window_of("a", "b")
    assert window.on_refused(1, 1, ERROR) == []
    assert not window.room
    (settled, sealed) = window.on_stored(0, 0, 7, 0, False)
    assert settled == Settled(first, 7, 0, False)
    assert sealed == Sealed(SPLIT, (second,))
    assert window.next_to_send() is None
    assert window.on_refused(1, 1, ERROR) == []


def test_a_queue_that_forgot_the_producer_gives_back_only_what_was_refused() -> None:
    window, (one, two, three, four) = window_of("unknown", "refused", "wrong", "not sent")
    four.sends = 0
    one.sends = 2
    two.refused = True
    three.error = InvalidRequest("poison")
    decisions = window.on_fence_sealed(SPLIT)
    assert [type(decision) for decision in decisions] == [Failed, Failed, Sealed]
    assert isinstance(decisions[0].error, DedupStateExpired)  # type: ignore[union-attr]
    assert decisions[1] == Failed(three, three.error)
    assert decisions[2] == Sealed(SPLIT, (two, four))


def test_a_fence_that_leaves_nothing_ends_the_window_of_a_sealed_queue() -> None:
    """Else what waits behind it would wait for ever."""
    window, _ = window_of("a", "b")
    window.on_refused(1, 1, ERROR)
    for _ in range(6):
        window.on_refused(0, 0, OutOfOrderSequence("gap", last_sequence=-1))
        window.rewind()
        while window.next_to_send() is not None:
            pass
    decisions = window.on_fenced(
        producer_id=PRODUCER, epoch=1, session=2, last_sequence=1, known=[]
    )
    assert [type(decision) for decision in decisions] == [Settled, Settled, Sealed]
    assert decisions[-1] == Sealed(SPLIT, ())
