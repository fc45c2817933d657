"""Ids in memory, in the order in which they arrived, with a hash table for look-ups.

How it works. Ids are appended to columns, which is all that a slave ever does with them until they
are sorted and written. The table is made when somebody looks ids up: a *slot* for each value of the
upper bits of a key's first half, with the newest id of the slot, and for each id the one before it
in its slot. numpy links and follows a whole batch at once, one step for all of them at a time. Most
slots are empty, so most new ids end at the first step.

Invariants
1. Every linked id is in the chain of its slot, and the links of a chain lead to lower rows in the
   end: there is no circle.
2. A row that is linked is never written again. Whoever takes ids back gets a new table.

One thread adds; several may look up.

Rejected: sorted blocks with a filter, merged as they come, which cost five times as much for each
new id, and a search in each block for each known one.

Not here: ids on disk (`id_runs.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from copy import copy
from typing import Final

import numpy as np
import numpy.typing as npt

from semel.broker.dedup.fingerprints import FEW_ROWS, U64
from semel.broker.dedup.id_places import PLACE_COLUMNS, Places
from semel.broker.dedup.sorted_ids import ID_COLUMNS, Hits, SortedIds, order_of

_FIRST, _SECOND, _DIGEST = range(3)
_SLOTS_PER_ID: Final = 2
_SLOT_BITS_MIN: Final = 10
_ROWS_MIN: Final = 1 << 10
_GROWTH: Final = 4
_SORTED_AT_ONCE: Final = 1 << 17
_SPARE: Final = 8
"""Ids are expected to be frozen when there are an eighth more than `ids_max`."""
_KEY_BITS: Final = 64

Slots = npt.NDArray[np.int64]
Links = npt.NDArray[np.uint32]
"""Rows plus one; 0 is the end of a chain."""


class _Rows:
    """A matrix that grows to the right."""

    def __init__(self, height: int, room: int, most: int = 0) -> None:
        """Has room for `room`; about `most` are expected, so that it is copied a few times while it
        is small, and not when it is large."""
        self._columns: U64 = np.empty((height, room), np.uint64)
        self._most = most
        self.count = 0

    @property
    def room(self) -> int:
        """How many it has room for."""
        return int(self._columns.shape[1])

    @property
    def columns(self) -> U64:
        """The rows so far, over memory that stays as it is when more are added."""
        return self._columns[:, : self.count]

    def make_room(self, count: int) -> U64:
        """Makes room for `count` more, and returns it to be written; then `count` rises."""
        end = self.count + count
        if end > self.room:
            room = _GROWTH * end
            if room > self._most // _GROWTH:
                room = max(self._most, 2 * end)
            wider = np.empty((len(self._columns), room), np.uint64)
            wider[:, : self.count] = self.columns
            self._columns = wider
        return self._columns[:, self.count : end]

    def head(self, count: int) -> _Rows:
        """The first `count`, over the same memory."""
        found = copy(self)
        found.count = count
        return found


class _Table:
    """The newest id of each slot, and for each id the one before it in its slot."""

    def __init__(self, bits: int) -> None:
        """Has two to the power of `bits` slots."""
        self.bits = bits
        self._shift = np.uint64(_KEY_BITS - bits)
        self.newest: Links = np.zeros(1 << bits, np.uint32)
        self.before: Links = np.zeros(_ROWS_MIN, np.uint32)
        self._linked = 0
        self._linking = threading.Lock()

    def slots(self, first: U64) -> Slots:
        return (first >> self._shift).view(np.int64)

    def has_none(self, first: list[int]) -> bool:
        """Whether the slots of a few ids are empty."""
        shift, newest = _KEY_BITS - self.bits, self.newest
        return not any(newest[each >> shift] for each in first)

    def link(self, first: U64) -> None:
        """Links the ids of `first` that are not linked yet."""
        if len(first) <= self._linked:
            return
        with self._linking:
            start, count = self._linked, len(first)
            if count <= start:
                return
            if count > len(self.before):
                longer = np.zeros(2 * count, np.uint32)
                longer[:start] = self.before[:start]
                self.before = longer
            if count - start <= FEW_ROWS:
                shift = _KEY_BITS - self.bits
                for link, each in enumerate(first[start:].tolist(), start + 1):
                    slot = each >> shift
                    self.before[link - 1] = self.newest[slot]
                    self.newest[slot] = link
                self._linked = count
                return
            slots = self.slots(first[start:])
            links = np.arange(start + 1, count + 1, dtype=np.uint32)
            np.take(self.newest, slots, out=self.before[start:count], mode="clip")
            while True:
                self.newest[slots] = links
                # Of several ids in one slot one has won; the others go before it.
                winners = np.take(self.newest, slots)
                lost = np.flatnonzero(winners != links)
                if not len(lost):
                    break
                links, slots = links[lost], slots[lost]
                self.before[links - 1] = winners[lost]
            self._linked = count


def _bits_for(ids: int) -> int:
    return max(_SLOT_BITS_MIN, (_SLOTS_PER_ID * ids - 1).bit_length())


class RecentIds:
    """The ids of a range of arrivals, and their places."""

    def __init__(self, first_arrival: int, ids_max: int, *, like: RecentIds | None = None) -> None:
        """No ids yet; about `ids_max` are expected at most, and as many as `like` had, if any."""
        self.first_arrival = first_arrival
        self._ids_max = ids_max
        self._bits_max = _bits_for(ids_max)
        room = _ROWS_MIN if like is None else like._room
        most = ids_max + ids_max // _SPARE
        # One matrix for each column: the C library's allocator keeps the memory of one that was
        # freed for the next one, and gives a matrix of all three back to the system (over 32 MiB).
        self._ids: list[_Rows] = [_Rows(1, room, most) for _ in range(3)]
        self._places = _Rows(PLACE_COLUMNS, _ROWS_MIN)
        self._table: _Table = _Table(_SLOT_BITS_MIN if like is None else like._table.bits)

    def __len__(self) -> int:
        return self._ids[_DIGEST].count  # which is the last one to rise

    @property
    def end_arrival(self) -> int:
        """The arrival of the next id."""
        return self.first_arrival + len(self)

    @property
    def places(self) -> Places:
        """Where the messages are."""
        return Places(self._places.columns)

    @property
    def _columns(self) -> list[U64]:
        """Both halves of the keys, and the digests."""
        count = len(self)
        return [rows.columns[0, :count] for rows in self._ids]

    @property
    def _room(self) -> int:
        return self._ids[_FIRST].room

    def add(self, keys: U64, digests: U64, places: Places) -> None:
        """Adds ids that arrive one after the other."""
        stretches = len(places)
        self._places.make_room(stretches)[:] = places.columns
        self._places.count += stretches
        for rows, column in zip(self._ids, (keys[:, 0], keys[:, 1], digests), strict=True):
            rows.make_room(len(keys))[0] = column
            rows.count += len(keys)

    def cut(self, arrival: int) -> RecentIds:
        """Those that arrived before `arrival`; more can be added."""
        return self._part(self.first_arrival, arrival, self.places.below(arrival))

    def split(self, arrival: int) -> tuple[RecentIds, RecentIds]:
        """Those that arrived before `arrival`, and the others, to which more can be added. Neither
        these nor the first part may get more."""
        if arrival >= self.end_arrival:
            return self, RecentIds(self.end_arrival, self._ids_max, like=self)
        arrival = max(arrival, self.first_arrival)
        below = copy(self)
        below._ids = [rows.head(arrival - self.first_arrival) for rows in self._ids]
        below._places = self._places.head(len(self.places.below(arrival)))
        return below, self._part(arrival, self.end_arrival, self.places.since(arrival))

    def _part(self, first_arrival: int, end_arrival: int, places: Places) -> RecentIds:
        part = RecentIds(first_arrival, self._ids_max, like=self)
        chosen = slice(first_arrival - self.first_arrival, end_arrival - self.first_arrival)
        first, second, digests = (column[chosen] for column in self._columns)
        part.add(np.stack([first, second], axis=1), digests, places)
        return part

    def sorted(self, first_arrival: int) -> Iterator[SortedIds]:
        """Yields the ids that arrived at `first_arrival` or later in the order of their keys, in
        blocks that use the same memory again and again: the first touch of new memory costs more
        than to sort what is in it. Equal first halves are in one block."""
        start = max(0, first_arrival - self.first_arrival)
        columns = [column[start:] for column in self._columns]
        first = columns[_FIRST]
        order = order_of(first)
        at = 0
        while at < len(order):
            end = min(at + _SORTED_AT_ONCE, len(order))
            while end < len(order) and first[order[end]] == first[order[end - 1]]:
                end += 1
            rows = order[at:end]
            block = np.empty((ID_COLUMNS, len(rows)), np.uint64)
            for number, column in enumerate(columns):
                np.take(column, rows, out=block[number], mode="clip")
            block[-1] = rows
            block[-1] += np.uint64(self.first_arrival + start)
            yield SortedIds(block)
            at = end

    def ids_of(self, arrivals: range) -> U64:
        """The ids of a range of arrivals, a matrix as in `SortedIds`, in the order of arrival."""
        columns = self._columns
        first = max(arrivals.start, self.first_arrival)
        end = max(first, min(arrivals.stop, self.first_arrival + len(columns[_FIRST])))
        chosen = slice(first - self.first_arrival, end - self.first_arrival)
        numbers = np.arange(first, end, dtype=np.uint64)
        return np.stack([*(column[chosen] for column in columns), numbers])

    def look(self, keys: U64, first_arrival: int) -> Hits:
        """Rows that arrived at `first_arrival` or later."""
        columns, table = self._columns, self._table
        if table.bits < min(self._bits_max, _bits_for(len(columns[_FIRST]))):
            bits = min(self._bits_max, _bits_for(_GROWTH * len(columns[_FIRST])))
            self._table = table = _Table(bits)
        table.link(columns[_FIRST])
        if len(keys) <= FEW_ROWS and table.has_none(keys[:, 0].tolist()):
            return Hits.none()
        newest = np.take(table.newest, table.slots(keys[:, 0]))
        rows = np.flatnonzero(newest)
        links, before = newest[rows], table.before
        first, second, digests = columns
        sought = keys[:, 0]
        start, count, parts = max(0, first_arrival - self.first_arrival), len(first), []
        while len(rows) and count:
            at = links.astype(np.int64) - 1
            if int(at.max()) >= count:  # the table of what was frozen has later ids, too
                known = np.minimum(at, count - 1)
                equal = np.flatnonzero((first[known] == sought[rows]) & (at < count))
            else:
                equal = np.flatnonzero(np.take(first, at) == sought[rows])
            if len(equal):
                found, places = rows[equal], at[equal]
                same = (second[places] == keys[found, 1]) & (places >= start)
                found, places = found[same], places[same]
                arrivals = (places + self.first_arrival).astype(np.uint64)
                parts.append(Hits(found, digests[places], arrivals))
            links = np.take(before, at)
            more = np.flatnonzero(links)
            rows, links = rows[more], links[more]
        return Hits.joined(parts)
