"""Small types of the log's interface."""

from __future__ import annotations

from dataclasses import dataclass

from semel.protos.errors import CorruptSegment


@dataclass(frozen=True, slots=True, order=True)
class RecordRef:
    """A record by its entry's index and its place in the frame."""

    index: int
    position: int
    """Byte offset of the record's 8-byte header in the frame."""
    length: int
    """Bytes of the record's payload, without padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """An entry whose ID is good and whose frame is not: its name is known, a peer has its bytes."""

    index: int
    term: int
    length: int
    """Bytes of the frame."""
    file_name: str
    """The segment in which it lies, and no other entry ever will at that place: one that replaces
    it goes to another segment."""
    position: int
    """Byte offset of the frame in it."""
    certain: bool
    """True: the entry was durable here. False: nothing proves that, so it is not acknowledged
    before it is mended."""
    torn: bool
    """True: not certain, and the machine has been started anew since, so it may be a write that was
    torn when power failed, never acknowledged. A killed process tears nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStats:
    """A snapshot of figures for metrics; counters rise from the opening of the log."""

    segments: int
    segment_bytes: int
    """Bytes on disk in segments, spares not counted."""
    spares: int
    kept_files: int
    kept_bytes: int
    kept_records: int
    checkpoints: int
    cache_frames: int
    cache_bytes: int
    first_index: int
    last_index: int
    synced_index: int
    damaged: int
    appended_bytes: int
    syncs: int
    rolls: int
    disk_full: bool


class DamagedEntry(CorruptSegment):
    """Raised by reads: the entry at `index` (or a record of it) is damaged on this node only.

    Fetch its frame from a peer and call `Log.mend`.
    """

    def __init__(self, message: str, index: int = 0) -> None:
        super().__init__(message)
        self.index = index


class IndexUnavailable(LookupError):
    """The index is below the first kept entry, or past the last; never leaves the node."""

    def __init__(self, index: int, first_index: int, last_index: int) -> None:
        super().__init__(
            f"index {index} is not in the log, which holds {first_index}..{last_index}"
        )
        self.index = index
        self.first_index = first_index
        self.last_index = last_index
