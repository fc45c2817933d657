"""What one broker group knows of a queue that takes part, or took part, in a move.

Not here: how each step of a move changes it (`moves.py`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from semel.broker.state.apply.delayed_copies import DelayedCopies
from semel.broker.state.apply.queues import QueueState


class MoveState(IntEnum):
    """How a broker group relates to a queue that takes part, or took part, in a move."""

    HERE = 1
    """The job is over, and the queue lives here."""
    AWAY = 2
    """The job is over, and the queue lives on the other group."""
    FROZEN = 3
    """Source: the queue is sealed, and this group does not know yet where it will live."""
    INCOMING = 4
    """Target: copies arrive."""
    READY = 5
    """Target: everything has arrived."""
    HELD = 6
    """Source: the queue is copied, and is not compacted meanwhile."""


class Place(NamedTuple):
    """The newest job of a queue, as one broker group knows it."""

    state: MoveState
    job: int
    group_id: int
    """The other broker group."""


class Incoming:
    """A queue on its way here."""

    __slots__ = ("delayed", "queue", "slice")

    def __init__(self, queue: QueueState) -> None:
        self.queue = queue
        """Holds the extents of the copies."""
        self.delayed = DelayedCopies()
        self.slice = b""
        """The part of the serialized slice that has arrived."""
