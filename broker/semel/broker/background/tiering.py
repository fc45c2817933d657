"""Moves older messages of queues to the object store, a file at a time.

How it works. The master looks at its queues in turn, and does one *step* for each: retention gives
up the oldest files, a range of old messages becomes a new one, or small files become one. Each ends
in a manifest, and the log decides that it counts (a TIERED record, by compare-and-set). Then the
pointer is published at the store, for readers without brokers. A new master first publishes what
the state says again, many queues at the same time: the old one may not have come to it.

Stored batches are read in the pool that reads the log, a piece at a time. Rows are made of them,
and written, on threads that only the store uses. One file is under way at any time.

Errors of the store put all of it off, for a second at first and five minutes at last; errors of one
queue's manifest or files, which are damaged or missing, put off that queue.

Invariants
1. Only what is applied is written, and the mastership is confirmed before: it cannot be lost.
2. What was begun more than `WORK_S` ago is not proposed: what it wrote may be garbage by then.
3. A manifest follows the one that the state names, and is made of that one.

Not here: which messages are old enough (`state/apply/queues.py`), what a file holds
(`semel.tier`), the rules of TIERED (`state/apply/tiered.py`), garbage (`tier_garbage.py`),
what a restore needs besides (`tier_facts.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from semel.broker.background.queues_in_turns import queues_in_turns
from semel.broker.background.tier_facts import TierFacts
from semel.broker.background.tier_reading import read_range
from semel.broker.replica.replica import Replica
from semel.broker.state import ColdRetention, QueueState, TieredApplied
from semel.broker.tiers.place import RETRY_MAX_S, RETRY_MIN_S, TierPlace, check_owner
from semel.broker.tiers.pointers import pointer_of, record_of
from semel.protos.errors import NotMaster, SemelError, StorageError, Throttled
from semel.protos.ids import QueueKey
from semel.tier import (
    Change,
    FileEntry,
    ForeignTier,
    Manifest,
    OffsetRange,
    PageEntry,
    Pointer,
    QueueReader,
    Store,
    StoredRows,
    TierDenied,
    TierFull,
    TierMisconfigured,
    TierPolicy,
    TierUnavailable,
    add_files,
    merge,
    no_manifest,
    plan_merge,
    plan_retention,
    plan_tiering,
    publish,
    put_change,
    put_rows,
    put_topic,
    read_manifest,
    rows_of,
    trim,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

WORK_S: Final = 12 * 3_600.0
"""`GarbagePolicy.work_us`: what takes longer is given up."""
READERS_MAX: Final = 64
"""Manifests that are kept; one of a large queue takes half a megabyte."""
PUBLISHED_AT_ONCE: Final = 16
"""A new master publishes so many pointers at the same time."""
EXTENTS_MAX: Final = 65_536
"""A file has at most so many stored batches."""
_STORE_ERRORS: Final = (
    *(TierUnavailable, TierDenied, TierFull, TierMisconfigured, ForeignTier, OSError),
)


def boot_s() -> float:
    """A clock that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Made(NamedTuple):
    """A change that is written, and not decided yet."""

    change: Change
    pointer: Pointer
    reader: QueueReader
    """A reader of the new manifest."""
    written: int
    """Bytes of its data file; 0 if it has none."""
    rows: int


@dataclass(slots=True)
class _Backoff:
    """When something is tried again after errors."""

    until: float = 0.0
    pause_s: float = 0.0
    said: str = ""
    """The error that the log has a line of."""

    def failed(self, now: float) -> None:
        self.pause_s = min(max(RETRY_MIN_S, 2 * self.pause_s), RETRY_MAX_S)
        self.until = now + self.pause_s


@dataclass(slots=True)
class _Known:
    """What this mastership knows of a queue's manifest."""

    sha256: bytes
    published: bool = False
    settled: bool = True
    """No small files are to be merged: none was added since they were looked at."""
    kept: tuple[object, ...] = ()
    """For what retention was last found to leave all files."""
    kept_until_us: int = 0
    """Until when that stays so, if nothing else changes."""


class Tiering:
    """The background work of one replica; `run` ends only by cancellation."""

    def __init__(
        self, replica: Replica, place: TierPlace, now_s: Callable[[], float] = boot_s
    ) -> None:
        self._replica = replica
        self._place = place
        self._now_s = now_s
        self._store_backoff = _Backoff()
        self._facts = TierFacts(replica, place, now_s)
        self._backoffs: dict[QueueKey, _Backoff] = {}
        self._known: dict[QueueKey, _Known] = {}
        self._topics: set[int] = set()
        """Topics whose names this process has stored."""
        self._term = -1
        self._unpublished = True
        """Pointers of this term's state may not have been published again."""
        self._readers: OrderedDict[str, QueueReader] = OrderedDict()
        """Manifests that were used last, by their digests."""
        self.steps = 0
        """Manifests that were decided since the start."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._replica.config.tier_check_ms / 1000)
            while await self.look():
                pass

    async def look(self) -> bool:
        """One step for each queue that needs one; False if none was done."""
        replica = self._replica
        if not replica.is_master or replica.term != self._term:
            self._known.clear()
            self._facts.clear()
        if not replica.is_master:
            return False
        if replica.term != self._term:
            self._term, self._unpublished = replica.term, True
        if self._unpublished and self._now_s() >= self._store_backoff.until:
            self._unpublished = not await self._publish_all(self._term)
        done = False
        async for queue in queues_in_turns(replica.state, is_tiered):
            if self._now_s() < self._store_backoff.until:
                return False
            backoff = self._backoffs.get(queue.key)
            if backoff is None or self._now_s() >= backoff.until:
                done |= await self._try(queue.key)
        for key in self._known.keys() - replica.state.queues.keys():
            del self._known[key]
            self._backoffs.pop(key, None)
        self._facts.forget_gone()
        return done

    async def _try(self, key: QueueKey) -> bool:
        """One step for a queue; its errors are noted."""
        try:
            done = await self._step(key)
        except NotMaster:
            return False
        except _STORE_ERRORS as error:
            self._place.counters.errors += 1
            self._note(self._store_backoff, "the object store cannot be used", error)
            return False
        except StorageError as error:
            self._place.counters.errors += 1
            self._known.pop(key, None)
            backoff = self._backoffs.setdefault(key, _Backoff())
            self._note(backoff, f"queue {key} cannot be tiered", error)
            return False
        except SemelError as error:  # the log has refused it, or others were quicker
            logger.info("queue not tiered, it is tried again queue=%s error=%s", key, error)
            self._known.pop(key, None)
            self._backoffs.setdefault(key, _Backoff()).failed(self._now_s())
            return False
        if done:
            self._recovered(key)
        return done

    def _note(self, backoff: _Backoff, what: str, error: Exception) -> None:
        backoff.failed(self._now_s())
        if backoff.said != type(error).__name__:
            logger.error("not tiered, it is tried again what=%s error=%s", what, error)
            backoff.said = type(error).__name__

    def _recovered(self, key: QueueKey) -> None:
        if self._store_backoff.said:
            logger.info("the object store takes messages again url=%s", self._place.url)
        self._store_backoff = _Backoff()
        self._backoffs.pop(key, None)

    # --- one step

    async def _step(self, key: QueueKey) -> bool:
        """True if a manifest was decided."""
        began, term = self._now_s(), self._term
        queue = self._queue(key, term)
        if queue is None or (queue.tier.number and not await self._publish(queue)):
            return False
        await self._facts.note(queue)
        made = await self._make(key, term)
        if made is None or self._queue(key, term) is None:
            return False
        if self._now_s() - began > WORK_S:
            logger.warning("files for the tier took too long, they are dropped queue=%s", key)
            return False
        result = await self._replica.submit_control(record_of(made.pointer, made.change.manifest))
        assert isinstance(result, TieredApplied)
        counters = self._place.counters
        counters.written_bytes += made.written
        counters.written_messages += made.rows
        self.steps += 1
        known = self._known.setdefault(key, _Known(b""))
        known.sha256, known.published, known.kept = result.tier.sha256, False, ()
        known.settled = known.settled and not made.written
        self._keep_reader(made.pointer.sha256, made.reader)
        if (queue := self._queue(key, term)) is not None:
            await self._publish(queue)
        await asyncio.sleep(made.written / self._replica.config.tier_bytes_per_second)
        return True

    def _queue(self, key: QueueKey, term: int) -> QueueState | None:
        """The queue as long as this mastership may tier it."""
        replica = self._replica
        queue = replica.state.queues.get(key)
        if not replica.is_master or replica.term != term or queue is None or queue.frozen:
            return None
        return queue

    async def _publish(self, queue: QueueState) -> bool:
        """Stores the copy of the pointer that the state has; False if it has another one since."""
        tier = queue.tier
        known = self._known.get(queue.key)
        if known is None or known.sha256 != tier.sha256:
            known = self._known[queue.key] = _Known(tier.sha256)
        if not known.published:
            await self._facts.note(queue)
            if queue.tier != tier:
                return False
            pointer = pointer_of(self._place.folder, queue)
            assert pointer is not None, "the queue has a manifest"
            cluster_id = self._place.cluster_id

            def work(store: Store) -> None:
                check_owner(store, cluster_id)
                publish(store, pointer)

            await self._place.call(work)
            known.published = True
        return queue.tier == tier

    async def _publish_all(self, term: int) -> bool:
        """Publishes what the state of a new master says, many at the same time. False if the store
        does not take it. What else goes wrong is found again by the queue's next step."""
        tiered = [each.key async for each in queues_in_turns(self._replica.state, _has_manifest)]
        for start in range(0, len(tiered), PUBLISHED_AT_ONCE):
            some = (self._queue(key, term) for key in tiered[start : start + PUBLISHED_AT_ONCE])
            published = (self._publish(queue) for queue in some if queue is not None)
            for error in await asyncio.gather(*published, return_exceptions=True):
                if isinstance(error, _STORE_ERRORS):
                    self._place.counters.errors += 1
                    self._note(self._store_backoff, "the object store cannot be used", error)
                    return False
                if isinstance(error, BaseException) and not isinstance(error, SemelError):
                    raise error
        return True

    async def _make(self, key: QueueKey, term: int) -> Made | None:
        """Writes the next manifest of a queue with what it names; None if nothing is to be done."""
        queue = self._queue(key, term)
        if queue is None:
            return None
        now_us = self._replica.log_time_us()
        if (start := await self._start_of(queue, now_us)) is not None:
            return await self._change(queue, lambda reader, _: trim(reader.manifest, start))
        await asyncio.sleep(0)  # a plan takes a moment, and there may be very many queues
        if (queue := self._queue(key, term)) is None:
            return None
        if (wanted := self._range_of(queue, now_us)) is not None:
            return await self._add(queue, wanted)
        return await self._merge(queue)

    async def _start_of(self, queue: QueueState, now_us: int) -> int | None:
        """Where the manifest is to start, if that gives up files or is behind its end."""
        tier, settings = queue.tier, queue.settings
        if not tier.number:
            return None
        if queue.tier_from > tier.end:  # retention took what never came to the store
            return queue.tier_from
        retention = queue.cold_retention(now_us)
        if retention is None and queue.log_start_offset == tier.start:
            return None
        known = self._known[queue.key]
        grown = queue.bytes * 64 // max(1, settings.retention_bytes)
        looked = (queue.log_start_offset, queue.local_start, settings, grown)
        if known.kept == looked and now_us < known.kept_until_us:
            return None
        start, local_start = queue.log_start_offset, queue.local_start

        def work(reader: QueueReader, _: Store) -> tuple[int | None, int]:
            return _retained(reader, retention or ColdRetention(None, None), start, local_start)

        found, oldest_us = await self._with_reader(queue, work)
        if found is None:
            known.kept = looked
            age_us = settings.retention_ms * 1000 if settings.retention_ms >= 0 else 1 << 62
            known.kept_until_us = oldest_us + age_us
        return found

    def _range_of(self, queue: QueueState, now_us: int) -> OffsetRange | None:
        """The range that is to become the next file."""
        target = queue.tier_candidates(now_us)
        if target is None:
            return None
        config, extents = self._replica.config, queue.extents
        first = extents.find_offset(queue.tier_from)
        old = extents.total if target >= queue.log_end_offset else extents.find_offset(target)
        count = min(EXTENTS_MAX, old - first)
        full = count < old - first
        bases, lengths, times = queue.tier_columns(count)
        policy = TierPolicy(
            tier_after_us=queue.settings.tier_after_ms * 1000,
            wait_us=0 if full else config.tier_wait_ms * 1000,
            file_bytes=config.tier_file_bytes,
        )
        planned = plan_tiering(
            bases,
            lengths,
            times,
            log_end_offset=extents.base_offset(first + count) if full else target,
            tier_end=queue.tier_from,
            now_us=now_us,
            policy=policy,
        )
        return planned[0] if planned else None

    async def _add(self, queue: QueueState, wanted: OffsetRange) -> Made | None:
        replica, folder = self._replica, self._place.folder
        pieces = await read_range(
            replica, queue.key, self._term, wanted, replica.config.tier_bytes_max
        )
        if pieces is None:
            return None

        def work(reader: QueueReader, store: Store) -> Change:
            return _add(store, folder, reader.manifest, pieces)

        return await self._change(queue, work)

    async def _merge(self, queue: QueueState) -> Made | None:
        known = self._known.get(queue.key)
        if known is None or known.settled or not queue.tier.number:
            return None
        policy = TierPolicy(file_bytes=self._replica.config.tier_file_bytes)
        wanted = await self._with_reader(
            queue, lambda reader, _: plan_merge(reader.manifest.files, policy)
        )
        if wanted is None:
            known.settled = True
            return None
        return await self._change(queue, lambda reader, store: merge(reader, store, wanted))

    async def _change(
        self, queue: QueueState, work: Callable[[QueueReader, Store], Change]
    ) -> Made:
        """Writes the manifest that `work` makes of the present one, and the topic's name. Raises
        NotMaster."""
        await self._replica.confirm_read()
        key, topic, place = queue.key, queue.topic, self._place
        names = self._topics

        def all_of(reader: QueueReader, store: Store) -> Made:
            check_owner(store, place.cluster_id)
            if key.topic_id not in names:
                put_topic(store, place.folder, topic, key.topic_id)
                names.add(key.topic_id)
            before = reader.manifest.files[-1:]
            change = work(reader, store)
            last = change.manifest.files[-1:]
            new = last[0] if last and last != before else None
            written, rows = (new.length, new.rows) if new is not None else (0, 0)
            pointer = put_change(store, change)
            return Made(change, pointer, QueueReader(store, change.manifest), written, rows)

        return await self._with_reader(queue, all_of)

    async def _with_reader(self, queue: QueueState, work: Callable[[QueueReader, Store], T]) -> T:
        """What `work` returns for a reader of the queue's manifest, on a thread of the store."""
        folder = self._place.folder
        pointer = pointer_of(folder, queue)
        name = "" if pointer is None else pointer.sha256
        ready = self._readers.get(name)
        empty = no_manifest(folder, queue.topic, queue.key, queue.tier_from)

        def all_of(store: Store) -> tuple[QueueReader, T]:
            reader = ready
            if reader is None:
                manifest = empty if pointer is None else read_manifest(store, pointer)
                reader = QueueReader(store, manifest)
            return reader, work(reader, store)

        reader, found = await self._place.call(all_of)
        if pointer is not None:
            self._keep_reader(name, reader)
        return found

    def _keep_reader(self, name: str, reader: QueueReader) -> None:
        self._readers[name] = reader
        self._readers.move_to_end(name)
        if len(self._readers) > READERS_MAX:
            self._readers.popitem(last=False)


def is_tiered(queue: QueueState) -> bool:
    """The queue's topic is tiered, or something of it is in the object store."""
    return bool(queue.tier.number or queue.settings.tier_after_ms)


def _has_manifest(queue: QueueState) -> bool:
    return queue.tier.number > 0


def tier_lag_us(queue: QueueState, now_us: int) -> int:
    """For how long the oldest message that is to go to the tier has been old enough; 0 if all of
    them are there."""
    if queue.tier_candidates(now_us) is None:
        return 0
    appended_us = queue.first_append_us(queue.tier_from)
    return max(0, now_us - appended_us - queue.settings.tier_after_ms * 1000)


def _add(store: Store, folder: str, manifest: Manifest, pieces: Sequence[StoredRows]) -> Change:
    """BLOCKING. Stores the rows of batches as one file, and returns the change that names it.

    Raises Throttled if they do not follow the manifest: the queue was trimmed meanwhile.
    """
    if manifest.end != pieces[0].base_offset:
        raise Throttled(f"offsets from {manifest.end} on were trimmed meanwhile")
    last = pieces[-1]
    covers = OffsetRange(pieces[0].base_offset, last.base_offset + last.row_end - last.row_start)
    entry = put_rows(store, folder, manifest.queue, rows_of(pieces), covers)
    return add_files(manifest, [entry])


def _retained(
    reader: QueueReader, retention: ColdRetention, start: int, local_start: int
) -> tuple[int | None, int]:
    """BLOCKING. Where the manifest is to start, None if that would give up no file; and the time of
    the newest message of the oldest file, or of its page.

    Files that the log has as well count with the log.
    """
    manifest = reader.manifest
    limits: dict[str, int | None] = {
        "before_us": retention.before_us,
        "bytes_max": retention.bytes_max,
    }
    parts: list[PageEntry | FileEntry] = [*manifest.pages, *manifest.files]
    cold = [part for part in parts if part.end <= local_start]
    found = plan_retention(cold, start=start, **limits)
    page = next((page for page in manifest.pages if page.end > found), None)
    files: Sequence[FileEntry] = manifest.files
    if page is not None:  # some of its files may go as well
        files = reader.files_of(page)
        rest = [each for each in files if found < each.end <= local_start]
        cold = [*rest, *(part for part in cold if part.start >= page.end)]
        found = plan_retention(cold, start=found, **limits)
    edges: list[PageEntry | FileEntry] = [*manifest.pages, *files]
    given_up = any(manifest.start < part.end <= found for part in edges)
    oldest_us = min((part.last_append_us for part in cold if part.end > found), default=1 << 62)
    return (found if given_up else None), oldest_us
