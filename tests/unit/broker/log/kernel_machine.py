"""Keeper, file and kernel of one writer, in memory, which notice what must not happen.

A write while somebody else is at the file or a sync is under way; a report that is early, twice or
out of order; an ID that calls durable what is not, or does not know of what is; anything after a
failure. The test says when the kernel is done, and when the loop,
which is the test's thread, hears of it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence

from semel.broker.log.files import File
from semel.broker.log.index import Retired, Write
from semel.broker.log.kernel_sync import OnDone
from semel.broker.log.segment import ID_BYTES, Segment, decode_id
from semel.broker.log.writer import Writer
from tests.kit.waiting import until
from tests.unit.broker.log.indexes import AT, index_of

SMALL, BIG = 96, 2_000
EIO = OSError(5, "input/output error")


class Machine:
    """Keeper, file and kernel of one writer, which runs."""

    def __init__(self, *, interval_ms: int = 0, kernel: bool = True) -> None:
        self.index = index_of()
        self.wrong: list[str] = []
        self.reports: list[tuple[int, int, int, int]] = []
        self.failures: list[BaseException] = []
        self.by_loop = 0
        """Groups that went to the kernel."""
        self.by_thread = 0
        """Syncs that the thread did itself."""
        self.fail_write = self.fail_start = self.fail_sync = False
        self.slowest = 1 << 30
        """An ID must know of what was durable so many entries before it."""
        self.pause_s = 0.0
        """How long each operation takes."""
        self._writes: deque[Write] = deque()
        # Put, and not reported.
        self._segment: Segment | None = None
        self._dirty: list[tuple[int, int]] = []
        self._durable: set[tuple[int, int]] = set()
        # (index, term)
        self._alone = threading.Lock()
        self._on_done: OnDone | None = None
        self._syncing = False
        self._error: OSError | None = None
        self._completing = threading.Lock()
        self.closed = 0
        self.dropped = 0
        self.era = 0
        self.term = 1
        self._loop = threading.get_ident()
        self.writer = Writer(
            self,
            durable_index=0,
            sync_interval_ms=interval_ms,
            on_durable=self._on_durable,
            on_failure=self.failures.append,
        )
        if kernel:
            self.writer.attach(self)
        self.writer.start()

    # What a test does, in the owner's thread.

    def append(self, *lengths: int) -> None:
        frames = [bytes(length) for length in lengths]
        for step in self.index.place(frames, [self.term] * len(frames), self.era):
            if isinstance(step, Write):
                self._writes.append(step)
            self.writer.put(step)

    def truncate(self) -> None:
        """Drops the newest entry, if there is one."""
        if self.index.last_index >= max(1, self.index.first_index):
            self.index.truncate(self.index.last_index)
            self.era += 1
            self.term += 1

    def idle(self) -> None:
        """Returns when the thread has performed all that it was given."""
        until(lambda: self.writer.failed or self.writer._given == self.writer._performed)

    @property
    def under_way(self) -> bool:
        return self._on_done is not None

    def complete(self) -> None:
        """The kernel is done, and nobody knows."""
        with self._completing:
            if self._syncing:
                self._error = EIO if self.fail_sync else None
                if self._error is None:
                    self._durable.update(self._dirty)
                    self._dirty.clear()
                self._syncing = False

    def tell(self) -> None:
        """The loop hears it."""
        self.complete()
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done(self._error)

    def hold(self) -> None:
        self.writer.hold()

    def release(self) -> None:
        self.writer.release()

    def settle(self) -> None:
        """All that was put is reported, or has failed."""
        self.release()
        while self.under_way and not self.failures:
            self.tell()
            self.idle()
        self.idle()

    def end(self) -> None:
        self.writer.close()
        self.tell()  # late

    # The keeper.

    def activate(self, segment: Segment) -> File:
        with self._operation("activate"):
            self._segment = segment
        return self  # type: ignore[return-value]

    def retire(self, file: File | None, retired: Retired | None, void: tuple[Segment, ...]) -> None:
        if self._dirty:
            self.wrong.append("a segment is left that is not synced")

    # The file.

    @contextlib.contextmanager
    def _operation(self, what: str) -> Iterator[None]:
        if not self._alone.acquire(blocking=False):
            self.wrong.append(f"{what} beside another operation")
            yield
            return
        try:
            if self._syncing:
                self.wrong.append(f"{what} while the kernel syncs")
            if self.failures:
                self.wrong.append(f"{what} after a failure")
            if self.pause_s:
                time.sleep(self.pause_s)
            yield
        finally:
            self._alone.release()

    def write(self, parts: Sequence[bytes], offset: int) -> None:
        with self._operation("write"):
            if self.fail_write:
                raise EIO
            if offset >= AT:
                return
            assert self._segment is not None
            ids = b"".join(parts)
            for slot in range(len(ids) // ID_BYTES):
                found = decode_id(ids, slot, self._segment.seed)
                assert found is not None
                durable = {index for index, _ in self._durable}
                if not durable.issuperset(range(1, found.durable_before + 1)):
                    self.wrong.append("an ID calls durable what is not")
                if not found.index - self.slowest <= found.durable_before < found.index:
                    self.wrong.append("an ID forgets what is durable")
                self._dirty.append((found.index, found.term))

    def sync(self) -> None:
        with self._operation("sync"):
            if self.fail_sync:
                raise EIO
            self.by_thread += 1
            self._durable.update(self._dirty)
            self._dirty.clear()

    def close(self) -> None:
        self.closed += 1

    def drop_cached(self, offset: int, length: int) -> None:
        self.dropped += length

    # The kernel (`Syncs`).

    def start(self, file: File, on_done: OnDone) -> None:
        with self._operation("start of a sync"):
            if threading.get_ident() != self._loop:
                self.wrong.append("a thread asks the kernel")
            if self.fail_start:
                raise EIO
            self.by_loop += 1
            self._on_done, self._syncing = on_done, True

    def wait(self) -> OSError | None:
        self.complete()
        return self._error

    # What the writer tells.

    def _on_durable(self, *report: int) -> None:
        if self.failures:
            self.wrong.append("a report after a failure")
        self.reports.append(report)  # type: ignore[arg-type]
        index, term, era, count = report
        if count > len(self._writes):
            self.wrong.append("a report too many")
            return
        group = [self._writes.popleft() for _ in range(count)]
        last = group[-1]
        if (last.last_index, last.terms[-1], last.era) != (index, term, era):
            self.wrong.append("a report out of order")
        for write in group:
            for at, of in enumerate(write.terms, write.first_index):
                if (at, of) not in self._durable:
                    self.wrong.append("reported, and not durable")

    @property
    def unreported(self) -> int:
        return len(self._writes)


@contextlib.contextmanager
def running(*, open_segment: bool = True, **options: object) -> Iterator[Machine]:
    """A machine whose first segment takes writes; in the end nothing is wrong."""
    machine = Machine(**options)  # type: ignore[arg-type]
    if open_segment:
        machine.hold()  # a thread that has rolled before the write is put leaves it to the kernel
        machine.append(SMALL)
        machine.settle()
    try:
        yield machine
    finally:
        machine.end()
    assert machine.wrong == []
    assert machine.unreported == 0 or machine.failures
