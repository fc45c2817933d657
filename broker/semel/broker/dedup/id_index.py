"""The index of one topic's message ids on one node: which are in the window, and when they came.

How it works. New ids stay in memory as they come (`recent_ids.py`). When there are `memory_ids` of
them they are frozen, sorted, and become a run on disk. When there are `RUNS_PER_LEVEL` runs of one
level, they become one of the next level, or some of them do, so that none gets larger than a part
of the window. This is a log-structured merge tree by time: every run holds a range of arrivals, and
runs that the window has left behind are dropped whole. Ids are sorted, merged and written many at a
time with numpy; RocksDB keeps the chunks, makes changes atomic and caches what is read.

A look-up has three steps. `search_runs` asks all filters, and never blocks. It returns the ids that
may be on disk; `search_disk` reads those in a thread. `search_since` looks in memory, at the last
moment, so that nothing is missed that arrives in between.

The owner of the log calls `add` for what is applied. One background thread calls `maintain`, which
writes, merges and drops. All that they share is in one view, which is replaced as a whole; of its
parts only the new ids change, and `add` is the only one that changes them.

Invariants
1. The view holds every id in the window that was added, either in memory or in exactly one run.
2. Runs are in the order of their arrivals, then come the frozen ids, then the new ones. There is no
   gap between them, except after a loss: see `missing`.
3. Whatever is below `durable_arrival` survives a crash. The log must keep what is above, or a
   checkpoint's state must not be newer.
4. Adding ids whose arrivals were added before changes nothing, so a replay of the log may begin
   before the last arrival.
5. No run is written while the store has anything of a window before.

Rejected: one key in RocksDB for each id. A put costs 1.7 µs and a look-up 1.3 µs, on each of three
nodes; an id in a block of 10,000 costs less than 0.1 µs here (`benchmarks/id_index.py`).

Not here: where the window begins (the replicated state), what a hit means (admission), filling a
gap with a peer's ids (`run_copies.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from semel.broker.dedup.fingerprints import FEW_ROWS, U64
from semel.broker.dedup.id_filter import Probes
from semel.broker.dedup.id_places import Found, Places
from semel.broker.dedup.id_runs import (
    IdRun,
    RunWriter,
    find_in_runs,
    partitions,
    run_prefix,
    topic_prefix,
)
from semel.broker.dedup.id_store import CorruptIndex, IdStore, Writes
from semel.broker.dedup.recent_ids import RecentIds
from semel.broker.dedup.run_list import (
    RunList,
    decode_end,
    decode_list,
    encode_end,
    encode_list,
    end_key,
    list_key,
)
from semel.broker.dedup.sorted_ids import Hits, SortedIds

MEMORY_IDS: Final = 2_000_000
RUNS_PER_LEVEL: Final = 8
LEVEL_IDS: Final = 1 << 13
"""A run of level 0 has less than RUNS_PER_LEVEL times this number of ids, one of level 1 less than
that many times more, and so on."""
READ_CHUNKS: Final = 256
"""Chunks that are read at once, about 1 MiB."""
RUNS_PER_WINDOW: Final = 6
"""A merge makes no run that is larger than this part of a window: it is kept until the window has
left all of it behind, so the disk has so much more than the window."""
MERGE_IDS: Final = 500_000
"""A merge holds about this many ids in memory at a time."""
_UNBOUNDED: Final = 1 << 62
_RUNS_AFTER: Final = b"s"
"""Follows the keys of all runs."""


class Search(NamedTuple):
    """A look-up in all runs."""

    hits: Hits
    """Rows that were found."""
    view: _View
    maybe: tuple[tuple[IdRun, npt.NDArray[np.int64]], ...]
    """Runs that may have some of the rows, and those rows."""
    end_arrival: int
    """What arrived from here on is not in these runs."""


@dataclass(frozen=True, slots=True)
class _View:
    """All ids, at one moment."""

    runs: tuple[IdRun, ...]
    frozen: RecentIds | None
    fresh: RecentIds


class IdIndex:
    """The index of one topic."""

    def __init__(
        self,
        store: IdStore,
        topic_id: int,
        seed: bytes,
        *,
        memory_ids: int = MEMORY_IDS,
        ended_by: int | None = None,
    ) -> None:
        """Opens what the store has of the topic, which may be nothing. What it has of an earlier
        window, which had another seed, is dropped. Raises CorruptIndex.

        `ended_by`: the window has begun since this entry ended the one before. What the store has
        is older, or this node replays its log and will add it again. It may be dropped at any time
        now, so nothing of it is opened.
        """
        self._store = store
        self.topic_id = topic_id
        self._seed = seed
        self._abandoned = False
        self._memory_ids = memory_ids
        self._writing = threading.Lock()
        """Held during a step of background work."""
        self._pins = 0
        """How many peers read runs; none is merged or dropped meanwhile."""
        self._merging: Iterator[bool] | None = None
        """The rest of the merge that is under way."""
        self._swapping = threading.Lock()
        """Held while the view is replaced by one that was made from it."""
        self._left_behind = 0
        """The window left behind what arrived before, and its runs were dropped. A node that starts
        goes through an older state, whose window still begins there."""
        self.ended_by = 0 if ended_by is None else ended_by
        """The entry that ended the topic's last window before this one; 0: none that is known of.
        Only a node that starts has a state without it, whose window is over: nobody will ask for
        what it counts."""
        self._stale = ended_by is not None
        """The store may have something of a window before."""
        runs: tuple[IdRun, ...] = ()
        self._next_run = 0
        if not self._stale:
            runs, self._next_run = self._load()
        end = runs[-1].info.end_arrival if runs else 0
        self._view = _View(runs, None, RecentIds(end, memory_ids))

    @property
    def end_arrival(self) -> int:
        """The arrival of the next id."""
        return self._view.fresh.end_arrival

    @property
    def durable_arrival(self) -> int:
        """What arrived below it survives a crash, if it is not missing."""
        view = self._view
        return (view.fresh if view.frozen is None else view.frozen).first_arrival

    @property
    def run_count(self) -> int:
        """Runs on disk."""
        return len(self._view.runs)

    @property
    def memory_ids(self) -> int:
        """Ids that are in memory only."""
        view = self._view
        return len(view.fresh) + (0 if view.frozen is None else len(view.frozen))

    def missing(self, first_arrival: int) -> list[range]:
        """The arrivals at or above `first_arrival` whose ids the index has lost, in their order."""
        view = self._view
        parts = [(run.info.first_arrival, run.info.end_arrival) for run in view.runs]
        memory = [view.fresh] if view.frozen is None else [view.frozen, view.fresh]
        parts += [(each.first_arrival, each.end_arrival) for each in memory]
        gaps, at = [], max(first_arrival, self._left_behind)
        for first, end in sorted(parts):
            if first > at:
                gaps.append(range(at, first))
            at = max(at, end)
        return gaps

    # --- changes ----------------------------------------------------------------------------

    def skip_to(self, arrival: int) -> None:
        """Goes on at `arrival`: the ids between the last one and that are `missing`. So may be the
        last ones that were in memory only.

        Call it where `add` is called.
        """
        with self._swapping:
            view = self._view
            assert arrival > view.fresh.end_arrival, "an index never goes back"
            frozen = view.frozen
            if frozen is None and len(view.fresh):
                frozen = view.fresh
            self._view = _View(view.runs, frozen, RecentIds(arrival, self._memory_ids))

    def add(self, keys: U64, digests: U64, places: Places, first_arrival: int) -> None:
        """Adds the ids of a batch, which arrive one after the other from `first_arrival` on.

        Ids that were added before are left as they are. Raises CorruptIndex if ids before these
        are missing.
        """
        fresh = self._view.fresh
        if first_arrival + len(keys) <= fresh.end_arrival:
            return
        if first_arrival != fresh.end_arrival:
            raise CorruptIndex(
                f"topic {self.topic_id}: id {first_arrival} came after {fresh.end_arrival}"
            )
        fresh.add(keys, digests, places)

    def abandon(self) -> None:
        """Writes nothing more to the store; a step of background work that is under way may end
        after this call."""
        self._abandoned = True

    def drop(self, ended_by: int) -> None:
        """Drops all that the store has of the topic of an abandoned index, whose window that entry
        has ended. Raises CorruptIndex and OSError."""
        with self._writing:
            assert self._abandoned
            self.ended_by = max(self.ended_by, ended_by)
            self._drop_all()

    def _drop_all(self) -> None:
        """All but the end of the window before."""
        everything = topic_prefix(self.topic_id), topic_prefix(self.topic_id + 1)
        writes = Writes(dropped=[everything])
        if self.ended_by:
            writes.puts.append((end_key(self.topic_id), encode_end(self.ended_by)))
        self._store.write(writes)

    def cut_back(self, arrival: int) -> None:
        """Forgets the ids that arrived at `arrival` or later: their entries were lost."""
        with self._swapping:
            fresh = self._view.fresh
            assert arrival >= fresh.first_arrival, "what is frozen was applied"
            if arrival < fresh.end_arrival:
                self._view = replace(self._view, fresh=fresh.cut(arrival))

    def freeze(self, applied_arrival: int) -> bool:
        """Takes the ids that arrived before `applied_arrival` out of the way, to be written by
        `maintain`; False if there are none, or if those before are not written yet.

        Call it where `add` is called.
        """
        with self._swapping:
            view = self._view
            if view.frozen is not None or applied_arrival <= view.fresh.first_arrival:
                return False
            frozen, rest = view.fresh.split(applied_arrival)
            if not len(frozen):
                return False
            self._view = _View(view.runs, frozen, rest)
        return True

    @property
    def is_full(self) -> bool:
        """Whether the new ids should be frozen."""
        fresh = self._view.fresh
        return len(fresh) >= self._memory_ids

    def maintain(self, first_arrival: int, window_ids: int = _UNBOUNDED) -> bool:
        """One step of background work for a window that begins at `first_arrival` and holds up to
        `window_ids`: writes what is frozen, or drops runs that the window has left, or goes on with
        a merge; False if nothing is to do.

        A step takes a part of a second. A merge has many, so that memory is written meanwhile.
        Raises CorruptIndex and OSError.
        """
        with self._writing:
            if self._abandoned:
                return False
            if self._write_frozen(first_arrival):
                return True
            if self._pins:
                return False
            merging, self._merging = self._merging, None  # one that fails begins anew
            if merging is None and self._drop(first_arrival):
                return True
            most = window_ids // RUNS_PER_WINDOW
            rest = self._merge(first_arrival, most) if merging is None else merging
            if next(rest, None) is None:
                return merging is not None
            self._merging = rest
            return True

    def _write_frozen(self, first_arrival: int) -> bool:
        frozen = self._view.frozen
        if frozen is None:
            return False
        ids = len(frozen)
        writer = self._begin_run(ids)
        for block in frozen.sorted(first_arrival):
            writer.add(block)
        writer.add_places(frozen.places)
        run = writer.finish(level_of(ids), frozen.first_arrival, frozen.end_arrival)
        self._save((*self._view.runs, run), [], wrote_frozen=True)
        return True

    def _drop(self, first_arrival: int) -> bool:
        runs = self._view.runs
        gone = [run for run in runs if run.info.end_arrival <= first_arrival]
        if not gone or len(gone) == len(runs):  # the last one says where the next id arrives
            gone = gone[:-1]
        if not gone:
            return False
        self._left_behind = max(self._left_behind, gone[-1].info.end_arrival)
        self._save(runs[len(gone) :], gone)
        return True

    def _merge(self, first_arrival: int, ids_max: int) -> Iterator[bool]:
        """Yields after each step, the last one included."""
        runs = self._view.runs
        levels = [run.info.level for run in runs]
        chosen = _to_merge(levels, [run.info.ids for run in runs], ids_max)
        if chosen is None or self.missing(first_arrival):  # a run's arrivals have no gap
            return
        old = list(runs[chosen])
        ids = sum(run.info.ids for run in old)
        writer = self._begin_run(ids)
        taken = [0] * len(old)
        rest = [run.ids_below(0, 0)[0] for run in old]
        for key_end in partitions(ids, MERGE_IDS):
            parts = []
            for number, run in enumerate(old):
                block, taken[number] = run.ids_below(taken[number], key_end)
                joined = SortedIds(np.concatenate([rest[number].columns, block.columns], axis=1))
                below, rest[number] = joined.cut(key_end)
                parts.append(below)
            writer.add(SortedIds.merged(parts, first_arrival))
            yield True
        for run in old:
            for part in run.parts_since(first_arrival):
                writer.add_places(run.places([part]))
        first, last = old[0].info, old[-1].info
        level = max(levels[chosen]) + 1
        run = writer.finish(level, first.first_arrival, last.end_arrival)
        self._save((*(each for each in self._view.runs if each not in old), run), old)
        yield True

    def _begin_run(self, ids_max: int) -> RunWriter:
        if self._stale:
            self._drop_all()
            self._store.sync()  # a write that fails would bring back what was dropped since
            self._stale = False
        number, self._next_run = self._next_run, self._next_run + 1
        return RunWriter(self._store, self.topic_id, number, ids_max)

    # --- runs of other nodes ----------------------------------------------------------------

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Merges and drops no runs meanwhile, for a peer that reads them. A step may be under way.

        Call it where `add` is called.
        """
        self._pins += 1
        try:
            yield
        finally:
            self._pins -= 1

    def run_with(self, arrival: int) -> IdRun | None:
        """The run that holds this arrival."""
        for run in self._view.runs:
            if run.info.first_arrival <= arrival < run.info.end_arrival:
                return run
        return None

    def ids_of(self, arrivals: range) -> U64:
        """The ids of a range of arrivals that the index has, a matrix as in `SortedIds`, in no
        order. It reads all runs of the range. Raises CorruptIndex and OSError."""
        while True:
            view = self._view
            try:
                return _ids_in(view, arrivals)
            except CorruptIndex:
                if self._view.runs == view.runs:
                    raise

    def begin_copy(self, ids_max: int) -> RunWriter:
        """Begins a run for ids that a peer gives; give it to `adopt`."""
        with self._writing:
            return self._begin_run(ids_max)

    @property
    def is_abandoned(self) -> bool:
        """Whether nothing may be written any more."""
        return self._abandoned

    def adopt(self, run: IdRun) -> None:
        """Takes a run in that fills a gap, or part of it. Raises CorruptIndex and OSError."""
        with self._writing:
            self._save((*self._view.runs, run), [])

    # --- the list of runs -------------------------------------------------------------------

    def _save(
        self, runs: tuple[IdRun, ...], gone: list[IdRun], *, wrote_frozen: bool = False
    ) -> None:
        """Makes `runs` durable, and then the view of all look-ups that begin from now on."""
        if self._abandoned:
            return
        self._store.sync()  # the chunks alone: see `rocks_store.py`
        runs = tuple(sorted(runs, key=lambda run: run.info.first_arrival))
        dropped = []
        for run in gone:
            prefix = run_prefix(self.topic_id, run.info.number)
            dropped.append((prefix, run_prefix(self.topic_id, run.info.number + 1)))
        infos = [run.info for run in runs]
        saved = encode_list(RunList(infos, self._next_run, self._left_behind, self._seed))
        self._store.write(Writes(puts=[(list_key(self.topic_id), saved)]))
        self._store.sync()
        with self._swapping:
            view = self._view
            self._view = replace(view, runs=runs, frozen=None if wrote_frozen else view.frozen)
        # A look-up that began before and misses them starts again: see `search_disk`.
        for begin, end in dropped:
            self._store.drop(begin, end)

    def _load(self) -> tuple[tuple[IdRun, ...], int]:
        """The runs that the list names, and the number of the next one; what a crash has left over
        beside them is dropped."""
        saved, end = self._store.get([list_key(self.topic_id), end_key(self.topic_id)])
        if end is not None:
            self.ended_by = decode_end(end, self.topic_id)
        found = RunList((), 0, 0, self._seed)
        if saved is not None:
            found = decode_list(saved, self.topic_id)
            if found.seed != self._seed:
                self._drop_all()
                found = RunList((), 0, 0, self._seed)
        self._left_behind = found.left_behind
        dropped, begin = [], topic_prefix(self.topic_id) + b"r"
        for number in sorted(info.number for info in found.runs):
            dropped.append((begin, run_prefix(self.topic_id, number)))
            begin = run_prefix(self.topic_id, number + 1)
        dropped.append((begin, topic_prefix(self.topic_id) + _RUNS_AFTER))
        self._store.write(Writes(dropped=dropped))
        runs = tuple(IdRun.load(self._store, self.topic_id, info) for info in found.runs)
        return runs, found.next_run

    # --- look-ups ---------------------------------------------------------------------------

    def search_runs(self, keys: U64, first_arrival: int) -> Search:
        """Asks the filters of all runs for ids that arrived at `first_arrival` or later."""
        view = self._view
        maybe = []
        runs = [run for run in view.runs if run.info.end_arrival > first_arrival]
        if runs and len(keys) <= FEW_ROWS:
            few = keys.tolist()
            for run in runs:
                if found := run.might_hold_few(few):
                    maybe.append((run, np.array(found)))
        elif runs:
            probes = Probes.of(keys[:, 0], keys[:, 1])
            for run in runs:
                rows = run.might_hold(probes)
                if len(rows):
                    maybe.append((run, rows))
        memory = view.fresh if view.frozen is None else view.frozen
        return Search(Hits.none(), view, tuple(maybe), memory.first_arrival)

    def search_memory(self, keys: U64, first_arrival: int) -> Search:
        """Looks in memory, too, for ids that arrived at `first_arrival` or later."""
        search = self.search_runs(keys, first_arrival)
        return search._replace(hits=self._in_memory(search.view, keys, first_arrival))

    def search_since(self, keys: U64, arrival: int) -> Hits | None:
        """Looks in memory only, for ids that arrived at `arrival` or later.

        None if some of them have left memory since: look for all again.
        """
        view = self._view
        if arrival < (view.fresh if view.frozen is None else view.frozen).first_arrival:
            return None
        return self._in_memory(view, keys, arrival)

    def in_memory(self, arrival: int) -> bool:
        """Whether what arrived at `arrival` or later is in memory, so `ids_of` need not read."""
        view = self._view
        return arrival >= (view.fresh if view.frozen is None else view.frozen).first_arrival

    def _in_memory(self, view: _View, keys: U64, first_arrival: int) -> Hits:
        hits = view.fresh.look(keys, first_arrival)
        if view.frozen is None:
            return hits
        return Hits.joined([hits, view.frozen.look(keys, first_arrival)])

    def search_disk(self, search: Search, keys: U64, first_arrival: int) -> Search:
        """Reads what may be in runs. Raises CorruptIndex and OSError."""
        while True:
            try:
                found = find_in_runs(self._store, search.maybe, keys, first_arrival)
            except CorruptIndex:
                if self._view.runs == search.view.runs:
                    raise
                # Another thread has merged or dropped what this look-up was about to read.
                search = self.search_runs(keys, first_arrival)._replace(hits=search.hits)
                continue
            return search._replace(hits=Hits.joined([search.hits, *found]), maybe=())

    def places_of(self, arrivals: U64) -> Found:
        """Where the messages with these arrivals are, all of which the index has.

        It reads the disk unless they are in memory. Raises CorruptIndex and OSError.
        """
        while True:
            view = self._view
            try:
                return _places_in(view, arrivals)
            except CorruptIndex:
                if self._view.runs == view.runs:
                    raise


def _places_in(view: _View, arrivals: U64) -> Found:
    """The places of all arrivals, each from the part of the view that holds it."""
    memory = view.fresh if view.frozen is None else view.frozen
    parts: list[tuple[npt.NDArray[np.int64], Found]] = []
    at = np.flatnonzero(arrivals >= np.uint64(memory.first_arrival))
    if len(at):
        places = view.fresh.places
        if view.frozen is not None:
            places = Places.joined([view.frozen.places, places])
        parts.append((at, places.find(arrivals[at])))
    for run in view.runs:  # of which some may have come in between, see `adopt`
        first, end = np.uint64(run.info.first_arrival), np.uint64(run.info.end_arrival)
        at = np.flatnonzero((arrivals >= first) & (arrivals < end))
        if len(at):
            parts.append((at, run.places_of(arrivals[at])))
    columns = np.full((len(Found._fields), len(arrivals)), -1, np.int64)
    for at, found in parts:
        columns[:, at] = found
    return Found(*columns)


def _ids_in(view: _View, arrivals: range) -> U64:
    parts = [view.fresh.ids_of(arrivals)]
    if view.frozen is not None:
        parts.append(view.frozen.ids_of(arrivals))
    first, end = np.uint64(arrivals.start), np.uint64(arrivals.stop)
    for run in view.runs:
        if run.info.first_arrival < arrivals.stop and run.info.end_arrival > arrivals.start:
            for start in range(0, run.info.chunks, READ_CHUNKS):
                chunks = range(start, min(start + READ_CHUNKS, run.info.chunks))
                columns = run.block(chunks).columns
                chosen = (columns[3] >= first) & (columns[3] < end)
                parts.append(np.compress(chosen, columns, axis=1))
    return np.concatenate(parts, axis=1)


def level_of(ids: int) -> int:
    """The level of a run that memory becomes."""
    level = 0
    while ids >= LEVEL_IDS * RUNS_PER_LEVEL:
        ids //= RUNS_PER_LEVEL
        level += 1
    return level


def _to_merge(levels: list[int], ids: list[int], ids_max: int) -> slice | None:
    """The runs to merge: a stretch that has RUNS_PER_LEVEL of one level, and beside them only runs
    of lower levels, or as much of its beginning as has at most `ids_max` ids. None if there is no
    such stretch."""
    for level in sorted(set(levels)):
        start = 0
        for at, each in enumerate([*levels, level + 1]):
            if each > level:
                if levels[start:at].count(level) >= RUNS_PER_LEVEL:
                    sizes = accumulate(ids[start:at])
                    end = start + sum(size <= ids_max for size in sizes)
                    if levels[start:end].count(level) > 1:
                        return slice(start, end)
                start = at + 1
    return None
