"""The ids of one queue, taken out of the index of one broker group for that of another.

How it works. An index has the ids of all queues of its topic. The places say which of them are
another queue's, and those stay; ids of queues that do not exist any more go along, because the
moving queue may descend from them. Ids are taken a *pass* at a time: those of a range of arrivals,
for which all runs of that range are read, in the order of their arrivals. A pass is handed out in
portions, each for one entry of the other group's log.

A message that is delayed may be cancelled as long as its queue is not sealed. So ids of messages
that wait come last, when the queue is sealed. What *waits* is decided once for a move: whatever is
due after its *horizon*, a log time of the source that had come before any id was read. Below
feature level 8 a queue that moves has no messages that wait, and a pass ends in front of the first.

A queue may come back to a group that knows ids of its messages that waited when it left. They may
have been cancelled elsewhere. So they are looked for (`delayed_of`), and do not count any more.

Both groups have the topic's seed, so fingerprints mean the same in both; arrivals do not.

Format. docs/formats/message-ids.md, "MovedIds".

Not here: who asks (`background/queue_copy.py`), who answers (`server/moves_service.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import numpy as np

from semel.broker.dedup.fingerprints import U64
from semel.broker.dedup.id_index import IdIndex
from semel.broker.dedup.id_places import DELAYED, ENTRY_AT, PLACE_COLUMNS, Places
from semel.broker.dedup.id_store import CorruptIndex

PASS_IDS: Final = 4_000_000
NEVER_US: Final = (1 << 63) - 1
PORTION_IDS: Final = 25_000
"""About 1 MB."""
_COLUMNS: Final = 5
"""Both halves of the key, digest, queue (with DELAYED added, and the entry), offset or due time."""


class Take(Enum):
    """Which ids of a range of arrivals are in a pass."""

    BEFORE_WAITING = 1
    """Those in front of the first message that waits; without the entries of delayed messages."""
    SETTLED = 2
    """Those of messages that do not wait."""
    WAITING = 3
    """Those of messages that wait."""


@dataclass(frozen=True, slots=True)
class Pass:
    """The ids of a range of arrivals."""

    arrivals: range
    """All arrivals of the range, of which other queues had some."""
    own: U64
    """The arrivals of those that are here, rising."""
    columns: U64
    """Their columns."""
    waits: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))
    """The arrivals of messages that wait and are left out, rising."""

    @classmethod
    def of(
        cls,
        index: IdIndex,
        arrivals: range,
        others: Collection[int],
        cancelled: Collection[int] = (),
        horizon_us: int = NEVER_US,
        take: Take = Take.BEFORE_WAITING,
    ) -> Pass:
        """Reads the ids but for those of the queues `others`, and of messages that are `cancelled`,
        by arrival. BLOCKING.

        What is due after `horizon_us` waits: it may still be cancelled, unless its queue is sealed,
        and nobody would take its id out of the other index. Raises CorruptIndex and OSError.
        """
        found = index.ids_of(arrivals)
        order = np.argsort(found[3])
        places = index.places_of(found[3][order])
        gone = np.isin(found[3][order], np.array(list(cancelled), np.uint64))
        stays = np.isin(places.queues, list(others)) | gone
        order, places = order[~stays], places.take(~stays)
        own = found[3][order]
        delayed = places.offsets < 0
        waits = delayed & (places.dues > horizon_us)
        left_out = np.zeros(0, np.uint64)
        if take is Take.BEFORE_WAITING and waits.any():
            first = int(np.argmax(waits))
            arrivals = range(arrivals.start, int(own[first]))
            chosen = np.arange(len(own)) < first
        elif take is Take.WAITING:
            chosen = waits
        else:
            chosen, left_out = ~waits, own[waits]
        own, order = own[chosen], order[chosen]
        places, delayed = places.take(chosen), delayed[chosen]
        entries = np.zeros(len(own), np.int64)
        if take is not Take.BEFORE_WAITING:
            entries = places.entries * ENTRY_AT
        columns = np.empty((_COLUMNS, len(own)), np.uint64)
        columns[:3] = found[:3, order]
        columns[3] = places.queues + np.where(delayed, DELAYED + entries, 0)
        columns[4] = np.where(delayed, places.dues, places.offsets)
        return cls(arrivals, own, columns, left_out)

    def waits_from(self, arrivals: range) -> int:
        """The first of these arrivals that is left out; the end if none is."""
        at = int(np.searchsorted(self.waits, np.uint64(arrivals.start)))
        return min(int(self.waits[at]), arrivals.stop) if at < len(self.waits) else arrivals.stop

    def portion(self, arrival: int) -> tuple[bytes, int]:
        """Packed ids from `arrival` on, and the arrival after the last one that they cover."""
        start = int(np.searchsorted(self.own, np.uint64(arrival)))
        end = min(start + PORTION_IDS, len(self.own))
        covered = self.arrivals.stop if end == len(self.own) else int(self.own[end])
        return self.columns[:, start:end].astype("<u8").tobytes(), covered


def unpack(data: bytes, first_arrival: int) -> tuple[U64, U64, Places]:
    """Keys, digests and places of packed ids that arrive from `first_arrival` on.

    Raises CorruptIndex.
    """
    if len(data) % (8 * _COLUMNS):
        raise CorruptIndex(f"moved ids have {len(data)} bytes")
    columns = np.frombuffer(data, "<u8").reshape(_COLUMNS, -1).astype(np.uint64)
    queues, values = columns[3], columns[4]
    starts = np.ones(len(queues), np.bool_)
    step = np.where(queues[1:] < np.uint64(DELAYED), np.uint64(1), np.uint64(0))
    starts[1:] = (queues[1:] != queues[:-1]) | (values[1:] != values[:-1] + step)
    at = np.flatnonzero(starts)
    places = np.empty((PLACE_COLUMNS, len(at)), np.uint64)
    places[0] = at.astype(np.uint64) + np.uint64(first_arrival)
    places[1], places[2] = queues[at], values[at]
    return np.ascontiguousarray(columns[:2].T), columns[2], Places(places)


def delayed_of(index: IdIndex, arrivals: range, queue_id: int) -> U64:
    """The arrivals of a queue's delayed messages whose ids the index has, rising. BLOCKING.

    Raises CorruptIndex and OSError.
    """
    parts = [np.zeros(0, np.uint64)]
    for start in range(arrivals.start, arrivals.stop, PASS_IDS):
        found = np.sort(index.ids_of(range(start, min(start + PASS_IDS, arrivals.stop)))[3])
        places = index.places_of(found)
        parts.append(found[(places.queues == queue_id) & (places.offsets < 0)])
    return np.concatenate(parts)
