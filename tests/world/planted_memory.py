"""Bugs of topics in memory to plant; the simulator must find each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from semel.broker.background.memory_bodies import MemoryBodies
from semel.broker.memory import BodyStore
from semel.broker.state import State
from semel.client.reading import feed_queue, reader


@contextmanager
def acknowledges_before_it_has_bodies() -> Iterator[None]:
    """A slave takes frames and answers, and asks for the bodies later."""

    def put_carried(self: Any, index: int, carried: Any) -> None:
        self.missing_to = max(self.missing_to, index) if carried else self.missing_to

    with patch.object(BodyStore, "put_carried", put_carried):
        yield


@contextmanager
def leaves_out_bodies() -> Iterator[None]:
    """A slave takes frames and answers, and never has the bodies that came with them."""
    with patch.object(BodyStore, "put_carried", lambda self, index, carried: None):
        yield


@contextmanager
def believes_a_look_that_began_too_early() -> Iterator[None]:
    """A node takes what it applies while it asks for bodies for looked at."""
    look = MemoryBodies._look

    async def early(self: Any) -> bool:
        done = await look(self)
        if not self.missing_bytes and self._replica.state.applied_index:
            self._replica.bodies.missing_to = 0
        return done

    with patch.object(MemoryBodies, "_look", early):
        yield


@contextmanager
def serves_the_body_of_another_record() -> Iterator[None]:
    """Where an entry has several batches, the first one is given for all of them."""

    def get(self: Any, index: int, position: int) -> Any:
        entry = self._entries.get(index, {})
        return next(iter(entry.values())) if position in entry else None

    with patch.object(BodyStore, "get", get):
        yield


@contextmanager
def tells_no_loss() -> Iterator[None]:
    """A reader goes on behind what is lost and says nothing."""
    passed = feed_queue.pass_lost

    def silent(queue: Any, error: Any, *, told: bool) -> Any:
        return passed(queue, error, told=False)

    with patch.object(reader, "pass_lost", silent):
        yield


@contextmanager
def forgets_sequences_with_bodies() -> Iterator[None]:
    """The sequence table forgets what is lost as well, so that it is stored again."""
    lose = State._lose_memory

    def forgetting(self: Any, record: Any) -> Any:
        done = lose(self, record)
        for row in self.producers.rows(done.queue_key):
            self.producers.change(done.queue_key, row.producer_id).last_sequence = -1
        return done

    with patch.object(State, "_lose_memory", forgetting):
        yield


@contextmanager
def drops_too_much() -> Iterator[None]:
    """A trim takes the oldest batch along that stays."""
    follow = BodyStore._follow

    def greedy(self: Any, key: Any, state: Any, *, only_trimmed: bool) -> None:
        follow(self, key, state, only_trimmed=only_trimmed)
        for _, index, position in list(self._queues.get(key, ()))[:1]:
            self._drop(index, position)

    with patch.object(BodyStore, "_follow", greedy):
        yield
