"""Cold batches that were read from the object store, kept while there is room. Pure.

How it works. A *group* has the batches of one row group of a file: some megabytes, which serve a
reader several times. It is found by queue and offset, whatever manifest named its file, for an
offset has the same message in each of them. Those that were not used for longest go first.

Files are merged, so a group that was read lately may have offsets of earlier ones. It takes their
places: one that begins behind it would hide it from those who look for what comes after both.

Invariants
1. The groups of a queue have no offset in common.
2. What was put last is found.

Not here: reading them (`cold_reads.py`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from semel.protos.ids import QueueKey
from semel.tier import ColdBatch


@dataclass(frozen=True, slots=True)
class ColdGroup:
    """Batches that stand for the offsets `[start, end)` of a queue, without a gap."""

    start: int
    end: int
    batches: Sequence[ColdBatch]

    @property
    def size(self) -> int:
        """Bytes of all batches."""
        return sum(len(batch.stored) for batch in self.batches)

    def part(self, offset: int, bytes_max: int) -> Sequence[ColdBatch]:
        """The batch that has an offset and those behind it, as many as fit into `bytes_max`, but
        one at least."""
        assert self.start <= offset < self.end, "an offset of the group"
        first = bisect_right(self.batches, offset, key=lambda batch: batch.base_offset) - 1
        last = first
        for batch in self.batches[first:]:
            bytes_max -= len(batch.stored)
            if bytes_max < 0 and last > first:
                break
            last += 1
        return self.batches[first:last]


class ColdGroups:
    """Groups of all queues, up to a number of bytes."""

    def __init__(self, bytes_max: int) -> None:
        """The newest group stays, however large it is."""
        self.bytes_max = bytes_max
        self.bytes = 0
        self._groups: OrderedDict[tuple[QueueKey, int], ColdGroup] = OrderedDict()
        """By queue and start; the one that was used last is the last."""
        self._starts: dict[QueueKey, list[int]] = {}
        """Starts of each queue's groups, rising."""

    def find(self, key: QueueKey, offset: int) -> ColdGroup | None:
        """The group that has an offset of a queue; None if none is here."""
        starts = self._starts.get(key)
        at = bisect_right(starts, offset) - 1 if starts else -1
        if starts is None or at < 0:
            return None
        group = self._groups[key, starts[at]]
        if offset >= group.end:
            return None
        self._groups.move_to_end((key, group.start))
        return group

    def put(self, key: QueueKey, group: ColdGroup) -> None:
        """Adds a group, and drops those that it overlaps, and those that there is no room for any
        more."""
        for start in self._overlapped(key, group):
            self._drop(key, start)
        self._groups[key, group.start] = group
        insort(self._starts.setdefault(key, []), group.start)
        self.bytes += group.size
        while self.bytes > self.bytes_max and len(self._groups) > 1:
            self._drop(*next(iter(self._groups)))

    def _overlapped(self, key: QueueKey, group: ColdGroup) -> list[int]:
        """The starts of the groups that have an offset in common with this one."""
        starts = self._starts.get(key, [])
        first, last = bisect_right(starts, group.start), bisect_left(starts, group.end)
        before = starts[max(0, first - 1) : first]
        return [at for at in before if self._groups[key, at].end > group.start] + starts[first:last]

    def _drop(self, key: QueueKey, start: int) -> None:
        group = self._groups.pop((key, start), None)
        if group is None:
            return
        self.bytes -= group.size
        starts = self._starts[key]
        starts.remove(start)
        if not starts:
            del self._starts[key]
