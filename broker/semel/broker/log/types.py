"""The small types of the log's interface: references, damage, figures, errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from semel.protos.errors import CorruptSegment


@dataclass(frozen=True, slots=True, order=True)
class RecordRef:
    """A reference to a record by its entry's index and its position in the frame."""

    index: int
    position: int
    """Byte offset of the record's 8-byte header in the frame."""
    length: int
    """Bytes of the record's payload, without padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """An entry with a good ID and a damaged frame: its index and term are known, and a peer has its
    bytes."""

    index: int
    term: int
    length: int
    """Size of the frame in bytes."""
    file_name: str
    """The segment file that holds the frame. No other entry is ever written at that place: an
    entry that replaces this one goes to another segment."""
    position: int
    """Byte offset of the frame in the segment file."""
    certain: bool
    """True: the entry was durable here. False: that is not proven, so the entry is not acknowledged
    before it is repaired."""
    torn: bool
    """True: the entry is not certain, and the machine may have restarted since, so it may be a
    write that a power failure tore and that was never acknowledged. A killed process tears no
    write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStats:
    """Figures for metrics at one moment; counters count from the opening of the log."""

    segments: int
    segment_bytes: int
    """Bytes of frames in segments, without spares."""
    spares: int
    kept_files: int
    kept_bytes: int
    kept_records: int
    checkpoints: int
    cache_bytes: int
    first_index: int
    last_index: int
    synced_index: int
    damaged: int
    appended_bytes: int
    syncs: int
    rolls: int
    disk_full: bool


class SegmentRange(NamedTuple):
    """A segment: the entries `[first_index, end_index)`, and the bytes of their frames."""

    first_index: int
    end_index: int
    bytes: int


class DamagedEntry(CorruptSegment):
    """Reads raise it when the entry at `index`, or a record of it, is damaged on this node.

    Fetch its frame from a peer and call `Log.repair`.
    """

    def __init__(self, message: str, index: int = 0) -> None:
        super().__init__(message)
        self.index = index


class IndexUnavailable(LookupError):
    """The index is below the first entry of the log or above the last. This error never leaves the
    node."""

    def __init__(self, index: int, first_index: int, last_index: int) -> None:
        super().__init__(
            f"index {index} is not in the log, which holds {first_index}..{last_index}"
        )
        self.index = index
        self.first_index = first_index
        self.last_index = last_index
