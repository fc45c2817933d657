"""Runs: sorted blocks of ids on disk, cut into chunks, each run with a filter in memory.

How it works. A run holds the ids of a half-open range of arrivals, and their places. In memory it
has a filter and the first key of each chunk, about 2.6 bytes an id; everything else is read when
the filter says that an id may be there. All chunks that a look-up needs are read at once and
searched together.

Invariants
1. A run never changes. It belongs to the index once the manifest names it; the chunks of a run that
   no manifest names are left over from a crash, and are dropped at the next start.
2. Ids whose first halves are equal are in one chunk.
3. The chunks of a run are in the order of their keys, and so are the ids in a chunk.

Format. Keys: topic u64, "m" for the manifest, or "r", run u32, a kind and a number u32, all
big-endian. Kinds: "c" a chunk (four columns of u64, see `sorted_ids.py`), "f" a part of the filter,
"k" the first keys of all chunks, "p" a part of the places (three columns of u64, see
`id_places.py`), "q" the first arrivals of all parts. Values are little-endian.

Not here: which runs there are, and when they are merged (`id_index.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from semel.broker.dedup.fingerprints import U64
from semel.broker.dedup.id_filter import IdFilter, Probes
from semel.broker.dedup.id_places import PLACE_BYTES, PLACE_COLUMNS, Found, Places
from semel.broker.dedup.id_store import PREFIX_BYTES, CorruptIndex, IdStore, Writes
from semel.broker.dedup.sorted_ids import ID_BYTES, ID_COLUMNS, Hits, SortedIds

Rows = npt.NDArray[np.int64]

CHUNK_IDS: Final = 128
LARGE_RUN_IDS: Final = 1 << 19
"""From this number of ids on, 16 MiB, a run is kept apart from others."""
_FILTER_PART_WORDS: Final = 1 << 17
_WRITE_BYTES: Final = 1 << 20
"""RocksDB keeps other threads of Python waiting while it takes so much: less than a millisecond."""
_TOPIC: Final = struct.Struct(">Q")
_RUN: Final = struct.Struct(">I")
_PART: Final = struct.Struct(">I")
RUN_MARK: Final = struct.Struct("<IIQQQIII")
PART_PLACES: Final = 256


class RunInfo(NamedTuple):
    """What the manifest says of a run."""

    number: int
    level: int
    first_arrival: int
    end_arrival: int
    ids: int
    chunks: int
    filter_words: int
    place_parts: int


def topic_prefix(topic_id: int) -> bytes:
    """What all keys of a topic begin with."""
    return _TOPIC.pack(topic_id)


def run_prefix(topic_id: int, number: int) -> bytes:
    """What all keys of a run begin with; those of the next run follow them."""
    prefix = _TOPIC.pack(topic_id) + b"r" + _RUN.pack(number)
    assert len(prefix) == PREFIX_BYTES
    return prefix


def _numbered(prefix: bytes, kind: bytes, numbers: Iterable[int]) -> list[bytes]:
    return [prefix + kind + _PART.pack(number) for number in numbers]


class IdRun:
    """One run, ready for look-ups."""

    __slots__ = ("_filter", "_first_arrivals", "_first_keys", "_prefix", "_store", "info")

    def __init__(
        self,
        store: IdStore,
        topic_id: int,
        info: RunInfo,
        ids: IdFilter,
        first_keys: U64,
        first_arrivals: U64,
    ) -> None:
        self.info = info
        self._store = store
        self._prefix = run_prefix(topic_id, info.number)
        self._filter = ids
        self._first_keys = first_keys
        self._first_arrivals = first_arrivals

    @classmethod
    def load(cls, store: IdStore, topic_id: int, info: RunInfo) -> IdRun:
        """Reads filter and first keys. Raises CorruptIndex."""
        prefix = run_prefix(topic_id, info.number)
        parts = -(-info.filter_words // _FILTER_PART_WORDS)
        words = b"".join(_all(store, _numbered(prefix, b"f", range(parts))))
        tables = _all(store, [*_numbered(prefix, b"k", [0]), *_numbered(prefix, b"q", [0])])
        wanted = (info.filter_words, info.chunks, info.place_parts)
        if tuple(len(each) for each in (words, *tables)) != tuple(8 * each for each in wanted):
            raise CorruptIndex(f"run {info.number} of topic {topic_id} lacks part of its tables")
        first_keys, first_arrivals = (np.frombuffer(table, "<u8") for table in tables)
        ids = IdFilter(np.frombuffer(words, "<u8"))
        return cls(store, topic_id, info, ids, first_keys, first_arrivals)

    def might_hold_few(self, keys: list[list[int]]) -> list[int]:
        """Which of a few keys may be in this run."""
        one = self._filter.might_hold_one
        return [row for row, (first, second) in enumerate(keys) if one(first, second)]

    def might_hold(self, probes: Probes) -> Rows:
        """The rows of the keys that may be in this run."""
        return self._filter.might_hold(probes)

    def sought(self, rows: Rows, keys: U64) -> tuple[Rows, list[bytes]]:
        """Those of `rows` of `keys` that are not below all ids of the run, and the names of the
        chunks that may hold them."""
        chunks = np.searchsorted(self._first_keys, keys[rows, 0], side="right") - 1
        inside = chunks >= 0
        needed = sorted(set(chunks[inside].tolist()))
        return rows[inside], _numbered(self._prefix, b"c", needed)

    def places_of(self, arrivals: U64) -> Found:
        """Where messages of this run are. Raises CorruptIndex and OSError."""
        parts = np.searchsorted(self._first_arrivals, arrivals, side="right") - 1
        return self.places(np.unique(parts[parts >= 0]).tolist()).find(arrivals)

    def parts_since(self, arrival: int) -> range:
        """The parts of the places that are needed for arrivals from `arrival` on."""
        at = int(np.searchsorted(self._first_arrivals, np.uint64(arrival), side="right"))
        return range(max(0, at - 1), self.info.place_parts)

    def places(self, parts: Iterable[int]) -> Places:
        """Parts of the places, as one. Raises CorruptIndex and OSError."""
        values = _all(self._store, _numbered(self._prefix, b"p", parts))
        return Places.joined([Places.none(), *(_place_block(value) for value in values)])

    def block(self, chunks: range) -> SortedIds:
        """The ids of some chunks that follow one another. Raises CorruptIndex and OSError."""
        return _joined(_all(self._store, _numbered(self._prefix, b"c", chunks)))

    def ids_below(self, chunk: int, key_end: int) -> tuple[SortedIds, int]:
        """The ids of all chunks from `chunk` on that begin below `key_end`, the last one whole, and
        the number of the chunk after them."""
        end = self.info.chunks
        if key_end <= _KEY_MAX:
            end = int(np.searchsorted(self._first_keys, np.uint64(key_end)))
        return self.block(range(chunk, end)), max(chunk, end)


_KEY_MAX: Final = (1 << 64) - 1


def find_in_runs(
    store: IdStore, maybe: Iterable[tuple[IdRun, Rows]], keys: U64, first_arrival: int
) -> list[Hits]:
    """Looks for rows of `keys` in runs that may hold them; all chunks are read at once.

    Raises CorruptIndex and OSError.
    """
    sought = [run.sought(rows, keys) for run, rows in maybe]
    values = _all(store, [name for _, names in sought for name in names])
    found, start = [], 0
    for rows, names in sought:
        # The chunks are in the order of their keys, so together they are sorted, too.
        block = _joined(values[start : start + len(names)])
        start += len(names)
        hits = block.find(keys[rows], first_arrival)
        found.append(hits._replace(rows=rows[hits.rows]))
    return found


def _joined(chunks: list[bytes]) -> SortedIds:
    """The ids of chunks that follow one another. Raises CorruptIndex."""
    sizes = set(map(len, chunks))
    if any(size % ID_BYTES for size in sizes):
        raise CorruptIndex(f"chunks of ids have {sorted(sizes)} bytes")
    if len(sizes) == 1:  # as nearly always
        block = np.frombuffer(b"".join(chunks), "<u8").reshape(len(chunks), ID_COLUMNS, -1)
        return SortedIds(block.transpose(1, 0, 2).reshape(ID_COLUMNS, -1))
    blocks = [np.frombuffer(chunk, "<u8").reshape(ID_COLUMNS, -1) for chunk in chunks]
    return SortedIds(np.concatenate([np.zeros((ID_COLUMNS, 0), np.uint64), *blocks], axis=1))


def _place_block(value: bytes) -> Places:
    if len(value) % PLACE_BYTES:
        raise CorruptIndex(f"a part of the places has {len(value)} bytes")
    return Places(np.frombuffer(value, "<u8").reshape(PLACE_COLUMNS, -1))


def _all(store: IdStore, keys: list[bytes]) -> list[bytes]:
    values = store.get(keys)
    present = [value for value in values if value is not None]
    if len(present) != len(values):
        raise CorruptIndex(f"the index of message ids lacks {len(values) - len(present)} chunks")
    return present


class RunWriter:
    """Writes one run, block by block in the order of their keys."""

    def __init__(self, store: IdStore, topic_id: int, number: int, ids_max: int) -> None:
        """`ids_max` is at least the number of ids, for the size of the filter."""
        self._store = store
        self._failures = store.failures
        self._topic_id = topic_id
        self._number = number
        self._prefix = run_prefix(topic_id, number)
        if ids_max >= LARGE_RUN_IDS:
            store.keep_apart(self._prefix)
        self._filter = IdFilter.for_keys(ids_max)
        self._first_keys: list[U64] = []
        self._ids = 0
        self._chunks = 0
        self._places = Places.none()
        self._first_arrivals: list[int] = []

    def add(self, block: SortedIds) -> None:
        """Writes the next ids; all their first halves are above those before."""
        if not len(block):
            return
        columns = block.columns
        self._filter.add_sorted(Probes.of(columns[0], columns[1]))
        cuts = _cuts(columns[0])
        self._first_keys.append(columns[0][cuts[:-1]])
        writes, size = Writes(), 0
        for start, end in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            value = columns[:, start:end].tobytes()
            (key,) = _numbered(self._prefix, b"c", [self._chunks])
            writes.puts.append((key, value))
            self._chunks += 1
            size += len(value)
            if size >= _WRITE_BYTES:
                self._store.write(writes)
                writes, size = Writes(), 0
        self._store.write(writes)
        self._ids += len(block)

    def add_places(self, block: Places) -> None:
        """Writes the places that follow those before."""
        waiting = Places.joined([self._places, block])
        whole = len(waiting) // PART_PLACES * PART_PLACES
        self._places = Places(waiting.columns[:, whole:])
        self._write_places(waiting.columns[:, :whole])

    def _write_places(self, columns: U64) -> None:
        writes = Writes()
        for start in range(0, columns.shape[1], PART_PLACES):
            part = columns[:, start : start + PART_PLACES]
            (key,) = _numbered(self._prefix, b"p", [len(self._first_arrivals)])
            writes.puts.append((key, part.tobytes()))
            self._first_arrivals.append(int(part[0, 0]))
        self._store.write(writes)

    def finish(self, level: int, first_arrival: int, end_arrival: int) -> IdRun:
        """Writes the tables, and returns the run; the manifest does not name it yet.

        Raises OSError, also if the disk has refused anything since the run was begun.
        """
        self._write_places(self._places.columns)
        words = self._filter.words
        first_keys = np.concatenate(self._first_keys) if self._first_keys else words[:0]
        parts = range(0, len(words), _FILTER_PART_WORDS)
        keys = _numbered(self._prefix, b"f", range(len(parts)))
        puts = [
            (key, words[start : start + _FILTER_PART_WORDS].tobytes())
            for key, start in zip(keys, parts, strict=True)
        ]
        first_arrivals = np.array(self._first_arrivals, np.uint64)
        for kind, table in ((b"k", first_keys), (b"q", first_arrivals)):
            puts.append((_numbered(self._prefix, kind, [0])[0], table.tobytes()))
        self._store.write(Writes(puts=puts))
        if self._store.failures != self._failures:
            raise OSError(f"run {self._number} was lost in part when another write failed")
        info = RunInfo(
            self._number,
            level,
            first_arrival,
            end_arrival,
            self._ids,
            self._chunks,
            len(words),
            len(first_arrivals),
        )
        return IdRun(self._store, self._topic_id, info, self._filter, first_keys, first_arrivals)


def _cuts(first: U64) -> npt.NDArray[np.int64]:
    """Where chunks begin, and the end: every CHUNK_IDS ids, but never between equal keys."""
    cuts = np.arange(0, len(first), CHUNK_IDS)
    split = np.flatnonzero(first[cuts[1:]] == first[cuts[1:] - 1]) + 1
    return np.append(np.delete(cuts, split), len(first))


def partitions(ids: int, at_once: int) -> Iterator[int]:
    """Upper ends of ranges of first halves, so that each range has about `at_once` of `ids`."""
    count = max(1, -(-ids // at_once))
    for number in range(1, count + 1):
        yield (number << 64) // count
