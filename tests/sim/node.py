"""A shell around a real core: what `Ready` asks for, done on a simulated disk and network.

How it works. A node has an incarnation; every event that it schedules names it, and is dropped
when the node has crashed since. Messages pass through the wire format. A stopped process
(`paused`) gets its events late, all at once, as after SIGSTOP.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from random import Random
from typing import Protocol

from semel.broker.raft import (
    EntryMeta,
    HardState,
    Membership,
    Message,
    MessageKind,
    RaftConfig,
    RaftCore,
    Role,
    SnapshotMark,
    decode_message,
    encode_message,
)
from semel.protos.errors import NotMaster
from semel.protos.ids import NodeId
from tests.sim.checker import Checker
from tests.sim.disk import Checkpoint, SimDisk, SimEntry

ENTRY_BYTES = 100


class Work(Enum):
    """What a node waits for; its world decides how long."""

    TICK = auto()
    HARD_STATE = auto()
    FLUSH = auto()
    NOTICE = auto()
    """A flush is done, and the core has not been told yet."""
    PULL = auto()
    INSTALL = auto()


class World(Protocol):
    """What a node needs of its surroundings."""

    checker: Checker
    random: Random
    config: RaftConfig
    core_class: type[RaftCore]

    @property
    def now_ms(self) -> int: ...

    @property
    def disks(self) -> dict[NodeId, SimDisk]: ...

    def schedule(self, node: SimNode, what: Work, action: Callable[[], None]) -> None: ...

    def transmit(self, data: bytes, message: Message, payloads: tuple[int, ...]) -> None: ...

    def pull_snapshot(self, puller: SimNode, offer: Message) -> None: ...


def next_digest(digest: int, entry: SimEntry) -> int:
    return hash((digest, entry.meta.term, entry.payload))


class SimNode:
    """One replica: up or down, with a disk that survives."""

    def __init__(self, world: World, node_id: NodeId, disk: SimDisk) -> None:
        self.world = world
        self.node_id = node_id
        self.disk = disk
        self.incarnation = 0
        self.up = False
        self.paused = False
        self.waiting_events: deque[Callable[[], None]] = deque()
        self.core: RaftCore
        self.applied_index = 0
        self.applied_membership = disk.checkpoint.mark.membership
        self.digest = 0
        self._hard_states: deque[tuple[HardState, tuple[Message, ...]]] = deque()
        self._flush_number = 0
        self._oldest_unsynced_ms: int | None = None
        self._payloads: dict[tuple[int, int], int] = {}

    # --- life

    def start(self) -> None:
        """From what the disk remembers."""
        disk, world = self.disk, self.world
        disk.view = disk.durable.copy()
        mark = disk.checkpoint.mark
        self.incarnation += 1
        self.up = True
        self.paused = False
        self.waiting_events.clear()
        self._hard_states.clear()
        self._oldest_unsynced_ms = None
        self.applied_index = mark.index
        self.applied_membership = mark.membership
        self.digest = disk.checkpoint.digest
        self.core = world.core_class(
            world.config,
            node_id=self.node_id,
            hard_state=disk.hard_state,
            membership=mark.membership,
            log=disk,
            applied_index=mark.index,
            random=Random(world.random.getrandbits(32)),
            now_ms=world.now_ms,
        )
        self.later(Work.TICK, self._tick)
        self.perform()

    def crash(self) -> None:
        """Power loss."""
        self.up = False
        self.incarnation += 1
        if self.disk.crash(self.world.random):
            self.world.checker.seen["crash between write and sync"] += 1
        self.world.checker.on_hard_state(self.node_id, self.disk.hard_state)

    def later(self, what: Work, action: Callable[[], None]) -> None:
        incarnation = self.incarnation

        def run() -> None:
            if incarnation != self.incarnation:
                return
            if self.paused:
                self.waiting_events.append(run)
            else:
                action()

        self.world.schedule(self, what, run)

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        waiting, self.waiting_events = self.waiting_events, deque()
        for run in waiting:
            run()

    # --- inputs

    def _tick(self) -> None:
        self.core.on_log_stalled(self.oldest_unsynced_age_ms)
        self.core.tick(self.world.now_ms)
        self.perform()
        self.later(Work.TICK, self._tick)

    @property
    def oldest_unsynced_age_ms(self) -> int:
        started = self._oldest_unsynced_ms
        return 0 if started is None else self.world.now_ms - started

    def receive(self, data: bytes, metas: tuple[EntryMeta, ...], payloads: tuple[int, ...]) -> None:
        if not self.up:
            return
        if self.paused:
            self.waiting_events.append(lambda: self.receive(data, metas, payloads))
            return
        message = decode_message(data, metas)
        self._payloads = {
            (meta.index, meta.term): payload for meta, payload in zip(metas, payloads, strict=True)
        }
        self.core.step(message, self.world.now_ms)
        self.perform()

    def propose(self, payload: int, membership: Membership | None = None) -> int | None:
        """The entry's index; None when this node takes no proposals."""
        try:
            index = self.core.next_index()
        except NotMaster:
            return None
        if not self.core.accepts_proposals:
            return None
        self._append_own(index, payload, membership)
        self.perform()
        return index

    def _append_own(self, index: int, payload: int, membership: Membership | None) -> None:
        term = self.core.term
        meta = EntryMeta(index=index, term=term, size=ENTRY_BYTES, membership=membership)
        self._write((SimEntry(meta, payload),))
        self.core.proposed(meta)

    # --- what Ready asks for

    def perform(self) -> None:
        core, world = self.core, self.world
        while core.has_ready():
            ready = core.ready()
            if ready.truncate_from is not None:
                at = ready.truncate_from - self.disk.first_index
                world.checker.on_truncate(self.node_id, self.disk.view.entries[at:])
                self.disk.truncate(ready.truncate_from)
                self._check_membership()
            if ready.append:
                payloads = self._payloads
                self._write(
                    tuple(SimEntry(meta, payloads[meta.index, meta.term]) for meta in ready.append)
                )
            if ready.append_noop:
                self._append_own(core.next_index(), 0, None)
            if ready.role is Role.MASTER:
                world.checker.on_master(self.node_id, ready.term, self.disk)
                if ready.role_changed:
                    self._check_membership()
            if ready.hard_state is not None:
                self._hard_states.append((ready.hard_state, ready.messages_after_hard_state))
                self.disk.waiting_hard_states.append(ready.hard_state)
                if len(self._hard_states) == 1:
                    self.later(Work.HARD_STATE, self._hard_state_synced)
            for message in ready.messages:
                self._send(message)
            self._apply(ready.commit_index)
            for read in ready.reads:
                world.checker.on_read_served(read.context, read.index)
            world.checker.seen["read failed"] += len(ready.reads_failed)
            if ready.snapshot_wanted is not None:
                world.pull_snapshot(self, ready.snapshot_wanted)
        if self.disk.wants_flush:
            self._start_flush()

    def _check_membership(self) -> None:
        """Against the log, from the end; an APPEND's new entries are not in yet."""
        newest = self.applied_membership
        for entry in reversed(self.disk.view.entries):
            if entry.meta.index <= self.applied_index:
                break
            if entry.meta.membership is not None:
                newest = entry.meta.membership
                break
        if self.core._history.index <= self.disk.last_index:
            self.world.checker.on_standing(self.node_id, self.core.membership, newest)

    def _write(self, entries: tuple[SimEntry, ...]) -> None:
        disk = self.disk
        self.world.checker.on_append(entries, disk.term_at(entries[0].meta.index - 1))
        assert entries[0].meta.index == disk.last_index + 1
        disk.write(entries)
        if self._oldest_unsynced_ms is None:
            self._oldest_unsynced_ms = self.world.now_ms

    def _send(self, message: Message) -> None:
        self.world.checker.on_send(message, self.disk)
        payloads: tuple[int, ...] = ()
        if message.kind is MessageKind.APPEND:
            payloads = tuple(self.disk.entry(meta.index).payload for meta in message.entries)
        self.world.transmit(encode_message(message), message, payloads)

    def _apply(self, commit_index: int) -> None:
        while self.applied_index < commit_index:
            entry = self.disk.entry(self.applied_index + 1)
            self.applied_index += 1
            self.digest = next_digest(self.digest, entry)
            if entry.meta.membership is not None:
                self.applied_membership = entry.meta.membership
                if self.applied_index > self.world.checker.committed_index:
                    self.world.checker.on_membership(entry.meta.membership)
            self.world.checker.on_commit(
                entry,
                term=self.core.term,
                digest=self.digest,
                voters=self.core.membership.voters,
                disks=self.world.disks,
            )

    # --- the disk is done

    def _hard_state_synced(self) -> None:
        hard_state, messages = self._hard_states.popleft()
        self.disk.waiting_hard_states.pop(0)
        self.disk.hard_state = hard_state
        self.world.checker.on_hard_state(self.node_id, hard_state)
        for message in messages:
            self._send(message)
        if self._hard_states:
            self.later(Work.HARD_STATE, self._hard_state_synced)
        self.core.on_hard_state_synced(hard_state)
        self.perform()

    def _start_flush(self) -> None:
        index, term = self.disk.start_flush()
        number = self._flush_number
        started_ms = self.world.now_ms

        def durable() -> None:
            if number == self._flush_number:
                self.disk.end_flush()
                self._oldest_unsynced_ms = started_ms if self.disk.waiting else None
                if self.disk.wants_flush:
                    self._start_flush()
            self.later(Work.NOTICE, lambda: self._completed(index, term))

        self.later(Work.FLUSH, durable)

    def _completed(self, index: int, term: int) -> None:
        self.disk.completed(index)
        before = self.core.status().stale_completions
        self.core.on_synced(index, term, self.world.now_ms)
        if self.core.status().stale_completions != before:
            self.world.checker.seen["stale sync completion"] += 1
        self.perform()

    # --- checkpoints

    def compact(self, first_index: int) -> bool:
        """Checkpoint what is applied and synced, and drop entries below first_index."""
        index = min(self.applied_index, self.disk.true_synced_index)
        if index != self.applied_index or not self.disk.first_index < first_index <= index + 1:
            return False
        term = self.disk.term_at(index)
        assert term is not None
        mark = SnapshotMark(index=index, term=term, membership=self.applied_membership)
        self.disk.save_checkpoint(Checkpoint(mark, self.digest), first_index)
        self.world.checker.seen["compaction"] += 1
        return True

    def snapshot_pulled(self, checkpoint: Checkpoint | None) -> None:
        """The pull has ended; None when the source did not answer."""
        if checkpoint is None:
            self.core.on_snapshot_failed(self.world.now_ms)
            self.perform()
            return
        if not self.core.begin_snapshot(checkpoint.mark):
            self.perform()
            return
        self.install(checkpoint)

    def install(self, checkpoint: Checkpoint) -> None:
        """Puts the checkpoint in the log's place; the core has agreed to that."""
        self.perform()

        def switch() -> None:
            self._flush_number += 1
            self._oldest_unsynced_ms = None
            mark, view = checkpoint.mark, self.disk.view
            self.world.checker.on_install(
                self.node_id,
                self.core.term,
                mark.index,
                view.entries[max(0, mark.index + 1 - view.first_index) :],
            )
            self.disk.install(checkpoint)
            self.applied_index = checkpoint.mark.index
            self.applied_membership = checkpoint.mark.membership
            self.digest = checkpoint.digest
            self.world.checker.on_digest(self.applied_index, self.digest)
            self.core.on_snapshot_installed(checkpoint.mark, self.world.now_ms)
            self.perform()

        self.later(Work.INSTALL, switch)
