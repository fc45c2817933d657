"""Bugs to plant: each breaks the product in one place, and the simulator must find it.

How it works. A plant exchanges one method for the time of a run. Most are bugs that other systems
shipped; the names say what is wrong. Those of the Raft core stand in `tests/sim/planted.py` and are
planted here under the whole node.

Not here: how many seeds each may take (`test_world.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

from semel.broker.background.transaction_work import Dropped, TransactionWork
from semel.broker.control_plane.route_cache import RoutesCopy
from semel.broker.log import checkpoint as checkpoint_module
from semel.broker.log import files as files_module
from semel.broker.log import hard_state as hard_state_module
from semel.broker.log import kernel_sync as kernel_sync_module
from semel.broker.log import recovery as recovery_module
from semel.broker.log.active import ActiveSegment
from semel.broker.log.cleaner import Cleaner
from semel.broker.log.reader import Reader as LogReader
from semel.broker.log.writer import Writer
from semel.broker.raft import RaftCore
from semel.broker.replica import replica as replica_module
from semel.broker.replica.driver import Driver
from semel.broker.replica.log_time import LogTime
from semel.broker.replica.mastership import Mastership
from semel.broker.replica.proposer import Proposer
from semel.broker.replica.replica import Replica
from semel.broker.server import moves_service
from semel.broker.snapshots.install import CatchUp
from semel.broker.state import make_slice
from semel.broker.state.apply.codec import Reader
from semel.broker.state.apply.coordination import Coordination
from semel.broker.state.apply.delayed_queue import DelayedQueue
from semel.broker.state.apply.delays import Delays
from semel.broker.state.apply.due_seconds import DueSeconds
from semel.broker.state.apply.locks import ConsumerGroups
from semel.broker.state.apply.producers import SequenceTable
from semel.broker.state.apply.rows import ENTRY, Row
from semel.client.admin import resets
from semel.client.core import sequences as sequences_module
from semel.client.transport.shared_memory import Region, Slot
from semel.controller.epoch import UNKNOWN, ControllerEpoch
from semel.controller.store import Transaction
from semel.protos.errors import SemelError
from semel.protos.v1 import broker_pb2, control_pb2
from tests.world.protocol_clients import Doubter

Plant = Callable[[], Any]


class _Unsynced:
    """A file whose owner forgets to sync it."""

    def __init__(self, file: Any) -> None:
        self.write, self.read, self.close = file.write, file.read, file.close

    def sync(self) -> None:
        pass


def acknowledges_before_sync() -> Any:
    def sync(self: Any) -> None:
        self.dirty_since = None
        self.durable_index = self.written_index

    return patch.object(ActiveSegment, "sync", sync)


@contextmanager
def acknowledges_before_the_kernel_synced() -> Iterator[None]:
    begin, report = Writer._begin, Writer._report
    told: list[Any] = [None]

    def _begin(self: Any, group: Any) -> Any:
        self._report(group)
        told[0] = group
        return begin(self, group)

    def _report(self: Any, group: Any) -> None:
        if group is not told[0]:
            report(self, group)

    with patch.object(Writer, "_begin", _begin), patch.object(Writer, "_report", _report):
        yield


def forgets_to_save_its_vote() -> Any:
    def save(self: Any, term: int, voted_for: Any) -> None:
        if self._last is None:
            self.load()
        self._last = ((self._last[0] + 1 if self._last else 0), term, voted_for)

    return patch.object(hard_state_module.HardStateFile, "save", save)


def forgets_to_sync_its_vote() -> Any:
    original = hard_state_module.HardStateFile._write

    def _write(self: Any, file: Any, state: Any) -> None:
        original(self, _Unsynced(file), state)  # type: ignore[arg-type]

    return patch.object(hard_state_module.HardStateFile, "_write", _write)


def takes_the_page_cache_for_the_disk() -> Any:
    """Entries whose sync has failed count after a restart that syncs them again (ATC'20)."""
    return patch.object(recovery_module._Walk, "_write_again", lambda *_: None)


def writes_the_rest_at_the_start() -> Any:
    """The rest of a write that the kernel did in part lands at the start of that write."""

    def _write_rest(self: Any, data: bytes, written: int, offset: int) -> None:
        view = memoryview(data)
        while written < len(data):
            written += files_module.os.pwrite(  # type: ignore[attr-defined]
                self.descriptor, view[written:], offset
            )

    return patch.object(files_module.OsFile, "_write_rest", _write_rest)


def takes_a_failed_sync_for_one_that_is_done() -> Any:
    """The library tells an errno as a number without a sign."""

    def _on_result(self: Any, result: int) -> None:
        self._result = result & 0x7FFF_FFFF_FFFF_FFFF

    return patch.object(kernel_sync_module.KernelSyncs, "_on_result", _on_result)


def hears_of_a_sync_when_it_is_woken_for_nothing() -> Any:
    def _on_readable(self: Any) -> None:
        self._reap()
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            self._result = self._result or 0
            on_done(self._error())

    return patch.object(kernel_sync_module.KernelSyncs, "_on_readable", _on_readable)


@contextmanager
def counts_the_group_that_has_just_begun() -> Iterator[None]:
    """The next group is written before it is noted that the last one is durable."""
    original = Writer._report_and_go_on

    def _report_and_go_on(self: Any, group: Any) -> None:
        active = self.active
        begin, on_synced = self._begin, active.on_synced
        due: list[float] = []

        def late_begin(steps: Any) -> Any:
            error = begin(steps)
            on_synced(due.pop())
            return error

        active.on_synced, self._begin = due.append, late_begin
        try:
            original(self, group)
        finally:
            del active.on_synced, self._begin
            if due:
                on_synced(due.pop())

    with patch.object(Writer, "_report_and_go_on", _report_and_go_on):
        yield


def believes_a_vote_that_it_finds() -> Any:
    """The process that had written it may have been killed before its sync."""
    original = hard_state_module.HardStateFile.load

    def load(self: Any) -> Any:
        with patch.object(hard_state_module.HardStateFile, "_write", lambda *_: None):
            return original(self)

    return patch.object(hard_state_module.HardStateFile, "load", load)


def lets_state_follow_a_snapshot_late() -> Any:
    """The log has switched, and the old state looks there for what it has yet to apply."""
    original = CatchUp._on_switched

    def _on_switched(self: Any, state: Any, mark: Any) -> None:
        asyncio.get_running_loop().call_later(0.15, original, self, state, mark)

    return patch.object(CatchUp, "_on_switched", _on_switched)


def admits_without_room_for_its_new_term() -> Any:
    """A master that was deposed, and cannot store so, keeps what makes it answer clients."""
    original = Driver._on_role_changed

    def _on_role_changed(self: Any, ready: Any) -> None:
        if self._term_and_vote.unsaved is None:
            original(self, ready)

    return patch.object(Driver, "_on_role_changed", _on_role_changed)


def acknowledges_before_commit() -> Any:
    """The sequence counts before the message does (Pulsar #5218, NATS #6415)."""
    original = Proposer._admit_batch

    def _admit_batch(self: Any, item: Any, time_us: int, term: int, now_ms: int) -> Any:
        parts = original(self, item, time_us, term, now_ms)
        if parts is not None:
            offset = int.from_bytes(bytes(parts[1][0])[:8], "little")
            item.sink.ack(item.header, "committed", offset, time_us)
        return parts

    return patch.object(Proposer, "_admit_batch", _admit_batch)


def changed_rows(table: SequenceTable) -> Iterator[Row]:
    """All rows of a table, to change."""
    for rows in table._queues.values():
        for producer_id in list(rows):
            row = rows.change(producer_id)
            assert row is not None
            yield row


def drops_the_window_in_checkpoints() -> Any:
    """Only the last batch of a row survives (Kafka before KIP-360)."""
    original = SequenceTable.read_parts.__func__  # type: ignore[attr-defined]

    def read_parts(cls: Any, reader: Any) -> Any:
        table = original(cls, reader)
        for row in changed_rows(table):
            row.window = bytes(row.window[-ENTRY.size :])
        return table

    return patch.object(SequenceTable, "read_parts", classmethod(read_parts))


def forgets_the_table_in_checkpoints() -> Any:
    original = SequenceTable.read_parts.__func__  # type: ignore[attr-defined]

    def read_parts(cls: Any, reader: Any) -> Any:
        original(cls, reader)
        return cls()

    return patch.object(SequenceTable, "read_parts", classmethod(read_parts))


def admits_before_it_has_applied() -> Any:
    """A new master serves before it has replayed (Redpanda #13614)."""
    original = Mastership.maybe_begin

    def maybe_begin(self: Any, state: Any, on_proposer: Any) -> bool:
        true, state.applied_term = state.applied_term, self._core.term
        try:
            return original(self, state, on_proposer)
        finally:
            state.applied_term = true

    return patch.object(Mastership, "maybe_begin", maybe_begin)


def lets_log_time_fall() -> Any:
    return patch.object(LogTime, "_last_entry_time_us", lambda self: 0)


def chains_anew_what_may_be_stored() -> Any:
    """After a fence everything in flight gets new sequences (KAFKA-14034, librdkafka #4953)."""
    window = sequences_module.SendWindow
    original = window.on_stream_lost

    def on_stream_lost(self: Any) -> int:
        if not self.positions and self._in_flight and not self.fence_wanted:
            batches = self.batches()
            self._in_flight.clear()
            self._outgoing.clear()
            chain = self.last_assigned
            for batch in batches:
                batch.base, batch.last = chain + 1, chain + batch.count
                chain = self._chain(batch, chain)
            self.last_assigned = chain
        return original(self)

    return patch.object(window, "on_stream_lost", on_stream_lost)


def moves_on_after_a_mere_read() -> Any:
    """A program takes "not committed" for final though nothing was fenced."""
    return patch.object(Doubter, "trusts_mere_reads", True)


def cleans_live_records() -> Any:
    original = Cleaner.compact

    def compact(self: Any, upto_index: int, keep: Any) -> int:
        return original(self, upto_index, lambda first, end: ())

    return patch.object(Cleaner, "compact", compact)


def serves_what_it_does_not_check() -> Any:
    return _both(
        patch.object(recovery_module, "_is_entry", lambda frame, one: True),
        patch.object(LogReader, "_check", lambda *_: None),
    )


def repairs_in_memory_only() -> Any:
    """Bytes that a peer gave are never written over the damaged ones."""
    return patch.object(LogReader, "repair", lambda *_: None)


def scrubs_without_looking() -> Any:
    return patch.object(LogReader, "check", lambda *_: None)


def commits_under_any_token() -> Any:
    """Nobody looks whether the lock is still the committer's."""
    original = ConsumerGroups.commit

    def commit(self: Any, group: str, key: Any, queue: Any, commit: Any, **more: Any) -> Any:
        state = self.lookup(group, key)
        if state is None:
            return original(self, group, key, queue, commit, **more)
        owner, state.owner = state.owner, state.owner or "anybody"
        changed = type(commit)()
        changed.CopyFrom(commit)
        changed.token = state.token
        try:
            return original(self, group, key, queue, changed, **more)
        finally:
            state.owner = owner

    return patch.object(ConsumerGroups, "commit", commit)


def reads_without_a_quorum() -> Any:
    """A node that was master a moment ago answers (etcd #7331, #20418)."""
    return patch.object(Replica, "confirm_read", Replica.wait_master)


def answers_duplicates_early() -> Any:
    """A retry of a batch that is not committed yet is answered as stored."""
    original = Proposer._admit_batch

    def _admit_batch(self: Any, item: Any, *arguments: Any) -> Any:
        parts = original(self, item, *arguments)
        for waiting in self._duplicates.values():
            if waiting and waiting[-1][0] is item:
                item.sink.ack(item.header, "duplicate", waiting.pop()[1], 0)
        return parts

    return patch.object(Proposer, "_admit_batch", _admit_batch)


def forgets_to_sync_checkpoints() -> Any:
    original = checkpoint_module._write

    def _write(file: Any, index: int, term: int, parts: Any) -> int:
        return original(_Unsynced(file), index, term, parts)  # type: ignore[arg-type]

    return patch.object(checkpoint_module, "_write", _write)


def writes_without_its_epoch() -> Any:
    """A controller that was replaced goes on storing its decisions."""

    async def transact(
        self: Any, *, checks: Any = None, puts: Any = None, deletes: frozenset[str] = frozenset()
    ) -> int:
        transaction = Transaction(checks=checks or {}, puts=puts or {}, deletes=deletes)
        return int(await self.store.transact(transaction))

    return patch.object(ControllerEpoch, "transact", transact)


def trusts_its_tables_after_an_unknown_outcome() -> Any:
    """An active controller goes on with versions that the store may not have any more."""
    original = ControllerEpoch._lose

    def lose(self: Any, reason: str) -> None:
        if reason != UNKNOWN:
            original(self, reason)

    return patch.object(ControllerEpoch, "_lose", lose)


def obeys_replaced_controllers() -> Any:
    return patch.object(RoutesCopy, "check_epoch", lambda *_: None)


def moves_without_windows() -> Any:
    """A slice has the rows of the sequence table, and not what they remember."""

    def without(*arguments: Any) -> bytes:
        found = control_pb2.QueueSlice.FromString(make_slice(*arguments))
        table = SequenceTable.read_parts(Reader(found.rows))
        for row in changed_rows(table):
            row.window = b""
        found.rows = b"".join(table.parts())
        return found.SerializeToString(deterministic=True)

    return patch.object(moves_service, "make_slice", without)


def activates_without_tokens() -> Any:
    """Tokens are counted from one again in the new broker group."""
    original = ConsumerGroups.adopt

    def adopt(self: Any, key: Any, other: Any) -> None:
        for _, _, state in other.states():
            state.token = 0
        original(self, key, other)

    return patch.object(ConsumerGroups, "adopt", adopt)


def tells_of_an_abort_that_is_none() -> Any:
    """A client that asks about an attempt hears that it is not committed, though it may be."""

    def abort(self: Any, record: Any, now_us: int) -> bool:
        row = self.rows.get(record.transaction_id)
        return row is not None and bool(record.attempt) and row.decided_attempt == record.attempt

    return patch.object(Coordination, "abort", abort)


def decides_any_attempt() -> Any:
    """A commit that was overtaken by a newer attempt, or aborted, still counts."""
    real = Coordination.decide

    def decide(self: Any, record: Any, now_us: int) -> Any:
        row = self.rows.get(record.transaction_id)
        if row is not None and row.epoch < record.epoch:
            row.begun_epoch, row.attempt = record.epoch, record.attempt
        return real(self, record, now_us)

    return patch.object(Coordination, "decide", decide)


def releases_early() -> Any:
    """A message that is due within a second counts as due."""
    original = DelayedQueue.first

    def first(self: Any, until_us: int, *bounds: Any) -> Any:
        return original(self, until_us + 1_000_000, *bounds)

    return patch.object(DelayedQueue, "first", first)


def releases_twice() -> Any:
    """The last batch of a release is delayed still."""
    original = Delays.remove

    def remove(self: Any, key: Any, extents: Any) -> None:
        original(self, key, extents[:-1] or extents)

    return patch.object(Delays, "remove", remove)


def forgets_delays_in_checkpoints() -> Any:
    original = Delays.read_parts.__func__  # type: ignore[attr-defined]

    def read_parts(cls: Any, reader: Any, /, **known: bool) -> Any:
        original(cls, reader, **known)
        return cls()

    return patch.object(Delays, "read_parts", classmethod(read_parts))


def leaves_seconds_full() -> Any:
    """Messages that are released still count as due."""
    original = DueSeconds.change

    def change(self: Any, topic_id: int, second: int, messages: int, length: int) -> None:
        if messages > 0:
            original(self, topic_id, second, messages, length)

    return patch.object(DueSeconds, "change", change)


def cleans_what_is_delayed() -> Any:
    return patch.object(Delays, "in_entries", lambda *_: iter(()))


@contextmanager
def _both(first: Any, second: Any) -> Iterator[None]:
    with first, second:
        yield


def raft(bug: type[RaftCore]) -> Plant:
    """A bug of the core, in the whole node."""

    def plant() -> Any:
        return patch.object(replica_module, "RaftCore", bug)

    plant.__name__ = bug.__name__
    return plant


def names_a_slot_twice() -> Any:
    def take(self: Any) -> Slot:
        return Slot(self, self._free[-1], deque())

    return patch.object(Region, "take", take)


def asks_once_to_delete_a_group() -> Any:
    """Each broker group is asked once, whatever moves meanwhile."""

    async def forget_progress(cluster: Any, group: str) -> bool:
        request = broker_pb2.DeleteGroupRequest(group=group)
        groups = cluster.routes.groups()
        await asyncio.gather(
            *(cluster.call_master(number, "DeleteGroup", request) for number in groups)
        )
        return True

    return patch.object(resets, "forget_progress", forget_progress)


def finishes_what_is_not_published() -> Any:
    """The next epoch may begin though a participant has not heard of the last one."""

    async def _publish_on(self: Any, group: int, record: Any) -> Any:
        if group == self._config.group_id:
            return await self.publish(record)
        with suppress(SemelError):
            await self._calls.call(group, "Publish", record, 0.05)
        return Dropped(0, 0)

    return patch.object(TransactionWork, "_publish_on", _publish_on)
