"""The send window against a queue behind a network that loses, repeats, delays and reorders."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.client.core.due_in_second import DueInSecond
from semel.client.core.sequences import Failed, Fence, Known, SendWindow, Settled
from semel.protos.batch import decode_header
from semel.protos.errors import (
    DedupStateExpired,
    DelayThrottled,
    InvalidRequest,
    SemelError,
    SequenceConflict,
    Throttled,
    Unavailable,
)
from tests.kit.send_window import NAMES, PRODUCER, STEPS, RenamesInDoubt, World, run


@settings(max_examples=120, deadline=None)
@given(steps=STEPS, positions=st.booleans())
def test_everything_is_stored_once_and_in_order(steps: list[Any], positions: bool) -> None:
    world = World(positions=positions)
    run(world, steps)
    assert [value for value in world.sent if world.outcome[value] != "stored"] == []
    assert world.queue.stored == world.sent


@pytest.mark.parametrize("refusal", [InvalidRequest("poison"), DelayThrottled("full")])
@settings(max_examples=120, deadline=None)
@given(steps=STEPS, poisoned=st.integers(0, 10))
def test_a_refused_message_fails_alone_and_its_successors_are_stored(
    refusal: SemelError, steps: list[Any], poisoned: int
) -> None:
    world = World(positions=False)
    world.queue.refusal = refusal
    world.queue.poison = b"m%d" % poisoned
    run(world, steps)
    stored = [value for value in world.sent if world.outcome[value] == "stored"]
    assert world.queue.stored == stored
    failed = [value for value in world.sent if world.outcome[value] == "failed"]
    assert len(failed) <= 4
    assert not failed or world.queue.poison in failed


@settings(max_examples=120, deadline=None)
@given(steps=STEPS, expire_at=st.integers(0, 40))
def test_a_forgotten_producer_never_sends_in_doubt_twice(steps: list[Any], expire_at: int) -> None:
    world = World(positions=False)
    count = 0

    def expire(world: World) -> None:
        nonlocal count
        count += 1
        if count == expire_at:
            world.queue.expire()

    run(world, steps, expire)
    assert set(world.outcome.values()) <= {"stored", "unknown"}


def test_an_idle_producer_that_was_forgotten_is_not_told() -> None:
    world = World(positions=False)
    world.add(2, 0)
    world.transmit(1)
    world.arrive()
    world.answer(0)
    world.queue.expire()
    world.add(2, 0)
    world.settle_all()
    assert set(world.outcome.values()) == {"stored"}
    assert world.queue.stored == world.sent


def test_a_batch_of_unknown_fate_is_reported_and_not_sent_again() -> None:
    world = World(positions=False)
    world.add(1, 0)
    world.transmit(1)
    world.arrive()
    world.lose_stream()
    world.queue.expire()
    world.settle_all()
    assert world.outcome == {b"m0": "unknown"}
    assert world.queue.stored == [b"m0"]


def test_acknowledged_messages_that_are_gone_end_the_producer() -> None:
    world = World(positions=False)
    world.add(1, 0)
    world.transmit(1)
    world.arrive()
    world.answer(0)
    assert world.queue.row is not None
    world.queue.row.last = -1
    world.queue.row.window.clear()
    world.fence_due = Fence(False)
    world.fence()
    assert world.fatal is not None


@pytest.mark.parametrize("positions", [True, False])
def test_of_a_batch_that_a_fence_finds_stored_in_part_the_rest_is_sent(positions: bool) -> None:
    """An earlier shape of it had fewer rows; above what the queue names nothing is stored."""
    world = World(positions=positions)
    world.add(3, 0)
    (batch,) = world.window.batches()
    world.window.next_to_send()
    decisions = world.window.on_fenced(
        producer_id=PRODUCER,
        epoch=1,
        session=2,
        last_sequence=batch.base,
        known=[Known(batch.base, batch.base, 0, 1)],
    )
    assert decisions == []
    again = world.window.next_to_send()
    assert again is batch
    assert (batch.count, batch.trimmed) == (2, 1)
    header = decode_header(batch.payload)
    assert (header.count, header.session) == (2, 2)
    assert header.previous_sequence == 0
    assert world.window.last_settled == 0


def test_an_answer_to_an_earlier_shape_of_a_batch_is_void() -> None:
    world = World(positions=False)
    world.add(3, 0)
    window = world.window
    (batch,) = window.batches()
    window.next_to_send()
    for last in (batch.last - 1, batch.last + 1):
        assert window.on_stored(batch.base, last, 0, 1, False) == []
        assert window.on_refused(batch.base, last, InvalidRequest("no")) == []
    assert window.batches() == [batch]
    assert batch.error is None
    (settled,) = window.on_stored(batch.base, batch.last, 0, 1, False)
    assert isinstance(settled, Settled)


def test_other_content_under_a_stored_sequence_is_a_failure_and_no_duplicate() -> None:
    """The queue ends behind the batch, and what it holds there is something else."""
    world = World(positions=True)
    world.add(2, 0)
    window = world.window
    batch = window.next_to_send()
    assert batch is not None
    assert window.on_refused(batch.base, batch.last, SequenceConflict("other content")) == [
        Fence(False)
    ]
    (failed,) = window.on_fenced(
        producer_id=PRODUCER, epoch=1, session=2, last_sequence=batch.last, known=[]
    )
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, SequenceConflict)


@pytest.mark.parametrize("refused", [False, True])
def test_a_batch_that_lacks_messages_is_no_duplicate_when_its_answer_was_lost(
    refused: bool,
) -> None:
    """A conflict among them would otherwise be told as stored."""
    world = World(positions=False)
    world.add(2, 0)
    window = world.window
    batch = window.next_to_send()
    assert batch is not None
    if refused:
        refusal = DedupStateExpired("its answer is lost")
        assert window.on_refused(batch.base, batch.last, refusal) == [Fence(True)]
    for dropped, kind in ((True, Failed), (False, Settled)):
        again = World(positions=False)
        again.add(2, 0)
        known = Known(batch.base, batch.last, -1, 2, dropped)
        (decision,) = (window if dropped else again.window).on_fenced(
            producer_id=PRODUCER,
            epoch=2 if refused else 1,
            session=2,
            last_sequence=batch.last,
            known=[known],
        )
        assert isinstance(decision, kind)
        if isinstance(decision, Failed):
            assert isinstance(decision.error, DedupStateExpired)
            assert "send the messages again" in decision.error.message


def test_nothing_leaves_while_a_fence_is_under_way() -> None:
    """Whatever left now would be refused, or be of unknown fate."""
    world = World(positions=False)
    world.add(1, 0)
    world.add(1, 0)
    window = world.window
    first = window.next_to_send()
    assert first is not None
    (decision,) = window.on_refused(first.base, first.last, InvalidRequest("no"))
    assert isinstance(decision, Fence)
    assert window.next_to_send() is None
    assert not window.room


def test_our_own_fence_does_not_end_us() -> None:
    world = World(positions=False)
    world.queue.poison = b"m0"
    world.add(1, 0)
    world.add(1, 0)
    world.transmit(2)
    world.arrive()
    world.answer(0)
    second = world.wire.popleft()
    late = world.queue
    world.fence()
    answer = late.produce(second)
    assert answer.error is not None
    world.perform(world.window.on_refused(answer.base, answer.last, answer.error))
    assert world.fatal is None
    world.settle_all()
    assert world.outcome == {b"m0": "failed", b"m1": "stored"}


def test_a_newer_incarnation_ends_us() -> None:
    world = World(positions=False)
    world.add(1, 0)
    world.queue.fence(2, 1)
    world.transmit(1)
    world.arrive()
    world.answer(0)
    assert world.fatal is not None


# --- planted bugs: the tests above must see them -------------------------------------------------


class _ForgetsOnThrottle(SendWindow):
    """Takes a refusal for an outcome and goes on."""

    def on_refused(self, base: int, last: int, error: Any) -> list[Any]:
        if isinstance(error, Throttled):
            batch = self._match(base, last)
            if batch is not None:
                return [self._settle(batch, -1, 0, False)]
        return super().on_refused(base, last, error)


class _ResendsUnknown(SendWindow):
    """Sends again what an expired queue may have."""

    def on_fenced(self, **arguments: Any) -> list[Any]:
        for batch in self.batches():
            batch.sends = 0
        return super().on_fenced(**arguments)


class _FailsInDoubt(SendWindow):
    """Calls a batch failed that was refused after an earlier attempt had stored it."""

    def on_refused(self, base: int, last: int, error: Any) -> list[Any]:
        batch = self._match(base, last)
        if batch is not None and isinstance(error, Unavailable):
            self._in_flight.pop(batch.base)
            return [Failed(batch, InvalidRequest("gave up"))]
        return super().on_refused(base, last, error)


def walk(seed: int) -> list[tuple[str, int]]:
    """Long walks find what short examples do not."""
    random = Random(seed)
    return [(random.choice(NAMES), random.randrange(8)) for _ in range(80)]


@pytest.mark.parametrize("positions", [False, True])
def test_long_walks(positions: bool) -> None:
    for seed in range(150):
        world = World(positions=positions)
        run(world, walk(seed))
        assert world.queue.stored == world.sent, f"seed {seed}"


def test_long_walks_that_forget() -> None:
    for seed in range(150):
        run_forgetting(World(positions=False), seed)


def run_forgetting(world: World, seed: int) -> None:
    left = 10 + seed % 60

    def expire(world: World) -> None:
        nonlocal left
        left -= 1
        if not left:
            world.queue.expire()

    run(world, walk(seed), expire)


@pytest.mark.parametrize(
    "bug", [_ForgetsOnThrottle, RenamesInDoubt, _FailsInDoubt, _ResendsUnknown]
)
def test_planted_bugs_are_found(bug: type[SendWindow]) -> None:
    for seed in range(150):
        try:
            run(World(positions=bool(seed % 2), window_class=bug), walk(seed))
            run_forgetting(World(positions=False, window_class=bug), seed)
        except (AssertionError, SemelError):
            return
    pytest.fail("no walk saw the bug")


def test_a_batch_without_room_in_its_second_fails_alone_and_is_not_sent_again() -> None:
    """Waiting makes no room, unlike for any other Throttled; what comes behind it is chained anew
    and stored once."""
    world = World(positions=False)
    for _ in range(3):
        world.add(1, 0)
    window = world.window
    first, full, third = (window.next_to_send() for _ in range(3))
    assert first is not None
    assert full is not None
    assert third is not None
    window.on_stored(first.base, first.last, -1, 1, False, None, DueInSecond(9, 900))
    error = DelayThrottled("full", due_us=5, due_messages=9, due_messages_max=9)
    assert window.on_refused(full.base, full.last, error) == [Fence(False)]
    (failed,) = window.on_fenced(
        producer_id=PRODUCER, epoch=1, session=2, last_sequence=first.last, known=[]
    )
    assert isinstance(failed, Failed)
    assert failed.error is error
    again = window.next_to_send()
    assert again is third
    assert (again.previous, again.base) == (first.last, full.base)
    assert window.next_to_send() is None


def test_what_is_due_in_its_second_goes_along_with_a_stored_batch() -> None:
    world = World(positions=False)
    world.add(1, 0)
    batch = world.window.next_to_send()
    assert batch is not None
    load = DueInSecond(3, 300)
    (settled,) = world.window.on_stored(batch.base, batch.last, -1, 1, False, None, load)
    assert isinstance(settled, Settled)
    assert settled.due_in_second == load


def test_to_wait_for_room_in_a_second_would_hold_the_producer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The planted bug: it is retried like any other Throttled."""
    monkeypatch.setattr(DelayThrottled, "retriable", True)
    world = World(positions=False)
    world.queue.poison, world.queue.refusal = b"m0", DelayThrottled("full")
    world.add(1, 0)
    world.add(1, 0)
    with pytest.raises(AssertionError, match="does not come to an end"):
        world.settle_all()
