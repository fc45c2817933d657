"""The components that work on one log directory, which a snapshot replaces together.

How it works. Opening loads the checkpoints, recovers the segments, finds the kept records and
removes the leftovers of crashes. It starts no thread: `start` runs the two threads, `close` ends
them.

Not here: which directory is the live one (`log/current.py`), the interface (`log/log.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from semel.broker.log.cache import ReadCache, TailCache
from semel.broker.log.checkpoint import Checkpoints
from semel.broker.log.files import FileLayer
from semel.broker.log.index import LogIndex
from semel.broker.log.keeper import Keeper
from semel.broker.log.kept import KeptStore
from semel.broker.log.log_config import LogConfig
from semel.broker.log.reader import OpenFiles, Reader
from semel.broker.log.recovery import Recovered, recover
from semel.broker.log.segment import Segment
from semel.broker.log.types import Damage, IndexUnavailable, LogStats
from semel.broker.log.writer import Writer
from semel.protos.errors import InvalidRequest
from semel.protos.frames import decode_frame_header


class Store:
    """One open log directory. Opening raises CorruptSegment, DataDirectoryError."""

    def __init__(
        self,
        files: FileLayer,
        directory: Path,
        config: LogConfig,
        *,
        on_durable: Callable[[int, int, int, int], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.lock = threading.Lock()
        """Guards every change of `index`, `damaged` and the tail cache."""
        self.checkpoints = Checkpoints(files, directory, config.checkpoint_keep)
        self.checkpoints.load()
        newest = self.checkpoints.newest
        found = recover(
            files, directory, newest.index if newest else 0, newest.term if newest else 0
        )
        self.damaged = found.damaged
        self.rewriting: set[str] = set()
        """Segment files whose header, IDs or seal the scrub writes again until a sync succeeds."""
        self.open_files = OpenFiles(files, config.open_files_max)
        self.kept = KeptStore(files, directory, self.open_files, config.segment_bytes)
        self.kept.load()
        self.index = LogIndex(
            config,
            first_index=found.first_index,
            base_term=found.base_term,
            segments=found.segments,
            runs=found.runs,
            next_sequence=found.next_sequence,
            boot=files.boot(),
        )
        self.tail = TailCache(config.cache_bytes)
        cache = ReadCache(config.read_cache_bytes)
        self.reader = Reader(
            directory, self.index, self.open_files, self.tail, cache, self._note_damage
        )
        spares = _tidy(files, directory, config, found)
        self.keeper = Keeper(files, directory, config, spares, on_failure)
        self.writer = Writer(
            self.keeper,
            durable_index=self.index.last_index,
            sync_interval_ms=config.sync_interval_ms,
            on_durable=on_durable,
            on_failure=on_failure,
        )
        self.directory = directory
        self._stopped = False

    def start(self) -> None:
        self.keeper.start()
        self.writer.start()

    def close(self) -> None:
        """BLOCKING. Ends the threads (`stop`), and all reads."""
        self.stop()
        self.open_files.close()

    def stop(self) -> None:
        """BLOCKING. Writes and syncs everything queued, and seals the last segment, so that the
        next start is quick. What is stored can still be read."""
        if self._stopped:
            return
        self._stopped = True
        self.keeper.give_up()
        self.writer.close()
        last = self.index.unsealed()
        with self.lock:
            whole = self.acknowledgeable == self.index.last_index
        if last is not None and last.segment.on_disk and whole and not self.writer.failed:
            self.keeper.retire(None, last, ())
        self.keeper.close()

    @property
    def acknowledgeable(self) -> int:
        """The highest index that may be reported durable: the entry after it may be torn, or does
        not exist.

        The caller holds `lock`, because repairs and reads change `damaged`.
        """
        torn = [one.index for one in self.damaged.values() if not one.certain]
        return min(torn) - 1 if torn else self.index.last_index

    def sync_through(self, index: int) -> None:
        """BLOCKING. Syncs the entries up to `index` that were reported before their sync, because
        a checkpoint asserts that they are durable. Earlier segments need nothing: the writer synced
        them when it left them."""
        with self.open_files.use(self.directory / self.index.locate(index).file_name) as file:
            file.sync()

    def assert_whole(self) -> None:
        """Asserts that no entry may be torn. The caller holds `lock`."""
        if self.damaged:
            whole = self.acknowledgeable
            assert whole == self.index.last_index, (
                f"entry {whole + 1} may be torn: repair or cut it first"
            )

    def write_again(self, frame: bytes) -> Damage | None:
        """BLOCKING. Writes a damaged entry's frame in its place again. Returns the repaired damage,
        or None if the entry is not damaged any more. Raises InvalidRequest when the frame is
        another entry's.

        The entry may be truncated and replaced at any time, also during the write. But its place
        never belongs to another entry, so the write damages nothing else.
        """
        header = decode_frame_header(frame)
        with self.lock:
            known = self.damaged.get(header.index)
        if known is None:
            return None
        if (known.term, known.length) != (header.term, len(frame)):
            raise InvalidRequest(
                f"entry {header.index} of term {header.term} with {len(frame)} bytes is not the "
                f"damaged one, of term {known.term} with {known.length} bytes"
            )
        try:
            self.reader.repair(known, frame)
        except FileNotFoundError:
            return None  # The segment is gone, and with it the entry.
        return known

    def stats(self, synced_index: int, appended_bytes: int) -> LogStats:
        """Figures for metrics."""
        segments = self.index.segments
        return LogStats(
            segments=len(segments),
            segment_bytes=sum(one.end - one.header.frames_at for one in segments),
            spares=self.keeper.spare_count,
            kept_files=self.kept.file_count,
            kept_bytes=self.kept.total_bytes,
            kept_records=self.kept.record_count,
            checkpoints=self.checkpoints.count,
            cache_bytes=self.tail.bytes,
            first_index=self.index.first_index,
            last_index=self.index.last_index,
            synced_index=synced_index,
            damaged=len(self.damaged),
            appended_bytes=appended_bytes,
            syncs=self.writer.active.syncs,
            rolls=self.writer.active.rolls,
            disk_full=self.keeper.shortage is not None,
        )

    def _note_damage(self, segment: Segment, index: int, start: int, length: int) -> bool:
        """Notes a damaged frame that a reader met. Returns False if the entry is not at that place
        any more, because its index now belongs to another entry or to none."""
        with self.lock:
            try:
                there = self.index.locate(index) is segment
            except IndexUnavailable:
                return False
            term = self.index.term_at(index)
            if not there or term is None:
                return False
            known = Damage(
                index=index,
                term=term,
                length=length,
                file_name=segment.file_name,
                position=start,
                certain=True,
                torn=False,
            )
            self.damaged.setdefault(index, known)
            return True


def _tidy(files: FileLayer, directory: Path, config: LogConfig, found: Recovered) -> list[str]:
    """Removes leftovers and surplus spares; returns the names of the spares that stay."""
    spares = config.recycle_max + 1
    rubbish = [*found.void, *found.spares[spares:]]
    if rubbish:
        files.sync_directory(directory)
        for name in rubbish:
            files.remove(directory / name)
        files.sync_directory(directory)
    return found.spares[:spares]
