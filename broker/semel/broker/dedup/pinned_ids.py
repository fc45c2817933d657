"""The message ids of a transaction's pinned batches in one topic: looked up, decided, taken in.

How it works. `look_up`, in a thread, reads the batches one after the other, keeps the fingerprints
of their messages and nothing else, sorts them, and asks the whole index for them. So it is known
which messages are to be dropped: those whose ids are in the window, and those whose ids an earlier
message of the transaction has.

What arrives meanwhile is looked up the other way round, right before the decision: the few ids that
have arrived since are sought among the sorted ones of the transaction (`catch_up`). So the decision
takes little time, however many messages there are. `decide` numbers the ids of all batches and adds
them to the index at once.

Batches of which messages are to be dropped are replaced by what is kept of them (`rewrites`). Those
of a small transaction stay in memory, and `decide` makes them. Those of a large one must have been
rewritten before: then `catch_up` says that they are to be looked up again.

Invariants
1. `decide` is called in the turn of the event loop in which `catch_up` returned True, and then
   nothing is missing: what arrived before it is known.
2. Of several messages with one id none is dropped but for another one that is stored: the first of
   the transaction is dropped only for one in the window, and then all others are, too.

Not here: the order of records in the log (`state/admission/transaction_admission.py`), other nodes
(`published_ids.py`), who asks when (`background/publication.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from semel.broker.dedup.fingerprints import U64, Fingerprints
from semel.broker.dedup.id_index import IdIndex
from semel.broker.dedup.id_places import DELAYED, PLACE_COLUMNS, Places
from semel.broker.dedup.id_rows import Prints, Rows, repeated
from semel.broker.dedup.looked_up import counting, prints_in
from semel.broker.dedup.sorted_ids import Hits, order_of
from semel.protos.batch import (
    BROKER_HEADER_BYTES,
    UNCOMPRESSED_BYTES_MAX,
    BatchFlags,
    BatchHeader,
    check_batch,
)
from semel.protos.columns import decode_columns
from semel.protos.delays import due_of
from semel.protos.dropped import DROPPED, SAME_TRANSACTION
from semel.protos.errors import InvalidRequest
from semel.protos.ids import QueueKey
from semel.protos.kept_rows import keep_rows, sequences_of
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import control_pb2

LATE_MAX: Final = 50_000
"""More ids than this that arrived since the look-up are sought in a thread."""
REWRITES_MAX: Final = 1_000
"""One entry rewrites at most this many batches, because each takes time in a turn of the loop."""
_AT_ONCE: Final = 1 << 16
"""Ids that are asked for at a time."""

ReadRecord = Callable[[int, int, int], bytes]
"""Returns the payload of the record at (entry, position) that has a length. BLOCKING."""


class PinnedRecord(NamedTuple):
    """Where a pinned batch is in the log."""

    entry: int
    position: int
    length: int


class Window(Protocol):
    """What counts as known: a topic's window as it will be once everything accepted is applied."""

    @property
    def first_arrival(self) -> int: ...

    @property
    def cancelled(self) -> Sequence[Sequence[int]]:
        """Arrivals in it whose messages are cancelled; each sequence rises."""
        ...

    @property
    def keep_first(self) -> bool: ...


class Rewrite(NamedTuple):
    """The rest of a pinned batch that takes its place."""

    replaced: PinnedRecord
    queue_key: QueueKey
    record: control_pb2.CheckIds
    """The decision about its messages."""
    batch: bytes
    messages: int
    """How many are kept."""
    firsts: U64
    """Arrivals for which others are dropped."""

    def holds(self, window: Window) -> bool:
        """Whether all of them are in the window, and not cancelled."""
        in_window = self.firsts >= np.uint64(window.first_arrival)
        return bool((in_window & counting(self.firsts, window.cancelled)).all())


class Placed(NamedTuple):
    """A batch that is published by value."""

    rewrite: Rewrite
    base_offset: int
    """-1 if it is delayed."""


class PinnedDecision(NamedTuple):
    """What a publication takes of one topic; the lists have one number for each batch."""

    ids: list[int]
    records: list[PinnedRecord | None]
    """None for a batch that is published by value."""
    placed: list[Placed]
    """Those in the order of the batches."""
    ends: dict[QueueKey, int]
    """Where the queues end afterwards."""


@dataclass(slots=True)
class _Batch:
    header: BatchHeader
    record: PinnedRecord
    rows: Rows
    """The rows that have ids."""
    first: int
    """Place of the first of them among those of all batches."""
    data: bytes | None
    """The batch; None if it was not kept in memory."""


class _Drops(NamedTuple):
    """Messages to drop: places among the ids of all batches, rising."""

    rows: Rows
    first: Rows
    """Arrival of the first message with the id, or SAME_TRANSACTION."""
    same: npt.NDArray[np.bool_]
    """Whether they are duplicates; the others are conflicts."""


class PinnedIds:
    """The pinned batches of one topic, in the order of publication."""

    def __init__(
        self,
        index: IdIndex,
        fingerprints: Fingerprints,
        records: Sequence[PinnedRecord],
        *,
        small: bool,
    ) -> None:
        """`small` keeps the batches in memory."""
        self._index = index
        self._fingerprints = fingerprints
        self._records = records
        self.small = small
        """The publication itself decides which messages are dropped."""
        self._batches: list[_Batch] = []
        nothing = np.zeros(0, np.uint64)
        self._keys: U64 = nothing.reshape(0, 2)
        self._digests: U64 = nothing
        self._starts: Rows = np.zeros(1, np.int64)
        """Place of the first id of each batch; at the end, how many ids there are."""
        self._order: Rows = np.zeros(0, np.int64)
        """Places in the order of the first halves of keys."""
        self._sorted: U64 = nothing
        """The first halves in that order."""
        self._later: Rows = np.zeros(0, np.int64)
        """Messages with the id of an earlier one, rising, and that earlier one."""
        self._leaders: Rows = np.zeros(0, np.int64)
        self._hits = Hits.none()
        """What the index has, in the window or not."""
        self._places: U64 = np.zeros((PLACE_COLUMNS, 0), np.uint64)
        """Stretches of all batches, whose arrivals and offsets count from those of their batch."""
        self._place_batches: Rows = np.zeros(0, np.int64)
        self._end_arrival = 0
        """What arrived from here on is not looked up yet."""

    @property
    def index(self) -> IdIndex:
        """The index in which they are looked up."""
        return self._index

    @property
    def names(self) -> Sequence[PinnedRecord]:
        """Where the batches are."""
        return self._records

    # --- the look-up, in a thread -----------------------------------------------------------

    def look_up(self, read: ReadRecord, window: Window) -> PinnedIds:
        """BLOCKING. Reads the batches and asks the index.

        Raises CorruptBatch, CorruptIndex, OSError, and what `read` raises.
        """
        self._read(read)
        self._sort()
        self._search(window.first_arrival)
        return self

    def _read(self, read: ReadRecord) -> None:
        keys, digests, places, starts = [self._keys], [self._digests], [self._places], [0]
        place_batches = []
        for number, record in enumerate(self._records):
            data = read(*record)[BROKER_HEADER_BYTES:]
            header = check_batch(data)
            prints = prints_of_stored(self._fingerprints, header, data)
            kept = data if self.small else None
            self._batches.append(_Batch(header, record, prints.rows, starts[-1], kept))
            keys.append(prints.keys)
            digests.append(prints.digests)
            starts.append(starts[-1] + len(prints.rows))
            if len(prints.rows):
                found = Places.of(
                    0, header.queue_id, 0, prints.rows, due_of(header), record.entry
                ).columns
                places.append(found)
                place_batches.append(np.full(found.shape[1], number, np.int64))
        self._keys, self._digests = np.concatenate(keys), np.concatenate(digests)
        self._places = np.concatenate(places, axis=1)
        if place_batches:
            self._place_batches = np.concatenate(place_batches)
        self._starts = np.array(starts, np.int64)

    def _sort(self) -> None:
        first = np.ascontiguousarray(self._keys[:, 0])
        self._order = order_of(first)
        self._sorted = first[self._order]
        equal = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
        if not len(equal):
            return
        rows = np.sort(self._order[np.unique(np.concatenate([equal, equal + 1]))])
        prints = Prints(np.arange(len(self._keys)), self._keys, self._digests)
        later, leaders = repeated(prints, rows)
        order = np.argsort(later)
        self._later, self._leaders = later[order], leaders[order]

    def _search(self, first_arrival: int) -> None:
        self._end_arrival = self._index.end_arrival  # before the look: nothing may be missed
        parts = []
        for start in range(0, len(self._keys), _AT_ONCE):
            keys = self._keys[start : start + _AT_ONCE]
            search = self._index.search_memory(keys, first_arrival)
            hits = self._index.search_disk(search, keys, first_arrival).hits
            parts.append(hits._replace(rows=hits.rows + start))
        self._hits = Hits.joined(parts)

    # --- what arrived since -----------------------------------------------------------------

    def catch_up(self, window: Window) -> bool:
        """Completes the look-up with what has arrived since, so that `decide` may be called in this
        turn of the event loop; False if too much has, or if batches must be rewritten before: look
        up again."""
        end = self._index.end_arrival
        if end - self._end_arrival > LATE_MAX or not self._index.in_memory(self._end_arrival):
            return False
        if end > self._end_arrival:
            self._take(self._index.ids_of(range(self._end_arrival, end)))
            self._end_arrival = end
        return self.small or not len(self._drops(window).rows)

    def _take(self, arrived: U64) -> None:
        """Seeks ids that have arrived, a matrix as in `SortedIds`, among those of the batches."""
        order = np.argsort(arrived[0])
        first = arrived[0][order]
        lo = np.searchsorted(self._sorted, first, "left")
        sizes = np.searchsorted(self._sorted, first, "right") - lo
        found = np.flatnonzero(sizes)
        if not len(found):
            return
        lo, sizes = lo[found], sizes[found]
        places = np.repeat(lo - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
        rows, late = self._order[places], np.repeat(order[found], sizes)
        same = self._keys[rows, 1] == arrived[1][late]
        rows, late = rows[same], late[same]
        self._hits = Hits.newest([self._hits, Hits(rows, arrived[2][late], arrived[3][late])])

    def _drops(self, window: Window) -> _Drops:
        hits = self._hits
        alive = hits.arrivals >= np.uint64(window.first_arrival)
        hits = hits.take(alive & counting(hits.arrivals, window.cancelled))
        later, leaders = self._later, self._leaders
        if len(later) and len(hits.rows):
            # All messages with one id are found, or none: their first one among them.
            alone = ~np.isin(later, hits.rows, assume_unique=True)
            later, leaders = later[alone], leaders[alone]
        rows = np.concatenate([hits.rows, later])
        first = np.concatenate(
            [hits.arrivals.astype(np.int64), np.full(len(later), SAME_TRANSACTION)]
        )
        same = np.concatenate([hits.digests, self._digests[leaders]]) == self._digests[rows]
        if window.keep_first:
            same[:] = True
        order = np.argsort(rows)
        return _Drops(rows[order], first[order], same[order])

    def _dropping(self, drops: _Drops) -> Iterator[tuple[int, _Drops]]:
        """Yields the numbers of the batches that lose messages, and those messages."""
        at = np.searchsorted(drops.rows, self._starts)
        for number in np.flatnonzero(at[1:] > at[:-1]).tolist():
            chosen = slice(at[number], at[number + 1])
            yield number, _Drops(drops.rows[chosen], drops.first[chosen], drops.same[chosen])

    # --- rewriting --------------------------------------------------------------------------

    def rewrites(self, read: ReadRecord, window: Window, bytes_max: int) -> Iterator[list[Rewrite]]:
        """BLOCKING, each step. Yields what is kept of all batches that lose messages, about
        `bytes_max` bytes at a time and at most REWRITES_MAX batches, or one batch. Afterwards look
        up again.

        Raises what `look_up` raises.
        """
        found: list[Rewrite] = []
        size = 0
        for number, drops in self._dropping(self._drops(window)):
            batch = self._batches[number]
            data = batch.data
            if data is None:
                data = read(*batch.record)[BROKER_HEADER_BYTES:]
            rewrite = _rewrite(batch, drops, data)
            more = len(rewrite.batch) + len(rewrite.record.dropped)
            if found and (size + more > bytes_max or len(found) >= REWRITES_MAX):
                yield found
                found, size = [], 0
            found.append(rewrite)
            size += more
        if found:
            yield found

    # --- the decision -----------------------------------------------------------------------

    def decide(
        self, window: Window, next_arrival: int, ends: Mapping[QueueKey, int], entry: int
    ) -> PinnedDecision:
        """Has the ids arrive from `next_arrival` on, with messages that get offsets from `ends` on,
        as part of the log's entry `entry`. `catch_up` was called."""
        assert self._index.end_arrival == next_arrival == self._end_arrival, "it was completed"
        drops = self._drops(window)
        counts = [batch.header.count for batch in self._batches]
        records: list[PinnedRecord | None] = list(self._records)
        sizes = np.diff(self._starts)
        replaced: dict[int, Rewrite] = {}
        for number, lost in self._dropping(drops):
            batch = self._batches[number]
            assert batch.data is not None, "what is in memory is rewritten here"
            replaced[number] = rewrite = _rewrite(batch, lost, batch.data)
            counts[number] = rewrite.messages
            sizes[number] -= len(lost.rows)
            records[number] = None
        ends = dict(ends)
        offsets, placed = [], []
        for number, batch in enumerate(self._batches):
            key = batch.header.queue_key
            offsets.append(ends[key])
            due_us = due_of(batch.header)
            if number in replaced:
                hidden = due_us and counts[number]
                placed.append(Placed(replaced[number], -1 if hidden else ends[key]))
            if not due_us:
                ends[key] += counts[number]
        keys, digests = self._keys, self._digests
        arrivals = next_arrival + np.cumsum(sizes) - sizes
        if len(drops.rows):
            kept = np.ones(len(keys), np.bool_)
            kept[drops.rows] = False
            keys, digests = keys[kept], digests[kept]
            places = self._places_without(drops, replaced, arrivals.tolist(), offsets, entry)
        else:
            places = self._places_of_all(arrivals, np.array(offsets, np.int64))
        if len(keys):
            self._index.add(keys, digests, places, next_arrival)
        return PinnedDecision(sizes.tolist(), records, placed, ends)

    def _places_of_all(self, arrivals: Rows, offsets: Rows) -> Places:
        columns, batches = self._places.copy(), self._place_batches
        columns[0] += arrivals[batches].astype(np.uint64)
        at_once = columns[1] < np.uint64(DELAYED)
        columns[2][at_once] += offsets[batches][at_once].astype(np.uint64)
        return Places(columns)

    def _places_without(
        self,
        drops: _Drops,
        replaced: Mapping[int, Rewrite],
        arrivals: list[int],
        offsets: list[int],
        entry: int,
    ) -> Places:
        lost = dict(self._dropping(drops))
        found = [Places.none()]
        for number, batch in enumerate(self._batches):
            rows, holder = batch.rows, batch.record.entry
            if number in replaced:
                kept = np.ones(batch.header.count, np.bool_)
                kept[rows[lost[number].rows - batch.first]] = False
                rows, holder = (np.cumsum(kept) - 1)[rows[kept[rows]]], entry
            if len(rows):
                due_us = due_of(batch.header)
                queue = batch.header.queue_id
                found.append(
                    Places.of(arrivals[number], queue, offsets[number], rows, due_us, holder)
                )
        return Places.joined(found)


def prints_of_stored(fingerprints: Fingerprints, header: BatchHeader, data: bytes) -> Prints:
    """The fingerprints of a stored batch's messages that have ids. Raises CorruptBatch."""
    if not header.count or not header.flags & BatchFlags.MESSAGE_ID:
        return Prints.none()
    try:
        return prints_in(fingerprints, header, data)
    except InvalidRequest:
        # It was staged before the topic began to compare ids: then any bytes were an id.
        return Prints.none()


def may_grow_too_large(header: BatchHeader, bytes_max: int) -> bool:
    """Whether what is kept of a batch and the list of what is dropped may have more than
    `bytes_max` bytes: a kept message gets a sequence, and a dropped one is listed."""
    most = header.uncompressed_length + DROPPED.itemsize * header.count + _ROUNDING
    return most > min(bytes_max, UNCOMPRESSED_BYTES_MAX)


_ROUNDING: Final = 4_096
"""More than headers and padding take."""


def _rewrite(batch: _Batch, drops: _Drops, data: bytes) -> Rewrite:
    header = batch.header
    columns = decode_columns(data, header)
    rows = batch.rows[drops.rows - batch.first]
    kept = np.ones(header.count, np.bool_)
    kept[rows] = False
    logged = np.empty(len(rows), DROPPED)
    logged["sequence"] = sequences_of(header, columns)[rows]
    logged["first"] = np.where(drops.same, drops.first, -1 - drops.first)
    duplicates = int(np.count_nonzero(drops.same))
    record = control_pb2.CheckIds(
        queue=queue_ref(header.queue_key),
        producer_id=header.producer_id,
        base_sequence=header.base_sequence,
        count=header.count,
        content_crc=header.content_crc,
        duplicates=duplicates,
        conflicts=len(rows) - duplicates,
        dropped=logged.tobytes(),
    )
    return Rewrite(
        batch.record,
        header.queue_key,
        record,
        keep_rows(header, columns, kept),
        header.count - len(rows),
        drops.first[drops.first != SAME_TRANSACTION].astype(np.uint64),
    )
