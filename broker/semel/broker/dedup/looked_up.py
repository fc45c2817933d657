"""A batch on its way through dedup by message id: fingerprints, look-up, decision.

How it works. `LookedUp.begin` computes the fingerprints of a batch and asks the filters of runs. If
some ids may be on disk, `finish` reads them, in a thread. `decide` is called when the batch is
accepted. It looks in memory for the ids that are not in runs, decides each message, makes the batch
of those that are kept, and adds their ids to the index.

Invariants
1. `decide` changes the index if it returns a decision, and else nothing.

Not here: the window, and the order of batches (`state/admission/id_admission.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from semel.broker.dedup.fingerprints import FEW_ROWS, U64, Fingerprints
from semel.broker.dedup.id_index import IdIndex, Search
from semel.broker.dedup.id_places import Found, Places
from semel.broker.dedup.id_rows import Known, Prints, Rows, decide_rows
from semel.protos.batch import BATCH_BYTES_MAX, BatchHeader
from semel.protos.columns import Columns, decode_columns
from semel.protos.errors import MessageTooLarge
from semel.protos.few_rows import cut_few_with_ids
from semel.protos.kept_rows import keep_rows, sequences_of


@dataclass(frozen=True, slots=True)
class DecidedBatch:
    """What becomes of a batch and its messages."""

    batch: bytes
    """The batch of the messages that are kept."""
    count: int
    """Messages that are kept."""
    arrived: int
    """Kept messages with ids."""
    duplicates: int
    conflicts: int
    logged: bytes
    """The dropped messages, packed for the log."""
    answer: bytes
    """The dropped messages, packed for the producer."""


def prints_of(fingerprints: Fingerprints, columns: Columns) -> Prints:
    """The fingerprints of the messages that have ids. Raises InvalidRequest for a malformed id."""
    ids = columns.message_ids
    if ids is None:
        return Prints.none()
    rows = np.arange(len(ids))
    if ids.null_count:
        present = ids.is_valid()
        rows = np.flatnonzero(present.to_numpy(zero_copy_only=False))
        columns = columns.filter(present)
    return Prints(rows, *fingerprints.both(columns))


def prints_in(fingerprints: Fingerprints, header: BatchHeader, data: bytes | memoryview) -> Prints:
    """The same of a batch as it is stored. Raises CorruptBatch and InvalidRequest."""
    return _read(fingerprints, header, data)[0]


def _read(
    fingerprints: Fingerprints, header: BatchHeader, data: bytes | memoryview
) -> tuple[Prints, Columns | None]:
    """Returns the columns, too, unless a few messages were read without Arrow, which takes less
    time for them than its calls alone."""
    few = cut_few_with_ids(data, header) if header.count <= FEW_ROWS else None
    if few is None:
        columns = decode_columns(data, header)
        return prints_of(fingerprints, columns), columns
    rows = [row for row, each in enumerate(few[2]) if each is not None]
    chosen = [(few[0][row], few[1][row], few[2][row] or b"") for row in rows]
    return Prints(np.array(rows, np.int64), *fingerprints.of_few(chosen)), None


class LookedUp:
    """One batch whose ids are looked up."""

    def __init__(
        self,
        index: IdIndex,
        header: BatchHeader,
        data: bytes,
        columns: Columns | None,
        prints: Prints,
        first_arrival: int,
    ) -> None:
        self._index = index
        self._header = header
        self._data = data
        self._decoded = columns
        self._prints = prints
        self._first_arrival = first_arrival
        self._search: Search = index.search_runs(prints.keys, first_arrival)
        self._places = Found.none()

    @classmethod
    def begin(
        cls,
        index: IdIndex,
        fingerprints: Fingerprints,
        header: BatchHeader,
        data: bytes,
        first_arrival: int,
    ) -> LookedUp:
        """Asks the filters; the window begins at `first_arrival`.

        Raises CorruptBatch and InvalidRequest.
        """
        prints, columns = _read(fingerprints, header, data)
        return cls(index, header, data, columns, prints, first_arrival)

    @property
    def _columns(self) -> Columns:
        if self._decoded is None:
            self._decoded = decode_columns(self._data, self._header)
        return self._decoded

    def _sequences(self) -> Rows:
        header = self._header
        if self._decoded is None:  # no column of sequences, see `_read`
            return np.arange(header.base_sequence, header.base_sequence + header.count)
        return sequences_of(header, self._decoded)

    @property
    def needs_disk(self) -> bool:
        """Whether `finish` has to read."""
        return bool(self._search.maybe)

    def finish(self) -> LookedUp:
        """Reads what may be on disk. Raises CorruptIndex and OSError."""
        keys = self._prints.keys
        self._search = self._index.search_disk(self._search, keys, self._first_arrival)
        self._places = self._index.places_of(self._search.hits.arrivals)
        return self

    def decide(
        self,
        *,
        first_arrival: int,
        next_arrival: int,
        base_offset: int,
        due_us: int,
        entry: int,
        keep_first: bool,
        cancelled: Sequence[Sequence[int]],
        admit: Callable[[int], None] | None = None,
    ) -> DecidedBatch | None:
        """Decides each message; see `CheckedIds` of the admission. Raises MessageTooLarge, and what
        `admit` raises."""
        index, prints, header = self._index, self._prints, self._header
        assert index.end_arrival == next_arrival, "the index has what is accepted, and no more"
        known = self._known(first_arrival, cancelled)
        if known is None:
            return None
        decision = decide_rows(
            prints,
            known,
            self._sequences(),
            queue_id=header.queue_id,
            base_offset=base_offset,
            next_arrival=next_arrival,
            due_us=due_us,
            keep_first=keep_first,
        )
        batch, rows, keys, digests = self._data, prints.rows, prints.keys, prints.digests
        if decision.kept is not None:
            ids = decision.ids
            batch = keep_rows(header, self._columns, decision.kept)
            if len(ids) == decision.count:  # all of them have ids
                rows = np.arange(decision.count)
            else:
                rows = (np.cumsum(decision.kept) - 1)[prints.rows[ids]]
            keys, digests = np.take(keys.T, ids, axis=1).T, np.take(digests, ids)
        if len(batch) + len(decision.logged) > BATCH_BYTES_MAX:
            raise MessageTooLarge(
                f"batch of {header.count} messages, {header.count - decision.count} of which are"
                " known by their ids: what is to be stored of it is larger than a batch may be;"
                " send smaller batches",
                limit_bytes=BATCH_BYTES_MAX,
            )
        if admit is not None:
            admit(decision.count)
        if len(rows):
            places = Places.of(next_arrival, header.queue_id, base_offset, rows, due_us, entry)
            index.add(keys, digests, places, next_arrival)
        return DecidedBatch(
            batch,
            decision.count,
            len(rows),
            decision.duplicates,
            decision.conflicts,
            decision.logged,
            decision.answer,
        )

    def _known(self, first_arrival: int, cancelled: Sequence[Sequence[int]]) -> Known | None:
        """Returns what is known by now; None if ids have moved from memory to a run since."""
        search, hits, places = self._search, self._search.hits, self._places
        assert not search.maybe, "`finish` comes first"
        if len(hits.rows):
            alive = (hits.arrivals >= np.uint64(first_arrival)) & counting(hits.arrivals, cancelled)
            if not alive.all():
                hits, places = hits.take(alive), places.take(alive)
        begin = max(search.end_arrival, first_arrival)
        since = self._index.search_since(self._prints.keys, begin)
        if since is None:
            return None
        if len(since.rows):
            since = since.take(counting(since.arrivals, cancelled))
        if not len(since.rows):
            return Known(hits, places)
        # An id in a run may have come again: it was cancelled, or the window had left it behind, or
        # its queue has moved here twice. The later arrival counts.
        again = np.zeros(len(self._prints.rows), np.bool_)
        again[since.rows] = True
        older = ~again[hits.rows]
        hits, places = hits.take(older), places.take(older)
        added = self._index.places_of(since.arrivals)
        rows = np.concatenate([hits.rows, since.rows])
        order = np.argsort(rows)
        return Known(hits.then(since).take(order), places.then(added).take(order))


def counting(arrivals: U64, cancelled: Sequence[Sequence[int]]) -> npt.NDArray[np.bool_]:
    """Returns which arrivals count: of a message that was cancelled the id may be used again."""
    found = np.ones(len(arrivals), np.bool_)
    for each in cancelled:
        if len(each) and len(found):
            rising = np.asarray(each, np.uint64)
            at = np.minimum(np.searchsorted(rising, arrivals), len(rising) - 1)
            found &= rising[at] != arrivals
    return found
