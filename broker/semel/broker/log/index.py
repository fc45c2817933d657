"""The index of the log in memory: its entries, their terms, and the place of each frame.

How it works. A segment keeps 4 bytes per frame (its place). Terms are kept as runs, because they
change only with the master. `place` decides where new frames go before any byte is written, so that
the writer only carries the decision out.

Invariants
1. Entries first_index..last_index are consecutive over `segments`; last_index is first_index - 1
   when there are none.
2. `segments` is a tuple that is replaced, never changed: other threads read it without a lock.
3. After a truncation the next frame goes to a new segment. The new header's first index tells the
   recovery that everything an older segment holds from there on is void, so nothing has to be
   overwritten.

Not here: the files (`log/keeper.py`, `log/writer.py`), what survives a crash (`log/recovery.py`).
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from semel.broker.log.log_config import LogConfig
from semel.broker.log.segment import Segment, SegmentHeader, frames_at
from semel.broker.log.types import IndexUnavailable
from semel.protos.values import value

_FIRST_INDEX = attrgetter("first_index")
_INDEX_TERM = struct.Struct("<8xQQ")
"""The index and the term in a frame's header."""


@dataclass(frozen=True, slots=True)
class Retired:
    """A segment that gets no more frames, with the content of its seal."""

    segment: Segment
    count: int
    end: int
    last_term: int


@dataclass(frozen=True, slots=True)
class Roll:
    """A writer step: the following frames go to `segment`."""

    segment: Segment
    retired: Retired | None
    void: tuple[Segment, ...]
    """Segments that were truncated as a whole; their files are removed once `segment` is
    durable."""


@value
class Write:
    """A writer step: consecutive frames for one segment."""

    segment: Segment
    first_index: int
    position: int
    frames: list[bytes]
    terms: list[int]
    era: int
    """Number of truncations before this write."""

    @property
    def last_index(self) -> int:
        return self.first_index + len(self.frames) - 1


class LogIndex:
    """Only the owner's thread changes it."""

    def __init__(
        self,
        config: LogConfig,
        *,
        first_index: int,
        base_term: int,
        segments: tuple[Segment, ...] = (),
        runs: Sequence[tuple[int, int]] = (),
        next_sequence: int = 1,
        boot: int = 0,
    ) -> None:
        """`base_term` is the term of the entry before the first one; `runs` are (first index,
        term), rising."""
        self._config = config
        self._boot = boot
        self.first_index = first_index
        self.segments = segments
        self.last_index = segments[-1].end_index - 1 if segments else first_index - 1
        self._run_first = [first_index - 1, *(index for index, _ in runs)]
        self._run_term = [base_term, *(term for _, term in runs)]
        self._next_sequence = next_sequence
        self._tail: Segment | None = None
        self._void: list[Segment] = []
        self._unsealed = segments[-1] if segments and not segments[-1].sealed else None
        # A segment found without a seal gets no more frames: after its end there may be frames
        # that were written and never acknowledged.

    @property
    def last_term(self) -> int:
        return self._run_term[-1]

    def term_at(self, index: int) -> int | None:
        """The term of the entry at `index`, which may be first_index - 1; None outside that
        range."""
        if index > self.last_index or index < self.first_index - 1:
            return None
        return self._run_term[bisect_right(self._run_first, index) - 1]

    def locate(self, index: int) -> Segment:
        """The segment that holds the entry. Raises IndexUnavailable when there is none."""
        segments = self.segments
        found = bisect_right(segments, index, key=_FIRST_INDEX) - 1
        if found < 0 or index >= segments[found].end_index:
            raise IndexUnavailable(index, self.first_index, self.last_index)
        return segments[found]

    def size_of(self, index: int) -> int:
        start, end = self.locate(index).place(index)
        return end - start

    def fit(self, lo: int, hi_max: int, max_bytes: int) -> int:
        """The largest hi ≤ hi_max such that the frames [lo, hi) take ≤ max_bytes, but at least
        lo + 1."""
        hi_max = min(hi_max, self.last_index + 1)
        hi = lo
        left = max_bytes
        while hi < hi_max:
            segment = self.locate(hi)
            reached = segment.fit(hi, min(hi_max, segment.end_index), left)
            if reached > hi:
                left -= segment.place(reached - 1)[1] - segment.place(hi)[0]
                hi = reached
            if reached < segment.end_index:
                break
        if hi == lo and lo < hi_max:
            hi = lo + 1
        return hi

    def needs_roll(self, count: int, length: int) -> bool:
        """Whether appending `count` frames of `length` bytes in all needs a new segment."""
        tail = self._tail
        if tail is None:
            return True
        room = tail.header.id_capacity - tail.count
        return count > room or tail.end + length > tail.bytes_limit

    def terms_of(self, frames: Sequence[bytes]) -> list[int]:
        """The terms of `frames`; asserts that the frames follow the last entry."""
        expected = self.last_index
        last_term = self.last_term
        terms = []
        for frame in frames:
            expected += 1
            number, term = _INDEX_TERM.unpack_from(frame)
            assert number == expected, f"frame {number} appended, {expected} expected"
            assert term >= last_term, f"frame {number} is of term {term}, after {last_term}"
            assert not len(frame) & 7, f"frame {number} has {len(frame)} bytes"
            last_term = term
            terms.append(term)
        return terms

    def place(self, frames: Sequence[bytes], terms: Sequence[int], era: int) -> list[Roll | Write]:
        """Adds the frames after the last entry; returns the steps that the writer has to do."""
        steps: list[Roll | Write] = []
        write: Write | None = None
        for frame, term in zip(frames, terms, strict=True):
            length = len(frame)
            tail = self._tail
            if tail is None or not tail.has_room(length):
                steps.append(self._roll(length))
                tail = self._tail
                write = None
                assert tail is not None
            if write is None:
                write = Write(tail, self.last_index + 1, tail.end, [], [], era)
                steps.append(write)
            tail.add(length)
            self.last_index += 1
            if term != self._run_term[-1]:
                self._run_first.append(self.last_index)
                self._run_term.append(term)
            write.frames.append(frame)
            write.terms.append(term)
        return steps

    def _roll(self, length: int) -> Roll:
        old = self._tail or self._unsealed
        retired = None
        if old is not None and old not in self._void:
            old.sealed = True
            retired = Retired(old, old.count, old.end, self.last_term)
        capacity = self._config.ids_per_segment
        header = SegmentHeader(
            sequence=self._next_sequence,
            generation=int.from_bytes(os.urandom(8), "little"),
            first_index=self.last_index + 1,
            previous_term=self.last_term,
            id_capacity=capacity,
            boot=self._boot,
        )
        limit = max(self._config.segment_bytes, frames_at(capacity) + length)
        self._tail = Segment(header, limit)
        self._next_sequence += 1
        self._unsealed = None
        void, self._void = tuple(self._void), []
        # An empty segment holds nothing and would shadow the new one.
        empty = tuple(s for s in self.segments if s.first_index >= header.first_index)
        self.segments = (*(s for s in self.segments if s not in empty), self._tail)
        if retired is not None and retired.segment in empty:
            retired = None
        return Roll(self._tail, retired, (*void, *empty))

    def truncate(self, from_index: int) -> None:
        """Drops the entries at and above `from_index`."""
        assert self.first_index <= from_index <= self.last_index, (
            f"truncation at {from_index} of a log that holds {self.first_index}..{self.last_index}"
        )
        if self._tail is not None:
            self._unsealed = self._tail
            self._tail = None
        keep = [s for s in self.segments if s.first_index < from_index]
        self._void += self.segments[len(keep) :]
        if keep and keep[-1].end_index > from_index:
            keep[-1].cut(from_index)
        self.segments = tuple(keep)
        self.last_index = from_index - 1
        while self._run_first[-1] >= from_index:
            self._run_first.pop()
            self._run_term.pop()

    def unsealed(self) -> Retired | None:
        """The last segment, for sealing it once no more frames will be appended. None when it is
        sealed already, and after a truncation, which only a new segment makes durable."""
        last = self._tail or self._unsealed
        if last is None or self._void or last.sealed:
            return None
        return Retired(last, last.count, last.end, self.last_term)

    def drop_before(self, segment: Segment) -> None:
        """Removes `segment`, the oldest one, from the log."""
        assert self.segments[0] is segment
        assert segment is not self._tail
        first = segment.end_index
        self.segments = self.segments[1:]
        self.first_index = first
