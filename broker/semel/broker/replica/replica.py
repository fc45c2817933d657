"""One replica at work: the one place that says in which order things persist, sync and leave.

How it works. Inputs arrive on the event loop: messages of peers, requests of clients, completed
syncs, ticks. Each is handed to the Raft core, and what the core decides is performed at once
(`_perform`), in this order:

1. Entries are truncated and appended: handed to the log's writer, which syncs them beside all this.
2. A new term or vote is written and synced *here and now*, on the loop: elections are rare, and
   nothing of the new term may leave before it. While the disk has no room for it, everything else
   is performed all the same (a master that was deposed stops to judge), the messages that wait for
   it stay here, and the node takes nothing from its peers, as if it were cut off; each tick tries
   to save it again.
3. Messages leave. A master's entries go to the slaves in parallel with its own write. An
   acknowledgement exists only once the core heard of the sync (`on_synced`), on slaves and master
   alike.
4. Committed entries are applied, and only then clients are answered.

Requests are not judged one by one: the first one of a loop turn schedules `_turn` for the end of
the turn, which makes one entry of all that is pending.

Invariants
1. Everything here runs on one event loop; the core, the log's index, the state and the proposer are
   touched by nobody else. Reader threads see immutable bytes only.
2. State is applied in index order, each entry once, and only entries that are committed.
3. A failed write or sync ends the process (`on_fatal`): it is never retried, never answered around.
   A full disk is no failed write.
4. A Ready is performed as a whole. Whatever is raised meanwhile, of any class, ends the process.

One file, although it is long: the order in which things happen is read from top to bottom here.

Not here: gRPC (`server/`), start and end (`node.py`), snapshots and checkpoints
(`snapshots/snapshots.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from random import Random
from typing import TypeVar

from semel.broker.config import BrokerConfig
from semel.broker.log import DamagedEntry, HardStateFile, Log
from semel.broker.raft import (
    EntryMeta,
    HardState,
    Membership,
    Message,
    MessageKind,
    RaftCore,
    Ready,
    Role,
)
from semel.broker.replica.confirmed_reads import ConfirmedReads
from semel.broker.replica.fatal import halting
from semel.broker.replica.fetch_waiters import QueueWatchers
from semel.broker.replica.log_view import CoreLog
from semel.broker.replica.member_book import MemberBook, Members
from semel.broker.replica.proposer import AckSink, Proposer, RecordParts
from semel.broker.replication.sender import PeerLink
from semel.broker.state import (
    ApplyResult,
    DelayedReleased,
    Judge,
    LockClock,
    LogClock,
    State,
    VoterClocks,
)
from semel.protos import compat
from semel.protos.batch import BatchHeader
from semel.protos.errors import DiskFull, NotMaster, SemelError, Throttled, Unavailable
from semel.protos.frames import RecordKind, build_frame, decode_frame_header
from semel.protos.ids import NodeId, QueueKey, Term
from semel.protos.levels import check_member, lacking, own_levels
from semel.protos.metrics import Histogram
from semel.protos.v1.common_pb2 import Levels
from semel.protos.v1.control_pb2 import ControlRecord, FeatureLevel

logger = logging.getLogger(__name__)

T = TypeVar("T")

TICK_MS = 25
_LOOP_GAP_MS = 300
_APPLY_FRAMES = 64
_RETRY_AFTER_MS = 100
_CONTROL_BYTES = 64 << 10
"""What the control records and headers of one entry take, generously."""


def monotonic_ms() -> int:
    """The clock of elections, locks and waits."""
    return time.monotonic_ns() // 1_000_000


def wall_us() -> int:
    """The machine's clock, which may jump; only log time looks at it."""
    return time.time_ns() // 1000


def _monotonic_us() -> int:
    return time.monotonic_ns() // 1000


class Replica:
    """Core, log, state and proposer of one node, driven by one event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        log: Log,
        hard_state: HardStateFile,
        state: State,
        founding: Members,
        logged_members: dict[int, Members],
        readers: Executor,
        on_fatal: Callable[[str], None],
    ) -> None:
        self.config = config
        self.log = log
        self.state = state
        self.readers = readers
        self.proposer: Proposer | None = None
        self.lock_clock: LockClock | None = None
        self.links: dict[NodeId, PeerLink] = {}
        self.lost_entries: frozenset[int] = frozenset()
        """Damaged here and on every other node (`set_lost`): their messages are refused."""
        self.on_snapshot_offer: Callable[[Message], None] = lambda _: None
        self.on_mastership_lost: Callable[[NotMaster], None] = lambda _: None
        self.on_role_changed: Callable[[], None] = lambda: None
        self.on_members_changed: Callable[[], None] = lambda: None
        self._founding = founding
        """Members before any were logged."""
        self.members = MemberBook(self.members_of(state), state.membership.index, logged_members)
        self.removed_at = 0
        """Index of the entry that removed this node, as a member told; 0 while it is not known."""
        self._unfit: set[str] = set()
        self.delaying = asyncio.Event()
        """Something is delayed; cleared by whoever looks after it."""
        self.on_level_raised: Callable[[], None] = lambda: None
        self._level_proposed = 0
        """The level that this master has the log raised to."""
        self._level_raising: asyncio.Future[ApplyResult] | None = None
        """Done once a log that began here has its first level."""
        self._level_told = state.feature_level
        self.lateness = Histogram()
        """Seconds from the time that messages were due to their release by this master."""
        self._hard_state_file = hard_state
        self._unsaved: tuple[HardState, Sequence[Message]] | None = None
        """Term and vote that the disk has no room for, and the messages that wait for them."""
        self._told_unsaved = False
        self.on_fatal = on_fatal
        self._core_log = CoreLog(
            log, {index: members.membership for index, members in logged_members.items()}
        )
        saved = hard_state.load()
        term, voted_for = saved if saved is not None else (0, None)
        self.core = RaftCore(
            config.raft,
            node_id=config.node_id,
            hard_state=HardState(
                term=term, voted_for=None if voted_for is None else NodeId(voted_for)
            ),
            membership=self.members_of(state).membership,
            log=self._core_log,
            applied_index=state.applied_index,
            random=Random(),
            now_ms=monotonic_ms(),
        )
        self._loop = asyncio.get_running_loop()
        self._frames_in_step: dict[int, bytes] = {}
        self._turn_scheduled = False
        self._stopping = False
        self._reading_to_apply = False
        self._log_clock: LogClock | None = None
        self._voter_clocks = VoterClocks()
        self.wall_us: Callable[[], int] = wall_us
        self._master_ready = asyncio.Event()
        self._room = asyncio.Event()
        self.watchers = QueueWatchers()
        self._reads = ConfirmedReads(self._start_read_round)
        self._applied_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._role_waiters: list[asyncio.Future[None]] = []
        self._last_tick_ms = monotonic_ms()
        self._term_of_proposer = 0
        log.on_synced = self._on_synced_by_log
        log.on_failure = self._on_log_failure
        log.attach(self._loop)

    # ------------------------------------------------------------------ what others ask

    @property
    def term(self) -> int:
        return self.core.term

    @property
    def is_master(self) -> bool:
        """Master, with everything before its term applied: it may judge."""
        return self.proposer is not None

    @property
    def role(self) -> str:
        """master, slave, candidate, learner, joining or removed."""
        own, membership = self.config.node_id, self.core.membership
        if self.core.role is Role.MASTER:
            return "master"
        if self.removed_at or (own not in membership.nodes and not self.muted):
            return "removed"
        if own not in membership.nodes:
            return "joining"
        if own in membership.learners:
            return "learner"
        return "slave" if self.core.role is Role.FOLLOWER else "candidate"

    def addresses(self) -> Mapping[NodeId, str]:
        """Where the members of the group listen, by the newest entry in the log."""
        return self.members.current.addresses

    def reachable(self) -> Mapping[NodeId, str]:
        """The same, and whom the log does not know yet, by the word of another member."""
        return self.members.reachable

    def peer_address(self, node: NodeId) -> str | None:
        """Where this node reaches another member; None for a node that is none."""
        member = self.reachable().get(node)
        return member and self.config.peers_at.get(node, member)

    def not_master(self) -> NotMaster:
        """The error that sends a client to the master, if one is known."""
        master = self.core.master_id
        if master == self.config.node_id and self.core.role is not Role.MASTER:
            master = None
        address = self.reachable().get(master, "") if master is not None else ""
        if self.role in ("joining", "removed"):
            return NotMaster(
                f"node {self.config.node_id} is no member of group {self.config.group_id}; "
                "refresh the routes and ask another node",
                term=self.core.term,
            )
        where = f"ask node {master} at {address}" if address else "an election is on; try again"
        return NotMaster(
            f"node {self.config.node_id} is not the master of group {self.config.group_id}; "
            + where,
            master_address=address,
            master_id=master or 0,
            term=self.core.term,
        )

    @property
    def muted(self) -> bool:
        """True while this node's data directory is newer than its group: nobody may count it."""
        return self.core.muted

    def check_master(self) -> None:
        """Raises NotMaster unless this node may judge."""
        if self.proposer is None:
            raise self.not_master()

    async def wait_master(self) -> None:
        """A master that is about to be ready is waited for. Raises NotMaster."""
        while self.proposer is None:
            if self.core.role is not Role.MASTER:
                raise self.not_master()
            self._master_ready.clear()
            try:
                async with compat.timeout(1.0):
                    await self._master_ready.wait()
            except TimeoutError:
                raise self.not_master() from None

    def submit_batch(self, header: BatchHeader, data: bytes, sink: AckSink) -> None:
        """Answers through `sink`."""
        if self.proposer is None:
            sink.refuse(header, self.not_master())
            return
        self.proposer.submit_batch(header, data, sink)
        self._schedule_turn()

    async def submit_control(self, record: ControlRecord) -> ApplyResult:
        """The record's result once it is applied. Raises NotMaster, Throttled, or the judge's
        refusal."""
        await self.wait_master()
        assert self.proposer is not None
        if self.proposer.waiting >= self.config.requests_waiting_max:
            raise Throttled(
                f"{self.proposer.waiting} requests wait on node {self.config.node_id} already",
                retry_after_ms=_RETRY_AFTER_MS,
            )
        future = self.proposer.submit_control(record)
        self._schedule_turn()
        return await future

    async def submit_copy(self, stored: bytes) -> ApplyResult:
        """What became of a copied batch, once it is applied. Raises NotMaster."""
        await self.wait_master()
        assert self.proposer is not None
        future = self.proposer.submit_copy(stored)
        self._schedule_turn()
        return await future

    async def in_reader(self, work: Callable[[], T]) -> T:
        """Runs blocking `work` in the reader pool."""
        return await self._loop.run_in_executor(self.readers, work)

    @property
    def level_needed(self) -> int:
        """The feature level that every member must know: the log's, or the one it is raised to."""
        return max(self.state.feature_level, self._level_proposed if self.proposer else 0)

    def levels(self) -> Levels:
        """What this node says of itself to whoever is connected. Only who serves as master says at
        which level the log is: another node may not know it yet. Nor is it told while it rises."""
        active = self.state.feature_level
        known = self.is_master and active == self.level_needed
        return own_levels(self.config.level_max, max(1, active) if known else 0)

    async def require_level(self, level: int) -> None:
        """Raises UnsupportedVersion while the group's log is below `level`; and NotMaster."""
        await self.wait_master()
        if self._level_raising is not None and self.state.feature_level < level:
            await asyncio.wait({self._level_raising})
        if self.state.feature_level < level:
            raise lacking(level, self.state.feature_level, f"broker group {self.config.group_id}")

    async def raise_level(self, level: int, *, dry_run: bool = False) -> None:
        """Lets the log hold what `level` allows, if every member's program knows it; for good.

        Success when it is there already. Raises NotMaster, UnsupportedVersion when a member (or
        this node) does not know the level, Unavailable while one was not heard.
        """
        await self.wait_master()
        if self.state.feature_level >= level:
            return
        for node in self.addresses():
            link = self.links.get(node)
            if node == self.config.node_id:
                told: Levels | None = self.levels()
            else:
                told = None if link is None else link.levels
            if told is None:
                raise Unavailable(
                    f"node {node} is not connected, and feature level {level} needs every member:"
                    " start it, or replace it (semel node replace)"
                )
            check_member(f"node {node}", told, level)
        if dry_run:
            return
        self._level_proposed = max(level, self._level_proposed)
        await self.submit_control(ControlRecord(feature_level=FeatureLevel(level=level)))

    def _begin_level(self, proposer: Proposer) -> None:
        """A log that holds nothing yet begins at the newest level, as the first thing it holds.

        A member that was not heard so far may be older: it is told so when it comes.
        """
        self._level_proposed = 0
        self._level_raising = None
        if self.state.feature_level or self.state.queues:
            return
        heard = [link.levels for link in self.links.values() if link.levels is not None]
        level = min([self.config.level_max, *(levels.max for levels in heard)])
        if level:
            self._level_proposed = level
            record = ControlRecord(feature_level=FeatureLevel(level=level))
            raising = self._level_raising = proposer.submit_control(record)
            raising.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._schedule_turn()

    def release_due(self, queues_max: int) -> None:
        """Has delayed batches of so many queues get their offsets, if they are due by log time."""
        proposer = self.proposer
        if proposer is None:
            return
        due = self.state.delays.due(self.log_time_us(), queues_max)
        for key in due:
            proposer.submit_release(key)
        if due:
            self._schedule_turn()

    def append_alone(
        self, kind: RecordKind, payload: bytes = b"", members: Members | None = None
    ) -> tuple[int, int]:
        """Appends an entry of one record that needs no judge, and returns its index and term.

        `members` are those of a membership record, in force at once; the core was asked whether
        they are allowed. Raises NotMaster.
        """
        if self._log_clock is None:
            raise self.not_master()
        index, term = self.core.next_index(), self.core.term
        record = (kind, (payload,) if payload else ())
        membership = None if members is None else members.membership
        self._propose(index, term, self._log_time(self._log_clock), [record], membership)
        if members is not None:
            self.members.append(index, members)
            self.on_members_changed()
        self.drain()
        return index, term

    def hand_over(self, successor: NodeId) -> None:
        """Takes no more proposals and tells `successor` to stand, once it has everything.

        Given up after RaftConfig.transfer_ms. Raises NotMaster, InvalidRequest, Throttled.
        """
        self.core.transfer_leadership(successor, monotonic_ms())
        self.drain()

    def resign(self) -> None:
        """Gives mastership up to whoever is elected; waits for nobody to be ready for it."""
        self.core.resign(monotonic_ms())
        self.drain()

    def set_fit(self, reason: str, fit: bool) -> None:
        """This node may become master while no reason against it stands."""
        if fit:
            self._unfit.discard(reason)
        else:
            self._unfit.add(reason)
        self.core.set_electable(not self._unfit)

    @property
    def electable(self) -> bool:
        """It would take mastership if it were handed over."""
        return not self._unfit and not self.muted

    def install_state(self, state: State) -> None:
        """A snapshot has taken the place of log and state."""
        self.state = state
        self._core_log.truncated(0)
        self.members.reset(self.members_of(state), state.membership.index)
        self.on_members_changed()

    async def produce_room(self) -> None:
        """Returns at once unless too many bytes wait to be proposed."""
        while (
            self.proposer is not None
            and self.proposer.pending_bytes > self.config.pending_bytes_max
        ):
            self._room.clear()
            await self._room.wait()

    async def confirm_read(self) -> None:
        """Returns once a quorum confirmed that everything committed before this call is applied.

        One heartbeat round serves all who ask before it starts. Raises NotMaster.
        """
        await self.wait_master()
        await self._reads.wait()

    def _start_read_round(self, context: int) -> None:
        self.core.read_index(context, monotonic_ms())
        self.drain()

    async def wait_applied(self, index: int, timeout_s: float | None) -> None:
        """Raises Unavailable when this node does not get so far in time."""
        if self.state.applied_index >= index:
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self._applied_waiters.append((index, future))
        try:
            async with compat.timeout(timeout_s):
                await future
        except TimeoutError:
            raise Unavailable(
                f"node {self.config.node_id} has applied entry {self.state.applied_index} and not "
                f"yet {index}; try again"
            ) from None

    def role_change(self) -> asyncio.Future[None]:
        """Done at the next change of role, term or master, or when this node begins to serve.

        No coroutine, which would begin to listen a turn after the caller looked at the role.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        self._role_waiters.append(future)
        return future

    def on_delivered(self, group: str, queue_key: QueueKey, token: int, end_offset: int) -> None:
        """Messages below `end_offset` leave for the holder of `token`."""
        if self.lock_clock is not None:
            self.lock_clock.on_delivered(group, queue_key, token, end_offset, monotonic_ms())

    def expire_producers(self, queue_key: QueueKey) -> None:
        """Ends idle and surplus rows of one queue's sequence table."""
        if self.proposer is not None:
            self.proposer.submit_expiry(
                queue_key,
                now_us=self.log_time_us(),
                idle_ms=self.config.producer_idle_ms,
                rows_max=self.config.producers_per_queue_max,
            )
            self._schedule_turn()

    # ------------------------------------------------------------------ inputs

    @halting
    def on_message(self, message: Message, frames: Sequence[bytes]) -> None:
        """One message of a peer, its frames checked."""
        if self._unsaved is not None:
            return  # as if it were lost: no answer could leave
        if frames and not self.log.can_append(sum(map(len, frames)), len(frames)):
            return  # no space: as if the message were lost, so that nothing is acknowledged
        self._frames_in_step = {
            meta.index: frame for meta, frame in zip(message.entries, frames, strict=True)
        }
        if message.kind is MessageKind.VOTE_REPLY and not message.rejected:
            self._voter_clocks.on_vote(
                message.source,
                term=message.term,
                clock_us=message.hint_index,
                monotonic_us=_monotonic_us(),
            )
        self.core.step(message, monotonic_ms())
        self.drain()
        self._frames_in_step = {}

    @halting
    def on_peer_unreachable(self, peer: NodeId) -> None:
        self.core.on_peer_unreachable(peer, monotonic_ms())
        self.drain()

    @halting
    def on_tick(self) -> None:
        """Called every TICK_MS by the node."""
        now_ms = monotonic_ms()
        gap = now_ms - self._last_tick_ms
        self._last_tick_ms = now_ms
        if gap > _LOOP_GAP_MS:
            logger.warning("event loop was stopped gap_ms=%d", gap)
            if self.lock_clock is not None:
                self.lock_clock.refresh_all(now_ms)
        if self._unsaved is not None:
            self._save_hard_state()
            if self._unsaved is not None:
                return  # no time goes by for a node that could tell nobody what it decides
        self.core.on_log_stalled(self.log.oldest_unsynced_age_ms(now_ms))
        self.core.tick(now_ms)
        if self.proposer is not None:
            self.proposer.expire_parked(now_ms)
            if self.proposer.has_pending:
                self._schedule_turn()  # the core may take proposals again, and nothing else says so
        self.drain()

    def loop_stopped(self) -> bool:
        """The loop stood still (SIGSTOP), and no tick has dealt with that yet."""
        return monotonic_ms() - self._last_tick_ms > _LOOP_GAP_MS

    def set_lost(self, entries: frozenset[int]) -> None:
        """No node can give these entries out; those that are applied here stop nobody."""
        self.lost_entries = entries
        applied = (index for index in entries if index <= self.state.applied_index)
        self._core_log.unreadable_through = max(applied, default=0)

    def cut_torn(self, index: int) -> bool:
        """Drops the damaged entry, which the whole group calls a torn write; False if not now."""
        damage = self.log.damaged.get(index)
        if damage is None or not damage.torn or not self.core.cut_torn(index, monotonic_ms()):
            return False
        self.drain()
        return True

    @halting
    def mend_hard_state(self) -> None:
        """Writes a damaged copy of term and vote anew. BLOCKING like every save: 16 KiB, rarely."""
        try:
            mended = self._hard_state_file.mend()
        except DiskFull as error:
            logger.error("a copy of term and vote is damaged, the other counts error=%s", error)
        else:
            if mended:
                logger.error("a copy of term and vote was damaged and is written anew")

    def _on_synced_by_log(self, index: int, term: int) -> None:
        """In a thread, or on the loop, which then need not be woken. Not at once: the log holds its
        locks."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._loop.call_soon_threadsafe(self._on_synced, index, term)
        else:
            self._loop.call_soon(self._on_synced, index, term)

    @halting
    def _on_synced(self, index: int, term: int) -> None:
        self.core.on_synced(index, term, monotonic_ms())
        self.drain()

    def _on_log_failure(self, error: BaseException) -> None:
        self.on_fatal(
            f"the log of node {self.config.node_id} cannot be written: {error}. A failed write is "
            "never retried: this process ends; its data is whole up to the last sync"
        )

    # ------------------------------------------------------------------ proposing

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn)

    @halting
    def _turn(self) -> None:
        """Makes one entry of what is pending."""
        self._turn_scheduled = False
        proposer = self.proposer
        if proposer is None or not proposer.has_pending:
            return
        config = self.config
        if not self.log.can_append(proposer.pending_bytes + _CONTROL_BYTES):
            proposer.refuse_pending(
                DiskFull(
                    f"the disk of node {config.node_id}, master of group {config.group_id}, is "
                    "full: nothing was stored; free space and retry"
                )
            )
            return
        if (
            not self.core.accepts_proposals
            or proposer.unapplied_bytes > config.unapplied_bytes_max
            or (
                proposer.entries_in_flight >= config.entries_in_flight_max
                and proposer.pending_bytes < config.entry_bytes_target
            )
        ):
            return  # taken up again when an entry is applied
        assert self._log_clock is not None
        now_ms = monotonic_ms()
        time_us = self._log_time(self._log_clock)
        index, term = self.core.next_index(), self.core.term
        entry = proposer.next_entry(index, term, time_us, now_ms, self.config.entry_bytes_target)
        if entry is not None:
            # The slaves have the longer way: what they get leaves at the end of this turn of the
            # loop, and only then this node writes its own.
            self.log.hold_writes()
            self._loop.call_soon(self.log.release_writes)
            self._propose(index, term, time_us, entry.records)
            self.drain()
        if proposer.pending_bytes <= self.config.pending_bytes_max:
            self._room.set()
        if proposer.has_pending:
            self._schedule_turn()

    # ------------------------------------------------------------------ performing

    @halting
    def drain(self) -> None:
        """Performs what the core has decided until it has nothing more to say."""
        while self.core.has_ready():
            self._perform(self.core.ready())

    def _perform(self, ready: Ready) -> None:
        if ready.truncate_from is not None:
            self.log.truncate(ready.truncate_from)
            self._core_log.truncated(ready.truncate_from)
            if self.members.truncate(ready.truncate_from):
                self.on_members_changed()
        if ready.append:
            for meta in ready.append:
                self._core_log.appended(meta)
            self._append([self._frames_in_step[meta.index] for meta in ready.append])
            self._follow_members(ready.append)
        if ready.hard_state is not None:
            self._unsaved = ready.hard_state, ready.messages_after_hard_state
            self._save_hard_state()
        if ready.role_changed:
            self._on_role_changed(ready)
        if ready.append_noop:
            self._append_noop()
        self._send(ready.messages)
        if ready.reads or ready.reads_failed:
            self._reads.on_rounds(ready.reads, ready.reads_failed, self.not_master)
        if ready.snapshot_wanted is not None:
            self.on_snapshot_offer(ready.snapshot_wanted)
        self.apply()

    def _send(self, messages: Sequence[Message]) -> None:
        for message in messages:
            link = self.links.get(message.target)
            if message.kind is MessageKind.VOTE_REPLY:
                message = replace(message, hint_index=self.wall_us())
            if link is not None:
                link.send(message)

    def _save_hard_state(self) -> None:
        """Saves the newest term and vote, and sends what waited for them; a full disk is tried
        again by the next tick. What a full disk refused was never promised: the whole record is
        written again, not only synced."""
        assert self._unsaved is not None
        saved, messages = self._unsaved
        try:
            self._hard_state_file.save(saved.term, saved.voted_for)
        except DiskFull as error:
            if not self._told_unsaved:
                logger.error(
                    "no room for term and vote: this node takes no part in its group until there "
                    "is some term=%d error=%s",
                    saved.term,
                    error,
                )
            self._told_unsaved = True
            return
        self._unsaved = None
        if self._told_unsaved:
            logger.info("term and vote are saved again term=%d", saved.term)
        self._told_unsaved = False
        self.core.on_hard_state_synced(saved)
        self._send(messages)

    @property
    def disk_full(self) -> bool:
        """There is no room for another segment, or for term and vote."""
        return self.log.disk_full or self._unsaved is not None

    def _follow_members(self, appended: Sequence[EntryMeta]) -> None:
        changes = [meta.index for meta in appended if meta.membership is not None]
        for index in changes:
            self.members.append(index, Members.of_frame(self._frames_in_step[index]))
        if changes:
            self.on_members_changed()

    def log_time_us(self) -> int:
        """What the next entry's time would be: retention and expiry go by this clock."""
        return (
            self.state.log_time_us if self._log_clock is None else self._log_time(self._log_clock)
        )

    def _log_time(self, clock: LogClock) -> int:
        return clock.now(wall_us=self.wall_us(), monotonic_us=_monotonic_us())

    def _append(self, frames: Sequence[bytes]) -> None:
        """The core counts on these entries: with a disk that fills up at this very moment they wait
        in memory, unacknowledged, and the node falls silent like one whose disk hangs."""
        self.log.append(frames, wait_for_room=True)

    def _propose(
        self,
        index: int,
        term: int,
        time_us: int,
        records: Sequence[RecordParts],
        membership: Membership | None = None,
    ) -> None:
        """Appends an entry of this master's own; the caller drains."""
        frame, _ = build_frame(index, term, time_us, records)
        self._append((frame,))
        meta = EntryMeta(index=index, term=term, size=len(frame), membership=membership)
        self._core_log.appended(meta)
        self.core.proposed(meta)

    def _append_noop(self) -> None:
        index, term = self.core.next_index(), self.core.term
        newest_us = max(self.state.log_time_us, self._last_entry_time_us())
        monotonic_us = _monotonic_us()
        group_us = self._voter_clocks.now(
            self.core.membership.voters,
            term=term,
            wall_us=self.wall_us(),
            monotonic_us=monotonic_us,
        )
        self._log_clock = LogClock(newest_us, wall_us=group_us, monotonic_us=monotonic_us)
        self._propose(index, term, self._log_time(self._log_clock), [(RecordKind.NOOP, ())])

    def _last_entry_time_us(self) -> int:
        """Log time must not fall behind the newest entry, which may not be applied yet.

        After a restart it is not in memory: read here and now, as elections are rare.
        """
        last = self.log.last_index
        if last < self.log.first_index:
            return 0
        frames = self.log.cached_frames(last, last + 1)
        if frames is None:
            try:
                frames = self.log.read_frames(last, last + 1)
            except SemelError as error:
                self.on_fatal(
                    f"node {self.config.node_id} was elected and cannot read its newest entry: "
                    f"{error}. It is mended from a peer after the restart"
                )
                return 0
        return decode_frame_header(frames[0]).time_us

    def _on_role_changed(self, ready: Ready) -> None:
        logger.info(
            "role=%s term=%d master=%s commit_index=%d",
            ready.role.name.lower(),
            ready.term,
            ready.master_id,
            ready.commit_index,
        )
        self.log.page_cached = ready.role is Role.MASTER
        if self.proposer is not None and (
            ready.role is not Role.MASTER or ready.term != self._term_of_proposer
        ):
            proposer, self.proposer, self.lock_clock = self.proposer, None, None
            proposer.on_lost(self.not_master)
            self._room.set()
            self.on_mastership_lost(self.not_master())
            self.watchers.wake_all()
        if ready.role is not Role.MASTER:
            self._master_ready.set()
            self._reads.fail(self.not_master)
        self._tell_role()

    # ------------------------------------------------------------------ applying

    @halting
    def apply(self) -> None:
        """Applies what is committed: from the cache at once, from disk in the reader pool."""
        state = self.state
        while state.applied_index < self.core.commit_index and not self._reading_to_apply:
            lo = state.applied_index + 1
            hi = min(self.core.commit_index + 1, lo + _APPLY_FRAMES)
            hi = self.log.fit(lo, hi, 8 << 20)
            frames = self.log.cached_frames(lo, hi)
            if frames is None:
                self._reading_to_apply = True
                reading = self._loop.run_in_executor(self.readers, self.log.read_frames, lo, hi)
                reading.add_done_callback(self._on_read_to_apply)
                return
            self._apply_frames(frames)
        self._after_apply()

    @halting
    def _on_read_to_apply(self, reading: asyncio.Future[list[bytes]]) -> None:
        self._reading_to_apply = False
        if reading.cancelled():
            return
        error = reading.exception()
        if isinstance(error, DamagedEntry) and len(self.addresses()) > 1:
            return  # Repair says so, and takes it up again
        if error is not None:
            self.on_fatal(
                f"node {self.config.node_id} cannot read its own committed log: {error}. Restore "
                "the file, or delete this node's data directory to rebuild it from its peers"
            )
            return
        frames = reading.result()
        if decode_frame_header(frames[0]).index == self.state.applied_index + 1:
            self._apply_frames(frames)  # else a snapshot was installed meanwhile
        self.apply()

    def _apply_frames(self, frames: Sequence[bytes]) -> None:
        state, proposer = self.state, self.proposer
        for frame in frames:
            results = state.apply_frame(frame)
            if proposer is not None:
                proposer.on_applied(state.applied_index, results)
                if self.lock_clock is not None:
                    self.lock_clock.on_applied(results, monotonic_ms())
            self.watchers.wake(results)

    def _after_apply(self) -> None:
        applied = self.state.applied_index
        self.members.commit(applied)
        if self.state.feature_level != self._level_told:
            self._level_told = self.state.feature_level
            logger.info("feature level of the log is %d", self._level_told)
            began, self._level_raising = self._level_raising, None
            if began is None:  # else nobody was told a level before
                self.on_level_raised()
        if self.state.delays.queues:
            self.delaying.set()
        if self.core.role is Role.MASTER and self.proposer is None:
            self._maybe_become_judge()
        elif self.proposer is not None and self.proposer.has_pending:
            self._schedule_turn()
        self._reads.on_applied(applied)
        if self._applied_waiters:
            for index, future in self._applied_waiters:
                if index <= applied and not future.done():
                    future.set_result(None)
            self._applied_waiters = [
                waiter for waiter in self._applied_waiters if not waiter[1].done()
            ]

    def _maybe_become_judge(self) -> None:
        """The no-op of the own term is applied: from here on the state is all there is."""
        if self._stopping or self.state.applied_term != self.core.term:
            return
        self._term_of_proposer = self.core.term
        self.proposer = Proposer(
            Judge(
                self.state,
                term=Term(self.core.term),
                park_bytes_max=self.config.park_bytes_max,
                staged_bytes_max=self.config.staged_bytes_max,
                stagers_max=self.config.stagers_max,
                transactions_max=self.config.transactions_max,
                producers_max=self.config.producers_per_queue_max,
            ),
            on_released=self._on_released,
        )
        self._begin_level(self.proposer)
        self.lock_clock = LockClock()
        self.lock_clock.restore(self.state.groups.held(), self.state.queues, monotonic_ms())
        self._master_ready.set()
        logger.info("serving as master term=%d applied=%d", self.term, self.state.applied_index)
        self._tell_role()

    def _on_released(self, released: DelayedReleased) -> None:
        self.lateness.observe(released.late_us / 1_000_000)

    def _tell_role(self) -> None:
        waiters, self._role_waiters = self._role_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.on_role_changed()

    def members_of(self, state: State) -> Members:
        """The members that a state speaks of; the founding ones before any were logged."""
        return Members.of_state(state.membership) or self._founding

    def fail_all(self, error: Callable[[], SemelError]) -> None:
        """The node stops: everybody who waits hears so, and nothing more is proposed: what was on
        its way to the disk is still applied, but makes nobody a judge again."""
        self._stopping = True
        if self.proposer is not None:
            self.proposer.on_lost(error)
            self.proposer = None
        self._reads.fail(self.not_master)
