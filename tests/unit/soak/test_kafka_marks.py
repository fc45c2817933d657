"""A strike of a soak counts as one that left a mark only if something has changed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.soak.kafka_marks import Marks

RATE = 100.0
STRIKE_S = 2.0


class World:
    """A cluster that does nothing by itself, and a clock that stands still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.term = self.started_us = 1
        self.queues = 4
        self.copied = self.disturbances = 0
        node = object()
        cluster = SimpleNamespace(
            active_controller=lambda: node,
            controller_status=lambda _: SimpleNamespace(started_us=self.started_us),
            master=lambda: node,
            status=lambda _, confirmed: SimpleNamespace(term=self.term),
        )
        admin = SimpleNamespace(
            list_topics=lambda: [SimpleNamespace(name="orders")],
            describe_topic=lambda _: SimpleNamespace(queues=[None] * self.queues),
        )
        served: Any = SimpleNamespace(cluster=cluster, client=SimpleNamespace(admin=admin))
        self.marks = Marks(served, RATE)
        monkeypatch.setattr("tests.soak.kafka_marks.time.monotonic", lambda: self.now_s)

    def strike(self, copies_s: float = STRIKE_S, **changes: int) -> int:
        """Strikes for a time in which copies get what is written in `copies_s`. Returns how many
        strikes have left a mark."""
        with self.marks.of("it", lambda: self.copied, lambda: self.disturbances):
            self.now_s += STRIKE_S
            self.copied += int(RATE * copies_s)
            for name, change in changes.items():
                setattr(self, name, getattr(self, name) + change)
        assert self.marks.struck.total() >= self.marks.bitten.total()
        return self.marks.bitten["it"]


def test_a_strike_that_changes_nothing_leaves_no_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    assert world.strike() == 0
    assert world.marks.struck == {"it": 1}


@pytest.mark.parametrize("what", ["term", "started_us", "queues", "disturbances"])
def test_what_changes_is_a_mark(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    world = World(monkeypatch)
    assert world.strike(**{what: 1}) == 1
    assert world.strike() == 1, "it is the mark of the strike before"


def test_copies_that_stand_still_are_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    assert world.strike(copies_s=STRIKE_S / 2) == 1
