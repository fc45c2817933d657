"""The send window against a queue behind a network that loses, repeats, delays and reorders."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.client.core.sequences import Failed, Fence, SendWindow
from semel.protos.errors import InvalidRequest, SemelError, Throttled, Unavailable
from tests.kit.send_window import NAMES, STEPS, RenamesInDoubt, World, run


@settings(max_examples=120, deadline=None)
@given(steps=STEPS, positions=st.booleans())
def test_everything_is_stored_once_and_in_order(steps: list[Any], positions: bool) -> None:
    world = World(positions=positions)
    run(world, steps)
    assert [value for value in world.sent if world.outcome[value] != "stored"] == []
    assert world.queue.stored == world.sent


@settings(max_examples=120, deadline=None)
@given(steps=STEPS, poisoned=st.integers(0, 10))
def test_a_refused_message_fails_alone_and_its_successors_are_stored(
    steps: list[Any], poisoned: int
) -> None:
    world = World(positions=False)
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
