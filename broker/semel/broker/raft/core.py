"""The interface of the Raft core: inputs are method calls, and decisions leave it as a `Ready`.

How it works. The shell calls `tick` (at least every `tick_ms`), `step` for every message, and the
`on_*` methods when its disks are done. After each call, or a few of them, it takes `ready()` and
performs it (`ready.py` says in which order). The core only decides: it uses no I/O, no clock, and
no randomness except the generator it was given, so a run can be repeated exactly.

After stepping an APPEND, the shell must take `ready()` and write its entries to the log before the
next input: the entries' bytes belong to that message, and the core reads the log to handle the next
one.

The algorithm is Ongaro's (Raft paper; dissertation §4 membership, §6.4 reads, §9.6 pre-vote, §3.10
transfer), with the progress states and hints of etcd/raft.

Not here: the rules themselves (`raft/electing.py`, `raft/following.py`, `raft/replicating.py`) and
the variables they share (`raft/raft_state.py`).
"""

from __future__ import annotations

from typing import assert_never

from semel.broker.raft.electing import Electing
from semel.broker.raft.following import Following
from semel.broker.raft.messages import HardState, Message, MessageKind
from semel.broker.raft.progress import Progress
from semel.broker.raft.raft_state import LONG_AGO
from semel.broker.raft.ready import PeerProgress, RaftStatus, Ready, Role
from semel.protos.ids import NodeId

_FROM_MASTER = frozenset({MessageKind.APPEND, MessageKind.HEARTBEAT, MessageKind.SNAPSHOT_OFFER})
_ELECTIONS = frozenset({MessageKind.PRE_VOTE, MessageKind.VOTE, MessageKind.TIMEOUT_NOW})


class RaftCore(Following, Electing):
    """One replica of one group.

    `membership` is the one in force at `applied_index`, the checkpoint's index; the core reads
    later changes from the log. At the start, all recovered entries must be synced, except those
    that may be torn: they are neither acknowledged nor counted before they are repaired. A
    checkpoint may only cover entries up to `synced_index`, because a slave may apply entries
    that are durable on a majority but not yet on itself.
    """

    # --- inputs

    def tick(self, now_ms: int) -> None:
        """Reacts to the time: sends heartbeats, stands for election, steps down, or gives up a
        transfer."""
        self._assert_performed()
        self._observe(now_ms)
        if self.role is not Role.MASTER:
            if self._now_ms >= self._election_deadline_ms:
                self._on_election_timeout()
            return
        if self._transferee is not None and self._now_ms >= self._transfer_deadline_ms:
            self._transferee = None
        if not self._hears_quorum():
            self._become_slave(self.term, None)
        elif self._now_ms >= self._heartbeat_due_ms:
            self._beat()

    def step(self, message: Message, now_ms: int) -> None:
        """Handles a message. Messages may be lost, repeated, late or out of order."""
        self._assert_performed()
        assert message.target == self.node_id
        assert message.source != self.node_id
        self._observe(now_ms)
        if self._non_counting and message.kind in _ELECTIONS:
            return
        if message.term != self.term and not self._reconcile_term(message):
            return
        match message.kind:
            case MessageKind.APPEND:
                self._hear_master(message)
                self._on_append(message)
            case MessageKind.APPEND_REPLY:
                if (progress := self._hear_peer(message)) is not None:
                    self._on_append_reply(message, progress)
            case MessageKind.HEARTBEAT:
                self._hear_master(message)
                self._on_heartbeat(message)
            case MessageKind.HEARTBEAT_REPLY:
                if (progress := self._hear_peer(message)) is not None:
                    self._on_heartbeat_reply(message, progress)
            case MessageKind.SNAPSHOT_OFFER:
                self._hear_master(message)
                self._on_snapshot_offer(message)
            case MessageKind.SNAPSHOT_REPLY:
                if (progress := self._hear_peer(message)) is not None:
                    self._on_snapshot_reply(message, progress)
            case MessageKind.PRE_VOTE:
                self._on_pre_vote(message)
            case MessageKind.PRE_VOTE_REPLY:
                self._on_pre_vote_reply(message)
            case MessageKind.VOTE:
                self._on_vote(message)
            case MessageKind.VOTE_REPLY:
                self._on_vote_reply(message)
            case MessageKind.TIMEOUT_NOW:
                self._on_timeout_now(message)
            case _:
                assert_never(message.kind)

    def _reconcile_term(self, message: Message) -> bool:
        """Handles a message of another term; returns whether the message should be processed
        further."""
        kind = message.kind
        if message.term < self.term:
            # The rejection tells a master or candidate of an old term to step down or stand again.
            # Without it a node with a higher term could never rejoin the group.
            if kind in _FROM_MASTER:
                self._reply(message, MessageKind.HEARTBEAT_REPLY, rejected=True)
            elif kind is MessageKind.PRE_VOTE:
                self._reply(message, MessageKind.PRE_VOTE_REPLY, rejected=True)
            elif kind is MessageKind.VOTE:
                self._reply(message, MessageKind.VOTE_REPLY, rejected=True)
            return False
        if kind is MessageKind.PRE_VOTE:
            return True
        if kind is MessageKind.PRE_VOTE_REPLY and not message.rejected:
            return True
        if kind is MessageKind.VOTE and not message.force and self._in_lease:
            return False
        self._become_slave(message.term, message.source if kind in _FROM_MASTER else None)
        return True

    def _hear_master(self, message: Message) -> None:
        assert self.role is not Role.MASTER, f"two masters in term {self.term}"
        if self.role is not Role.SLAVE or self.master_id != message.source:
            assert self.master_id in (None, message.source), f"two masters in term {self.term}"
            self._become_slave(self.term, message.source)
        self._last_master_contact_ms = self._now_ms
        self._reset_election_deadline()

    def _hear_peer(self, message: Message) -> Progress | None:
        """The sender's progress; None when the sender is no member or its message does not count
        yet."""
        progress = self.progress.get(message.source)
        if progress is None:
            return None
        progress.last_contact_ms = self._now_ms
        if message.non_counting:
            if progress.on_non_counting(self._reads.round, self.log.last_index):
                self._due.add(message.source)
            return progress
        if progress.counts:
            return progress
        is_answer = message.kind is MessageKind.HEARTBEAT_REPLY
        if not progress.on_counting(message.context if is_answer else 0):
            return None
        self._maybe_commit()
        return progress if self.role is Role.MASTER else None

    def on_synced(self, index: int, term: int, now_ms: int) -> None:
        """Handles a completed write: the log that existed at its start is durable to (index, term).

        Entries may have been replaced since. A completion counts only while the log still has
        that entry, and never beyond the log's own synced_index: the same (index, term) may have
        been written, truncated, and be on its way to the disk again.
        """
        self._assert_performed()
        self._observe(now_ms)
        if self.log.term_at(index) != term:
            self._stale_completions += 1
            return
        synced_index = min(index, self.log.synced_index)
        if synced_index < index:
            self._stale_completions += 1
        if synced_index <= self.synced_index:
            return
        self.synced_index = synced_index
        if self.role is Role.MASTER:
            self._maybe_commit()
        else:
            self._acknowledge_synced()

    def on_hard_state_synced(self, hard_state: HardState) -> None:
        """Handles that a hard state, handed out before, is durable."""
        self._assert_performed()
        if self._hard_state_durable or hard_state != self.hard_state:
            return
        self._hard_state_durable = True
        self._messages += self._held
        self._held.clear()
        if self.role is Role.CANDIDATE:
            self._on_own_vote_durable()

    def on_log_stalled(self, oldest_unsynced_age_ms: int) -> None:
        """Takes the time that the oldest unsynced write has waited. Call it before every tick."""
        stalled = oldest_unsynced_age_ms > self.config.log_stall_ms
        if self._stalled and not stalled:
            self._due.update(self.progress)
        self._stalled = stalled

    @property
    def non_counting(self) -> bool:
        """True while this node is a non-counting member (see `set_non_counting`)."""
        return self._non_counting

    def set_non_counting(self, non_counting: bool) -> None:
        """Makes this node a non-counting member while it may have lost entries and votes that it
        once promised, because its directory was empty.

        A non-counting member takes entries and reports its progress, but gives no vote, never
        stands, and tells the master not to count it. The shell ends that when all committed entries
        are here again.
        """
        self._non_counting = non_counting

    def set_electable(self, electable: bool) -> None:
        """False while entries of this node's log are damaged: it still votes, but never stands."""
        self._electable = electable

    def resign(self, now_ms: int) -> None:
        """Makes a master step down because it cannot read its own log, so that another node can
        stand."""
        self._assert_performed()
        self._observe(now_ms)
        if self.role is Role.MASTER:
            self._become_slave(self.term, None)

    def on_stream_broken(self, peer: NodeId, now_ms: int) -> None:
        """Handles that a stream to the peer broke, which says nothing about the peer itself."""
        self._assert_performed()
        self._observe(now_ms)
        if self.role is Role.MASTER:
            self._on_stream_broken(peer)

    def on_peer_unreachable(self, peer: NodeId, now_ms: int) -> None:
        """Handles that the peer's process is gone: its stream broke, and a reconnect was
        refused."""
        self._assert_performed()
        self._observe(now_ms)
        if self.role is Role.MASTER:
            self._on_stream_broken(peer)
        elif self.role is Role.SLAVE and peer == self.master_id:
            wait_ms = self._random.randint(0, self.config.unreachable_max_ms)
            self._last_master_contact_ms = LONG_AGO
            self._election_deadline_ms = min(self._election_deadline_ms, self._now_ms + wait_ms)

    def read_index(self, context: int, now_ms: int) -> None:
        """Requests a read index. `context` returns in a ReadState in Ready.reads, or in
        Ready.reads_failed."""
        self._assert_performed()
        self._observe(now_ms)
        if self.role is not Role.MASTER:
            self._failed_reads.append(context)
            return
        known = self.commit_index if self.commit_index >= self._term_start else None
        self._reads.add(context, known)

    # --- outputs

    def has_ready(self) -> bool:
        """True when `ready()` has something new."""
        return bool(
            self._messages
            or self._due
            or self._append
            or self._truncate_from is not None
            or self.commit_index != self._told_commit_index
            or self._hard_state_changed
            or self._noop_due
            or self._read_states
            or self._failed_reads
            or self._snapshot_wanted is not None
            or (self._reads.wants_round and not self._stalled)
            or self._soft_state != self._told_soft_state
        )

    def ready(self) -> Ready:
        """The pending decisions; each is handed out exactly once."""
        if self.role is Role.MASTER:
            if self._reads.wants_round:
                self._beat()
            if self._due:
                self._replicate()
        hard_state = None
        after: tuple[Message, ...] = ()
        if self._hard_state_changed:
            self._hard_state_changed = False
            hard_state = self.hard_state
            after = tuple(self._held)
            self._held.clear()
        soft_state = self._soft_state
        ready = Ready(
            role=self.role,
            master_id=self.master_id,
            term=self.term,
            commit_index=self.commit_index,
            role_changed=soft_state != self._told_soft_state,
            hard_state=hard_state,
            truncate_from=self._truncate_from,
            append=self._append,
            append_noop=self._noop_due,
            messages=tuple(self._messages),
            messages_after_hard_state=after,
            reads=tuple(self._read_states),
            reads_failed=tuple(self._failed_reads),
            snapshot_wanted=self._snapshot_wanted,
        )
        self._told_soft_state = soft_state
        self._told_commit_index = self.commit_index
        self._truncate_from = None
        self._append = ()
        self._noop_due = False
        self._messages.clear()
        self._read_states.clear()
        self._failed_reads.clear()
        self._snapshot_wanted = None
        return ready

    def status(self) -> RaftStatus:
        """The core's present state, for status pages and tests; changes nothing."""
        oldest_ms = self._now_ms - self.config.check_quorum_ms
        return RaftStatus(
            node_id=self.node_id,
            role=self.role,
            term=self.term,
            voted_for=self.voted_for,
            master_id=self.master_id,
            commit_index=self.commit_index,
            last_index=self.log.last_index,
            synced_index=self.synced_index,
            membership=self.membership,
            progress={
                node: PeerProgress(
                    match_index=progress.match_index,
                    next_index=progress.next_index,
                    state=progress.state.name.lower(),
                    inflight_bytes=progress.inflight_bytes,
                    recently_active=progress.last_contact_ms >= oldest_ms,
                    counts=progress.counts,
                )
                for node, progress in self.progress.items()
            },
            stale_completions=self._stale_completions,
        )
