"""The log of one node: the only door to its bytes on disk.

How it works. `append` places frames in memory at once (index, terms, tail cache) and gives them to
the writer, which syncs them in groups and reports (index, term) through `on_synced`.
Reads come from the tail cache, or block in the caller's reader pool. Checkpoints, compaction and
snapshots block in an executor beside serving.

Threads. The *owner* (one thread: the node's event loop) calls everything that is not marked
BLOCKING; methods marked BLOCKING are for other threads, or, once its loop is `attach`ed, the owner
would wait for what it is to hear itself. `save_checkpoint`, `compact`, `drop_kept`
and `install_snapshot` exclude each other.

Invariants
1. What `on_synced` reported survives any crash, byte for byte.
2. first_index - 1 ≤ the index of every checkpoint kept ≤ synced_index.
3. A failed write or sync ends the log: `on_failure` is called once, nothing is accepted afterwards.

Not here: what records mean (state), who may append (raft), in which order things leave (node).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from semel.broker.log.checkpoint import Checkpoint, Checkpoints
from semel.broker.log.config import LogConfig
from semel.broker.log.current import CurrentDirectory
from semel.broker.log.files import FileLayer, OsFiles, Syncs
from semel.broker.log.index import Write
from semel.broker.log.kept import KeptStore
from semel.broker.log.reader import OpenFiles, record_of
from semel.broker.log.scrubbing import scrub
from semel.broker.log.store import Store
from semel.broker.log.types import Damage, DamagedEntry, IndexUnavailable, LogStats, RecordRef
from semel.protos.errors import Closed, CorruptSegment
from semel.protos.frames import check_frame
from semel.protos.metrics import Histogram


def _ignore_synced(index: int, term: int) -> None:
    """Until the owner sets `on_synced`."""


def _ignore_failure(error: BaseException) -> None:
    """Until the owner sets `on_failure`; `append` raises anyway."""


class Log:
    """Open it with `Log.open`, set the two callbacks, then append."""

    on_synced: Callable[[int, int], None]
    """(index, term): all up to it is durable. Called in the writer's thread, or on the loop that is
    attached; must not block."""

    def __init__(self, directory: Path, config: LogConfig, files: FileLayer) -> None:
        """BLOCKING. Use `open`."""
        self.on_synced = _ignore_synced
        self._on_failure: Callable[[BaseException], None] = _ignore_failure
        self._config = config
        self._files = files
        self._changed = threading.Condition()
        # Guards what both the owner and the writer change: the next five fields.
        self._synced_index = 0
        self._failure: BaseException | None = None
        self._closed = False
        self._era = 0
        self._cuts: deque[tuple[int, int]] = deque()
        # (era that began, truncated from), for eras the writer has not reached.
        self._queued_ms: deque[int] = deque()  # of each write that is not durable
        self._maintenance = threading.Lock()
        self._syncs: Syncs | None = None
        self._appended_bytes = 0
        self._page_cached = True
        files.make_directory(directory)
        self._lock_file = files.lock(directory / "LOCK")
        try:
            self._current = CurrentDirectory(files, directory)
            self._current.open()
            self._store = self._open_store()
        except BaseException:
            self._lock_file.close()
            raise
        self._store.start()

    @classmethod
    def open(
        cls, directory: Path, config: LogConfig | None = None, *, files: FileLayer | None = None
    ) -> Log:
        """BLOCKING. Locks `directory` (created if missing) and recovers what is in it.

        Raises DataDirectoryError when another process holds it or the format is newer,
        CorruptSegment when entries that were durable are lost here.
        """
        return cls(directory, config or LogConfig(), files or OsFiles())

    def _open_store(self) -> Store:
        store = Store(
            self._files,
            self._current.path,
            self._config,
            on_durable=self._on_durable,
            on_failure=self._fail,
        )
        self._synced_index = store.acknowledgeable
        store.writer.active.page_cached = self._page_cached
        store.writer.attach(self._syncs)
        return store

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """On the owner's loop, once: from now on the kernel syncs small writes, if it can, and no
        thread is woken for them. BLOCKING for one sync."""
        config = self._config
        if config.sync_by == "auto" and not config.sync_interval_ms:
            self._syncs = self._files.syncs(loop, self._lock_file)
            self._store.writer.attach(self._syncs)

    @property
    def page_cached(self) -> bool:
        """Whether what is written stays in the operating system's cache, for those who read it
        here. True at the start."""
        return self._page_cached

    @page_cached.setter
    def page_cached(self, stays: bool) -> None:
        self._page_cached = self._store.writer.active.page_cached = stays

    @property
    def on_failure(self) -> Callable[[BaseException], None]:
        """Hears once that the log has failed for good, in the thread that failed.

        A failure from before it was set is reported when it is set.
        """
        return self._on_failure

    @on_failure.setter
    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        with self._changed:
            self._on_failure = callback
            failure = self._failure
        if failure is not None:
            callback(failure)

    # What the log holds.

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest good one; its `payload` is read from disk when asked for (BLOCKING)."""
        return self._store.checkpoints.newest

    @property
    def first_index(self) -> int:
        """The lowest index whose frame can be read whole."""
        return self._store.index.first_index

    @property
    def last_index(self) -> int:
        """The newest entry, durable or not; first_index - 1 when there is none."""
        return self._store.index.last_index

    @property
    def last_term(self) -> int:
        """The term of last_index; 0 in an empty log."""
        return self._store.index.last_term

    @property
    def synced_index(self) -> int:
        """Everything up to here is durable, and whole as far as it is known."""
        return self._synced_index

    @property
    def damaged(self) -> dict[int, Damage]:
        """Entries to fetch from a peer and `mend`, by index; a copy.

        The node may vote by their terms, and never stands for election until this is empty.
        """
        with self._store.lock:
            return dict(self._store.damaged)

    @property
    def damaged_records(self) -> list[RecordRef]:
        """Records below first_index to fetch from a peer and `mend_record`."""
        return sorted(self._store.kept.damaged)

    @property
    def compact_limit(self) -> int:
        """Index up to which the checkpoints let `compact` go; 0 before there are enough of them."""
        return self._store.checkpoints.compact_limit

    @property
    def checkpoints_damaged(self) -> bool:
        """A checkpoint is damaged: save a new one."""
        return bool(self._store.checkpoints.damaged)

    def describe(self, index: int) -> str:
        """Where an entry lies, for a person: its index, term, file and byte offset."""
        store = self._store
        try:
            segment = store.index.locate(index)
            start, _ = segment.place(index)
        except LookupError:
            return f"entry {index}, which is gone"
        path = store.directory / segment.file_name
        return f"entry {index} of term {store.index.term_at(index)} in {path} at {start}"

    def term_at(self, index: int) -> int | None:
        """The entry's term; also for first_index - 1. None below that and above last_index."""
        return self._store.index.term_at(index)

    def fit(self, lo: int, hi_max: int, max_bytes: int) -> int:
        """The largest hi ≤ hi_max with frames [lo, hi) ≤ max_bytes, but at least one frame.

        Raises IndexUnavailable if `lo` is below first_index.
        """
        return self._store.index.fit(lo, hi_max, max_bytes)

    def size_of(self, index: int) -> int:
        """Bytes of the entry's frame. Raises IndexUnavailable."""
        return self._store.index.size_of(index)

    def stats(self) -> LogStats:
        """Figures for metrics."""
        return self._store.stats(self._synced_index, self._appended_bytes)

    @property
    def sync_seconds(self) -> Histogram:
        """How long the syncs took, since the start or the newest snapshot."""
        return self._store.writer.active.sync_seconds

    @property
    def disk_full(self) -> bool:
        """True while there is neither a spare segment nor room for one: propose nothing."""
        return self._store.keeper.shortage is not None

    def can_append(self, length: int, count: int = 1) -> bool:
        """Whether `count` frames of `length` bytes in all can be taken: False only while the disk
        is full and the newest segment has no room for them either."""
        store = self._store
        return store.keeper.shortage is None or not store.index.needs_roll(count, length)

    # Writing.

    def append(self, frames: Sequence[bytes], *, wait_for_room: bool = False) -> None:
        """Takes frames with the indexes from last_index + 1 on: all of them or none.

        When a new segment is needed and there is no room for one it raises DiskFull (nothing is
        taken; it may be tried again), or, with `wait_for_room`, they wait in memory and are not
        durable before there is. Raises Closed after a failure or `close`.

        Asserts that no entry may be torn: what follows it would prove to the next recovery that it
        was durable.
        """
        self._check_open()
        store = self._store
        index = store.index
        shortage = store.keeper.shortage
        if (
            shortage is not None
            and not wait_for_room
            and index.needs_roll(len(frames), sum(map(len, frames)))
        ):
            raise shortage
        terms = index.terms_of(frames)
        now_ms = time.monotonic_ns() // 1_000_000
        with store.lock:
            store.assert_whole()
            # In the cache first: an entry that is in the index can be read.
            for number, frame in enumerate(frames, index.last_index + 1):
                store.tail.add(number, frame)
                self._appended_bytes += len(frame)
            steps = index.place(frames, terms, self._era)
            store.tail.evict(self._synced_index)
            self._queued_ms.extend(now_ms for step in steps if isinstance(step, Write))
        for step in steps:
            store.writer.put(step)

    def hold_writes(self) -> None:
        """What is appended from now on is not written before `release_writes`: something else is to
        leave first."""
        self._store.writer.hold()

    def release_writes(self) -> None:
        self._store.writer.release()

    def truncate(self, from_index: int) -> None:
        """Drops the entries from `from_index` on, which were not committed.

        It is durable before anything that is appended later is; a crash before that brings them
        back. Asserts first_index ≤ from_index ≤ last_index.
        """
        self._check_open()
        store = self._store
        with self._changed, store.lock:
            store.index.truncate(from_index)
            store.tail.cut(from_index)
            for index in [one for one in store.damaged if one >= from_index]:
                del store.damaged[index]
            self._era += 1
            self._cuts.append((self._era, from_index))
            self._synced_index = min(self._synced_index, from_index - 1)

    def cut_torn(self) -> int | None:
        """For a group of one, which has no peer to ask, when it starts: truncates from the first
        entry that may be a torn write, and returns its index; None when there is none.

        In a larger group the entry may have been counted for a commit: fetch and `mend` it. Raises
        CorruptSegment when the log's end is damaged and no failure of power explains it.
        """
        for one in self.damaged.values():
            if not one.certain and not one.torn:
                raise CorruptSegment(
                    f"{self.describe(one.index)} is damaged, and may have been acknowledged; "
                    "restore the file"
                )
        torn = [one.index for one in self.damaged.values() if one.torn]
        if not torn:
            return None
        self.truncate(min(torn))
        return min(torn)

    def oldest_unsynced_age_ms(self, now_ms: int | None = None) -> int:
        """How long the oldest write has waited for its sync; 0 when none does.

        `now_ms`: time.monotonic_ns() // 1_000_000, the default.
        """
        try:
            oldest = self._queued_ms[0]
        except IndexError:
            return 0
        if now_ms is None:
            now_ms = time.monotonic_ns() // 1_000_000
        return max(0, now_ms - oldest)

    def wait_synced(self, index: int, timeout_s: float | None = None) -> bool:
        """BLOCKING. Until `index` is durable; False after the timeout. Raises Closed."""
        with self._changed:
            done = self._changed.wait_for(
                lambda: self._synced_index >= index or self._failure or self._closed, timeout_s
            )
            if self._synced_index >= index:
                return True
            if done:
                raise Closed(f"the log has ended before entry {index} was durable")
            return False

    def _on_durable(self, index: int, term: int, era: int, writes: int) -> None:
        """In the writer's thread or on the loop: `writes` more are durable, up to that entry."""
        for _ in range(writes):
            self._queued_ms.popleft()
        with self._changed:
            while self._cuts and self._cuts[0][0] <= era:
                self._cuts.popleft()
            reached = min([index, *(cut - 1 for _, cut in self._cuts)])
            self._raise_synced(reached, term if reached == index else None)

    def _raise_synced(self, index: int, term: int | None) -> None:
        """Under `_changed`: everything up to `index` is durable."""
        store = self._store
        with store.lock:
            if store.damaged:
                index, term = min(index, store.acknowledgeable), None
            if index <= self._synced_index:
                return
            term = store.index.term_at(index) if term is None else term
        assert term is not None
        self._synced_index = index
        self._changed.notify_all()
        self.on_synced(index, term)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self._failure is not None:
                return
            self._failure = error
            callback = self._on_failure
            self._changed.notify_all()
        callback(error)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise Closed(f"the log has failed: {self._failure}") from self._failure
        if self._closed:
            raise Closed("the log is closed")

    # Reading.

    def cached_frames(self, lo: int, hi: int) -> list[bytes] | None:
        """The frames [lo, hi) if all of them are in memory."""
        return self._store.tail.range(lo, hi)

    def cached_record(self, index: int, position: int, length: int) -> memoryview | None:
        """The payload of a record if its frame is in memory."""
        frame = self._store.tail.get(index)
        return None if frame is None else record_of(frame, position, length)

    def read_frames(self, lo: int, hi: int) -> list[bytes]:
        """BLOCKING, any thread. The frames [lo, hi), checked.

        Raises IndexUnavailable, DamagedEntry (which names file and index; a CorruptSegment).
        """
        return self._store.reader.frames(lo, hi)

    def read_record(self, index: int, position: int, length: int) -> bytes | memoryview:
        """BLOCKING, any thread. A record's payload, checked; also below first_index, if kept.

        Raises IndexUnavailable, DamagedEntry, InvalidRequest (there is no such record).
        """
        store = self._store
        if index >= store.index.first_index:
            try:
                return store.reader.record(index, position, length)
            except IndexUnavailable:
                if index >= store.index.first_index:
                    raise
            except DamagedEntry:
                if not store.kept.has(index, position):
                    raise
        return store.kept.read(index, position, length)

    def replay(self, from_index: int) -> Iterator[bytes]:
        """BLOCKING, at start. All frames from `from_index` to last_index, checked.

        Raises IndexUnavailable, DamagedEntry at the damaged one.
        """
        index = self._store.index
        lo = from_index
        while lo <= index.last_index:
            hi = index.fit(lo, index.last_index + 1, self._config.replay_bytes)
            yield from self._store.reader.frames(lo, hi)
            lo = hi

    def scrub(self) -> Iterator[int]:
        """BLOCKING, any thread, one at a time: reads everything once from the disk, one piece with
        each step, and yields its bytes. Fills `damaged`, `damaged_records`, `checkpoints_damaged`.
        """
        return scrub(self._store, self._synced_index)

    def mend(self, frame: bytes) -> None:
        """BLOCKING, any thread. Puts a damaged entry's frame, as a peer has it, back in place.

        Raises CorruptFrame when the frame is damaged itself, InvalidRequest when it is not the
        entry that is missing here.
        """
        index = check_frame(frame).index
        store = self._store
        mended = store.write_again(frame)
        with self._changed:
            # The entry, or the whole log, may have been replaced meanwhile.
            if mended is None or self._store is not store:
                return
            with store.lock:
                if store.damaged.get(index) is not mended:
                    return
                del store.damaged[index]
                reached = None if self._queued_ms else store.acknowledgeable
            if reached is not None:
                self._raise_synced(reached, None)

    def mend_record(self, ref: RecordRef, payload: bytes) -> None:
        """BLOCKING, any thread. The same for a damaged record below first_index."""
        if self.has_kept(ref):
            self._store.kept.mend(ref, payload)
        else:
            self.keep_records([(ref, payload)])
            self._store.kept.forget(ref)

    def note_missing(self, refs: Iterable[RecordRef]) -> None:
        """These records below first_index are live: those without a copy here are damaged."""
        self._store.kept.note_missing(refs)

    def has_kept(self, ref: RecordRef) -> bool:
        """The record has a copy of its own, beside its entry or instead of it."""
        return self._store.kept.has(ref.index, ref.position)

    def keep_records(self, records: Sequence[tuple[RecordRef, bytes]]) -> None:
        """BLOCKING, in an executor. Stores live records of a damaged entry whose frame no peer has
        any more, durably when it returns. Raises DiskFull, Closed."""
        with self._maintenance:
            self._check_open()
            self._store.kept.add(records)

    def forget_record(self, ref: RecordRef) -> None:
        """A damaged record is not live any more: it need not be mended."""
        self._store.kept.forget(ref)

    # Checkpoints, compaction, snapshots.

    def save_checkpoint(self, index: int, term: int, parts: Sequence[bytes]) -> None:
        """BLOCKING, in an executor. Stores the state at `index`, once that is durable here.

        Raises DiskFull (the older ones stand), Closed.
        """
        self.wait_synced(index)
        with self._maintenance:
            self._check_open()
            if self._config.sync_interval_ms:
                self._store.sync_through(index)
            self._store.checkpoints.save(index, term, parts)

    @property
    def incarnation(self) -> int:
        """Rises when a snapshot replaces the log: what was decided about the old one is void."""
        return self._current.number

    def compact(
        self,
        upto_index: int,
        keep: Callable[[int, int], Iterable[RecordRef]],
        *,
        incarnation: int | None = None,
    ) -> int:
        """BLOCKING, in an executor. Recycles whole segments with last index < upto_index.

        `keep(lo, hi)` names the live records of entries [lo, hi); they stay readable. It never
        passes the oldest checkpoint, and does nothing before there are `checkpoint_keep` of them:
        a damaged newest one must leave enough to replay. Nothing happens when `incarnation`, the
        one that `keep` was made for, is over. Returns the new first_index. Raises DiskFull,
        DamagedEntry (a live record is damaged: mend it), Closed.
        """
        with self._maintenance:
            self._check_open()
            if incarnation not in (None, self.incarnation):
                return self.first_index
            return self._store.cleaner.compact(upto_index, keep)

    def drop_kept(self, live: Callable[[int, int], bool], *, incarnation: int | None = None) -> int:
        """BLOCKING, in an executor. Removes kept files without live records.

        `live(index, position)`. Live records of mostly dead files move to a new one. Nothing
        happens when `incarnation`, the one that `live` was made for, is over. Returns how many
        files were removed. Raises DiskFull, DamagedEntry, Closed.
        """
        with self._maintenance:
            self._check_open()
            if incarnation not in (None, self.incarnation):
                return 0
            return self._store.kept.drop(live)

    def install_snapshot(
        self,
        parts: Iterable[bytes],
        index: int,
        term: int,
        kept_records: Iterable[tuple[RecordRef, bytes]],
    ) -> None:
        """BLOCKING, in an executor. Replaces the whole log by a checkpoint and its live records.

        Until it returns the owner appends and truncates nothing; `kept_records` may read from this
        log. Afterwards first_index = index + 1, last_index = synced_index = index. A crash leaves
        all of the old log or all of the new one. Raises DiskFull, Closed, CorruptSegment when the
        checkpoint is not where it was written, and whatever `kept_records` raises: then the old log
        stands.
        """
        with self._maintenance:
            self._check_open()
            staged = self._current.stage()
            open_files = OpenFiles(self._files, 1)
            kept = KeptStore(self._files, staged, open_files, self._config.segment_bytes)
            kept.add(kept_records)
            checkpoint = Checkpoints(self._files, staged, 1).save(index, term, parts)
            _ = checkpoint.payload  # read and checked: there will be no older one to fall back to
            old = self._store
            old.close()
            try:
                self._check_open()
                self._current.adopt_staged()
                with self._changed:
                    self._store = self._open_store()
                    self._cuts.clear()
                    self._queued_ms.clear()
                    self._changed.notify_all()
                self._store.start()
                self._current.remove_others()
            except BaseException as error:
                self._fail(error)
                raise

    def close(self) -> None:
        """BLOCKING. Writes and syncs what was appended, then lets go of the directory.

        What finds no room on a full disk goes to `on_failure`; it was never reported durable.
        """
        if self._closed:
            return
        with self._maintenance:
            with self._changed:
                self._closed = True
                self._changed.notify_all()
            self._store.close()
            if self._syncs is not None:
                self._syncs.close()
            self._lock_file.close()
