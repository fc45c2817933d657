"""One delayed batch, as the state knows it: when it is due, and where in the log it is.

Format. Packed extents are those of docs/formats/state.md.

Not here: many of them in their order (`delayed_block.py`, `delayed_queue.py`).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

DELAYED_EXTENT: Final = struct.Struct("<qQqIII")
EXTENT: Final = np.dtype(
    [
        ("due_us", "<i8"),
        ("ordinal", "<u8"),
        ("entry", "<i8"),
        ("position", "<u4"),
        ("length", "<u4"),
        ("messages", "<u4"),
    ]
)
assert EXTENT.itemsize == DELAYED_EXTENT.size

LIVE_FIELDS: Final = ["entry", "position", "length"]
"""Where the batch is in the log."""

Rows = npt.NDArray[np.void]
"""An array of EXTENT."""


class DelayedPlace(NamedTuple):
    """The place of a delayed extent in the order of its queue."""

    due_us: int
    ordinal: int


class DelayedExtent(NamedTuple):
    """One delayed batch: in the log, and without offsets."""

    due_us: int
    ordinal: int
    """Its number. The batches of a queue have rising ones, as they were delayed."""
    entry: int
    """Index of the entry that holds it."""
    position: int
    length: int
    """Length of the record's payload: broker header and batch."""
    messages: int
    """Rows of the batch, cancelled ones as well."""

    @property
    def place(self) -> DelayedPlace:
        """Its place in the order of the queue."""
        return DelayedPlace(self.due_us, self.ordinal)
