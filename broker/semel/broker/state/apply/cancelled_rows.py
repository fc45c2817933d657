"""Which messages of delayed batches are cancelled: rows that a release leaves out.

How it works. A delayed batch is stored once, as it came, so a message is taken out of it by noting
its row. When the batch is released, each *stretch* of other rows becomes an extent of the queue.
When no row is left the batch is dropped as a whole, and what was noted of it with it.

Invariants
1. The rows of a batch rise, and are fewer than its messages.

Format. docs/formats/state.md.

Not here: delayed batches (`delays.py`), the ids of cancelled messages (`id_windows.py`).
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from semel.broker.state.apply.codec import Reader
from semel.protos.errors import CorruptSegment

_COUNT: Final = struct.Struct("<I")
_BATCH: Final = struct.Struct("<QI")
ROW_BYTES: Final = 4
NO_ROWS: Final[Sequence[int]] = ()


class CancelledRows:
    """The cancelled rows of one queue's delayed batches, by the ordinals of the batches."""

    __slots__ = ("batches",)

    def __init__(self) -> None:
        self.batches: dict[int, array[int]] = {}

    def rows(self, ordinal: int) -> Sequence[int]:
        """The cancelled rows of a batch, rising."""
        return self.batches.get(ordinal, NO_ROWS)

    def count(self, ordinal: int) -> int:
        """How many rows of a batch are cancelled."""
        return len(self.rows(ordinal))

    def ordinals(self) -> npt.NDArray[np.uint64]:
        """The batches with cancelled rows."""
        return np.fromiter(self.batches, np.uint64, len(self.batches))

    def holds(self, ordinal: int, row: int) -> bool:
        """Whether a row is cancelled."""
        rows = self.rows(ordinal)
        at = bisect_left(rows, row)
        return at < len(rows) and rows[at] == row

    def add(self, ordinal: int, row: int) -> None:
        """Adds a row that is not cancelled yet."""
        rows = self.batches.setdefault(ordinal, array("I"))
        rows.insert(bisect_left(rows, row), row)

    def forget(self, ordinal: int) -> None:
        """The batch is not delayed any more."""
        self.batches.pop(ordinal, None)

    def stretches(self, ordinal: int, messages: int) -> list[tuple[int, int]]:
        """First row and number of rows of each stretch that is left of a batch of `messages`."""
        found = []
        begin = 0
        for row in (*self.rows(ordinal), messages):
            if row > begin:
                found.append((begin, row - begin))
            begin = row + 1
        return found

    def counted(self, messages: Mapping[int, int]) -> int:
        """How many rows are cancelled in all; `messages` says by ordinal how many those batches
        have. Raises CorruptSegment if one of them is not delayed, or would have none left."""
        if len(messages) != len(self.batches):
            raise CorruptSegment("state holds cancelled rows of batches that are not delayed")
        for ordinal, rows in self.batches.items():
            if rows[-1] >= messages[ordinal] or len(rows) >= messages[ordinal]:
                raise CorruptSegment(f"state holds too many cancelled rows of batch {ordinal}")
        return sum(map(len, self.batches.values()))

    def parts(self) -> list[bytes]:
        """Canonical bytes: by rising ordinal."""
        parts = [_COUNT.pack(len(self.batches))]
        for ordinal in sorted(self.batches):
            rows = self.batches[ordinal]
            parts += [_BATCH.pack(ordinal, len(rows)), rows.tobytes()]
        return parts

    @classmethod
    def read_parts(cls, reader: Reader) -> CancelledRows:
        """The inverse of `parts`. Raises CorruptSegment."""
        found = cls()
        for _ in range(reader.unpack(_COUNT)[0]):
            ordinal, count = reader.unpack(_BATCH)
            rows = array("I")
            rows.frombytes(bytes(reader.take(count * ROW_BYTES)))
            if not count or any(low >= high for low, high in pairwise(rows)):
                raise CorruptSegment(f"state holds malformed cancelled rows of batch {ordinal}")
            found.batches[ordinal] = rows
        return found
