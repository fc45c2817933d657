"""The messages that a channel was given and has not settled, and how far they let it commit. Pure.

How it works. A broker's queue has one progress in a group, an offset below which everything is
done, while Kombu acknowledges each message by itself, in any order. So the deliveries of a queue
stand in a line in the order of their offsets. When those at its head are settled, they leave it,
and the newest of them is what to commit. A message that is settled behind one that is not waits; if
the worker dies before, it is delivered again.

Invariants
1. Nothing is committed that lies at or above an offset that is not settled.
2. A line belongs to one fencing token. When a queue comes again under another token, what was given
   out under the old one is lost: others have it, or it comes again.

Not here: commits (`queue_feed.py`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from semel.client.message import Message


class Place(NamedTuple):
    """A queue of a topic."""

    topic: str
    queue: int


@dataclass(slots=True, eq=False)
class Delivery:
    """One message that was given out."""

    message: Message
    place: Place
    token: int
    """The fencing token of the lock under which it was given out."""
    offset: int
    settled: bool = False
    lost: bool = False
    """Its lock is gone, so settling it changes nothing."""
    redelivered: bool = False


class Deliveries:
    """The lines of one consumer."""

    def __init__(self) -> None:
        self._lines: dict[Place, deque[Delivery]] = {}

    def __len__(self) -> int:
        """Returns the number of deliveries that are not settled, and not lost."""
        return sum(not each.settled for line in self._lines.values() for each in line)

    def give(self, delivery: Delivery) -> None:
        """Enters what is about to be given out, behind what the queue gave before."""
        line = self._lines.setdefault(delivery.place, deque())
        if line and line[-1].token != delivery.token:
            self.lose(line[-1])
            line = self._lines[delivery.place] = deque()
        line.append(delivery)

    def settle(self, delivery: Delivery) -> Delivery | None:
        """Returns the newest delivery that may be committed now, with all before it; None when an
        older one of the queue is not settled, or when the delivery is lost or settled already."""
        if delivery.settled or delivery.lost:
            return None
        delivery.settled = True
        line = self._lines[delivery.place]
        newest = None
        while line and line[0].settled:
            newest = line.popleft()
        return newest

    def lose(self, delivery: Delivery) -> None:
        """Drops everything that was given out under a delivery's token."""
        line = self._lines.get(delivery.place)
        if line and line[-1].token == delivery.token:
            for each in line:
                each.lost = True
            del self._lines[delivery.place]
        delivery.lost = True
