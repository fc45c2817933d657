"""Reads of offsets that only the object store has.

How it works. The queue's pointer leads to its manifest, that to a page or a file, the file's end to
a row group, and its rows become a *group* of cold batches. Manifests, pages and ends of files are
kept by their digests, groups by queue and offset (`cold_groups.py`). A read is asked for and waited
for, and then takes what it finds. So a reader of many queues goes on with those that are there.

Who begins with the first offset of a group will want the next one, which is read meanwhile.

A few calls to the store go on at once, and apart from them a few that look something up, of which
no more than `LOOK_UPS_MAX` wait. All who want one offset wait for the same read, and so do
those who want others of its row group. A read that takes too long counts as failed; it goes on, and
what it brings serves the next one who asks. For a moment after a failure everybody who asks for the
same offset gets the same error, and the store is left alone.

Invariants
1. Whatever is found was checked against the pointer that the replicated state had at the time.
2. At most `CALLS_MAX` calls that read messages are under way, and `LOOK_UP_CALLS_MAX` others.

Not here: how clients get it (`server/queue_reader.py`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa

from semel.broker.replica.clock import monotonic_ms
from semel.broker.tiers.cold_groups import ColdGroup, ColdGroups
from semel.broker.tiers.place import TierPlace
from semel.protos import compat
from semel.protos.errors import CorruptBatch, SemelError, StorageError, Throttled, Unavailable
from semel.protos.ids import QueueKey
from semel.tier import (
    SCHEMA,
    FileEntry,
    FileFooter,
    ObjectMissing,
    OffsetRange,
    Pointer,
    QueueReader,
    Store,
    Wanted,
    cold_batches,
    owner_of,
    read_manifest,
)

logger = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")

CALLS_MAX: Final = 4
LOOK_UP_CALLS_MAX: Final = 2
LOOK_UPS_MAX: Final = 32
MANIFESTS_MAX: Final = 64
PAGES_MAX: Final = 64
"""A page has up to 256 files, which take about a third of a megabyte."""
FOOTERS_MAX: Final = 256
FAILED_MS: Final = 1_000
"""So long a failure is the answer to whoever asks."""
_FAILURES_MAX: Final = 4_096


class _Newest(MutableMapping[K, V]):
    """A mapping that keeps what was used last. Any thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def __getitem__(self, key: K) -> V:
        with self._lock:
            self._found.move_to_end(key)
            return self._found[key]

    def __setitem__(self, key: K, value: V) -> None:
        with self._lock:
            self._found[key] = value
            self._found.move_to_end(key)
            if len(self._found) > self._most:
                self._found.popitem(last=False)

    def __delitem__(self, key: K) -> None:
        with self._lock:
            del self._found[key]

    def __iter__(self) -> Iterator[K]:
        with self._lock:
            return iter(list(self._found))

    def __len__(self) -> int:
        return len(self._found)


class _Place(NamedTuple):
    """A row group."""

    reader: QueueReader
    footer: FileFooter
    number: int

    @property
    def name(self) -> tuple[str, int]:
        return self.footer.entry.sha256, self.number

    @property
    def covers(self) -> OffsetRange:
        return OffsetRange(self.footer.starts[self.number], self.footer.starts[self.number + 1])


class ColdReads:
    """Reads of one node. All of it runs on the loop, but for the calls to the store."""

    def __init__(self, place: TierPlace, *, cache_bytes: int, timeout_s: float) -> None:
        """Keeps about `cache_bytes` of batches. A read is waited for `timeout_s` seconds."""
        self._place = place
        self._timeout_s = timeout_s
        self._groups = ColdGroups(cache_bytes)
        self._calls = asyncio.Semaphore(CALLS_MAX)
        self._look_up_calls = asyncio.Semaphore(LOOK_UP_CALLS_MAX)
        self._look_ups = 0
        """Those that wait or are under way."""
        self._reads: dict[tuple[QueueKey, int], asyncio.Task[None]] = {}
        """Reads that are under way, by what was asked for."""
        self._waits: dict[tuple[QueueKey, int], asyncio.Task[None]] = {}
        self._loads: dict[tuple[str, int], asyncio.Task[None]] = {}
        """Row groups that are being read."""
        self._failures: dict[tuple[QueueKey, int], tuple[SemelError, int]] = {}
        """The error, and until when it is the answer."""
        self._readers: _Newest[str, QueueReader] = _Newest(MANIFESTS_MAX)
        self._pages: _Newest[str, tuple[FileEntry, ...]] = _Newest(PAGES_MAX)
        self._footers: _Newest[str, FileFooter] = _Newest(FOOTERS_MAX)

    def find(self, key: QueueKey, offset: int) -> ColdGroup | None:
        """The batches that have an offset of a queue; None if they are not here.

        Raises Unavailable and CorruptBatch for an offset that could not be read just now.
        """
        if (group := self._groups.find(key, offset)) is not None:
            return group
        if (failure := self._failures.get((key, offset))) is not None:
            if monotonic_ms() < failure[1]:
                raise failure[0]
            del self._failures[key, offset]
        return None

    def fetch(self, pointer: Pointer, offset: int) -> asyncio.Future[None]:
        """Done once `find` has the offset, or an error; it never fails. Do not cancel it: others
        may wait for it."""
        wanted = pointer.queue, offset
        if (waits := self._waits.get(wanted)) is None:
            waits = self._waits[wanted] = asyncio.create_task(self._wait(pointer, offset))
            waits.add_done_callback(lambda _: self._waits.pop(wanted, None))
        return waits

    def fetch_ahead(self, pointer: Pointer, offset: int) -> None:
        """Begins to read what a reader that goes on will want next, unless it is here, or could not
        be read just now."""
        try:
            if self.find(pointer.queue, offset) is None:
                self.fetch(pointer, offset)
        except SemelError:
            return

    async def read(self, pointer: Pointer, offset: int) -> ColdGroup:
        """The batches that have an offset. Raises Unavailable, CorruptBatch."""
        while (group := self.find(pointer.queue, offset)) is None:
            await asyncio.shield(self.fetch(pointer, offset))
        return group

    async def offset_at(self, pointer: Pointer, time_us: int) -> int:
        """The first offset of the tier that was appended at `time_us` or later, or the tier's end.

        Raises Unavailable, CorruptBatch.
        """
        return await self._with_reader(pointer, lambda reader: reader.offset_at(time_us))

    async def append_time_us(self, pointer: Pointer, offset: int) -> int:
        """The time at which the message at an offset was appended; 0 if it is gone.

        Raises Unavailable, CorruptBatch.
        """

        def work(reader: QueueReader) -> int:
            wanted = Wanted(start=offset, end=offset + 1)
            for rows in reader.rows(wanted, ("append_time",)):
                return int(rows.column("append_time").cast(pa.int64())[0].as_py())
            return 0

        return await self._with_reader(pointer, work)

    async def _with_reader(self, pointer: Pointer, work: Callable[[QueueReader], V]) -> V:
        """What `work` finds out with a reader of the queue; it runs on a thread.

        Raises Throttled, Unavailable, CorruptBatch.
        """
        if self._look_ups >= LOOK_UPS_MAX:
            raise Throttled(
                f"{self._look_ups} look-ups in the object store are under way here: come back",
                retry_after_ms=FAILED_MS,
            )
        self._look_ups += 1
        try:
            async with compat.timeout(self._timeout_s), self._look_up_calls:
                return await self._place.call(lambda store: work(self._reader(store, pointer)))
        except TimeoutError:
            raise self._too_slow() from None
        except SemelError as error:
            self._place.counters.errors += 1
            raise told(error) from error
        finally:
            self._look_ups -= 1

    async def close(self) -> None:
        """Ends all reads."""
        tasks = [*self._waits.values(), *self._reads.values(), *self._loads.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait(self, pointer: Pointer, offset: int) -> None:
        wanted = pointer.queue, offset
        if (reads := self._reads.get(wanted)) is None:
            reads = self._reads[wanted] = asyncio.create_task(self._read(pointer, offset))
            reads.add_done_callback(lambda _: self._reads.pop(wanted, None))
        done, _ = await asyncio.wait((reads,), timeout=self._timeout_s)
        if not done:
            self._fail(wanted, self._too_slow())

    async def _read(self, pointer: Pointer, offset: int) -> None:
        """Reads the row group of an offset, or notes why it cannot be read."""
        try:
            place = await self._call(lambda store: self._locate(store, pointer, offset))
            load = self._loads.get(place.name)
            if load is None and self._groups.find(pointer.queue, offset) is None:
                load = asyncio.create_task(self._load(pointer.queue, place))
                self._loads[place.name] = load
                load.add_done_callback(lambda _: self._loads.pop(place.name, None))
            if load is not None:
                await asyncio.shield(load)
        except SemelError as error:
            self._place.counters.errors += 1
            self._fail((pointer.queue, offset), told(await self._reason(error)))
        except Exception as error:
            logger.exception("an older message cannot be read queue=%s", pointer.queue)
            self._place.counters.errors += 1
            self._fail((pointer.queue, offset), Unavailable(f"{type(error).__name__}: {error}"))

    async def _reason(self, error: SemelError) -> SemelError:
        """The error; that of the place, if all of it is gone and not one object."""
        if isinstance(error, ObjectMissing):
            try:
                await self._call(owner_of)
            except SemelError as whole:
                return whole
        return error

    async def _load(self, key: QueueKey, place: _Place) -> None:
        group = await self._call(lambda _: _read_group(key, place))
        self._groups.put(key, group)
        self._place.counters.cold_reads += 1
        self._place.counters.cold_bytes += group.size

    @property
    def folder(self) -> str:
        """See `TierPlace.folder`."""
        return self._place.folder

    async def _call(self, work: Callable[[Store], V]) -> V:
        async with self._calls:
            return await self._place.call(work)

    def _locate(self, store: Store, pointer: Pointer, offset: int) -> _Place:
        """BLOCKING."""
        reader = self._reader(store, pointer)
        file = reader.file_at(offset)
        footer = self._footers.get(file.sha256)
        if footer is None:
            footer = self._footers[file.sha256] = reader.footer(file)
        return _Place(reader, footer, footer.group_at(offset))

    def _reader(self, store: Store, pointer: Pointer) -> QueueReader:
        """BLOCKING."""
        reader = self._readers.get(pointer.sha256)
        if reader is None:
            reader = QueueReader(store, read_manifest(store, pointer), self._pages)
            self._readers[pointer.sha256] = reader
        return reader

    def _fail(self, wanted: tuple[QueueKey, int], error: SemelError) -> None:
        if len(self._failures) >= _FAILURES_MAX:
            self._failures.clear()
        if isinstance(error, StorageError):
            logger.error("an older message cannot be read queue=%s error=%s", wanted[0], error)
        self._failures[wanted] = error, monotonic_ms() + FAILED_MS

    def _too_slow(self) -> Unavailable:
        self._place.counters.errors += 1
        return Unavailable(
            f"the object store at {self._place.url} did not answer within {self._timeout_s:g} s;"
            " newer messages are served"
        )


def _read_group(key: QueueKey, place: _Place) -> ColdGroup:
    """BLOCKING. The batches of a row group. Raises ObjectMissing, CorruptTier, TierUnavailable."""
    covers = place.covers
    wanted = Wanted(start=covers.start, end=covers.end)
    rows = place.reader.group(place.footer, place.number, SCHEMA.names, wanted)
    return ColdGroup(covers.start, covers.end, cold_batches(key, rows, covers))


def told(error: SemelError) -> SemelError:
    """What a client is told of an error of the tier: it comes again, or the bytes are bad."""
    if isinstance(error, StorageError):
        return CorruptBatch(f"older messages cannot be read from the object store: {error}")
    return Unavailable(
        f"older messages cannot be read from the object store now: {error}; newer ones are served"
    )
