"""Bugs in moves of queues in memory, for worlds with both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from semel.broker.memory import bodies
from semel.broker.state import State


def looks_only_at_queues_that_are_here() -> AbstractContextManager[object]:
    """A node that starts anew does not look for the bodies of a queue that is on its way."""
    found = bodies.BodyStore.lacking

    def lacking(self: Any, state: Any) -> Any:
        return (one for one in found(self, state) if one is None or one.key in state.queues)

    return patch.object(bodies.BodyStore, "lacking", lacking)


def drops_bodies_before_the_queue_is_here() -> AbstractContextManager[object]:
    """After each step of a move, only bodies of queues that are here already stay."""

    def holding(self: Any, key: Any) -> Any:
        return self.queues.get(key)

    return patch.object(State, "holding", holding)


Plant = Callable[[], AbstractContextManager[object]]

PLANTS: dict[str, tuple[Plant, str, Sequence[int]]] = {
    "looks only at queues that are here": (
        looks_only_at_queues_that_are_here,
        "is gone, and nobody was told",
        (116, *range(27, 48)),
    ),
    "drops bodies before the queue is here": (
        drops_bodies_before_the_queue_is_here,
        "is gone, and nobody was told",
        range(1, 12),
    ),
}
"""Each with words of its error, and seeds of which one at least finds it."""
