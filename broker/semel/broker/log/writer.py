"""The writer, which puts frames on disk in order, many per sync, and reports what is durable.

How it works. The writer has a thread, which takes everything queued, writes it, and makes it
durable with one fdatasync (group commit: while a sync runs, the next group gathers); then it
reports the last (index, term). Waking that thread and being woken by it costs more than a small
write. So once the writer has `Syncs`, small writes do not use the thread: the owner's thread, the
event loop, writes them to the page cache itself, the kernel syncs them, and the loop hears when
that is done.

Ownership of the segment. The loop has the segment while the thread has performed all steps that it
was given; otherwise the thread has it. `put` and the end of a kernel sync decide by one rule
(`_are_for_the_kernel`): the loop writes a small group for the open segment when nothing but the
sync is due. Everything else goes to the thread: rolls, large groups, hints to the page cache,
delayed syncs, and the remaining steps at the end. While a kernel sync is under way all new steps
gather, so the loop never writes to a disk that is known to hang, and a node with such a disk still
answers. A write that itself blocks in the page cache stops the loop; that is like a short stop of
the process, which its group survives.

Invariants
1. Completions are reported in the order of the queue, each once and with (index, term, era), so
   that an entry that was truncated meanwhile is not mistaken for its successor at the same index.
2. A failed write or sync, on the loop or in the thread, ends the writer and is reported once. It is
   never tried again, because the kernel may have dropped the pages (fsyncgate). For the same reason
   `close` waits for a kernel sync that is under way, and does not sync again.
3. The loop and the thread never have the segment at the same time.
4. Nothing is written to a segment while a sync of it is under way.

Not here: how a segment is written and synced (`log/active.py`), where frames go (`log/index.py`).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeGuard

from semel.broker.log.active import ActiveSegment, SegmentFiles
from semel.broker.log.files import Syncs
from semel.broker.log.index import Roll, Write


class _Stop:
    pass


@dataclass(frozen=True, slots=True)
class _TakenOver:
    """A step that makes the thread wait for a kernel sync and report its group."""

    group: list[Write]
    began: float
    syncs: Syncs


Step = Roll | Write | _TakenOver | _Stop
_STOP: Final = _Stop()
_SMALL_BYTES: Final = 64 << 10
"""The loop copies at most this many bytes to the page cache, which takes 10 µs."""


class Writer:
    """Runs from `start` to `close`; the owner's thread calls `put`."""

    def __init__(
        self,
        keeper: SegmentFiles,
        *,
        durable_index: int,
        sync_interval_ms: int,
        on_durable: Callable[[int, int, int, int], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Both callbacks, `on_durable(index, term, era, number of writes)` and `on_failure(error)`,
        are called where the segment is: in the thread or on the loop."""
        self.active = ActiveSegment(keeper, durable_index)
        self._interval_s = sync_interval_ms / 1000
        self._on_durable = on_durable
        self._on_failure = on_failure
        self._queue: queue.SimpleQueue[Step] = queue.SimpleQueue()
        self.failed = False
        self._hands = threading.RLock()
        # Held while steps change owners, and by the loop while it uses the segment. The thread
        # needs no lock: a step belongs to the thread until the thread counts it as performed.
        self._given = 0
        self._performed = 0
        # Numbers of steps. Only the thread raises the second, once the steps are completely done.
        self._syncs: Syncs | None = None
        self._under_way: list[Write] | None = None
        # The group that the kernel is syncing or that the loop is reporting.
        self._began = 0.0
        self._held = False
        self._gathered: list[Roll | Write] = []
        # Steps that arrived while a group was under way or while writes were held.
        self._thread = threading.Thread(target=self._run, name="semel-log-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def attach(self, syncs: Syncs | None) -> None:
        """Makes small writes bypass the thread from now on, unless their syncs are delayed."""
        with self._hands:
            self._syncs = None if self._interval_s else syncs

    def put(self, step: Roll | Write) -> None:
        with self._hands:
            if self._under_way is not None or self._held:
                self._gathered.append(step)
            elif not self.failed:
                self._go_on([step])

    def hold(self) -> None:
        """Makes steps that are put from now on wait for `release` or `close`."""
        self._held = True

    def release(self) -> None:
        """Lets held steps go on. Without a prior `hold()` this is a no-op."""
        with self._hands:
            self._held = False
            if self._under_way is None and self._gathered and not self.failed:
                self._go_on(self._take_gathered())

    def close(self) -> None:
        """BLOCKING. Writes and syncs everything queued, then ends. Any thread may call it."""
        with self._hands:
            syncs, self._syncs = self._syncs, None
            group, self._under_way = self._under_way, None
            if group is not None:
                assert syncs is not None
                self._give(_TakenOver(group, self._began, syncs))
            for step in self._take_gathered():
                self._give(step)
            self._give(_STOP)
        if self._thread.is_alive():
            self._thread.join()

    # The next methods are called with `_hands` held: on the loop, except from `close`.

    def _give(self, step: Step) -> None:
        """Gives the step to the thread."""
        self._given += 1
        self._queue.put(step)

    def _take_gathered(self) -> list[Roll | Write]:
        steps, self._gathered = self._gathered, []
        return steps

    def _go_on(self, steps: list[Roll | Write]) -> None:
        """Sends the steps to the kernel or to the thread; no group is under way."""
        if self._are_for_the_kernel(steps):
            error = self._begin(steps)
            if error is not None:
                self._fail(error)
        else:
            for step in steps:
                self._give(step)

    def _are_for_the_kernel(self, steps: list[Roll | Write]) -> TypeGuard[list[Write]]:
        """Whether the loop has the segment and should write all of these steps."""
        active = self.active
        if self._syncs is None or self._given != self._performed or active.drop_due:
            return False
        size = 0
        for step in steps:
            if not isinstance(step, Write) or step.segment is not active.segment:
                return False
            size += sum(map(len, step.frames))
        return size <= _SMALL_BYTES

    def _begin(self, group: list[Write]) -> BaseException | None:
        """Writes the group and starts its sync by the kernel; returns the error, if any."""
        active = self.active
        assert self._syncs is not None and active.file is not None
        self._under_way = group
        try:
            active.write(group)
            self._began = time.monotonic()
            self._syncs.start(active.file, partial(self._on_kernel_synced, group))
        except BaseException as error:
            return error
        return None

    def _on_kernel_synced(self, group: list[Write], error: OSError | None) -> None:
        """The loop calls it when the kernel sync of `group` has ended."""
        with self._hands:
            if self._under_way is not group:
                return  # `close` gave the group to the thread.
            try:
                if error is not None:
                    raise error
                self._report_and_go_on(group)
            except BaseException as failure:
                self._fail(failure)

    def _report_and_go_on(self, group: list[Write]) -> None:
        """Starts the next group before it reports this one, so that the disk does not wait. But a
        next group for the thread starts after the report, because the thread must not report it
        first. Steps that the report causes gather meanwhile."""
        self.active.on_synced(self._began)
        if self._gathered and self._are_for_the_kernel(self._gathered):
            error = self._begin(self._gathered)
            self._gathered = []
            self._report(group)
            if error is not None:
                raise error
            return
        self._report(group)
        self._under_way = None
        if self._gathered:
            self._go_on(self._take_gathered())

    def _fail(self, error: BaseException) -> None:
        self.failed = True
        self._under_way = None
        self._gathered.clear()
        self._on_failure(error)

    # In the thread.

    def _run(self) -> None:
        try:
            while True:
                steps = self._gather()
                if self.failed or not self._perform(steps):
                    break
        except BaseException as error:
            self.failed = True
            self._on_failure(error)
        finally:
            self.active.close()

    def _gather(self) -> list[Step]:
        """Takes all queued steps; waits for the first one, or until a delayed sync is due."""
        take = self._queue.get
        due = self._sync_due()
        try:
            steps = [take() if due is None else take(timeout=max(0.0, due - time.monotonic()))]
        except queue.Empty:
            self.active.sync()
            return []
        try:
            while True:
                steps.append(take(block=False))
        except queue.Empty:
            return steps

    def _sync_due(self) -> float | None:
        since = self.active.dirty_since
        return None if since is None else since + self._interval_s

    def _perform(self, steps: list[Step]) -> bool:
        """Performs the steps with as few writes as possible; False when the thread should stop."""
        active = self.active
        writes: list[Write] = []
        reached: list[Write] = []
        stop = False
        for step in steps:
            if isinstance(step, Write):
                writes.append(step)
                reached.append(step)
            elif isinstance(step, Roll):
                active.write(writes)
                writes = []
                active.roll(step)
            elif isinstance(step, _TakenOver):
                self._wait_for_kernel(step)
            else:
                stop = True
        active.write(writes)
        due = self._sync_due()
        if stop or due is None or time.monotonic() >= due:
            active.sync()
        if reached:
            self._report(reached)
        self._performed += len(steps)
        return not stop

    def _wait_for_kernel(self, step: _TakenOver) -> None:
        """Waits for the kernel sync that the loop had started before `close`."""
        error = step.syncs.wait()
        if error is not None:
            raise error
        self.active.on_synced(step.began)
        self._report(step.group)

    def _report(self, group: list[Write]) -> None:
        """Reports the group; its writes are durable, or need not be yet (`sync_interval_ms`)."""
        last = group[-1]
        self._on_durable(last.last_index, last.terms[-1], last.era, len(group))
