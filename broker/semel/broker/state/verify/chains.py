"""Producers' chains in the stored batches of a queue, for `semel verify --exactly-once`.

How it works. Batches that got their offsets when they were stored come in the order of their
sequences: the predecessor of each one is the last one that was read. The sequences that are absent
between two of them may be *delayed*: those come later in the queue, or have no offsets yet. So a
gap is noted first, and what delayed batches have not filled in the end is missing. A delayed batch
may come at any later offset. It was stored twice if it overlaps another batch of its producer.

A child's chains begin where the rows of its parent ended. If the parent's row has expired since, it
is not known where, and the first batch that is read begins the chain.

What a child of a split got of its parent's delayed batches is no link of the child's chains, which
begin where the parent's ended. Each sequence may be in one such part. Where a row has expired, or
the child has moved, its own delayed batches cannot be told from those: so they fill gaps as well.

Invariants
1. A sequence that is read twice is a duplicate, unless the producer's row may have expired in
   between (which the queue's floor says) and the producer started anew.
2. Every sequence between two batches that were read, or below a delayed batch, must be there.
3. Without delayed batches only the reports of gaps are postponed to the end.

Not here: offsets and checksums (`verifiers.py`), windows (`moved_tables.py`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from semel.broker.state.apply.expired import Expired
from semel.protos.batch import BatchFlags, BatchHeader


class Spans:
    """Disjoint ranges `[first, last]` of sequences; adjacent ranges are merged."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    @property
    def highest(self) -> int:
        """The highest sequence; there must be one."""
        return self._lasts[-1]

    def add(self, first: int, last: int) -> None:
        """Adds a range and merges it with those that it touches."""
        lo = bisect_left(self._lasts, first - 1)
        hi = bisect_right(self._firsts, last + 1)
        if lo < hi:
            first, last = min(first, self._firsts[lo]), max(last, self._lasts[hi - 1])
        self._firsts[lo:hi], self._lasts[lo:hi] = [first], [last]

    def common(self, first: int, last: int) -> int:
        """How many sequences of `[first, last]` are in the ranges."""
        found = 0
        for at in range(bisect_left(self._lasts, first), bisect_right(self._firsts, last)):
            found += min(last, self._lasts[at]) - max(first, self._firsts[at]) + 1
        return found


class _Gap(NamedTuple):
    """Sequences `[first, last]` are absent between batches of epochs `before` and `epoch`."""

    where: str
    first: int
    last: int
    epoch: int
    before: int


class _Twice(NamedTuple):
    """A batch of `epoch` that begins at or below the last sequence of one of epoch `before`."""

    where: str
    messages: int
    epoch: int
    before: int


@dataclass(slots=True)
class _Chain:
    """What was read of one producer so far."""

    incarnation: tuple[int, int] = (0, -1)
    """The highest incarnation that was read."""
    epoch: int = 0
    """Epoch of the newest batch that was not delayed."""
    last: int | None = None
    """Last sequence of that batch; None if there was none yet."""
    from_start: bool = True
    """Whether nothing can have been stored before the first batch that is read."""
    whole: bool = True
    """Whether everything since `last` was read, too."""
    contiguous: bool = True
    spans: dict[int, Spans] = field(default_factory=dict)
    """All sequences that were read, by epoch."""
    late: Spans = field(default_factory=Spans)
    """The sequences of delayed batches."""
    late_of: dict[int, Spans] = field(default_factory=dict)
    """The sequences of delayed batches, by epoch."""
    founded: set[int] = field(default_factory=set)
    """Epochs whose first batch was a delayed one."""
    gaps: list[_Gap] = field(default_factory=list)
    twice: list[_Twice] = field(default_factory=list)


class Chains:
    """The chains of all producers of one queue."""

    def __init__(
        self,
        log_start_offset: int,
        floor: int,
        inherited: Mapping[int, tuple[int, int]],
        parent_expired: Expired,
        *,
        gaps: bool,
    ) -> None:
        """`inherited`, `parent_expired` and `gaps` are as in `BatchVerifier`; `floor` is the
        highest epoch of an expired row."""
        self._gaps = gaps
        self._from_start = not log_start_offset
        self._floor = floor
        self._chains: dict[int, _Chain] = {}
        self._inherited = inherited
        self._parent_expired = parent_expired
        self._parted: dict[int, dict[int, Spans]] = {}
        """The sequences of parts, by producer and by epoch."""
        self.duplicates = 0
        self.missing = 0
        for producer, (epoch, last) in inherited.items():
            chain = self._chains[producer] = _Chain((epoch, 0), epoch, last, whole=self._from_start)
            if last >= 0:
                chain.spans.setdefault(epoch, Spans()).add(0, last)

    def follow(self, where: str, batch: BatchHeader, *, delayed: bool) -> Iterator[str]:
        """Reads the next batch, and yields what is certainly wrong with it.

        Batches come in the order of their offsets; those without offsets come last.
        """
        producer, epoch = batch.producer_id, batch.epoch
        chain = self._chains.get(producer)
        if chain is None:
            begins = self._from_start and epoch > self._parent_expired.floor_of(producer)
            chain = self._chains[producer] = _Chain(from_start=begins)
        incarnation = epoch, batch.session
        chain.contiguous = not (self._gaps or batch.flags & BatchFlags.SOURCE_POSITIONS)
        if delayed:
            yield from self._follow_delayed(chain, where, batch)
        else:
            if incarnation < chain.incarnation:
                yield f"{where}: producer {producer} wrote after it was fenced"
            yield from self._follow_last(chain, where, batch)
            chain.epoch = epoch
        chain.incarnation = max(chain.incarnation, incarnation)
        # No sequence can be stored between a batch and its predecessor.
        chain.spans.setdefault(epoch, Spans()).add(batch.previous_sequence + 1, batch.last_sequence)

    def may_be_part(self, batch: BatchHeader, floor: int) -> bool:
        """Whether a batch can have been stored by the parent: the child's own ones come after all
        of those. `floor` is the highest epoch of an expired row of the producer."""
        inherited = self._inherited.get(batch.producer_id)
        if inherited is None:
            return batch.epoch <= max(floor, self._parent_expired.floor_of(batch.producer_id))
        epoch, last = inherited
        return batch.epoch < epoch or (batch.epoch == epoch and batch.last_sequence <= last)

    def follow_part(self, where: str, batch: BatchHeader) -> Iterator[str]:
        """Reads what the child got of a delayed batch of its parent."""
        of_producer = self._parted.setdefault(batch.producer_id, {})
        spans = of_producer.setdefault(batch.epoch, Spans())
        base, last = batch.base_sequence, batch.last_sequence
        if twice := min(batch.count, spans.common(base, last)):
            self.duplicates += twice
            yield (
                f"{where}: producer {batch.producer_id} has {twice} of {base} to {last} twice among"
                " what the queue got from its parent"
            )
        spans.add(base, last)

    def _follow_last(self, chain: _Chain, where: str, batch: BatchHeader) -> Iterator[str]:
        base, previous = batch.base_sequence, batch.previous_sequence
        before, last = chain.epoch, chain.last
        late = sum(
            spans.common(previous + 1, batch.last_sequence)
            for epoch, spans in chain.late_of.items()
            if epoch >= batch.epoch or epoch > self._floor  # else of a row that has expired since
        )
        chain.last = batch.last_sequence
        if last is None:
            if chain.from_start and previous != -1 and chain.contiguous:
                chain.gaps.append(_Gap(where, 0, previous, batch.epoch, batch.epoch))
        elif base <= last:
            expired = before <= self._floor and batch.epoch > before
            if not expired or previous != -1:
                twice = min(batch.count, last - base + 1)
                text = (
                    f"{where}: producer {batch.producer_id} stored {base} to {batch.last_sequence}"
                    f" after {last}"
                )
                late = 0  # reported below or at the end
                if expired:
                    chain.twice.append(_Twice(text, twice, batch.epoch, before))
                else:
                    self.duplicates += twice
                    yield text
                    chain.last = max(last, batch.last_sequence)
        elif chain.contiguous and previous != last and chain.whole:
            chain.gaps.append(_Gap(where, last + 1, previous, batch.epoch, before))
        chain.whole = True
        if late:
            self.duplicates += min(batch.count, late)
            yield (
                f"{where}: producer {batch.producer_id} stored {base} to {batch.last_sequence},"
                " which delayed batches hold, too"
            )

    def _follow_delayed(self, chain: _Chain, where: str, batch: BatchHeader) -> Iterator[str]:
        base, last = batch.base_sequence, batch.last_sequence
        for epoch, spans in chain.spans.items():
            expired = epoch != batch.epoch and min(epoch, batch.epoch) <= self._floor
            common = spans.common(batch.previous_sequence + 1, last)
            twice = 0 if expired else min(batch.count, common)
            if twice:
                self.duplicates += twice
                yield (
                    f"{where}: producer {batch.producer_id} stored {base} to {last} twice,"
                    " once delayed"
                )
                break
        chain.late.add(batch.previous_sequence + 1, last)
        chain.late_of.setdefault(batch.epoch, Spans()).add(batch.previous_sequence + 1, last)
        if batch.previous_sequence == -1:
            chain.founded.add(batch.epoch)

    def knows(self, producer: int, first: int, last: int) -> bool:
        """Whether all of these sequences were in delayed batches."""
        return self._late(producer, first, last) >= last - first + 1

    def _late(self, producer: int, first: int, last: int) -> int:
        """How many of these sequences were in delayed batches, its own or its parent's."""
        chain = self._chains.get(producer)
        parts = self._parted.get(producer, {}).values()
        late = [*parts] if chain is None else [chain.late, *parts]
        return sum(spans.common(first, last) for spans in late)

    def finish(self) -> Iterator[str]:
        """Yields what is missing or was stored twice, after every batch was read."""
        for producer, chain in self._chains.items():
            for text, count, epoch, before in chain.twice:
                if not self._began_anew(chain, epoch, before):
                    self.duplicates += count
                    yield text
            for where, first, last, epoch, before in (*chain.gaps, *self._below_delayed(chain)):
                missing = last - first + 1 - self._late(producer, first, last)
                if missing > 0 and not self._began_anew(chain, epoch, before):
                    self.missing += missing
                    yield (
                        f"{where}: producer {producer} continues after {last}, but {missing} of"
                        f" {first} to {last} are not stored"
                    )

    def _below_delayed(self, chain: _Chain) -> Iterator[_Gap]:
        """The gap between the last batch that was not delayed and the last delayed one."""
        last = -1 if chain.last is None and chain.from_start else chain.last
        tops = [
            spans.highest
            for epoch, spans in chain.late_of.items()
            if epoch >= chain.epoch or epoch > self._floor  # else of a row that has expired since
        ]
        if chain.contiguous and chain.whole and last is not None and max(tops, default=-1) > last:
            newest = max(chain.late_of)
            yield _Gap("delayed batches", last + 1, max(tops), newest, chain.epoch)

    def _began_anew(self, chain: _Chain, epoch: int, before: int) -> bool:
        """Whether the producer's row expired in between, and its next first batch was delayed."""
        return before <= self._floor and any(before < each <= epoch for each in chain.founded)
