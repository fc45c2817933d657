"""Drives the Raft core: the one place that says in which order things persist, sync and leave.

How it works. Inputs arrive on the event loop: messages of peers, completed syncs, ticks, and turns
in which the master makes an entry. Each is handed to the Raft core, and what the core decides is
performed at once (`_perform`), in this order:

1. Entries are truncated and appended: handed to the log's writer, which syncs them beside all this.
   Bodies of topics in memory are in this node's memory from then on.
2. A new term or vote is written and synced at once, on the loop: elections are rare, and no message
   of the new term may leave before it. While the disk has no room for it, everything else is
   performed all the same (a deposed master admits nothing more), the messages that depend on it
   wait, and the node ignores messages of its peers, as if it were cut off; each tick tries to save
   it again.
3. Messages leave. A master's entries go to the slaves in parallel with its own write. An
   acknowledgement exists only once the core has heard of the sync (`on_synced`), on slaves and
   master alike.
4. Committed entries are applied, and only then clients are answered.

Requests are not admitted one by one: the first one of a loop turn schedules `_turn` for the end of
the turn, which makes one entry of all pending requests.

Invariants
1. Everything here runs on one event loop; the core, the log's index, the state and the proposer are
   touched by nobody else. Reader threads see immutable bytes only.
2. A failed write or sync ends the process (`on_fatal`): it is never retried, and nothing is
   answered in spite of it. A full disk does not count as a failed write.
3. A Ready is performed as a whole. Any exception that is raised meanwhile ends the process.

Not here: what others ask of the node (`replica/replica.py`), applying (`replica/applier.py`), the
decisions (`raft/`), the writer (`log/`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from semel.broker.config import BrokerConfig
from semel.broker.log import Log
from semel.broker.memory import BodyStore, Carried
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
from semel.broker.replica.applier import Applier
from semel.broker.replica.clock import monotonic_ms
from semel.broker.replica.confirmed_reads import ConfirmedReads
from semel.broker.replica.fatal import halting
from semel.broker.replica.feature_levels import FeatureLevels
from semel.broker.replica.log_time import LogTime
from semel.broker.replica.log_view import CoreLog
from semel.broker.replica.mastership import Mastership
from semel.broker.replica.member_book import Members
from semel.broker.replica.peers import Peers
from semel.broker.replica.proposer import Proposer
from semel.broker.replica.requests import RecordParts
from semel.broker.replica.term_and_vote import TermAndVote
from semel.broker.state import State
from semel.protos.errors import DiskFull, NotMaster
from semel.protos.frames import RecordKind, build_frame
from semel.protos.ids import NodeId

logger = logging.getLogger(__name__)

TICK_MS = 25
_LOOP_GAP_MS = 300
_NOTHING: Final[Mapping[int, Sequence[Carried]]] = {}
_CONTROL_BYTES = 64 << 10
"""What the control records and headers of one entry take, generously."""


class DrivenReplica(Protocol):
    """The replica, as this module needs it; a snapshot replaces `state`."""

    config: BrokerConfig
    state: State
    on_fatal: Callable[[str], None]

    def not_master(self) -> NotMaster: ...

    def tell_role(self) -> None:
        """Role, term or master changed, or this node begins to serve."""
        ...


class Driver:
    """Hands inputs to the core of one replica and performs what the core decides."""

    def __init__(
        self,
        replica: DrivenReplica,
        *,
        log: Log,
        core: RaftCore,
        core_log: CoreLog,
        term_and_vote: TermAndVote,
        peers: Peers,
        log_time: LogTime,
        mastership: Mastership,
        feature_levels: FeatureLevels,
        applier: Applier,
        bodies: BodyStore,
    ) -> None:
        self.config = replica.config
        self._replica = replica
        self._log = log
        self._core = core
        self._core_log = core_log
        self._term_and_vote = term_and_vote
        self._peers = peers
        self._log_time = log_time
        self._mastership = mastership
        self._feature_levels = feature_levels
        self._applier = applier
        self._bodies = bodies
        self.reads = ConfirmedReads(self._start_read_round)
        self.on_snapshot_offer: Callable[[Message], None] = lambda _: None
        self._loop = asyncio.get_running_loop()
        self._frames_in_step: dict[int, bytes] = {}
        """Frames of the message that the core is looking at, by index."""
        self._carried_in_step: Mapping[int, Sequence[Carried]] = {}
        """What came beside them: bodies of topics in memory."""
        self._turn_scheduled = False
        self._giving_up: asyncio.Future[None] | None = None
        """The confirmed read for which the answers to overdue batches wait."""
        self._last_tick_ms = monotonic_ms()
        term_and_vote.on_saved = self._on_saved
        applier.on_applied = self._on_applied
        log.on_synced = self._on_synced_by_log
        log.on_failure = self._on_log_failure
        log.attach(self._loop)

    @property
    def on_fatal(self) -> Callable[[str], None]:
        return self._replica.on_fatal

    # ------------------------------------------------------------------ inputs

    @halting
    def on_message(
        self,
        message: Message,
        frames: Sequence[bytes],
        carried: Mapping[int, Sequence[Carried]] = _NOTHING,
    ) -> None:
        """A message of a peer arrived, its frames checked; `carried` are bodies of topics in
        memory, by entry."""
        if self._term_and_vote.unsaved is not None:
            return  # as if it were lost: no answer could leave
        if frames and not self._log.can_append(sum(map(len, frames)), len(frames)):
            return  # no space: as if the message were lost, so that nothing is acknowledged
        self._frames_in_step = {
            meta.index: frame for meta, frame in zip(message.entries, frames, strict=True)
        }
        self._carried_in_step = carried
        if carried:
            # Also of entries that are here: their bodies may not be. An answer says that they are.
            for meta in message.entries:
                if self._log.term_at(meta.index) == meta.term:
                    found = carried.get(meta.index, ())
                    self._bodies.put_again(meta.index, found, self._replica.state)
        if message.kind is MessageKind.VOTE_REPLY and not message.rejected:
            self._log_time.on_vote(message)
        self._core.step(message, monotonic_ms())
        self.drain()
        self._frames_in_step = {}
        self._carried_in_step = _NOTHING

    @halting
    def on_stream_broken(self, peer: NodeId) -> None:
        """A stream to a peer broke: what was on its way may be lost."""
        self._core.on_stream_broken(peer, monotonic_ms())
        self.drain()

    @halting
    def on_peer_unreachable(self, peer: NodeId) -> None:
        """A stream to a peer broke, and nobody listens at its address any more."""
        self._core.on_peer_unreachable(peer, monotonic_ms())
        self.drain()

    @halting
    def on_tick(self) -> None:
        """Called every TICK_MS by the node."""
        now_ms = monotonic_ms()
        gap = now_ms - self._last_tick_ms
        self._last_tick_ms = now_ms
        if gap > _LOOP_GAP_MS:
            logger.warning("event loop was stopped gap_ms=%d", gap)
            if self._mastership.lock_clock is not None:
                self._mastership.lock_clock.refresh_all(now_ms)
        if self._term_and_vote.unsaved is not None and not self._term_and_vote.try_again():
            return  # the core gets no ticks while no decision of this node could leave it
        self._core.on_log_stalled(self._log.oldest_unsynced_age_ms(now_ms))
        self._core.tick(now_ms)
        self.drain()
        proposer = self._mastership.proposer
        if proposer is None:
            return
        if proposer.has_pending:
            # The core may take proposals again, and nothing else says so.
            self.schedule_turn()
        if self._giving_up is None and proposer.has_overdue(now_ms):
            self._giving_up = self.reads.ask()
            self._giving_up.add_done_callback(partial(self._give_up, proposer, now_ms))

    @halting
    def _give_up(self, proposer: Proposer, now_ms: int, confirmed: asyncio.Future[None]) -> None:
        """Answers the batches whose predecessor had not come by `now_ms`, if a quorum confirmed it.

        They may wait on a master that was replaced while its loop was stopped: there they are
        answered with NotMaster, because the predecessor may be stored by the new master.
        """
        self._giving_up = None
        if confirmed.exception() is None and self._mastership.proposer is proposer:
            proposer.expire_parked(now_ms)

    def loop_stopped(self) -> bool:
        """Whether the loop was stopped (SIGSTOP) and no tick has dealt with that yet."""
        return monotonic_ms() - self._last_tick_ms > _LOOP_GAP_MS

    def _on_synced_by_log(self, index: int, term: int) -> None:
        """Called by a thread of the log, or on the loop, which then need not be woken.

        The log holds its locks during this call, so the core hears of the sync later in both cases.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._loop.call_soon_threadsafe(self._on_synced, index, term)
        else:
            self._loop.call_soon(self._on_synced, index, term)

    @halting
    def _on_synced(self, index: int, term: int) -> None:
        self._core.on_synced(index, term, monotonic_ms())
        self.drain()

    def _on_log_failure(self, error: BaseException) -> None:
        self.on_fatal(
            f"the log of node {self.config.node_id} cannot be written: {error}. A failed write is "
            "never retried: this process ends; its data is whole up to the last sync"
        )

    def _start_read_round(self, context: int) -> None:
        self._core.read_index(context, monotonic_ms())
        self.drain()

    def schedule_turn(self) -> None:
        """Something is pending: an entry is made of it at the end of this loop turn."""
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn)

    @halting
    def _turn(self) -> None:
        """Makes one entry of what is pending."""
        self._turn_scheduled = False
        proposer = self._mastership.proposer
        if proposer is None or not proposer.has_pending:
            return
        config = self.config
        if not self._log.can_append(proposer.pending_bytes + _CONTROL_BYTES):
            proposer.refuse_pending(
                DiskFull(
                    f"the disk of node {config.node_id}, master of group {config.group_id}, is "
                    "full: nothing was stored; free space and retry"
                )
            )
            self._mastership.room.set()
            return
        if (
            not self._core.accepts_proposals
            or proposer.unapplied_bytes > config.unapplied_bytes_max
            or (
                proposer.entries_in_flight >= config.entries_in_flight_max
                and proposer.pending_bytes < config.entry_bytes_target
            )
        ):
            return  # taken up again when an entry is applied
        now_ms = monotonic_ms()
        time_us = self._log_time.now_us()
        index, term = self._core.next_index(), self._core.term
        entry = proposer.next_entry(index, term, time_us, now_ms, config.entry_bytes_target)
        if entry is not None:
            # The way to the slaves is longer, so their copies leave at the end of this loop turn,
            # and only then this node writes its own copy.
            self._log.hold_writes()
            self._loop.call_soon(self._log.release_writes)
            self._propose(index, term, time_us, entry.records, bodies=entry.bodies)
            self.drain()
        if proposer.pending_bytes <= config.pending_bytes_max:
            self._mastership.room.set()
        if proposer.has_pending:
            self.schedule_turn()

    # ------------------------------------------------------------------ performing

    @halting
    def drain(self) -> None:
        """Performs what the core has decided, until it has decided nothing more."""
        while self._core.has_ready():
            self._perform(self._core.ready())

    def _perform(self, ready: Ready) -> None:
        if ready.truncate_from is not None:
            self._log.truncate(ready.truncate_from)
            self._bodies.truncate(ready.truncate_from)
            self._core_log.truncated(ready.truncate_from)
            self._peers.truncate(ready.truncate_from)
        if ready.append:
            for meta in ready.append:
                self._core_log.appended(meta)
            self._append([self._frames_in_step[meta.index] for meta in ready.append])
            if self._carried_in_step:
                for meta in ready.append:
                    self._bodies.put_carried(meta.index, self._carried_in_step.get(meta.index, ()))
            self._follow_members(ready.append)
        if ready.hard_state is not None:
            self._term_and_vote.save(ready.hard_state, ready.messages_after_hard_state)
        if ready.role_changed:
            self._on_role_changed(ready)
        if ready.append_noop:
            self._append_noop()
        self._send(ready.messages)
        if ready.reads or ready.reads_failed:
            self.reads.on_rounds(ready.reads, ready.reads_failed, self._replica.not_master)
        if ready.snapshot_wanted is not None:
            self.on_snapshot_offer(ready.snapshot_wanted)
        self._applier.apply()

    def _append(self, frames: Sequence[bytes]) -> None:
        """The core counts on these entries: if the disk fills up at this very moment, they wait in
        memory, unacknowledged, and the node falls silent like one whose disk hangs."""
        self._log.append(frames, wait_for_room=True)

    def _follow_members(self, appended: Sequence[EntryMeta]) -> None:
        changes = [meta.index for meta in appended if meta.membership is not None]
        if changes:
            self._peers.append(
                {index: Members.of_frame(self._frames_in_step[index]) for index in changes}
            )

    def _on_saved(self, saved: HardState, messages: Sequence[Message]) -> None:
        """Term and vote are durable: what waited for them may leave."""
        self._core.on_hard_state_synced(saved)
        self._send(messages)

    def _on_role_changed(self, ready: Ready) -> None:
        logger.info(
            "role changed role=%s term=%d master=%s commit_index=%d",
            ready.role.name.lower(),
            ready.term,
            ready.master_id,
            ready.commit_index,
        )
        mastership = self._mastership
        self._log.page_cached = ready.role is Role.MASTER
        if mastership.proposer is not None and (
            ready.role is not Role.MASTER or ready.term != mastership.term
        ):
            mastership.lose()
            self._applier.watchers.wake_all()
        if ready.role is not Role.MASTER:
            mastership.decided.set()
            self.reads.fail(self._replica.not_master)
        self._replica.tell_role()

    def _append_noop(self) -> None:
        """The first entry of this master's term: with it, everything before it is committed."""
        index, term = self._core.next_index(), self._core.term
        applied_us = self._replica.state.log_time_us
        time_us = self._log_time.begin(term, self._core.membership.voters, applied_us)
        self._propose(index, term, time_us, [(RecordKind.NOOP, ())])

    def _send(self, messages: Sequence[Message]) -> None:
        for message in messages:
            link = self._peers.links.get(message.target)
            if message.kind is MessageKind.VOTE_REPLY:
                message = replace(message, hint_index=self._log_time.wall_us())
            if link is not None:
                link.send(message)

    def _on_applied(self, state: State) -> None:
        """All committed entries that are here are applied: callers that waited for that go on."""
        applied = state.applied_index
        self._peers.book.commit(applied)
        if state.feature_level != self._feature_levels.applied:
            self._feature_levels.on_applied()
        if state.delays.queues:
            self._applier.delaying.set()
        if self._core.role is Role.MASTER and self._mastership.proposer is None:
            if self._mastership.maybe_begin(state, self._begin_level):
                self._replica.tell_role()
        elif self._mastership.proposer is not None and self._mastership.proposer.has_pending:
            self.schedule_turn()
        self.reads.on_applied(applied)
        if self._applier.waiters:
            self._applier.wake_waiters(applied)

    def _begin_level(self, proposer: Proposer) -> None:
        if self._feature_levels.begin(proposer):
            self.schedule_turn()

    # ------------------------------------------------------------------ appending as master

    def _propose(
        self,
        index: int,
        term: int,
        time_us: int,
        records: Sequence[RecordParts],
        membership: Membership | None = None,
        bodies: Sequence[tuple[int, bytes]] = (),
    ) -> None:
        """Appends an entry that this master makes; the caller drains. `bodies` are the stored
        batches of records without bodies, by their numbers."""
        frame, positions = build_frame(index, term, time_us, records)
        self._append((frame,))
        for number, stored in bodies:
            self._bodies.put(index, positions[number], stored)
        size = len(frame) + self._bodies.entry_bytes(index)
        meta = EntryMeta(index=index, term=term, size=size, membership=membership)
        self._core_log.appended(meta)
        self._core.proposed(meta)

    def append_alone(
        self, kind: RecordKind, payload: bytes = b"", members: Members | None = None
    ) -> tuple[int, int]:
        """Appends an entry of one record that needs no admission; returns its index and term.

        `members` are those of a membership record, in force at once; the core was asked whether
        they are allowed. Raises NotMaster.
        """
        if not self._log_time.has_begun:
            raise self._replica.not_master()
        index, term = self._core.next_index(), self._core.term
        record = (kind, (payload,) if payload else ())
        membership = None if members is None else members.membership
        self._propose(index, term, self._log_time.now_us(), [record], membership)
        if members is not None:
            self._peers.append({index: members})
        self.drain()
        return index, term

    # ------------------------------------------------------------------ repairs

    def cut_torn(self, index: int) -> bool:
        """Drops a damaged entry that the whole group considers a torn write.

        False if that is not possible now.
        """
        damage = self._log.damaged.get(index)
        if damage is None or not damage.torn or not self._core.cut_torn(index, monotonic_ms()):
            return False
        self.drain()
        return True

    @halting
    def repair_hard_state(self) -> None:
        """BLOCKING, like every save. Writes a damaged copy of term and vote anew."""
        self._term_and_vote.repair()
