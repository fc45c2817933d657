"""Messages that were not stored because their id was known, packed one behind the other.

Format. `docs/formats/batch.md`, "Dropped messages"; tests compare its tables with the types below.
`DROPPED` is in the log, in a CHECK_IDS record, and `ANSWER` in an acknowledgement. All numbers are
little-endian.

Not here: which messages are dropped (the broker's `dedup` room).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from semel.protos.errors import CorruptBatch


class Verdict(IntEnum):
    """Why a message was not stored."""

    DUPLICATE = 1
    """A message with its id, and the same content unless the topic keeps the first of any."""
    CONFLICT = 2
    """A message with its id and other content."""


ANSWER: Final = np.dtype(
    [
        ("sequence", "<i8"),
        ("offset", "<i8"),
        ("due_us", "<i8"),
        ("queue", "<u4"),
        ("verdict", "<u4"),
    ]
)
DROPPED: Final = np.dtype([("sequence", "<i8"), ("first", "<i8")])
SAME_TRANSACTION: Final = 1 << 62
"""In place of an arrival in `DROPPED`: the first message with the id is published by the same
transaction, and arrives with it."""


class Dropped(NamedTuple):
    """One message that was not stored, as its producer learns of it."""

    sequence: int
    offset: int
    """The offset of the first message with the id; -1 if that was delayed."""
    due_us: int
    """When the first message was due, if it was delayed; else 0."""
    queue_id: int
    """Queue of the first message."""
    verdict: Verdict


def read_answer(data: bytes) -> list[Dropped]:
    """Returns the messages of an acknowledgement. Raises CorruptBatch."""
    if len(data) % ANSWER.itemsize:
        raise CorruptBatch(f"dropped messages have {len(data)} bytes")
    try:
        return [
            Dropped(sequence, offset, due_us, queue, Verdict(verdict))
            for sequence, offset, due_us, queue, verdict in np.frombuffer(data, ANSWER).tolist()
        ]
    except ValueError as error:
        raise CorruptBatch(f"a dropped message has an unknown verdict: {error}") from error
