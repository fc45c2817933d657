"""The decision about each message of a batch: kept, a duplicate, or a conflict.

How it works. The caller has looked all ids up. A message whose id is known is a duplicate if its
digest is the same, and else a conflict, unless the topic keeps the first whatever comes later. Of
several messages in the batch with one id the first one counts as known for the others. Dropped
messages are packed twice: for the log and for the producer. Neither gets fingerprints: the seed
could be computed from many of them.

Format. docs/formats/batch.md, "Dropped messages".

Not here: looking ids up (`id_index.py`), making the batch of what is kept (`kept_rows.py` of
protos).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from semel.broker.dedup.fingerprints import U64
from semel.broker.dedup.id_places import Found
from semel.broker.dedup.sorted_ids import Hits
from semel.protos.dropped import ANSWER, DROPPED, Verdict

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Prints:
    """The fingerprints of a batch's messages."""

    rows: Rows
    """The rows that have ids, rising."""
    keys: U64
    """One for each of `rows`."""
    digests: U64
    """One for each of `rows`."""

    @classmethod
    def none(cls) -> Prints:
        """No message has an id."""
        nothing = np.zeros(0, np.uint64)
        return cls(np.zeros(0, np.int64), nothing.reshape(0, 2), nothing)


class Known(NamedTuple):
    """What a look-up found."""

    hits: Hits
    """`hits.rows` count in `Prints.rows`."""
    places: Found


@dataclass(frozen=True, slots=True)
class RowsDecision:
    """What becomes of a batch."""

    count: int
    """Messages that are kept."""
    ids: Rows
    """Places in `Prints.rows` of the messages that are kept."""
    kept: npt.NDArray[np.bool_] | None
    """One for each message; None if all are kept."""
    duplicates: int
    conflicts: int
    logged: bytes
    """The dropped messages, packed for the log."""
    answer: bytes
    """The dropped messages, packed for the producer."""


def decide_rows(
    prints: Prints,
    known: Known,
    sequences: Rows,
    *,
    queue_id: int,
    base_offset: int,
    next_arrival: int,
    due_us: int = 0,
    keep_first: bool = False,
) -> RowsDecision:
    """Decides about all messages of a batch whose sequences are `sequences`.

    What is kept of it gets offsets from `base_offset` on, or is due at `due_us`; its ids arrive
    from `next_arrival` on.
    """
    found = known.hits.rows
    if not len(found) and len(prints.rows) < 2:  # as with most messages that come one by one
        return RowsDecision(len(sequences), np.arange(len(prints.rows)), None, 0, 0, b"", b"")
    new = np.ones(len(prints.rows), np.bool_)
    new[found] = False
    later, first = repeated(prints, np.flatnonzero(new))
    new[later] = False
    count = len(sequences) - len(found) - len(later)
    if count == len(sequences):
        return RowsDecision(count, np.arange(len(prints.rows)), None, 0, 0, b"", b"")
    kept = np.ones(len(sequences), np.bool_)
    kept[prints.rows[~new]] = False
    own = np.zeros((2, len(first)), np.int64)  # their offsets and arrivals
    if len(first):
        own[0] = -1 if due_us else base_offset + (np.cumsum(kept) - 1)[prints.rows[first]]
        own[1] = next_arrival + (np.cumsum(new) - 1)[first]
    rows = np.concatenate([found, later])
    order = np.argsort(rows)
    same = np.concatenate([known.hits.digests, prints.digests[first]]) == prints.digests[rows]
    if keep_first:
        same[:] = True
    arrivals = np.concatenate([known.hits.arrivals.astype(np.int64), own[1]])
    logged = np.empty(len(rows), DROPPED)
    logged["sequence"] = sequences[prints.rows[rows]]
    logged["first"] = np.where(same, arrivals, -1 - arrivals)
    answer = np.empty(len(rows), ANSWER)
    answer["sequence"] = logged["sequence"]
    answer["queue"] = np.concatenate([known.places.queues, np.full(len(later), queue_id)])
    answer["offset"] = np.concatenate([known.places.offsets, own[0]])
    answer["due_us"] = np.concatenate([known.places.dues, np.full(len(later), due_us)])
    answer["verdict"] = np.where(same, Verdict.DUPLICATE, Verdict.CONFLICT)
    duplicates = int(np.count_nonzero(same))
    return RowsDecision(
        count,
        np.flatnonzero(new),
        kept,
        duplicates,
        len(rows) - duplicates,
        logged[order].tobytes(),
        answer[order].tobytes(),
    )


def repeated(prints: Prints, new: Rows) -> tuple[Rows, Rows]:
    """Returns the rows of `new` whose id an earlier one of them has, and for each that one."""
    nothing = np.zeros(0, np.int64)
    if len(new) < 2:
        return nothing, nothing
    first = prints.keys[new, 0]
    ordered = np.sort(first)
    if not (ordered[1:] == ordered[:-1]).any():
        return nothing, nothing
    second = prints.keys[new, 1]
    order = np.lexsort((new, second, first))
    same = (first[order[1:]] == first[order[:-1]]) & (second[order[1:]] == second[order[:-1]])
    starts = np.concatenate([[True], ~same])
    leaders = order[np.flatnonzero(starts)[np.cumsum(starts) - 1]]
    return new[order[~starts]], new[leaders[~starts]]
