"""All parts that work on one log directory; a snapshot replaces them together.

How it works. Opening loads the checkpoints, recovers the segments, finds the kept records, removes
what crashes have left, and starts nothing: `start` runs the two threads, `close` ends them.

Not here: which directory is the live one (`current.py`), the interface (`log.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from semel.broker.log.cache import ReadCache, TailCache
from semel.broker.log.checkpoint import Checkpoints
from semel.broker.log.cleaner import Cleaner
from semel.broker.log.config import LogConfig
from semel.broker.log.files import FileLayer
from semel.broker.log.index import LogIndex
from semel.broker.log.keeper import Keeper
from semel.broker.log.kept import KeptStore
from semel.broker.log.reader import OpenFiles, Reader
from semel.broker.log.recovery import Recovered, recover
from semel.broker.log.segment import Segment
from semel.broker.log.types import Damage, IndexUnavailable, LogStats
from semel.broker.log.writer import Writer
from semel.protos.errors import InvalidRequest
from semel.protos.frames import decode_frame_header


class Store:
    """One log directory, open. Raises CorruptSegment, DataDirectoryError."""

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
        """Held for every change of `index`, `damaged` and the tail cache."""
        self.checkpoints = Checkpoints(files, directory, config.checkpoint_keep)
        self.checkpoints.load()
        newest = self.checkpoints.newest
        found = recover(
            files, directory, newest.index if newest else 0, newest.term if newest else 0
        )
        self.damaged = found.damaged
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
        self.cleaner = Cleaner(self)
        self.directory = directory

    def start(self) -> None:
        self.keeper.start()
        self.writer.start()

    def close(self) -> None:
        """BLOCKING. Writes and syncs what is queued; seals, so that the next start is quick."""
        self.keeper.give_up()
        self.writer.close()
        last = self.index.unsealed()
        with self.lock:
            whole = self.acknowledgeable == self.index.last_index
        if last is not None and last.segment.on_disk and whole and not self.writer.failed:
            self.keeper.retire(None, last, ())
        self.keeper.close()
        self.open_files.close()

    @property
    def acknowledgeable(self) -> int:
        """Nothing above this may be reported durable: a frame that may be torn is missing there.

        Under `lock`, because those who mend and who read change what is damaged.
        """
        torn = [one.index for one in self.damaged.values() if not one.certain]
        return min(torn) - 1 if torn else self.index.last_index

    def sync_through(self, index: int) -> None:
        """BLOCKING. Makes durable what was reported before its sync, up to `index`: a checkpoint
        says that it is. What lies in segments before that was synced when the writer left them."""
        with self.open_files.use(self.directory / self.index.locate(index).file_name) as file:
            file.sync()

    def assert_whole(self) -> None:
        """Under `lock`: fails while the log ends with an entry that may be torn."""
        if self.damaged:
            whole = self.acknowledgeable
            assert whole == self.index.last_index, (
                f"entry {whole + 1} may be torn: mend or cut it first"
            )

    def write_again(self, frame: bytes) -> Damage | None:
        """BLOCKING. Writes a damaged entry's frame where it lies; which damage that was, None if
        there is none any more. Raises InvalidRequest when it is another entry's frame.

        The entry may be truncated and replaced at any time, meanwhile too. But its place is its own
        for ever: what is written there strikes nothing else.
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
            self.reader.mend(known, frame)
        except FileNotFoundError:
            return None  # its segment is gone, and so is the entry
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
            cache_frames=len(self.tail),
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
        """A reader met a damaged frame. False if the entry is not there any more: then it is
        another one that has its index, or none."""
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
    """Removes leftovers; returns the names of the spares that stay."""
    spares = config.recycle_max + 1
    rubbish = [*found.void, *found.spares[spares:]]
    if rubbish:
        files.sync_directory(directory)
        for name in rubbish:
            files.remove(directory / name)
        files.sync_directory(directory)
    return found.spares[:spares]
