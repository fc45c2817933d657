"""What a queue remembers of expired rows, so that it mistakes no known producer for a new one.

How it works. The queue keeps the epochs of the 256 expired rows with the highest epochs, by
producer. Rows beyond those leave only a *floor* and a *ceiling* behind: their highest epoch and
their highest producer id. A producer without a row may open one if none of its rows can have
expired, or if its epoch is higher than that of its expired row. If the expired row had stored
something, the producer must also state that it knows about the expiry (`after_expiry`). Otherwise a
loader that restarts would believe "nothing stored yet" and store everything twice.

Rejected: one floor for all producers. Each producer counts its own epochs, so the expiry of a busy
one (epoch 50) would lock out a quiet one (epoch 2) that never wrote to this queue.

Invariants
1. A producer whose row expired opens no new one at the epoch of that row or at a lower one.
2. `floor` and `ceiling` never fall. Producers that opened only once (epoch 1) are dropped first, so
   in practice the floor stays 1, and it is enough to open once more.

Not here: choosing which rows expire (`producers.py`), refusing a producer
(`state/admission/admission.py`).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from semel.broker.state.apply.codec import Reader
from semel.protos.errors import CorruptSegment

REMEMBERED_MAX: Final = 256
HEAD: Final = struct.Struct("<QII")
EXPIRED: Final = struct.Struct("<QII")


class ExpiredRow(NamedTuple):
    """A producer whose row expired, once or several times."""

    epoch: int
    """The epoch of the newest of them."""
    stored: bool
    """Whether one of them knew of a stored message."""


class Expired:
    """The producers whose row on one queue expired."""

    __slots__ = ("ceiling", "floor", "rows")

    def __init__(self) -> None:
        self.floor = 0
        self.ceiling = 0
        self.rows: dict[int, ExpiredRow] = {}
        """By producer id, also of producers that came back."""

    def add(self, producer_id: int, epoch: int, *, stored: bool) -> None:
        """Records that a row expires; `stored` says whether it knew of a stored message."""
        stored = stored or self.may_have_stored(producer_id)
        self.rows[producer_id] = ExpiredRow(epoch, stored)
        if len(self.rows) > REMEMBERED_MAX:
            lowest_epoch, lowest_id = min((row.epoch, number) for number, row in self.rows.items())
            del self.rows[lowest_id]
            self.raise_floor(lowest_epoch, lowest_id)

    def raise_floor(self, epoch: int, producer_id: int) -> None:
        """Raises the floor to this epoch and the ceiling to this producer id, if they are lower."""
        self.floor = max(self.floor, epoch)
        self.ceiling = max(self.ceiling, producer_id)

    def floor_of(self, producer_id: int) -> int:
        """The highest epoch at which this producer may have had a row; 0 if it had none."""
        known = self.rows[producer_id].epoch if producer_id in self.rows else 0
        return max(known, self.floor) if producer_id <= self.ceiling else known

    def may_open(self, producer_id: int, epoch: int, *, after_expiry: bool) -> bool:
        """Whether a producer without a row may get one.

        `after_expiry` means that the producer accepts that its stored sequences were forgotten.
        """
        floor = self.floor_of(producer_id)
        if not floor:
            return True
        return epoch > floor and (after_expiry or not self.may_have_stored(producer_id))

    def may_have_stored(self, producer_id: int) -> bool:
        """Whether this producer may have an expired row that knew of a stored message."""
        if producer_id in self.rows:
            return self.rows[producer_id].stored
        return producer_id <= self.ceiling  # nothing is known of dropped ones

    def highest_epoch(self) -> int:
        """The highest epoch of all rows that ever expired here; 0 without any."""
        return max([self.floor, *(row.epoch for row in self.rows.values())])

    def copy(self) -> Expired:
        """An independent copy."""
        made = Expired()
        made.floor, made.ceiling = self.floor, self.ceiling
        made.rows = dict(self.rows)
        return made

    def pack(self) -> bytes:
        """Canonical bytes, by rising producer id."""
        head = HEAD.pack(self.ceiling, self.floor, len(self.rows))
        return head + b"".join(
            EXPIRED.pack(producer_id, *row) for producer_id, row in sorted(self.rows.items())
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
            made.rows[producer_id] = ExpiredRow(epoch, bool(stored))
        return made
