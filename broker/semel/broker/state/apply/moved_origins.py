"""In which entries of this log delayed batches are that came with a move, or from a queue that was
split, by where they were first.

How it works. The index of message ids knows a delayed message by its due time and the entry that
holds it. A copy is in an entry of another log, while its ids are known by the same numbers as ever:
the *origin*, which is the lower bits of the number of the first entry. So for each origin the
entries here are noted, of all batches that were delayed when the queue came. They stay when the
batches are released, and end when the queue leaves. A delayed batch that a child of a split takes
over is in another entry of the same log, and is noted in the same way.

Several batches of one origin may be in several entries, and the other way round. A look-up reads
all batches that it finds so, and compares the ids themselves.

Format. docs/formats/state.md, "Delayed".

Not here: look-ups (`semel.broker.server.stored_rows`).
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt

from semel.broker.state.apply.codec import Reader
from semel.protos.errors import CorruptSegment
from semel.protos.ids import QueueId, QueueKey, TopicId

ORIGIN: Final = np.dtype([("origin", "<u4"), ("entry", "<i8")])
_COUNT: Final = struct.Struct("<I")
_QUEUE: Final = struct.Struct("<QII")
ORIGIN_MASK: Final = (1 << 31) - 1

Numbers = npt.NDArray[np.int64]
Origins = npt.NDArray[np.void]
"""Rows of ORIGIN, rising."""


def no_origins() -> Origins:
    """No row."""
    return np.zeros(0, ORIGIN)


def read_origins(data: bytes) -> Origins:
    """Packed rows. Raises CorruptSegment."""
    if len(data) % ORIGIN.itemsize:
        raise CorruptSegment(f"origins of delayed batches have {len(data)} bytes")
    found = np.frombuffer(data, ORIGIN)
    origins, entries = found["origin"], found["entry"]
    rise = (origins[1:] > origins[:-1]) | (
        (origins[1:] == origins[:-1]) & (entries[1:] > entries[:-1])
    )
    if not rise.all():
        raise CorruptSegment("origins of delayed batches are in another order")
    return found


def entries_of(origins: Origins, origin: int) -> list[int]:
    """The entries that hold batches of an origin."""
    lo, hi = np.searchsorted(origins["origin"], [origin, origin + 1])
    found: list[int] = origins["entry"][lo:hi].tolist()
    return found


def origins_after(before: Origins, there: Numbers, here: Numbers) -> Origins:
    """The origins of batches that come from the entries `there` of another log to the entries
    `here`, one number for each batch; `before` are the origins that the other log knew."""
    there, here = _distinct(there, here)
    known = np.isin(there, before["entry"])
    origins, entries = there[~known] & ORIGIN_MASK, here[~known]
    if known.any():
        by_entry = before[np.argsort(before["entry"], kind="stable")]
        lo = np.searchsorted(by_entry["entry"], there[known], "left")
        counts = np.searchsorted(by_entry["entry"], there[known], "right") - lo
        at = np.repeat(lo - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        origins = np.concatenate([origins, by_entry["origin"][at].astype(np.int64)])
        entries = np.concatenate([entries, np.repeat(here[known], counts)])
    return _packed(*_distinct(origins, entries))


def joined_origins(first: Origins, second: Origins) -> Origins:
    """The rows of both."""
    origins = np.concatenate([first["origin"], second["origin"]]).astype(np.int64)
    entries = np.concatenate([first["entry"], second["entry"]])
    return _packed(*_distinct(origins, entries))


def _packed(origins: Numbers, entries: Numbers) -> Origins:
    found = np.empty(len(origins), ORIGIN)
    found["origin"], found["entry"] = origins, entries
    return found


def _distinct(first: Numbers, second: Numbers) -> tuple[Numbers, Numbers]:
    """The pairs, rising, each once."""
    order = np.lexsort((second, first))
    first, second = first[order], second[order]
    new = np.ones(len(first), np.bool_)
    new[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    return first[new], second[new]


class OriginTable:
    """The origins of all queues that got delayed batches by a move or a split."""

    __slots__ = ("queues",)

    def __init__(self) -> None:
        self.queues: dict[QueueKey, Origins] = {}
        """The origins by queue; none of them is empty."""

    def of(self, key: QueueKey) -> Origins:
        """Those of a queue, which may never have moved."""
        return self.queues.get(key, no_origins())

    def parts(self) -> list[bytes]:
        """Canonical bytes: by rising queue."""
        parts = [_COUNT.pack(len(self.queues))]
        for key in sorted(self.queues):
            found = self.queues[key]
            parts += [_QUEUE.pack(*key, len(found)), found.tobytes()]
        return parts

    @classmethod
    def read_parts(cls, reader: Reader) -> OriginTable:
        """The inverse of `parts`. Raises CorruptSegment."""
        table = cls()
        for _ in range(reader.unpack(_COUNT)[0]):
            topic_id, queue_id, count = reader.unpack(_QUEUE)
            key = QueueKey(TopicId(topic_id), QueueId(queue_id))
            table.queues[key] = read_origins(bytes(reader.take(count * ORIGIN.itemsize)))
        return table
