"""What a queue remembers of rows that expired: whom it must not mistake for a new producer.

How it works. The epochs of the 256 expired rows with the highest epochs are kept by producer; what
falls out leaves only a *floor* and a *ceiling*: the highest epoch and the highest producer id among
them. A producer without a row may open one if it cannot be one of those that expired, or if it
comes with a higher epoch than the one that did. If that row had stored something, it must also say
that it knows (`after_expiry`): a loader that starts again would take "nothing stored yet" for true
and store everything twice.

Why not one floor for all: epochs are counted a producer, so the expiry of a busy one (epoch 50)
would lock out a quiet one (epoch 2) that never wrote to this queue.

Invariants
1. Nobody who had a row that expired passes with an epoch that row had, or a lower one.
2. `floor` and `ceiling` never fall. Producers that opened once only (epoch 1) fall out first, so in
   practice the floor stays 1, and opening once more is enough.

Not here: choosing the rows (`producers.py`), refusing (`state/admission/admission.py`).
"""

from __future__ import annotations

import struct
from typing import Final

from semel.broker.state.apply.codec import Reader
from semel.protos.errors import CorruptSegment

REMEMBERED_MAX: Final = 256
HEAD: Final = struct.Struct("<QII")
EXPIRED: Final = struct.Struct("<QII")


class Expired:
    """Producers whose row on one queue expired."""

    __slots__ = ("ceiling", "epochs", "floor", "stored")

    def __init__(self) -> None:
        self.floor = 0
        self.ceiling = 0
        self.epochs: dict[int, int] = {}
        """Epoch of the newest expired row, by producer id, also of producers that came back."""
        self.stored: set[int] = set()
        """Those of `epochs` of whom an expired row knew a stored message."""

    def add(self, producer_id: int, epoch: int, *, stored: bool) -> None:
        """A row expires, which knew of something `stored` or not."""
        if stored or self.may_have_stored(producer_id):
            self.stored.add(producer_id)
        self.epochs[producer_id] = epoch
        if len(self.epochs) > REMEMBERED_MAX:
            lowest_epoch, lowest_id = min((e, number) for number, e in self.epochs.items())
            del self.epochs[lowest_id]
            self.stored.discard(lowest_id)
            self.raise_floor(lowest_epoch, lowest_id)

    def raise_floor(self, epoch: int, producer_id: int) -> None:
        """Producers up to this id with an epoch up to this one are not new."""
        self.floor = max(self.floor, epoch)
        self.ceiling = max(self.ceiling, producer_id)

    def floor_of(self, producer_id: int) -> int:
        """The highest epoch with which this producer may have had a row; 0 when it had none."""
        known = self.epochs.get(producer_id, 0)
        return max(known, self.floor) if producer_id <= self.ceiling else known

    def may_open(self, producer_id: int, epoch: int, *, after_expiry: bool) -> bool:
        """Whether a producer without a row may get one; `after_expiry`: also without its memory."""
        floor = self.floor_of(producer_id)
        if not floor:
            return True
        return epoch > floor and (after_expiry or not self.may_have_stored(producer_id))

    def may_have_stored(self, producer_id: int) -> bool:
        """Whether a row of this producer expired that knew of something stored."""
        if producer_id in self.epochs:
            return producer_id in self.stored
        return producer_id <= self.ceiling  # of who fell out nobody knows

    def highest_epoch(self) -> int:
        """Of all rows that ever expired here."""
        return max(self.floor, *self.epochs.values(), 0)

    def copy(self) -> Expired:
        """One that changes by itself."""
        made = Expired()
        made.floor, made.ceiling = self.floor, self.ceiling
        made.epochs, made.stored = dict(self.epochs), set(self.stored)
        return made

    def pack(self) -> bytes:
        """Canonical bytes, by rising producer id."""
        head = HEAD.pack(self.ceiling, self.floor, len(self.epochs))
        return head + b"".join(
            EXPIRED.pack(producer_id, epoch, producer_id in self.stored)
            for producer_id, epoch in sorted(self.epochs.items())
        )

    @classmethod
    def read(cls, reader: Reader) -> Expired:
        """The inverse of `pack`. Raises CorruptSegment."""
        made = cls()
        made.ceiling, made.floor, count = reader.unpack(HEAD)
        if count > REMEMBERED_MAX:
            raise CorruptSegment(f"state remembers {count} expired rows of one queue")
        for _ in range(count):
            producer_id, epoch, stored = reader.unpack(EXPIRED)
            if stored > 1:
                raise CorruptSegment(f"state has {stored} where an expired row says 0 or 1")
            made.epochs[producer_id] = epoch
            if stored:
                made.stored.add(producer_id)
        return made
