"""What was fetched of one queue and may be asked for: runs of record batches. Pure.

How it works. A *run* is batches that follow one another. An answer of the broker goes on at the end
of a run, or begins one. Consumers of several groups that read at the same place get the same bytes,
which were converted once. The least recently used run goes first.

Invariants
1. Batches of a run touch: each begins at the offset where the one before it ends.
2. `bytes` is the sum over all runs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

RUNS_MAX: Final = 4
"""Places of a queue that are read at a time, before one is forgotten."""

RUN_BYTES_MAX: Final = 8 << 20
"""Bytes of a run before its beginning is forgotten; what came last is always kept."""


class KafkaBatch(NamedTuple):
    """A record batch for the offsets `[base_offset, next_offset)`."""

    base_offset: int
    next_offset: int
    data: bytes


class _Run:
    __slots__ = ("batches", "bytes", "used_at")

    def __init__(self) -> None:
        self.batches: list[KafkaBatch] = []
        self.bytes = 0
        self.used_at = 0.0

    @property
    def start(self) -> int:
        return self.batches[0].base_offset

    @property
    def end(self) -> int:
        return self.batches[-1].next_offset


class QueueRuns:
    """The runs of one queue. Times are seconds on any clock that rises."""

    def __init__(self) -> None:
        self.bytes = 0
        self._runs: list[_Run] = []

    def add(self, batches: Sequence[KafkaBatch], now: float) -> None:
        """Takes batches that follow one another."""
        if not batches:
            return
        run = next((each for each in self._runs if each.end == batches[0].base_offset), None)
        if run is None:
            if len(self._runs) >= RUNS_MAX:
                self.forget_oldest()
            run = _Run()
            self._runs.append(run)
        run.batches += batches
        run.used_at = now
        size = sum(len(batch.data) for batch in batches)
        most = max(RUN_BYTES_MAX, size)
        run.bytes += size
        self.bytes += size
        passed = 0
        while run.bytes > most:  # a reader that keeps up has passed these
            length = len(run.batches[passed].data)
            passed += 1
            run.bytes -= length
            self.bytes -= length
        del run.batches[:passed]

    def find(self, offset: int, now: float) -> Sequence[KafkaBatch]:
        """Returns the batches from the one that holds `offset` on; none if it is not here."""
        for run in self._runs:
            if run.start <= offset < run.end:
                run.used_at = now
                at = bisect_right(run.batches, offset, key=_base) - 1
                return run.batches[at:]
        return ()

    def forget_oldest(self) -> None:
        """Forgets the run that was used least recently, if there is one."""
        if self._runs:
            run = min(self._runs, key=_used)
            self._runs.remove(run)
            self.bytes -= run.bytes

    def forget_unused(self, since: float) -> None:
        """Forgets the runs that were not used after `since`."""
        for run in list(self._runs):
            if run.used_at <= since:
                self._runs.remove(run)
                self.bytes -= run.bytes


def _base(batch: KafkaBatch) -> int:
    return batch.base_offset


def _used(run: _Run) -> float:
    return run.used_at
