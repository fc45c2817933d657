"""Which messages of a topic's newest batches were dropped because of their ids.

How it works. A producer whose acknowledgement was lost sends its batch again, and must learn again
which messages were not stored. So the window of ids remembers, for the newest batches of which
messages were dropped, the list of their CHECK_IDS records. Places are not remembered: each node's
index has them. Messages that follow one another and whose firsts do so as well are one *stretch*,
so a batch that was sent a second time as a whole takes no more room than one message.

Invariants
1. What is remembered counts BYTES_MAX at most; the oldest batches are forgotten first. A batch that
   has more alone is not remembered.

Format. docs/formats/state.md, "Window of ids".

Not here: answering the retry (`semel.broker.dedup.dropped_answers`), recognising it (`rows.py`).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np

from semel.broker.state.apply.codec import Reader
from semel.protos.dropped import DROPPED
from semel.protos.errors import CorruptSegment

BYTES_MAX: Final = 1 << 20
"""The bound of each topic. A retry comes within seconds, so this is for many producers with many
batches in flight each, and little beside the rows of their sequences."""
BATCH: Final = struct.Struct("<IQqI")
STRETCH: Final = struct.Struct("<qqI")
_STRETCH: Final = np.dtype([("sequence", "<i8"), ("first", "<i8"), ("count", "<u4")])
_COUNT: Final = struct.Struct("<I")


class BatchName(NamedTuple):
    """Names a batch within its topic."""

    queue_id: int
    producer_id: int
    base_sequence: int


class DroppedBatches:
    """The batches of one topic."""

    __slots__ = ("_packed", "bytes")

    def __init__(self) -> None:
        self._packed: dict[BatchName, bytes] = {}
        """Canonical bytes of each batch, oldest first."""
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._packed)

    def remember(self, name: BatchName, dropped: bytes) -> None:
        """Remembers a batch; `dropped` are its dropped messages as DROPPED, at least one."""
        stretches = _stretches(dropped)
        count = len(stretches) // STRETCH.size
        self._forget(name)
        if BATCH.size + len(stretches) <= BYTES_MAX:
            self._keep(name, BATCH.pack(*name, count) + stretches)
        while self.bytes > BYTES_MAX:
            self._forget(next(iter(self._packed)))

    def _keep(self, name: BatchName, packed: bytes) -> None:
        self._packed[name] = packed
        self.bytes += len(packed)

    def _forget(self, name: BatchName) -> None:
        self.bytes -= len(self._packed.pop(name, b""))

    def find(self, name: BatchName) -> bytes | None:
        """The dropped messages of a batch, as DROPPED; None if it is forgotten."""
        packed = self._packed.get(name)
        return None if packed is None else _messages(packed[BATCH.size :])

    def parts(self) -> list[bytes]:
        """Canonical bytes: the batches, oldest first."""
        return [_COUNT.pack(len(self._packed)), *self._packed.values()]

    @classmethod
    def read(cls, reader: Reader) -> DroppedBatches:
        """The inverse of `parts`. Raises CorruptSegment."""
        made = cls()
        for _ in range(reader.unpack(_COUNT)[0]):
            *fields, count = reader.unpack(BATCH)
            name = BatchName(*fields)
            if name in made._packed or not count:
                raise CorruptSegment(f"state remembers dropped messages of {name} wrongly")
            packed = BATCH.pack(*name, count) + bytes(reader.take(count * STRETCH.size))
            made._keep(name, packed)
        if made.bytes > BYTES_MAX:
            raise CorruptSegment(f"state remembers {made.bytes} bytes of dropped messages")
        return made


def _stretches(dropped: bytes) -> bytes:
    rows = np.frombuffer(dropped, DROPPED)
    sequences, firsts = rows["sequence"], rows["first"]
    follows = (np.diff(sequences) == 1) & (np.diff(firsts) == 1)
    starts = np.flatnonzero(np.concatenate([[True], ~follows]))
    found = np.empty(len(starts), _STRETCH)
    found["sequence"], found["first"] = sequences[starts], firsts[starts]
    found["count"] = np.diff(starts, append=len(rows))
    return found.tobytes()


def _messages(stretches: bytes) -> bytes:
    found = np.frombuffer(stretches, _STRETCH)
    counts = found["count"].astype(np.int64)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = np.empty(len(within), DROPPED)
    for field in ("sequence", "first"):
        rows[field] = np.repeat(found[field], counts) + within
    return rows.tobytes()
