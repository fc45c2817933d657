"""Settings of one node's log."""

from __future__ import annotations

from dataclasses import dataclass

from semel.protos.errors import InvalidRequest

SYNC_BY = ("auto", "thread")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Sizes and durability of one node's log; raises InvalidRequest when out of range."""

    segment_bytes: int = 64 << 20
    """Default 64 MiB, preallocated: small enough to recycle soon, large enough that a roll is rare.
    A frame that is larger than that gets a segment of its own."""

    ids_per_segment: int = 32_768
    """Frames that fit one segment: their IDs take 32 B each, 1 MiB in all."""

    fill_bytes_per_second: int = 128 << 20
    """A fresh segment that waits for its use is filled with zeros this fast, because a sync of
    blocks that were written before is twice as fast; 0 leaves it as it was allocated."""

    cache_bytes: int = 32 << 20
    """Newest frames kept in memory for followers and consumers that keep up."""

    read_cache_bytes: int = 8 << 20
    """Frames read from disk lately: one frame holds records of many queues."""

    recycle_max: int = 2
    """Old segments kept for reuse: writing over cached pages is seven times as fast."""

    checkpoint_keep: int = 2
    """Two, so that one damaged checkpoint costs nothing."""

    sync_interval_ms: int = 0
    """0: an entry is reported once it is on disk. Above 0 (the documented opt-out
    `durability=interval`): reported once the OS has it, synced this often."""

    sync_by: str = "auto"
    """auto: the kernel carries out the syncs of small writes by itself, where it can, so that no
    thread is woken for them. thread: the log's own thread does all."""

    open_files_max: int = 128
    """Sealed segments and kept files held open for reading."""

    replay_bytes: int = 4 << 20
    """Read at once while replaying at start."""

    def __post_init__(self) -> None:
        least = {
            "segment_bytes": 4096,
            "ids_per_segment": 1,
            "fill_bytes_per_second": 0,
            "cache_bytes": 0,
            "read_cache_bytes": 0,
            "recycle_max": 0,
            "checkpoint_keep": 1,
            "sync_interval_ms": 0,
            "open_files_max": 1,
            "replay_bytes": 1,
        }
        for name, lowest in least.items():
            value = getattr(self, name)
            if value < lowest:
                raise InvalidRequest(f"log: {name} is {value}, it must be at least {lowest}")
        if self.sync_by not in SYNC_BY:
            raise InvalidRequest(f"log: sync_by is {self.sync_by}, it must be one of {SYNC_BY}")
