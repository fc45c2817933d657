"""What a replica does beside serving: checkpoints, retention, expiry, cleaning.

How it works. Decisions about shared state are the master's and go through the log: TRIM, the
expiry of producers, the release of locks. What concerns bytes on this node's disk is its own: when
to write a checkpoint, and when to recycle the oldest segments.

Cleaning. Segments are cleaned oldest first, up to the newest checkpoint and leaving
`retained_log_bytes` for slaves that catch up. Records that are still live are copied to a kept
file by the log. It pays only when something is dead: nothing is cleaned while more than three
quarters of what is stored is live.

Not here: the rules (`state/`), the files (`log/`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from semel.broker.log import RecordRef
from semel.broker.membership.changes import MembershipChanges
from semel.broker.replica.clock import monotonic_ms
from semel.broker.replica.replica import Replica
from semel.broker.snapshots.install import Checkpoints
from semel.protos import compat
from semel.protos.errors import DiskFull, NotMaster, SemelError
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import control_pb2

logger = logging.getLogger(__name__)

_LOCK_CHECK_S = 0.1
_CHECKPOINT_CHECK_S = 0.5
_LOG_SHARE = 32
"""So many times the size of a checkpoint the log has grown by before the next one."""
_EXPIRY_CHECK_MIN_S = 0.05
_EXPIRY_CHECK_MAX_S = 60.0
_ROOM_CHECK_S = 0.1
_YIELD_PAUSE_S = 2.0
_LIVE_SHARE_MAX = 0.75


class Maintenance:
    """The background tasks of one replica; `run` ends only by cancellation."""

    def __init__(
        self, replica: Replica, checkpoints: Checkpoints, changes: MembershipChanges
    ) -> None:
        self._replica = replica
        self._changes = changes
        self._checkpoints = checkpoints
        self._checkpoint_log_bytes = 0

    async def run(self) -> None:
        async with compat.TaskGroup() as tasks:
            tasks.create_task(self._release_locks())
            tasks.create_task(self._write_checkpoints())
            tasks.create_task(self._retain_and_clean())
            tasks.create_task(self._expire_producers())
            tasks.create_task(self._yield_when_full())

    async def _yield_when_full(self) -> None:
        """A master without room for another segment gives its place to a slave that has some.

        The newest segment still has room when that happens, so nobody is refused meanwhile. When no
        slave has room it stays, refuses what does not fit, and serves what is stored.
        """
        replica = self._replica
        while True:
            await asyncio.sleep(_ROOM_CHECK_S)
            full = replica.disk_full
            replica.set_fit("its disk is full", not full or len(replica.peers.addresses) == 1)
            if not full or not replica.is_master:
                continue
            try:
                master, _ = await self._changes.transfer(None)
                logger.warning("disk full, mastership handed over to=%d", master)
            except SemelError as error:
                logger.warning("disk full, nobody takes mastership: %s", error)
                await asyncio.sleep(_YIELD_PAUSE_S)

    async def _release_locks(self) -> None:
        """Proposes the release of locks whose time is over; the master's clock alone judges."""
        while True:
            await asyncio.sleep(_LOCK_CHECK_S)
            clock = self._replica.lock_clock
            if clock is None or self._replica.driver.loop_stopped():
                continue  # after a stop everybody gets fresh time first, by the next tick
            for group, queue_key, token in clock.expired(monotonic_ms()):
                logger.info("lock expired group=%s queue=%s token=%d", group, queue_key, token)
                release = control_pb2.ReleaseLock(
                    group=group, queue=queue_ref(queue_key), token=token
                )
                await self._propose(control_pb2.ControlRecord(release_lock=release))

    async def _write_checkpoints(self) -> None:
        """After so many entries or bytes; counted from the checkpoint before. A large state is
        written more rarely, so that it never takes more than a small part of what the log does."""
        config = self._replica.config
        while True:
            await asyncio.sleep(_CHECKPOINT_CHECK_S)
            replica = self._replica
            behind = replica.state.applied_index - self._checkpoints.index
            appended = replica.log.stats().appended_bytes
            due_bytes = max(config.checkpoint_bytes, _LOG_SHARE * self._checkpoints.length)
            if (
                behind >= config.checkpoint_records
                or appended - self._checkpoint_log_bytes >= due_bytes
            ):
                self._checkpoint_log_bytes = appended
                await self.checkpoint()

    async def checkpoint(self) -> None:
        """Writes one; a full disk is reported and tried again later."""
        try:
            await self._checkpoints.write()
        except (DiskFull, OSError) as error:
            logger.error("checkpoint not written, it is tried again error=%s", error)

    async def _retain_and_clean(self) -> None:
        interval = self._replica.config.retention_check_ms / 1000
        while True:
            await asyncio.sleep(interval)
            if self._replica.is_master:
                await self._trim_queues()
            try:
                await self._clean()
            except (SemelError, OSError) as error:
                logger.error("log not cleaned, it is tried again error=%s", error)

    async def _trim_queues(self) -> None:
        """One TRIM for each queue that is too old or too large."""
        now_us = self._replica.log_time_us()
        for key, queue in list(self._replica.state.queues.items()):
            target = queue.retention_target(now_us)
            if target is None:
                continue
            trim = control_pb2.Trim(queue=queue_ref(key), log_start_offset=target)
            await self._propose(control_pb2.ControlRecord(trim=trim))

    async def _clean(self) -> None:
        """Recycles the oldest segments when enough of the log is dead."""
        replica = self._replica
        log, state, incarnation = replica.log, replica.state, replica.log.incarnation
        if log.first_index > state.applied_index + 1:
            return  # a snapshot has replaced the log, and the state is about to follow
        stats = log.stats()
        stored = stats.segment_bytes + stats.kept_bytes
        live = state.live_bytes
        spare = replica.config.retained_log_bytes + replica.config.log.segment_bytes
        if stored - live < spare or live > stored * _LIVE_SHARE_MAX:
            return
        upto = self._retained_from()
        if upto <= log.first_index:
            return
        if self._checkpoints.index < upto or not log.compact_limit:
            # Also where the one that there is would do: the log is cleaned only with a second one,
            # which a group that falls silent would never write.
            await self.checkpoint()
        upto = min(upto, self._checkpoints.index + 1)
        # Taken on the loop: the cleaner runs in a thread and must not look at changing state. A
        # record that is trimmed meanwhile is copied for nothing, and dropped the next time. What
        # is live here says nothing about the log that a snapshot may put in its place meanwhile.
        lo = log.first_index
        live_refs = [RecordRef(*record) for record in state.live_records(lo, upto)]
        live_kept = {record[:2] for record in state.live_records(0, lo)}

        def keep(first: int, end: int) -> Iterable[RecordRef]:
            return (ref for ref in live_refs if first <= ref.index < end)

        def work() -> int:
            first_index = log.compact(upto, keep, incarnation=incarnation)
            fresh = {(ref.index, ref.position) for ref in live_refs}
            alive = live_kept | fresh
            log.drop_kept(lambda *place: place in alive, incarnation=incarnation)
            return first_index

        first_index = await asyncio.get_running_loop().run_in_executor(replica.readers, work)
        logger.info("log cleaned first_index=%d kept_records=%d", first_index, len(live_refs))

    def _retained_from(self) -> int:
        """First index of the newest `retained_log_bytes`."""
        log = self._replica.log
        lo = log.first_index
        hi = end = self._replica.state.applied_index + 1
        room = self._replica.config.retained_log_bytes
        while lo < hi:  # bisection for the first index from which all the rest fits
            middle = (lo + hi) // 2
            if log.fit(middle, end, room) >= end:
                hi = middle
            else:
                lo = middle + 1
        return lo

    async def _expire_producers(self) -> None:
        """Ends rows that were idle for too long, or are too many, queue by queue."""
        quarter_s = self._replica.config.producer_idle_ms / 4_000
        pause_s = min(max(quarter_s, _EXPIRY_CHECK_MIN_S), _EXPIRY_CHECK_MAX_S)
        while True:
            await asyncio.sleep(pause_s)
            for key in list(self._replica.state.queues):
                self._replica.expire_producers(key)

    async def _propose(self, record: control_pb2.ControlRecord) -> None:
        try:
            await self._replica.submit_control(record)
        except NotMaster:
            pass  # the next master does it
        except SemelError as error:
            logger.warning("not done, it is tried again record=%s error=%s", record, error)
