"""What a queue knows of being in memory: its bound, and the offsets that are lost.

How it works. The log has a MEMORY record for each batch of a topic in memory: both headers and no
body. The bodies are in the memory of the nodes (`semel.broker.memory`), which the state knows
nothing of. An extent of such a queue has the length of the whole stored batch, with its body. When
no member has a body any more the master says so in an entry (LOSE_MEMORY), and the offsets are lost
on every node from then on.

Invariants
1. Lost ranges lie within `[log_start_offset, log_end_offset)`, rise, and do not touch each other.
2. What is lost stays lost. It keeps its offsets and its places in the sequence table.

Not here: which bodies a node has (`semel.broker.memory`), when a range is given up
(`background/memory_bodies.py`).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from semel.broker.state.apply.codec import Reader
from semel.protos.batch import BROKER_HEADER_BYTES, HEADER_BYTES
from semel.protos.errors import CorruptSegment
from semel.protos.levels import MEMORY_LEVEL
from semel.protos.v1 import common_pb2

MEMORY_BYTES_DEFAULT: Final = 1 << 30
RECORD_BYTES: Final = BROKER_HEADER_BYTES + HEADER_BYTES
"""Length of the payload of a MEMORY record: both headers."""
_FIXED: Final = struct.Struct("<qQI")
_RANGE: Final = struct.Struct("<qq")


class LostRange(NamedTuple):
    """Offsets `[from_offset, to_offset)` of a queue, whose bodies no node has."""

    from_offset: int
    to_offset: int


def memory_bytes_of(settings: common_pb2.TopicSettings, level: int) -> int:
    """The bound of a topic in memory, in bytes; 0 for one in the log, and below MEMORY_LEVEL."""
    if level < MEMORY_LEVEL or settings.storage != common_pb2.STORAGE_MEMORY:
        return 0
    return settings.memory_bytes if settings.memory_bytes > 0 else MEMORY_BYTES_DEFAULT


@dataclass(slots=True)
class Lost:
    """The offsets of a queue that are lost."""

    ranges: list[LostRange] = field(default_factory=list)
    messages: int = 0
    """How many offsets were ever lost."""

    def copy(self) -> Lost:
        """One that can be changed by itself."""
        return Lost(list(self.ranges), self.messages)

    def add(self, from_offset: int, to_offset: int) -> None:
        """Loses what is not lost yet of `[from_offset, to_offset)`, which is not empty."""
        before = sum(end - start for start, end in self.ranges)
        kept: list[LostRange] = []
        for one in self.ranges:
            if one.to_offset < from_offset or to_offset < one.from_offset:
                kept.append(one)
            else:
                from_offset = min(from_offset, one.from_offset)
                to_offset = max(to_offset, one.to_offset)
        self.ranges = sorted([*kept, LostRange(from_offset, to_offset)])
        self.messages += sum(end - start for start, end in self.ranges) - before

    def trim(self, log_start_offset: int) -> None:
        """Forgets what lies below the queue's start."""
        self.ranges = [
            LostRange(max(start, log_start_offset), end)
            for start, end in self.ranges
            if end > log_start_offset
        ]

    @property
    def gaps_to(self) -> int:
        """No offset is lost from this one on."""
        return self.ranges[-1].to_offset if self.ranges else 0

    def end_at(self, offset: int) -> int | None:
        """Where the lost range ends that has the offset; None if the offset is not lost."""
        at = bisect_right(self.ranges, (offset, 1 << 63)) - 1
        if at < 0 or self.ranges[at].to_offset <= offset:
            return None
        return self.ranges[at].to_offset

    def misfit(self, told: Lost) -> str | None:
        """The first range that is lost here, and not in `told`; None if there is none."""
        for start, end in self.ranges:
            if (told.end_at(start) or start) < end:
                return f"offsets {start} to {end} were lost after they were copied"
        return None

    def parts(self, memory_bytes: int) -> bytes:
        """Canonical bytes, with the bound of the topic."""
        head = _FIXED.pack(memory_bytes, self.messages, len(self.ranges))
        return head + b"".join(_RANGE.pack(*one) for one in self.ranges)

    @classmethod
    def read(cls, reader: Reader) -> tuple[Lost, int]:
        """The inverse of `parts`. Raises CorruptSegment."""
        memory_bytes, messages, count = reader.unpack(_FIXED)
        ranges = [LostRange(*reader.unpack(_RANGE)) for _ in range(count)]
        if memory_bytes < 0 or any(start >= end for start, end in ranges):
            raise CorruptSegment(f"state says {memory_bytes} bytes in memory, lost {ranges}")
        return cls(ranges, messages), memory_bytes
