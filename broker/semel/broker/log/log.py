"""The log of one node: the only door to its bytes on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from semel.broker.log.checkpoint import Checkpoint
from semel.broker.log.config import LogConfig
from semel.broker.log.files import FileLayer, OsFiles
from semel.broker.log.types import Damage, LogStats, RecordRef


class Log:
    """The owner (one thread: the node's event loop) calls everything that is not marked BLOCKING."""

    on_synced: Callable[[int, int], None]
    """(index, term); called in the writer's thread."""
    on_failure: Callable[[BaseException], None]
    """Called at most once, in the thread that failed; the log accepts nothing afterwards."""

    @classmethod
    def open(
        cls, directory: Path, config: LogConfig | None = None, *, files: FileLayer | None = None
    ) -> Log:
        """BLOCKING. Raises DataDirectoryError, CorruptSegment."""
        ...

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest good one. `Checkpoint(index, term, length)`, `.payload` reads it (BLOCKING)."""
        ...

    @property
    def first_index(self) -> int: ...

    @property
    def last_index(self) -> int: ...

    @property
    def last_term(self) -> int: ...

    @property
    def synced_index(self) -> int: ...

    @property
    def damaged(self) -> dict[int, Damage]:
        """Entries to fetch from a peer: the node may vote, and never stands for election until
        this is empty."""
        ...

    def term_at(self, index: int) -> int | None:
        """None below first_index - 1 and above last_index."""
        ...

    def fit(self, lo: int, hi_max: int, max_bytes: int) -> int: ...

    def size_of(self, index: int) -> int: ...

    def append(self, frames: Sequence[bytes]) -> None:
        """All or nothing. Raises DiskFull (nothing accepted), Closed."""
        ...

    def truncate(self, from_index: int) -> None: ...

    def oldest_unsynced_age_ms(self, now_ms: int | None = None) -> int:
        """now_ms: time.monotonic_ns() // 1_000_000, the default."""
        ...

    def wait_synced(self, index: int, timeout_s: float | None = None) -> bool:
        """BLOCKING, any thread."""
        ...

    def cached_frames(self, lo: int, hi: int) -> list[bytes] | None: ...

    def read_frames(self, lo: int, hi: int) -> list[bytes]:
        """BLOCKING, any thread. Raises IndexUnavailable, DamagedEntry."""
        ...

    def cached_record(self, index: int, position: int, length: int) -> memoryview | None: ...

    def read_record(self, index: int, position: int, length: int) -> bytes:
        """BLOCKING, any thread. Raises IndexUnavailable, DamagedEntry."""
        ...

    def mend(self, frame: bytes) -> None:
        """BLOCKING, any thread: puts a damaged entry's frame, as a peer has it, back in place."""
        ...

    def replay(self, from_index: int) -> Iterator[bytes]:
        """BLOCKING, at start."""
        ...

    def save_checkpoint(self, index: int, term: int, parts: Sequence[bytes]) -> None:
        """BLOCKING, executor; waits until `index` is durable."""
        ...

    def compact(self, upto_index: int, keep: Callable[[int, int], Iterable[RecordRef]]) -> int:
        """BLOCKING, executor. Returns first_index. Never passes the older of the two checkpoints."""
        ...

    def drop_kept(self, live: Callable[[int, int], bool]) -> int:
        """BLOCKING, executor. Returns the number of files removed."""
        ...

    def install_snapshot(
        self,
        parts: Iterable[bytes],
        index: int,
        term: int,
        kept_records: Iterable[tuple[RecordRef, bytes]],
    ) -> None:
        """BLOCKING, executor; the owner appends and truncates nothing until it returns."""
        ...

    def stats(self) -> LogStats: ...

    def close(self) -> None:
        """BLOCKING."""
        ...
