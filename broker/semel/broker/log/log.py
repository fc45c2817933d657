"""The log of one node, which is the only access to its bytes on disk.

How it works. `append` places frames in memory at once (index, terms, tail cache) and gives them to
the writer, which syncs them in groups and reports (index, term) through `on_synced`. Reads come
from the tail cache, or block in the caller's reader pool. Checkpoints, compaction and snapshots
block in an executor while the node serves.

Threads. The *owner* (one thread: the node's event loop) calls everything that is not marked
BLOCKING. Methods marked BLOCKING are for other threads: once its loop is `attach`ed, the owner
would wait for a completion that only its own loop can deliver. `save_checkpoint`, `keep_records`,
`compact`, `drop_kept` and the switch of `install_snapshot` exclude each other.

Invariants
1. Every entry that `on_synced` reported survives any crash, byte for byte.
2. first_index - 1 ≤ the index of every checkpoint kept ≤ synced_index.
3. A failed write or sync ends the log: `on_failure` hears once, and nothing is accepted afterwards.
4. What the log holds changes only on the attached loop: within one turn of it, the owner sees one
   first_index, one last_index and one incarnation, whatever cleaning and snapshots do beside it.

It is all in one file because who may call what, from which thread and under which lock, is one
agreement among its methods; what they do lies in the other files of this folder.

Not here: what records mean (`state/`), who may append (`raft/`), the order of sends (`replica/`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from semel.broker.log.checkpoint import Checkpoint, Checkpoints
from semel.broker.log.cleaner import Cleaner
from semel.broker.log.current import CurrentDirectory
from semel.broker.log.files import FileLayer, OsFiles, Syncs
from semel.broker.log.index import Write
from semel.broker.log.kept import KeptStore
from semel.broker.log.log_config import LogConfig
from semel.broker.log.owner import Owner
from semel.broker.log.reader import OpenFiles, record_of
from semel.broker.log.scrubbing import scrub
from semel.broker.log.store import Store
from semel.broker.log.types import (
    Damage,
    DamagedEntry,
    IndexUnavailable,
    LogStats,
    RecordRef,
    SegmentRange,
)
from semel.protos.errors import Closed, CorruptSegment
from semel.protos.frames import check_frame
from semel.protos.metrics import Histogram


def _ignore_synced(index: int, term: int) -> None:
    """The callback until the owner sets `on_synced`."""


def _ignore_failure(error: BaseException) -> None:
    """The callback until the owner sets `on_failure`; `append` raises anyway."""


def _nothing() -> None:
    """What follows the switch to a snapshot when nobody else has to follow it."""


class Log:
    """The log of one node. Open it with `Log.open`, set the two callbacks, then append."""

    on_synced: Callable[[int, int], None]
    """Hears (index, term) when everything up to it is durable; called in the writer's thread or on
    the attached loop; must not block."""

    def __init__(self, directory: Path, config: LogConfig, files: FileLayer) -> None:
        """BLOCKING. Use `open` instead."""
        self.on_synced = _ignore_synced
        self._on_failure: Callable[[BaseException], None] = _ignore_failure
        self._config = config
        self._files = files
        self._changed = threading.Condition()
        # Guards the next five fields, which both the owner and the writer change.
        self._synced_index = 0
        self._failure: BaseException | None = None
        self._closed = False
        self._era = 0
        self._cuts: deque[tuple[int, int]] = deque()
        # (era that began, truncated from), for the eras that the writer has not reached yet.
        self._queued_ms: deque[int] = deque()  # Arrival time of each write that is not durable.
        self._staging = threading.Lock()
        """Held while a snapshot is installed; taken before `_maintenance`."""
        self._maintenance = threading.Lock()
        self._incarnation = 1
        self._owner = Owner()
        self._syncs: Syncs | None = None
        self._appended_bytes = 0
        self._page_cached = True
        files.make_directory(directory)
        self._lock_file = files.lock(directory / "LOCK")
        try:
            self._current = CurrentDirectory(files, directory)
            self._current.open()
            self._store = self._open_store(self._current.path)
            self._synced_index = self._store.acknowledgeable
        except BaseException:
            self._lock_file.close()
            raise
        self._store.start()

    @classmethod
    def open(
        cls, directory: Path, config: LogConfig | None = None, *, files: FileLayer | None = None
    ) -> Log:
        """BLOCKING. Locks `directory` (created if missing) and recovers the log in it.

        Raises DataDirectoryError when another process holds the directory or the format is newer,
        and CorruptSegment when entries that were durable are lost here.
        """
        return cls(directory, config or LogConfig(), files or OsFiles())

    def _open_store(self, directory: Path) -> Store:
        return Store(
            self._files,
            directory,
            self._config,
            on_durable=self._on_durable,
            on_failure=self._fail,
        )

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Makes `loop` the owner's, on which alone the log changes from now on. Lets the kernel
        sync small writes, if it can, so that no thread is woken for them. Call it once, on that
        loop. BLOCKING for one sync."""
        self._owner.attach(loop)
        config = self._config
        if config.sync_by == "auto" and not config.sync_interval_ms:
            self._syncs = self._files.syncs(loop, self._lock_file)
            self._store.writer.attach(self._syncs)

    @property
    def page_cached(self) -> bool:
        """Whether written bytes stay in the operating system's page cache, for readers on this
        node. True at the start."""
        return self._page_cached

    @page_cached.setter
    def page_cached(self, stays: bool) -> None:
        self._page_cached = self._store.writer.active.page_cached = stays

    @property
    def on_failure(self) -> Callable[[BaseException], None]:
        """The callback that hears once that the log has failed for good, in the thread that failed.

        If the log failed before the callback was set, setting it reports the failure.
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
        """The newest good checkpoint; access to its `payload` reads the disk (BLOCKING)."""
        return self._store.checkpoints.newest

    @property
    def first_index(self) -> int:
        """The lowest index whose whole frame can be read."""
        return self._store.index.first_index

    @property
    def last_index(self) -> int:
        """The newest entry, durable or not; first_index - 1 when there is none."""
        return self._store.index.last_index

    @property
    def last_term(self) -> int:
        """The term of the entry at last_index; 0 in an empty log."""
        return self._store.index.last_term

    @property
    def synced_index(self) -> int:
        """Every entry up to this index was durable here; only those above may be torn."""
        return self._synced_index

    @property
    def damaged(self) -> dict[int, Damage]:
        """Damaged entries by index, to fetch from a peer and give to `repair`; a copy.

        The node may vote by their terms, but never stands for election until this is empty.
        """
        with self._store.lock:
            return dict(self._store.damaged)

    @property
    def damaged_records(self) -> list[RecordRef]:
        """Damaged records below first_index, to fetch from a peer and give to `repair_record`."""
        return sorted(self._store.kept.damaged)

    @property
    def compact_limit(self) -> int:
        """Index up to which the checkpoints allow `compact`; 0 while there are too few of them."""
        return self._store.checkpoints.compact_limit

    @property
    def checkpoints_damaged(self) -> bool:
        """True when a checkpoint is damaged, so that a new one should be saved."""
        return bool(self._store.checkpoints.damaged)

    def describe(self, index: int) -> str:
        """Describes an entry for a person: its index, term, file and byte offset."""
        store = self._store
        try:
            segment = store.index.locate(index)
            start, _ = segment.place(index)
        except LookupError:
            return f"entry {index}, which is gone"
        path = store.directory / segment.file_name
        return f"entry {index} of term {store.index.term_at(index)} in {path} at {start}"

    def term_at(self, index: int) -> int | None:
        """The entry's term, also for first_index - 1. None below that and above last_index."""
        return self._store.index.term_at(index)

    def fit(self, lo: int, hi_max: int, max_bytes: int) -> int:
        """The largest hi ≤ hi_max such that frames [lo, hi) take ≤ max_bytes, at least one frame.

        Raises IndexUnavailable if `lo` is below first_index.
        """
        return self._store.index.fit(lo, hi_max, max_bytes)

    def size_of(self, index: int) -> int:
        """Size of the entry's frame in bytes. Raises IndexUnavailable."""
        return self._store.index.size_of(index)

    def stats(self) -> LogStats:
        """Figures for metrics."""
        return self._store.stats(self._synced_index, self._appended_bytes)

    def sealed_segments(self) -> list[SegmentRange]:
        """The segments that `compact` may remove, oldest first: all but the newest one."""
        return [
            SegmentRange(one.first_index, one.end_index, one.end - one.header.frames_at)
            for one in self._store.index.segments[:-1]
        ]

    @property
    def sync_seconds(self) -> Histogram:
        """Durations of the syncs since the start or since the newest installed snapshot."""
        return self._store.writer.active.sync_seconds

    @property
    def disk_full(self) -> bool:
        """True while there is neither a spare segment nor room for one: propose nothing then."""
        return self._store.keeper.shortage is not None

    def can_append(self, length: int, count: int = 1) -> bool:
        """Whether the log can take `count` frames of `length` bytes in all: False only while the
        disk is full and the newest segment has no room for them either."""
        store = self._store
        return store.keeper.shortage is None or not store.index.needs_roll(count, length)

    # Writing.

    def append(self, frames: Sequence[bytes], *, wait_for_room: bool = False) -> None:
        """Takes frames with the indexes from last_index + 1 on, either all of them or none.

        When the frames need a new segment and there is no room for one, it raises DiskFull and
        takes nothing; the caller may try again. With `wait_for_room`, the frames wait in memory
        instead and become durable once there is room. Raises Closed after a failure or `close`.

        Asserts that no entry of the log may be torn: a following entry would prove to the next
        recovery that the torn one was durable.
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
            # The cache comes first, because every entry in the index must be readable.
            for number, frame in enumerate(frames, index.last_index + 1):
                store.tail.add(number, frame)
                self._appended_bytes += len(frame)
            steps = index.place(frames, terms, self._era)
            store.tail.evict(self._synced_index)
            self._queued_ms.extend(now_ms for step in steps if isinstance(step, Write))
        for step in steps:
            store.writer.put(step)

    def hold_writes(self) -> None:
        """Holds the writes of later frames until `release_writes`, so that messages leave first."""
        self._store.writer.hold()

    def release_writes(self) -> None:
        self._store.writer.release()

    def truncate(self, from_index: int) -> None:
        """Drops the entries at and above `from_index`, which were not committed.

        The truncation is durable before any entry that is appended later; a crash before that
        brings the dropped entries back. Asserts first_index ≤ from_index ≤ last_index.
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
        """Truncates from the first entry that may be a torn write, and returns its index; None when
        there is none. Only for the start of a group of one, which has no peer to ask.

        In a larger group the entry may have counted for a commit: fetch and `repair` it. Raises
        CorruptSegment when the log's end is damaged and no power failure explains it.
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
        """How long the oldest write has waited for its sync; 0 when none waits.

        `now_ms` is time.monotonic_ns() // 1_000_000, which is also the default.
        """
        try:
            oldest = self._queued_ms[0]
        except IndexError:
            return 0
        if now_ms is None:
            now_ms = time.monotonic_ns() // 1_000_000
        return max(0, now_ms - oldest)

    def wait_synced(self, index: int, timeout_s: float | None = None) -> bool:
        """BLOCKING. Waits until `index` is durable; False after the timeout. Raises Closed."""
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
        """In the writer's thread or on the loop: `writes` more are durable, up to (index, term)."""
        for _ in range(writes):
            self._queued_ms.popleft()
        with self._changed:
            while self._cuts and self._cuts[0][0] <= era:
                self._cuts.popleft()
            reached = min([index, *(cut - 1 for _, cut in self._cuts)])
            self._raise_synced(reached, term if reached == index else None)

    def _raise_synced(self, index: int, term: int | None) -> None:
        """Raises synced_index, under `_changed`: everything up to `index` is durable."""
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
            raise Closed(f"the log cannot be written any more: {self._failure}") from self._failure
        if self._closed:
            raise Closed("the log is closed")

    # Reading.

    def cached_frames(self, lo: int, hi: int) -> list[bytes] | None:
        """The frames [lo, hi) if all of them are in memory, else None."""
        return self._store.tail.range(lo, hi)

    def cached_record(self, index: int, position: int, length: int) -> memoryview | None:
        """The payload of a record if its frame is in memory, else None."""
        frame = self._store.tail.get(index)
        return None if frame is None else record_of(frame, position, length)

    def read_frames(self, lo: int, hi: int) -> list[bytes]:
        """BLOCKING, any thread. The frames [lo, hi), checked.

        Raises IndexUnavailable, and DamagedEntry (a CorruptSegment), which names file and index.
        """
        return self._store.reader.frames(lo, hi)

    def read_record(self, index: int, position: int, length: int) -> bytes | memoryview:
        """BLOCKING, any thread. A record's payload, checked; also below first_index, if the record
        is in a kept file.

        Raises IndexUnavailable, DamagedEntry, and InvalidRequest when there is no such record.
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

    def scrub(self) -> Iterator[int]:
        """BLOCKING, any thread, one at a time. Reads everything from the disk once, one piece per
        step, and yields the number of bytes read. Fills `damaged`, `damaged_records` and
        `checkpoints_damaged`.
        """
        return scrub(self._store, self._synced_index)

    def repair(self, frame: bytes) -> None:
        """BLOCKING, any thread. Writes a damaged entry's frame, as a peer has it, back in place.

        Raises CorruptFrame when the frame itself is damaged, and InvalidRequest when it is not the
        entry that is damaged here.
        """
        index = check_frame(frame).index
        store = self._store
        repaired = store.write_again(frame)
        with self._changed:
            # The entry, or the whole log, may have been replaced meanwhile.
            if repaired is None or self._store is not store:
                return
            with store.lock:
                if store.damaged.get(index) is not repaired:
                    return
                del store.damaged[index]
                reached = None if self._queued_ms else store.acknowledgeable
            if reached is not None:
                self._raise_synced(reached, None)

    def repair_record(self, ref: RecordRef, payload: bytes) -> None:
        """BLOCKING, any thread. Repairs a damaged record below first_index with its payload."""
        if self.has_kept(ref):
            self._store.kept.repair(ref, payload)
        else:
            self.keep_records([(ref, payload)])
            self._store.kept.forget(ref)

    def note_missing(self, refs: Iterable[RecordRef]) -> None:
        """Names live records below first_index; those without a copy here count as damaged."""
        self._store.kept.note_missing(refs)

    def has_kept(self, ref: RecordRef) -> bool:
        """Whether a kept file has the record, in addition to its entry or instead of it."""
        return self._store.kept.has(ref.index, ref.position)

    def keep_records(self, records: Sequence[tuple[RecordRef, bytes]]) -> None:
        """BLOCKING, in an executor. Durably stores the live records of a damaged entry whose frame
        no peer has any more. Raises DiskFull, Closed."""
        with self._maintenance:
            self._check_open()
            self._store.kept.add(records)

    def forget_record(self, ref: RecordRef) -> None:
        """Drops a damaged record that is not live any more, so that it need not be repaired."""
        self._store.kept.forget(ref)

    # Checkpoints, compaction, snapshots.

    def save_checkpoint(self, index: int, term: int, parts: Iterable[bytes]) -> bool:
        """BLOCKING, in an executor. Stores the state at `index`, once that is durable here.

        Returns False if a snapshot has replaced the log meanwhile and starts above `index`; then
        nothing is stored. Raises Closed, and DiskFull, after which the older checkpoints are still
        there.
        """
        self.wait_synced(index)
        with self._maintenance:
            self._check_open()
            store = self._store
            if index < store.index.first_index - 1:
                return False
            if self._config.sync_interval_ms:
                store.sync_through(index)
            store.checkpoints.save(index, term, parts)
            return True

    @property
    def incarnation(self) -> int:
        """Rises when a snapshot replaces the log; decisions about the old log are void then."""
        return self._incarnation

    def compact(
        self,
        upto_index: int,
        keep: Callable[[int, int], Iterable[RecordRef]],
        *,
        incarnation: int | None = None,
    ) -> int:
        """BLOCKING, in an executor. Recycles whole segments with last index < upto_index.

        `keep(lo, hi)` names the live records of entries [lo, hi); they stay readable. Compaction
        never passes the oldest checkpoint, and does nothing before there are `checkpoint_keep`
        checkpoints: when the newest is damaged, enough must be left to replay. Nothing happens when
        `incarnation`, the one that `keep` was made for, is over. Returns the new first_index.
        Raises DiskFull, Closed, and DamagedEntry when a live record is damaged and needs repair.
        """
        with self._maintenance:
            self._check_open()
            if incarnation not in (None, self.incarnation):
                return self.first_index
            return Cleaner(self._store, self._owner).compact(upto_index, keep)

    def drop_kept(self, live: Callable[[int, int], bool], *, incarnation: int | None = None) -> int:
        """BLOCKING, in an executor. Removes kept files without live records.

        `live(index, position)` tells whether a record below first_index is live. Records of later
        entries stay: they stand in for a damaged frame (`keep_records`) until its segment is
        recycled. Live records of mostly dead files move to a new file. Nothing happens when
        `incarnation`, the one that `live` was made for, is over. Returns how many files were
        removed. Raises DiskFull, DamagedEntry, Closed.
        """
        with self._maintenance:
            self._check_open()
            if incarnation not in (None, self.incarnation):
                return 0
            first_index = self.first_index
            return self._store.kept.drop(
                lambda index, position: index >= first_index or live(index, position)
            )

    def install_snapshot(
        self,
        parts: Iterable[bytes],
        index: int,
        term: int,
        kept_records: Iterable[tuple[RecordRef, bytes]],
        on_switched: Callable[[], None] = _nothing,
    ) -> None:
        """BLOCKING, in an executor. Replaces the whole log by a checkpoint and its live records.

        Until it returns the owner appends and truncates nothing; all that the log held can be read
        until the switch, and `kept_records` may do so. The owner switches in one turn of its loop:
        first_index = index + 1, last_index = synced_index = index, and `on_switched` is called,
        in which the owner replaces its state. A crash leaves all of the old log or all of the new
        one.

        Raises DiskFull, Closed, CorruptSegment when the checkpoint cannot be read back, and
        whatever `kept_records` raises; in these cases the old log stays in place, and what was
        staged is removed. Any other failure, from the switch of the directory on, ends the log:
        which log the disk names is unknown then (`log/current.py`).
        """
        with self._staging:
            self._check_open()
            try:
                self._stage(parts, index, term, kept_records)
                with self._maintenance:
                    self._check_open()
                    shortage = self._store.keeper.shortage
                    if shortage is not None and self._queued_ms:
                        raise shortage  # What waits for room could not be written at the switch.
                    self._current.prepare()
                    self._switch(on_switched)
            except BaseException:
                if self._failure is None:
                    self._current.discard_staged()
                raise

    def _stage(
        self,
        parts: Iterable[bytes],
        index: int,
        term: int,
        kept_records: Iterable[tuple[RecordRef, bytes]],
    ) -> None:
        """Writes the new log beside the old one, which takes checkpoints and is cleaned meanwhile
        like always."""
        staged = self._current.stage()
        kept = KeptStore(self._files, staged, OpenFiles(self._files, 1), self._config.segment_bytes)
        kept.add(kept_records)
        checkpoint = Checkpoints(self._files, staged, 1).save(index, term, parts)
        _ = checkpoint.payload  # Check it now: there is no older checkpoint to fall back to.

    def _switch(self, on_switched: Callable[[], None]) -> None:
        """Makes what is staged the log. Under `_maintenance`, which keeps all others away."""
        old = self._store

        def switch() -> None:
            with self._changed:
                self._store = new
                self._synced_index = new.acknowledgeable
                self._incarnation += 1
                new.writer.active.page_cached = self._page_cached
                new.writer.attach(self._syncs)
                self._cuts.clear()
                self._queued_ms.clear()
                self._changed.notify_all()
            on_switched()

        try:
            self._current.adopt_staged()
            old.stop()
            self._check_open()
            new = self._open_store(self._current.path)
            new.start()
            self._owner.run(switch)
            old.close()
            self._current.remove_others()
        except BaseException as error:
            self._fail(error)
            raise

    def close(self) -> None:
        """BLOCKING. Writes and syncs the appended frames, then releases the directory.

        Frames without room on a full disk cause `on_failure`; they were never reported durable.
        """
        if self._closed:
            return
        with self._staging, self._maintenance:
            with self._changed:
                self._closed = True
                self._changed.notify_all()
            self._store.close()
            if self._syncs is not None:
                self._syncs.close()
            self._lock_file.close()
