"""The message ids of one topic in one broker group's log, as the checkers keep them.

Not here: reading the log (`message_ids.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from semel.protos.slots import SLOT_COUNT
from semel.protos.v1 import common_pb2
from tests.checking.moved_ids import Message, Place
from tests.checking.stored import Queue

ID_BYTES = 40
"""What one id counts in a window, as the documentation says."""
_IN_FLIGHT_MAX = 16
"""A master has at most so many entries in flight, with a few to spare."""


class BatchName(NamedTuple):
    """Names one batch for good."""

    queue: Queue
    producer_id: int
    epoch: int
    session: int
    base_sequence: int


MessageName = tuple[Queue, int, int, int, int]
"""Queue, producer, epoch, session and sequence."""


def homes_of(name: MessageName, handed: Mapping[MessageName, Queue]) -> list[Queue]:
    """The queues in which a message was, the one where it is last; `handed` has the child to which
    each message went that was delayed when its queue was split."""
    found = [name[0]]
    while (child := handed.get((found[-1], *name[1:]))) is not None:
        found.append(child)
    return found


class Arrival(NamedTuple):
    """A stored message with an id."""

    message: Message
    place: Place
    time_us: int
    """Log time of its entry."""
    entry: int
    """The entry that holds it."""
    row: int
    """Its row in the batch there."""
    sent: tuple[BatchName, int] | None
    """The batch in which it was sent, and its sequence; None if it came with a move."""
    arrived: int
    """The entry with which it arrived: that of a publication, if a transaction had staged it."""


class Forgotten(NamedTuple):
    """An eviction that neither bytes nor time explain."""

    entry: int
    first_arrival: int
    explained: int
    """Arrivals below this may be forgotten."""


@dataclass(slots=True)
class IdTopic:
    """The ids of one topic."""

    settings: common_pb2.IdDedup
    floor: int = 0
    """All arrivals are at least that: those of earlier windows with the seed are below."""
    base: int | None = 0
    """The first arrival; None if no record has told it yet, of a window that began with a move."""
    first_arrival: int = 0
    arrivals: list[Arrival] = field(default_factory=list)
    """All since the window began, in order; the first one is `base`."""
    newest: dict[bytes, int] = field(default_factory=dict)
    """The last arrival of each id."""
    cancelled: dict[int, int] = field(default_factory=dict)
    """By arrival of a message that was cancelled: the entry that did it."""
    superseded: dict[int, int] = field(default_factory=dict)
    """By arrival of a message whose queue came back: the entry from which on it does not count."""
    evictions: list[tuple[int, int]] = field(default_factory=list)
    """Entry, and where the window begins since then."""
    slots: list[tuple[int, int]] = field(default_factory=list)
    """Entry, and how many slots of the topic the group has since then."""
    forgotten: list[Forgotten] = field(default_factory=list)
    """They are right only if all nodes have lost the ids."""

    @property
    def next_arrival(self) -> int:
        """The number of the next arrival."""
        return (self.base or 0) + len(self.arrivals)

    def has(self, arrival: int) -> bool:
        """Whether something in the window has arrived so."""
        return self.first_arrival <= arrival < self.next_arrival

    def at(self, arrival: int) -> Arrival:
        """The message with the number."""
        return self.arrivals[arrival - (self.base or 0)]

    def begin(self, first_arrival: int) -> str:
        """Takes the first record's word for where arrivals begin. Returns why ids cannot arrive so;
        nothing if they can."""
        if self.base is None:
            if first_arrival < self.floor:
                return f"ids arrive as {first_arrival}, and earlier windows go up to {self.floor}"
            self.base = self.first_arrival = first_arrival
        if first_arrival != self.next_arrival:
            return f"ids arrive as {first_arrival}, not {self.next_arrival}"
        return ""

    def known(self, name: bytes) -> int | None:
        """The arrival of an id in the window whose message is not cancelled."""
        arrival = self.newest.get(name, -1)
        gone = arrival in self.cancelled or arrival in self.superseded
        return arrival if arrival >= self.first_arrival and not gone else None

    def held(self) -> dict[bytes, int]:
        """The arrivals of the ids that are known."""
        known = {name: self.known(name) for name in self.newest}
        return {name: arrival for name, arrival in known.items() if arrival is not None}

    def explained(self, now_us: int, entry: int) -> int:
        """Arrivals below this are too many, or too old, in the eyes of the master that proposes
        `entry`: it may not have applied the newest entries before."""
        later = [(at, slots) for at, slots in self.slots if at > entry - _IN_FLIGHT_MAX]
        before = [(at, slots) for at, slots in self.slots if at <= entry - _IN_FLIGHT_MAX]
        slots = min(slots for _, slots in (*before[-1:], *later))
        ids_max = max(1, self.settings.window_bytes * slots // (SLOT_COUNT * ID_BYTES))
        too_many = max(self.first_arrival, self.next_arrival - ids_max)
        if not self.settings.keep_ms:
            return too_many
        too_old, end_us = too_many, now_us - self.settings.keep_ms * 1_000
        while too_old < self.next_arrival and self.at(too_old).time_us <= end_us:
            too_old += 1
        return too_old
