"""Producers' chains as a queue's stored batches tell them, for `semel verify --exactly-once`.

How it works. Batches that got their offsets when they were stored come in the order of their
sequences: each one's predecessor is the last one read. Between two of them sequences may lack that
were *delayed*: those come later in the queue, or have no offsets yet. So a gap is noted, and
whatever delayed batches do not fill of it in the end is missing. A delayed batch may come at any
later offset; it was stored twice if it overlaps anything else of its producer.

Invariants
1. A sequence that was read twice is a duplicate, unless the producer's row may have expired in
   between (the queue's floor says so) and it began anew.
2. Everything between two batches that were read is there, and what lies below a delayed one.
3. Without delayed batches nothing is put off but the telling of gaps.

Not here: offsets and check sums (`verify.py`), windows (`moves.py`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from semel.protos.batch import BatchFlags, BatchHeader


class Spans:
    """Disjoint ranges `[first, last]` of sequences; neighbours are one."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    @property
    def highest(self) -> int:
        """Of at least one."""
        return self._lasts[-1]

    def add(self, first: int, last: int) -> None:
        """Together with what it touches it becomes one range."""
        lo = bisect_left(self._lasts, first - 1)
        hi = bisect_right(self._firsts, last + 1)
        if lo < hi:
            first, last = min(first, self._firsts[lo]), max(last, self._lasts[hi - 1])
        self._firsts[lo:hi], self._lasts[lo:hi] = [first], [last]

    def common(self, first: int, last: int) -> int:
        """How many of these sequences are in it."""
        found = 0
        for at in range(bisect_left(self._lasts, first), bisect_right(self._firsts, last)):
            found += min(last, self._lasts[at]) - max(first, self._firsts[at]) + 1
        return found


class _Gap(NamedTuple):
    """Sequences `[first, last]` that a batch of `epoch` says are stored, after one of `before`."""

    where: str
    first: int
    last: int
    epoch: int
    before: int


class _Twice(NamedTuple):
    """A batch of `epoch` begins at or below the last sequence of one of `before`."""

    where: str
    messages: int
    epoch: int
    before: int


@dataclass(slots=True)
class _Chain:
    """One producer so far."""

    incarnation: tuple[int, int] = (0, -1)
    """The highest one that was read."""
    epoch: int = 0
    """Of the newest batch that was not delayed."""
    last: int | None = None
    """Its last sequence; None before there was one."""
    whole: bool = True
    """Everything since `last` was read, too."""
    contiguous: bool = True
    spans: dict[int, Spans] = field(default_factory=dict)
    """Everything that was read, by epoch."""
    late: Spans = field(default_factory=Spans)
    """What was delayed."""
    late_of: dict[int, Spans] = field(default_factory=dict)
    """The same by epoch."""
    founded: set[int] = field(default_factory=set)
    """Epochs in which a delayed batch began anew."""
    gaps: list[_Gap] = field(default_factory=list)
    twice: list[_Twice] = field(default_factory=list)


class Chains:
    """All producers of one queue."""

    def __init__(
        self, log_start_offset: int, floor: int, inherited: Mapping[int, tuple[int, int]]
    ) -> None:
        """See `BatchVerifier`."""
        self._from_start = not log_start_offset
        self._floor = floor
        self._chains: dict[int, _Chain] = {}
        self.duplicates = 0
        self.missing = 0
        for producer, (epoch, last) in inherited.items():
            chain = self._chains[producer] = _Chain((epoch, 0), epoch, last, self._from_start)
            if last >= 0:
                chain.spans.setdefault(epoch, Spans()).add(0, last)

    def follow(self, where: str, batch: BatchHeader, *, delayed: bool) -> Iterator[str]:
        """The next batch in the order of offsets, and those that have none at the end; what is
        wrong with it for certain."""
        producer, epoch = batch.producer_id, batch.epoch
        chain = self._chains.setdefault(producer, _Chain())
        incarnation = epoch, batch.session
        chain.contiguous = not batch.flags & BatchFlags.SOURCE_POSITIONS
        if delayed:
            yield from self._follow_delayed(chain, where, batch)
        else:
            if incarnation < chain.incarnation:
                yield f"{where}: producer {producer} wrote after it was fenced"
            yield from self._follow_last(chain, where, batch)
            chain.epoch = epoch
        chain.incarnation = max(chain.incarnation, incarnation)
        # Nothing can be stored between a batch and its predecessor.
        chain.spans.setdefault(epoch, Spans()).add(batch.previous_sequence + 1, batch.last_sequence)

    def _follow_last(self, chain: _Chain, where: str, batch: BatchHeader) -> Iterator[str]:
        base, previous = batch.base_sequence, batch.previous_sequence
        before, last = chain.epoch, chain.last
        late = sum(
            spans.common(previous + 1, batch.last_sequence)
            for epoch, spans in chain.late_of.items()
            if epoch >= batch.epoch or epoch > self._floor  # else of a life that has ended since
        )
        chain.last = batch.last_sequence
        if last is None:
            if self._from_start and previous != -1 and chain.contiguous:
                chain.gaps.append(_Gap(where, 0, previous, batch.epoch, batch.epoch))
        elif base <= last:
            expired = before <= self._floor and batch.epoch > before
            if not expired or previous != -1:
                twice = min(batch.count, last - base + 1)
                text = (
                    f"{where}: producer {batch.producer_id} stored {base} to {batch.last_sequence}"
                    f" after {last}"
                )
                late = 0  # told already
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
                " which were delayed"
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
                    f"{where}: producer {batch.producer_id} has {base} to {last} twice, once late"
                )
                break
        chain.late.add(batch.previous_sequence + 1, last)
        chain.late_of.setdefault(batch.epoch, Spans()).add(batch.previous_sequence + 1, last)
        if batch.previous_sequence == -1:
            chain.founded.add(batch.epoch)

    def knows(self, producer: int, first: int, last: int) -> bool:
        """All of these sequences were among delayed batches."""
        chain = self._chains.get(producer)
        return chain is not None and chain.late.common(first, last) == last - first + 1

    def finish(self) -> Iterator[str]:
        """What is missing, and was stored twice, once every batch was told."""
        for producer, chain in self._chains.items():
            for text, count, epoch, before in chain.twice:
                if not self._began_anew(chain, epoch, before):
                    self.duplicates += count
                    yield text
            for where, first, last, epoch, before in (*chain.gaps, *self._below_delayed(chain)):
                missing = last - first + 1 - chain.late.common(first, last)
                if missing and not self._began_anew(chain, epoch, before):
                    self.missing += missing
                    yield (
                        f"{where}: producer {producer} goes on after {last}, of {first} to {last}"
                        f" {missing} are not stored"
                    )

    def _below_delayed(self, chain: _Chain) -> Iterator[_Gap]:
        """What lies between the last batch that was not delayed and the last one that was."""
        last = -1 if chain.last is None and self._from_start else chain.last
        tops = [
            spans.highest
            for epoch, spans in chain.late_of.items()
            if epoch >= chain.epoch or epoch > self._floor  # else of a life that has ended since
        ]
        if chain.contiguous and chain.whole and last is not None and max(tops, default=-1) > last:
            newest = max(chain.late_of)
            yield _Gap("what is delayed", last + 1, max(tops), newest, chain.epoch)

    def _began_anew(self, chain: _Chain, epoch: int, before: int) -> bool:
        """The producer's row expired in between, and the first it stored then was delayed."""
        return before <= self._floor and any(before < each <= epoch for each in chain.founded)
