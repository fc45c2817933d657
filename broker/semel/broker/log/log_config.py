"""Settings of one node's log, validated at construction.

The documentation below a field is also the help of its flag, if it has one, and its entry in
docs/reference.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from semel.protos.errors import InvalidRequest

SYNC_BY = ("auto", "thread")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """All settings of one node's log. Raises InvalidRequest for values out of range."""

    segment_bytes: int = 64 << 20
    """Size of a segment file, which is preallocated. A frame that is larger gets a segment of its
    own. Default 64 MiB: small enough to recycle soon, large enough that a roll is rare."""

    ids_per_segment: int = 32_768
    """Frames that fit one segment. Default 32,768: their IDs take 32 B each, 1 MiB in all."""

    fill_bytes_per_second: int = 128 << 20
    """A fresh segment that waits for its use is filled with zeros at this rate, because a sync of
    blocks that were written before is twice as fast; 0 leaves it as it was allocated. Default 128
    MiB."""

    cache_bytes: int = 32 << 20
    """Bytes of the newest frames that are kept in memory, for slaves and consumers that keep up.
    Default 32 MiB."""

    read_cache_bytes: int = 8 << 20
    """Bytes of frames that were read from disk lately and are kept in memory: one frame holds
    records of many queues. Default 8 MiB."""

    recycle_max: int = 2
    """Old segments that are kept for reuse, because writing over cached pages is seven times as
    fast. Default 2."""

    checkpoint_keep: int = 2
    """Checkpoints that are kept. Default 2, so that one damaged checkpoint costs nothing."""

    sync_interval_ms: int = 0
    """Pause between two syncs of a log whose entries are reported once the OS has them: what is
    acknowledged can be lost when the power of a majority fails at once. 0: an entry is reported
    once it is on disk. Default 0: an acknowledged message is durable on a majority."""

    sync_by: str = "auto"
    """auto: the kernel carries out the syncs of small writes by itself (Linux AIO), where it can,
    so that no thread is woken for them. thread: the log's own thread does all syncs. Default
    auto."""

    open_files_max: int = 128
    """Sealed segments and kept files that are held open for reading. Default 128."""

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
        }
        for name, lowest in least.items():
            value = getattr(self, name)
            if value < lowest:
                raise InvalidRequest(f"log: {name} is {value}, it must be at least {lowest}")
        if self.sync_by not in SYNC_BY:
            raise InvalidRequest(f"log: sync_by is {self.sync_by}, it must be one of {SYNC_BY}")
