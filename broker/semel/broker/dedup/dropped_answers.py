"""The answer to a retry of a batch of which messages were dropped, made a second time.

How it works. The replicated window remembers the dropped messages of the newest batches and the
arrival of the first message with each id. The index knows the places of arrivals, so the answer has
the same bytes as the first time, on whichever node is master now.

Not here: what is remembered (`state/apply/dropped_batches.py`).
"""

from __future__ import annotations

import numpy as np

from semel.broker.dedup.fingerprints import U64
from semel.broker.dedup.id_index import IdIndex
from semel.protos.dropped import ANSWER, DROPPED, Verdict


def arrivals_of(dropped: bytes) -> U64:
    """The arrivals of the first messages; `dropped` are messages as DROPPED."""
    firsts = np.frombuffer(dropped, DROPPED)["first"]
    return np.where(firsts < 0, -1 - firsts, firsts).astype(np.uint64)


def answer_of(index: IdIndex, dropped: bytes) -> bytes | None:
    """The dropped messages as ANSWER; None if the index does not have all of the first ones.

    It may read the disk. Raises CorruptIndex and OSError.
    """
    rows = np.frombuffer(dropped, DROPPED)
    places = index.places_of(arrivals_of(dropped))
    if (places.queues < 0).any():
        return None
    answer = np.empty(len(rows), ANSWER)
    answer["sequence"] = rows["sequence"]
    answer["offset"] = places.offsets
    answer["due_us"] = places.dues
    answer["queue"] = places.queues
    answer["verdict"] = np.where(rows["first"] < 0, Verdict.CONFLICT, Verdict.DUPLICATE)
    return answer.tobytes()
