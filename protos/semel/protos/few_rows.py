"""A few messages as Python's own bytes: what `send()` and wait makes of every message.

How it works. To ask Arrow for arrays and their buffers costs the same for one message as for a
hundred: 6 µs of the 13 that a batch of values takes, 11 of 21 with keys, and several times that
where the processor's caches hold something else by now. So a few values and keys have their buffers
written by `struct` and `join`: the same bytes to the last.

Not here: every other column (`columns.py`).
"""

from __future__ import annotations

import struct
from itertools import accumulate
from typing import ClassVar, Final

from semel.protos.batch import BatchFlags
from semel.protos.body import Buffer
from semel.protos.values import value

FEW_ROWS_MAX: Final = 64
"""Arrow is the faster one from some 150 on."""


@value
class FewRows:
    """The messages of one batch, of values and keys alone."""

    values: list[bytes]
    keys: list[bytes] | None = None
    timestamps: ClassVar[None] = None
    sequences: ClassVar[None] = None
    deliver_at: ClassVar[None] = None

    def __len__(self) -> int:
        return len(self.values)

    def buffers(self) -> tuple[int, list[Buffer]]:
        """Flags of the columns, and the buffers of the body in their order."""
        if self.keys is None:
            return 0, _binary(self.values)
        count = len(self.keys)
        assert count == len(self.values), f"{count} keys for {len(self.values)} values"
        valid = ((1 << count) - 1).to_bytes((count + 7) // 8, "little")
        return int(BatchFlags.KEY), [*_binary(self.values), valid, *_binary(self.keys)]


def _binary(pieces: list[bytes]) -> list[Buffer]:
    """Offsets and data, as `body.binary_buffers` has them."""
    offsets = struct.pack(f"<{len(pieces) + 1}i", 0, *accumulate(map(len, pieces)))
    return [offsets, b"".join(pieces)]
