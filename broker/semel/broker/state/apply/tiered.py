"""What of a queue is in the object store: the pointer to its manifest, and how TIERED changes it.

How it works. The older messages of a queue go as files into an object store. A manifest says which
files count, and this pointer says which manifest does. The master writes files and the next
manifest, reads them back, and proposes TIERED: a compare-and-set, which names the present manifest
by its digest. What it wrote in vain is garbage that nothing names. FORGET then lets the log give up
extents that the manifest covers. The offsets below `QueueState.local_start` are *cold*: only the
object store has them.

Invariants
1. The number rises by one with each TIERED; `start` and `end` never fall, and `start <= end`.
2. `start` is at most the queue's log_start_offset, and `end` at most its end: what readers may ask
   for and the log does not have is in the manifest, without a gap.
3. `end` is the base of an extent, or the queue's end, or lies below all extents.

Format. docs/formats/state.md. The manifest: docs/formats/tier.md.

Not here: what is cold and what may go (`queues.py`), reading and writing manifests (`semel.tier`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from semel.broker.state.apply.codec import Reader
from semel.protos.errors import CorruptSegment
from semel.protos.v1 import control_pb2

_FIXED: Final = struct.Struct("<qqqQQ32sqq")
_DIGEST_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class TierState:
    """The pointer to a queue's manifest, and the manifest's bounds; empty if there never was
    one."""

    number: int = 0
    """The manifest's number, one more with every change; 0: there is none."""
    length: int = 0
    """Bytes of the manifest."""
    sha256: bytes = b""
    """The digest of the manifest, 32 bytes; empty if there is none."""
    start: int = 0
    end: int = 0
    """End of the last file: the next one begins here, or where the log does, if that is higher."""

    def next(self, record: control_pb2.Tiered) -> TierState:
        """The state after a record that fits."""
        return TierState(
            record.number, record.length, record.sha256, record.tier_start, record.tier_end
        )

    def misfit(
        self, record: control_pb2.Tiered, log_start_offset: int, log_end_offset: int
    ) -> str | None:
        """Why a record does not follow this state, in a queue with these bounds; None if it does.

        Once it is None it stays so while the bounds rise and no other TIERED is applied.
        """
        if (record.number, record.previous_sha256) != (self.number + 1, self.sha256):
            return f"it has number {record.number} and another predecessor"
        if len(record.sha256) != _DIGEST_BYTES or not record.length:
            return f"it has {len(record.sha256)} bytes of digest and {record.length} of manifest"
        if not self.start <= record.tier_start <= max(self.end, log_start_offset):
            return f"it starts at {record.tier_start}"
        if not max(self.end, record.tier_start) <= record.tier_end <= log_end_offset:
            return f"it ends at {record.tier_end}"
        return None

    def __str__(self) -> str:
        if not self.number:
            return "no manifest"
        return f"manifest {self.number} ({self.sha256.hex()}) of [{self.start}, {self.end})"


class ColdRetention(NamedTuple):
    """What retention demands of the part of a queue that only the object store has."""

    before_us: int | None
    """Files all of whose messages were appended before this log time go; None: none does."""
    bytes_max: int | None
    """The newest of its files stay as long as they have so many bytes; None: no limit."""


def pack_tier(
    tier: TierState, tier_after_ms: int, local_retention_ms: int, local_start: int
) -> bytes:
    """Canonical bytes of a queue's settings and state of this subject."""
    return _FIXED.pack(
        tier_after_ms,
        local_retention_ms,
        local_start,
        tier.number,
        tier.length,
        tier.sha256,
        tier.start,
        tier.end,
    )


def read_tier(reader: Reader) -> tuple[TierState, int, int, int]:
    """The inverse of `pack_tier`. Raises CorruptSegment."""
    after, local, local_start, number, length, sha256, start, end = reader.unpack(_FIXED)
    if not number:
        if length or any(sha256):
            raise CorruptSegment(f"state has a pointer to {length} bytes without a number")
        sha256 = b""
    return TierState(number, length, sha256, start, end), after, local, local_start
