"""One simulated disk: a log and a hard state that forget on a crash what was not synced.

How it works. The log that the core sees (`LogView`) shows everything at once. Behind it stand the
entries that are durable, and the operations (write, truncate) that are not yet. A flush takes all
operations that wait when it starts, and makes them durable when it ends. A crash keeps any prefix
of the waiting operations, and of the last write any prefix of its entries: what a log with
checksums finds again when frames were lost in any order. Hard states are records of their own, in
order, each kept whole or not at all.

`synced_index` is the truth of the `LogView` contract, computed from what is durable and what is
still going to be truncated; `trust_completions` plants the bug of a log that does not look.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from semel.broker.raft import EntryMeta, HardState, Membership, SnapshotMark


class SimEntry(NamedTuple):
    meta: EntryMeta
    payload: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Durable state at an index; the log before it may go."""

    mark: SnapshotMark
    digest: int


class Operation(NamedTuple):
    """Truncate at `truncate_from`, or write `entries` behind the last one."""

    truncate_from: int | None
    entries: tuple[SimEntry, ...]


@dataclass(slots=True)
class Image:
    """A log: the entries from first_index on, behind a snapshot of base_term."""

    first_index: int = 1
    base_term: int = 0
    entries: list[SimEntry] = field(default_factory=list)

    @property
    def last_index(self) -> int:
        return self.first_index + len(self.entries) - 1

    def term_at(self, index: int) -> int | None:
        at = index - self.first_index
        if 0 <= at < len(self.entries):
            return self.entries[at].meta.term
        return self.base_term if at == -1 else None

    def apply(self, operation: Operation) -> None:
        if operation.truncate_from is not None:
            del self.entries[operation.truncate_from - self.first_index :]
        self.entries.extend(operation.entries)

    def drop_below(self, index: int) -> None:
        """Make `index` the first one; its predecessor becomes the snapshot."""
        base_term = self.term_at(index - 1)
        assert base_term is not None
        self.base_term = base_term
        del self.entries[: index - self.first_index]
        self.first_index = index

    def copy(self) -> Image:
        return Image(self.first_index, self.base_term, list(self.entries))


class SimDisk:
    """A disk of one node; it outlives the node's crashes. Implements LogView."""

    def __init__(self, membership: Membership, *, trust_completions: bool = False) -> None:
        self.durable = Image()
        self.hard_state = HardState()
        self.checkpoint = Checkpoint(SnapshotMark(index=0, term=0, membership=membership), 0)
        self.view = Image()
        self.waiting: list[Operation] = []
        self.waiting_hard_states: list[HardState] = []
        self._flushing = 0
        self._trust_completions = trust_completions
        self._trusted_index = 0

    # --- LogView

    @property
    def first_index(self) -> int:
        return self.view.first_index

    @property
    def last_index(self) -> int:
        return self.view.last_index

    @property
    def last_term(self) -> int:
        term = self.view.term_at(self.view.last_index)
        assert term is not None
        return term

    @property
    def synced_index(self) -> int:
        return self._trusted_index if self._trust_completions else self.true_synced_index

    @property
    def true_synced_index(self) -> int:
        synced = self.durable.last_index
        for operation in self.waiting:
            if operation.truncate_from is not None:
                synced = min(synced, operation.truncate_from - 1)
        return synced

    def term_at(self, index: int) -> int | None:
        return self.view.term_at(index)

    def fit(self, lo: int, hi_max: int, max_bytes: int) -> int:
        total = 0
        for index in range(lo, hi_max):
            total += self.meta(index).size
            if total > max_bytes and index > lo:
                return index
        return hi_max

    def meta(self, index: int) -> EntryMeta:
        return self.entry(index).meta

    # --- the shell's side

    def entry(self, index: int) -> SimEntry:
        assert self.view.first_index <= index <= self.view.last_index, f"no entry {index}"
        return self.view.entries[index - self.view.first_index]

    def write(self, entries: tuple[SimEntry, ...]) -> None:
        self._do(Operation(None, entries))

    def truncate(self, from_index: int) -> None:
        self._do(Operation(from_index, ()))
        self._trusted_index = min(self._trusted_index, from_index - 1)

    def _do(self, operation: Operation) -> None:
        self.view.apply(operation)
        self.waiting.append(operation)

    @property
    def wants_flush(self) -> bool:
        return bool(self.waiting) and not self._flushing

    def start_flush(self) -> tuple[int, int]:
        """All that waits goes to the disk; returns the last (index, term) of it."""
        self._flushing = len(self.waiting)
        return self.last_index, self.last_term

    def end_flush(self) -> None:
        for operation in self.waiting[: self._flushing]:
            self.durable.apply(operation)
        del self.waiting[: self._flushing]
        self._flushing = 0

    def completed(self, index: int) -> None:
        """A completion has reached the owner: what a careless log takes for synced."""
        self._trusted_index = max(self._trusted_index, min(index, self.last_index))

    def save_checkpoint(self, checkpoint: Checkpoint, first_index: int) -> None:
        """Durable at once; entries below first_index go."""
        assert checkpoint.mark.index <= self.true_synced_index
        assert self.view.first_index <= first_index <= checkpoint.mark.index + 1
        self.checkpoint = checkpoint
        self.durable.drop_below(first_index)
        self.view.drop_below(first_index)

    def install(self, checkpoint: Checkpoint) -> None:
        """Replace everything by a snapshot, atomically."""
        mark = checkpoint.mark
        self.checkpoint = checkpoint
        self.durable = Image(mark.index + 1, mark.term, [])
        self.view = self.durable.copy()
        self._trusted_index = mark.index
        self.waiting.clear()
        self._flushing = 0

    def crash(self, random: Random) -> bool:
        """Power loss: true when something unsynced was lost."""
        if self.waiting_hard_states:
            kept = random.randint(0, len(self.waiting_hard_states))
            if kept:
                self.hard_state = self.waiting_hard_states[kept - 1]
            lost = kept < len(self.waiting_hard_states)
        else:
            lost = False
        kept = random.randint(0, len(self.waiting)) if self.waiting else 0
        for operation in self.waiting[:kept]:
            self.durable.apply(operation)
        if kept < len(self.waiting):
            lost = True
            entries = self.waiting[kept].entries
            if entries:
                part = entries[: random.randint(0, len(entries) - 1)]
                self.durable.apply(Operation(None, part))
        self.waiting.clear()
        self.waiting_hard_states.clear()
        self._flushing = 0
        self.view = self.durable.copy()
        self._trusted_index = self.durable.last_index
        return lost
