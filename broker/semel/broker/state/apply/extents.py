"""The extents of a queue: which records of the log it consists of, kept as columns in chunks.

How it works. An extent says that offsets from `base_offset` on are rows `[first_row, …)` of the
stored batch at (index, position). Extents leave no offset out, so its count is the distance to the
next extent; of a compacted batch, whose offsets have gaps, it is more than the messages. Extents
are kept in columns, 36 bytes each. The newest ones are in growing arrays. As soon as there are
1,024 of them they become a *sealed chunk*: one immutable `bytes` that is read in place and goes
into a checkpoint as it is.

Compaction puts other extents in the places of a run of them. The chunks from there on are made
anew, with numpy; ordinals behind the run change.

Invariants
1. Base offsets rise strictly; append times never fall.
2. Chunk k holds the extents with ordinals [1024 k, 1024 (k + 1)). Ordinals count from the first
   extent that the queue ever had, those aside that compaction has removed, so the bytes of a chunk
   depend on the log only.
3. `first` is the ordinal of the first live extent. Chunks that lie wholly below it are dropped.

Format of a sealed chunk. base_offset i64[1024], index i64[1024], place i64[1024]
(position << 32 | length), append_time_us i64[1024], first_row u32[1024], then lowest index,
highest index and sum of lengths, i64 each. An open chunk of n: the five columns of n, no sums.

Rejected: one dict or object for each extent (ten times the memory), and rebuilding the bytes of a
checkpoint from arrays each time (this stalls the loop at a million extents).
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from semel.broker.state.apply.codec import Reader
from semel.protos.errors import CorruptSegment

I64 = npt.NDArray[np.int64]

CHUNK: Final = 1024
EXTENT_BYTES: Final = 36
_INDEX_AT: Final = CHUNK
_PLACE_AT: Final = 2 * CHUNK
_TIME_AT: Final = 3 * CHUNK
_QUADS: Final = 4 * CHUNK * 8
_SUMS: Final = struct.Struct("<qqq")
SEALED_BYTES: Final = CHUNK * EXTENT_BYTES + _SUMS.size
_LENGTH_MASK: Final = 0xFFFFFFFF

assert sys.byteorder == "little", (
    "the columns are read in place, which needs a little-endian machine"
)


@dataclass(frozen=True, slots=True)
class Extent:
    """Offsets `[base_offset, base_offset + count)`, which are rows of one stored batch; of a
    compacted one, the rows that have these offsets."""

    base_offset: int
    count: int
    first_row: int
    index: int
    position: int
    """Byte position of the record in its frame."""
    length: int
    """Length of the record's payload: broker header and batch."""
    append_time_us: int


class RecordPlace(NamedTuple):
    """Where a stored batch is in the log."""

    entry: int
    """Index of the entry that holds it."""
    position: int
    length: int


@dataclass(frozen=True, slots=True)
class Run:
    """Extents that follow each other."""

    ordinal: int
    """Ordinal of the first one."""
    bases: list[int]
    """Base offset of each, and of what follows them."""
    times: list[int]
    """Append time of each."""
    crc: int
    """CRC32C over their columns: base offsets, indexes, places, append times, first rows."""

    @property
    def end_offset(self) -> int:
        return self.bases[-1]


class _Sealed:
    """1,024 extents that no longer change."""

    __slots__ = ("data", "highest_index", "lowest_index", "quads", "rows", "total_bytes")

    def __init__(self, data: bytes) -> None:
        self.data = data
        view = memoryview(data)
        self.quads = view[:_QUADS].cast("q")
        self.rows = view[_QUADS : CHUNK * EXTENT_BYTES].cast("I")
        self.lowest_index, self.highest_index, self.total_bytes = _SUMS.unpack_from(
            data, CHUNK * EXTENT_BYTES
        )

    def at(self, at: int) -> tuple[int, int, int, int, int]:
        quads = self.quads
        return (
            quads[at],
            quads[_INDEX_AT + at],
            quads[_PLACE_AT + at],
            quads[_TIME_AT + at],
            self.rows[at],
        )


class Extents:
    """The extents of one queue, by ordinal."""

    __slots__ = ("_bases", "_indexes", "_places", "_rows", "_sealed", "_times", "first", "total")

    def __init__(self) -> None:
        self.first = 0
        """Ordinal of the first live extent."""
        self.total = 0
        """Ordinal of the next extent: how many were appended in the queue's whole life."""
        self._sealed: list[_Sealed] = []
        self._open()

    def _open(self) -> None:
        self._bases = array("q")
        self._indexes = array("q")
        self._places = array("q")
        self._times = array("q")
        self._rows = array("I")

    def __len__(self) -> int:
        return self.total - self.first

    def copied(self) -> Extents:
        """The same extents; whatever changes here later changes nothing there. It costs little,
        since most of them are in blocks that do not change."""
        copy = Extents()
        copy.first, copy.total = self.first, self.total
        copy._sealed = self._sealed[:]
        copy._bases, copy._indexes = self._bases[:], self._indexes[:]
        copy._places, copy._times, copy._rows = self._places[:], self._times[:], self._rows[:]
        return copy

    def append(
        self,
        base_offset: int,
        first_row: int,
        index: int,
        position: int,
        length: int,
        append_time_us: int,
    ) -> None:
        """Adds the newest extent."""
        self._bases.append(base_offset)
        self._indexes.append(index)
        self._places.append(position << 32 | length)
        self._times.append(append_time_us)
        self._rows.append(first_row)
        self.total += 1
        if len(self._bases) == CHUNK:
            sums = _SUMS.pack(
                min(self._indexes),
                max(self._indexes),
                sum(place & _LENGTH_MASK for place in self._places),
            )
            self._sealed.append(_Sealed(b"".join([*self._columns(), sums])))
            self._open()

    def _columns(self) -> list[bytes]:
        columns = (self._bases, self._indexes, self._places, self._times, self._rows)
        return [column.tobytes() for column in columns]

    def _at(self, ordinal: int) -> tuple[int, int, int, int, int]:
        """Base offset, index, place, append time and first row of one extent."""
        chunk = ordinal // CHUNK - self.first // CHUNK
        at = ordinal % CHUNK
        if chunk < len(self._sealed):
            return self._sealed[chunk].at(at)
        return (
            self._bases[at],
            self._indexes[at],
            self._places[at],
            self._times[at],
            self._rows[at],
        )

    def find_offset(self, offset: int) -> int:
        """Ordinal of the last live extent with base_offset <= offset, but at least `first`."""
        chunk = bisect_right(self._sealed, offset, key=_first_base) - 1
        if self._bases and self._bases[0] <= offset:
            chunk, at = len(self._sealed), bisect_right(self._bases, offset) - 1
        elif chunk < 0:
            return self.first
        else:
            at = bisect_right(self._sealed[chunk].quads, offset, 0, CHUNK) - 1
        return max(self.first, (self.first // CHUNK + chunk) * CHUNK + at)

    def find_time(self, time_us: int) -> int:
        """Ordinal of the first live extent appended at `time_us` or later; `total` without any."""
        chunk = bisect_left(self._sealed, time_us, key=_last_time)
        if chunk < len(self._sealed):
            at = bisect_left(self._sealed[chunk].quads, time_us, _TIME_AT, _TIME_AT + CHUNK)
            at -= _TIME_AT
        else:
            at = bisect_left(self._times, time_us)
        return max(self.first, (self.first // CHUNK + chunk) * CHUNK + at)

    def base_offset(self, ordinal: int) -> int:
        """Base offset of an existing extent."""
        return self._at(ordinal)[0]

    def read(self, ordinal: int, log_end_offset: int) -> Iterator[Extent]:
        """The extents from `ordinal` on."""
        if ordinal >= self.total:
            return
        base, index, place, time_us, row = self._at(ordinal)
        while True:
            ordinal += 1
            last = ordinal >= self.total
            following = (log_end_offset, 0, 0, 0, 0) if last else self._at(ordinal)
            length = place & _LENGTH_MASK
            yield Extent(base, following[0] - base, row, index, place >> 32, length, time_us)
            if last:
                return
            base, index, place, time_us, row = following

    def bytes_before(self, ordinal: int) -> int:
        """Sum of the lengths of the live extents below `ordinal`."""
        total = 0
        at = self.first
        while at < ordinal:
            chunk = at // CHUNK - self.first // CHUNK
            if at % CHUNK == 0 and at + CHUNK <= ordinal and chunk < len(self._sealed):
                total += self._sealed[chunk].total_bytes
                at += CHUNK
            else:
                total += self._at(at)[2] & _LENGTH_MASK
                at += 1
        return total

    def find_excess(self, excess_bytes: int) -> int:
        """The lowest ordinal below which the live extents have `excess_bytes` or more.

        It is at most that of the newest extent.
        """
        at = self.first
        while excess_bytes > 0 and at < self.total - 1:
            chunk = at // CHUNK - self.first // CHUNK
            whole = at % CHUNK == 0 and chunk < len(self._sealed)
            if whole and self._sealed[chunk].total_bytes < excess_bytes:
                excess_bytes -= self._sealed[chunk].total_bytes
                at += CHUNK
            else:
                excess_bytes -= self._at(at)[2] & _LENGTH_MASK
                at += 1
        return min(at, max(self.first, self.total - 1))

    def trim(self, ordinal: int) -> None:
        """Drops the extents below `ordinal`."""
        del self._sealed[: ordinal // CHUNK - self.first // CHUNK]
        self.first = ordinal

    def cut(self, ordinal: int) -> None:
        """Drops the extents from `ordinal` on, which is not below `first`."""
        if ordinal < self.total:
            start, kept = divmod(ordinal, CHUNK)
            end = ordinal if kept else ordinal + 1  # at least one, to have columns to cut
            self._remake(start, [column[:kept] for column in self._from_chunk(start, end)])

    def run(self, from_offset: int, count: int, log_end_offset: int) -> Run | None:
        """The `count` live extents from the one on that begins at `from_offset`; None if none
        begins there, or there are fewer."""
        ordinal = self.find_offset(from_offset)
        end = ordinal + count
        if not (self.first <= ordinal < end <= self.total):
            return None
        if self.base_offset(ordinal) != from_offset:
            return None
        start = ordinal // CHUNK
        at = ordinal - start * CHUNK
        columns = [column[at : at + count] for column in self._from_chunk(start, end)]
        crc = 0
        for column in columns:
            crc = google_crc32c.extend(crc, column.tobytes())
        following = log_end_offset if end == self.total else self.base_offset(end)
        bases = [*columns[0].tolist(), following]
        return Run(ordinal, bases, columns[3].tolist(), crc)

    def replace(
        self, ordinal: int, places: Sequence[Sequence[tuple[int, RecordPlace]] | None]
    ) -> int:
        """Puts other batches in the places of the extents from `ordinal` on: base offset and place
        of each, in order. None leaves an extent as it is. Returns the change of the sum of their
        lengths.

        New extents have the append times of those that they replace, and `first_row` 0.
        """
        start = ordinal // CHUNK
        columns = self._from_chunk(start, self.total)
        at = ordinal - start * CHUNK
        kept_before = [column[:at] for column in columns]
        rest = [column[at + len(places) :] for column in columns]
        run = [column[at : at + len(places)] for column in columns]
        counts = np.array([1 if each is None else len(each) for each in places], np.int64)
        made = [np.repeat(column, counts) for column in run]
        begin = 0
        for given, count in zip(places, counts.tolist(), strict=True):
            for number, (base, place) in enumerate(given or ()):
                to = begin + number
                made[0][to], made[1][to] = base, place.entry
                made[2][to] = place.position << 32 | place.length
                made[4][to] = 0
            begin += count
        change = int((made[2] & _LENGTH_MASK).sum() - (run[2] & _LENGTH_MASK).sum())
        self._remake(
            start,
            [np.concatenate(parts) for parts in zip(kept_before, made, rest, strict=True)],
        )
        return change

    def columns(self, ordinal: int, end: int) -> tuple[I64, I64, I64]:
        """Copies of columns of the extents `[ordinal, end)`: base offsets, lengths, append times.
        `ordinal` is not below `first`."""
        start = ordinal // CHUNK
        if ordinal >= end:
            return (*(np.empty(0, np.int64) for _ in range(3)),)  # type: ignore[return-value]
        bases, _, places, times, _ = self._from_chunk(start, end)
        at = ordinal - start * CHUNK
        return bases[at:], places[at:] & _LENGTH_MASK, times[at:]

    def _from_chunk(self, chunk: int, end: int) -> list[npt.NDArray[Any]]:
        """Copies of the five columns, from the first ordinal of a chunk to ordinal `end`."""
        at = chunk - self.first // CHUNK
        parts: list[list[npt.NDArray[Any]]] = [[], [], [], [], []]
        begin = chunk * CHUNK
        for sealed in self._sealed[at:]:
            if begin >= end:
                break
            for number in range(4):
                parts[number].append(
                    np.frombuffer(sealed.data, np.int64, CHUNK, number * CHUNK * 8)
                )
            parts[4].append(np.frombuffer(sealed.data, np.uint32, CHUNK, _QUADS))
            begin += CHUNK
        if begin < end:
            open_columns = (self._bases, self._indexes, self._places, self._times)
            for number, column in enumerate(open_columns):
                parts[number].append(np.frombuffer(column.tobytes(), np.int64))
            parts[4].append(np.frombuffer(self._rows.tobytes(), np.uint32))
        return [np.concatenate(each)[: end - chunk * CHUNK] for each in parts]

    def _remake(self, chunk: int, columns: list[npt.NDArray[Any]]) -> None:
        """Makes the chunks from `chunk` on anew from columns that begin with its first ordinal."""
        del self._sealed[chunk - self.first // CHUNK :]
        count = len(columns[0])
        whole = count - count % CHUNK
        for begin in range(0, whole, CHUNK):
            part = [column[begin : begin + CHUNK] for column in columns]
            total_bytes = int((part[2] & _LENGTH_MASK).sum())
            sums = _SUMS.pack(int(part[1].min()), int(part[1].max()), total_bytes)
            data = b"".join([*(column.tobytes() for column in part), sums])
            self._sealed.append(_Sealed(data))
        self._open()
        open_columns = (self._bases, self._indexes, self._places, self._times, self._rows)
        for column, numbers in zip(open_columns, columns, strict=True):
            column.frombytes(numbers[whole:].tobytes())
        self.total = chunk * CHUNK + count

    def find_entry(self, ordinal: int, entry: int, mask: int) -> list[int]:
        """Ordinals from `ordinal` on of extents whose index agrees with `entry` in the bits of
        `mask`."""
        found: list[int] = []
        start = self.first // CHUNK * CHUNK
        for sealed in (*self._sealed, None):
            if start + CHUNK > ordinal:
                indexes = (
                    np.frombuffer(self._indexes, np.int64)
                    if sealed is None
                    else np.frombuffer(sealed.data, np.int64, CHUNK, _INDEX_AT * 8)
                )
                hits = np.flatnonzero((indexes & mask) == entry & mask) + start
                found += hits[hits >= ordinal].tolist()
            start += CHUNK
        return found

    def records(self, lo_index: int, hi_index: int) -> Iterator[tuple[int, int, int]]:
        """(index, position, length) of the records of live extents with lo_index <= index <
        hi_index; of those with cancelled messages, which have several extents, once."""
        before = None
        for record in self._records(lo_index, hi_index):
            if record != before:
                yield record
            before = record

    def _records(self, lo_index: int, hi_index: int) -> Iterator[tuple[int, int, int]]:
        ordinal = self.first
        for sealed in self._sealed:
            end = (ordinal // CHUNK + 1) * CHUNK
            if sealed.lowest_index < hi_index and sealed.highest_index >= lo_index:
                quads = sealed.quads
                for at in range(ordinal % CHUNK, CHUNK):
                    if lo_index <= quads[_INDEX_AT + at] < hi_index:
                        place = quads[_PLACE_AT + at]
                        yield quads[_INDEX_AT + at], place >> 32, place & _LENGTH_MASK
            ordinal = end
        for at in range(ordinal % CHUNK, len(self._bases)):
            index = self._indexes[at]
            if lo_index <= index < hi_index:
                place = self._places[at]
                yield index, place >> 32, place & _LENGTH_MASK

    def live_places(self, lo_index: int, hi_index: int) -> tuple[I64, I64]:
        """The same records as `records`: their indexes, and their places as in a chunk."""
        found = [self._open_places(self.first % CHUNK if not self._sealed else 0)]
        ordinal = self.first
        for sealed in self._sealed:
            at = ordinal % CHUNK
            ordinal += CHUNK - at
            if sealed.lowest_index < hi_index and sealed.highest_index >= lo_index:
                quads = np.frombuffer(sealed.data, np.int64, 3 * CHUNK)
                found.insert(-1, (quads[_INDEX_AT + at : _PLACE_AT], quads[_PLACE_AT + at :]))
        indexes, places = (np.concatenate(column) for column in zip(*found, strict=True))
        inside = (indexes >= lo_index) & (indexes < hi_index)
        indexes, places = indexes[inside], places[inside]
        again = (indexes[1:] == indexes[:-1]) & (places[1:] == places[:-1])
        new = np.append(np.full(min(1, len(indexes)), True), ~again)
        return indexes[new], places[new]

    def _open_places(self, at: int) -> tuple[I64, I64]:
        return np.array(self._indexes[at:], np.int64), np.array(self._places[at:], np.int64)

    def add_live_bytes(self, bounds: I64, sums: I64, each: int = 0) -> None:
        """Adds to `sums[k]` the lengths of the live extents' records in the entries `[bounds[k],
        bounds[k + 1])`. A record that has several extents counts for each of them. With `each`,
        every record has that length in the log."""
        ordinal = self.first
        for sealed in self._sealed:
            at = ordinal % CHUNK
            ordinal += CHUNK - at
            ends = (sealed.lowest_index, sealed.highest_index)
            first, last = np.searchsorted(bounds, ends, side="right") - 1
            if first == last and not at:
                if 0 <= first < len(sums):
                    sums[first] += each * CHUNK or sealed.total_bytes
            elif last >= 0 and first < len(sums):
                quads = np.frombuffer(sealed.data, np.int64, 3 * CHUNK)
                lengths = quads[_PLACE_AT + at :] & _LENGTH_MASK
                if each:
                    lengths = np.full_like(lengths, each)
                add_lengths(quads[_INDEX_AT + at : _PLACE_AT], lengths, bounds, sums)
        at = ordinal % CHUNK
        lengths = np.array(self._places[at:], np.int64) & _LENGTH_MASK
        if each:
            lengths = np.full_like(lengths, each)
        add_lengths(np.array(self._indexes[at:], np.int64), lengths, bounds, sums)

    def parts(self) -> list[bytes]:
        """Canonical bytes: the sealed chunks, then the columns of the open one."""
        return [*(sealed.data for sealed in self._sealed), *self._columns()]

    @classmethod
    def read_parts(cls, reader: Reader, first: int, total: int) -> Extents:
        """The inverse of `parts`. Raises CorruptSegment."""
        if not 0 <= first <= total:
            raise CorruptSegment(f"state names extents [{first}, {total})")
        extents = cls()
        extents.first, extents.total = first, total
        for _ in range(total // CHUNK - first // CHUNK):
            extents._sealed.append(_Sealed(bytes(reader.take(SEALED_BYTES))))
        count = total % CHUNK
        for column in (extents._bases, extents._indexes, extents._places, extents._times):
            column.frombytes(reader.take(8 * count))
        extents._rows.frombytes(reader.take(4 * count))
        return extents


def add_lengths(indexes: I64, lengths: I64, bounds: I64, sums: I64) -> None:
    """Adds to `sums[k]` the lengths of the records in the entries `[bounds[k], bounds[k + 1])`;
    `indexes` are those of their entries."""
    at = np.searchsorted(bounds, indexes, side="right") - 1
    inside = (at >= 0) & (at < len(sums))
    np.add.at(sums, at[inside], lengths[inside])


def _first_base(sealed: _Sealed) -> int:
    return sealed.quads[0]


def _last_time(sealed: _Sealed) -> int:
    return sealed.quads[_TIME_AT + CHUNK - 1]
