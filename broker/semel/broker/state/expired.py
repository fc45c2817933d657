"""What a queue remembers of rows that expired: whom it must not mistake for a new producer.

How it works. The epochs of the 256 expired rows with the highest epochs are kept by producer; what
falls out leaves only a *floor* and a *ceiling*: the highest epoch and the highest producer id among
them. A producer without a row may open one if it cannot be one of those that expired, or if it
comes with a higher epoch than the one that did.

Why not one floor for all: epochs are counted a producer, so the expiry of a busy one (epoch 50)
would lock out a quiet one (epoch 2) that never wrote to this queue.

Invariants
1. Nobody who had a row that expired passes with an epoch that row had, or a lower one.
2. `floor` and `ceiling` never fall. Producers that opened once only (epoch 1) fall out first, so in
   practice the floor stays 1, and opening once more is enough.

Not here: choosing the rows (`producers.py`), refusing (`judge.py`).
"""

from __future__ import annotations

import struct
from typing import Final

from semel.broker.state.codec import Reader
from semel.protos.errors import CorruptSegment

REMEMBERED_MAX: Final = 256
HEAD: Final = struct.Struct("<QII")
EXPIRED: Final = struct.Struct("<QI")


class Expired:
    """Producers whose row on one queue expired."""

    __slots__ = ("ceiling", "epochs", "floor")

    def __init__(self) -> None:
        self.floor = 0
        self.ceiling = 0
        self.epochs: dict[int, int] = {}
        """Epoch of the newest expired row, by producer id, also of producers that came back."""

    def add(self, producer_id: int, epoch: int) -> None:
        """A row expires."""
        self.epochs[producer_id] = epoch
        if len(self.epochs) > REMEMBERED_MAX:
            lowest_epoch, lowest_id = min((e, number) for number, e in self.epochs.items())
            del self.epochs[lowest_id]
            self.raise_floor(lowest_epoch, lowest_id)

    def raise_floor(self, epoch: int, producer_id: int) -> None:
        """Producers up to this id with an epoch up to this one are not new."""
        self.floor = max(self.floor, epoch)
        self.ceiling = max(self.ceiling, producer_id)

    def floor_of(self, producer_id: int) -> int:
        """The highest epoch with which this producer may have had a row; 0 when it had none."""
        known = self.epochs.get(producer_id, 0)
        return max(known, self.floor) if producer_id <= self.ceiling else known

    def may_open(self, producer_id: int, epoch: int) -> bool:
        """Whether a producer without a row may get one."""
        floor = self.floor_of(producer_id)
        return not floor or epoch > floor

    def highest_epoch(self) -> int:
        """Of all rows that ever expired here."""
        return max(self.floor, *self.epochs.values(), 0)

    def copy(self) -> Expired:
        """One that changes by itself."""
        made = Expired()
        made.floor, made.ceiling, made.epochs = self.floor, self.ceiling, dict(self.epochs)
        return made

    def pack(self) -> bytes:
        """Canonical bytes, by rising producer id."""
        head = HEAD.pack(self.ceiling, self.floor, len(self.epochs))
        return head + b"".join(EXPIRED.pack(*item) for item in sorted(self.epochs.items()))

    @classmethod
    def read(cls, reader: Reader) -> Expired:
        """The inverse of `pack`. Raises CorruptSegment."""
        made = cls()
        made.ceiling, made.floor, count = reader.unpack(HEAD)
        if count > REMEMBERED_MAX:
            raise CorruptSegment(f"state remembers {count} expired rows of one queue")
        for _ in range(count):
            producer_id, epoch = reader.unpack(EXPIRED)
            made.epochs[producer_id] = epoch
        return made
