"""A thread that computes for long rests while messages are being stored, and only then."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from semel.broker.replica import pools
from semel.broker.replica.pools import RECENT_S, REST, SLICE_S, Courtesy


class Thread:
    """Clocks of a thread that computes and rests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.computed = self.now = 0.0
        self.rests: list[float] = []
        self.appended = 0
        clocks = SimpleNamespace(thread_time=lambda: self.computed, monotonic=lambda: self.now)
        monkeypatch.setattr(pools, "time", clocks)
        self.courtesy = Courtesy(lambda: self.appended)
        monkeypatch.setattr(self.courtesy, "_never", SimpleNamespace(wait=self.rests.append))

    def compute(self, seconds: float) -> None:
        self.computed += seconds
        self.now += seconds
        self.courtesy.maybe_rest()


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Thread:
    return Thread(monkeypatch)


def test_it_rests_for_longer_than_it_computed_while_messages_are_stored(thread: Thread) -> None:
    for _ in range(3):
        thread.appended += 1
        thread.compute(SLICE_S)
    assert thread.rests == pytest.approx([REST * SLICE_S] * 3)


def test_it_does_not_rest_while_nobody_stores_anything(thread: Thread) -> None:
    for _ in range(1_000):
        thread.compute(SLICE_S)
    assert thread.rests == []


def test_it_computes_a_slice_before_it_rests(thread: Thread) -> None:
    thread.appended += 1
    for _ in range(9):
        thread.compute(SLICE_S / 10)
    assert thread.rests == []
    thread.compute(SLICE_S / 5)
    assert len(thread.rests) == 1


def test_it_goes_on_with_resting_between_two_messages_and_ends_it_after_the_last(
    thread: Thread,
) -> None:
    thread.appended += 1
    for _ in range(int(2 * RECENT_S / SLICE_S)):
        thread.compute(SLICE_S)
    assert len(thread.rests) == pytest.approx(RECENT_S / SLICE_S, abs=2)
