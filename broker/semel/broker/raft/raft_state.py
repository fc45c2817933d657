"""The Raft variables of one replica, its outbox, and its changes of role.

How it works. `RaftState` is the common base of the rules: `following.py`, `electing.py` and
`replicating.py` each add the inputs of one concern, and `core.py` joins them. Only the
`_become_*` methods change the role.

    any -> SLAVE               a higher term; a master of this term; a lost election
    MASTER -> SLAVE            no quorum heard; removed from the group; resigned
    any other -> PRE_CANDIDATE election timeout
    PRE_CANDIDATE -> CANDIDATE a quorum would vote
    SLAVE -> CANDIDATE         the master handed over (TIMEOUT_NOW)
    CANDIDATE -> MASTER        a quorum voted for it, including its own durable vote

Invariants
1. No message leaves while (term, voted_for) is not durable; messages are held back (`_send`).
2. commit_index never falls, and never passes the last entry known to match the master's log.
3. matched_index counts for this term only; commit_index is always matched.
4. Everything up to synced_index is durable in the log as it is now.

Not here: handling the fields of messages (`raft/following.py`, `raft/electing.py`,
`raft/replicating.py`).
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from semel.broker.raft.membership_history import Membership, MembershipHistory
from semel.broker.raft.messages import EntryMeta, HardState, Message, MessageKind
from semel.broker.raft.progress import Progress
from semel.broker.raft.raft_config import RaftConfig
from semel.broker.raft.read_index import ReadIndex
from semel.broker.raft.ready import LogView, ReadState, Role
from semel.protos.ids import NodeId

LONG_AGO = -(1 << 62)


class RaftState:
    """The state that the rules share. Fields without an underscore may be read from outside."""

    def __init__(
        self,
        config: RaftConfig,
        *,
        node_id: NodeId,
        hard_state: HardState,
        membership: Membership,
        log: LogView,
        applied_index: int,
        random: Random,
        now_ms: int,
    ) -> None:
        assert applied_index <= log.last_index, "the log ends before the checkpoint"
        assert applied_index >= log.first_index - 1, "entries behind the checkpoint are gone"
        assert log.synced_index <= log.last_index
        self.config = config
        self.node_id = node_id
        self.log = log
        self._random = random

        self.role = Role.SLAVE
        self.term = hard_state.term
        self.voted_for = hard_state.voted_for
        self.master_id: NodeId | None = None
        self.commit_index = applied_index
        self.synced_index = log.synced_index
        self._torn_through = log.last_index
        """Entries above synced_index up to this index were in the log at the start and may be
        torn."""
        self.matched_index = 0
        """Slave: the log equals the master's up to this index; see invariant 3."""
        self._acked_index = 0
        """Slave: highest index acknowledged to the master of this term."""
        self._history = MembershipHistory(membership, applied_index)
        for index in range(applied_index + 1, log.last_index + 1):
            changed = log.meta(index).membership
            if changed is not None:
                self._history.append(index, changed)

        self._now_ms = now_ms
        self._election_deadline_ms = 0
        self._last_master_contact_ms = LONG_AGO
        self._stalled = False
        self._electable = True
        self._non_counting = False
        self._installing = False
        """True from begin_snapshot or begin_rebuild to its end: entries are neither taken nor
        acknowledged."""

        self._campaign = 0
        """Number of the newest campaign, including pre-votes; answers carry it."""
        self.elections = 0
        """Number of elections, without pre-votes, in which this node stood since its start."""
        self._votes: dict[NodeId, bool] = {}

        self.progress: dict[NodeId, Progress] = {}
        """Master: the progress of every other member."""
        self._term_start = 0
        """Master: index of the no-op, the first entry of its term."""
        self._heartbeat_due_ms = 0
        self._transferee: NodeId | None = None
        self._transfer_deadline_ms = 0
        self._transfer_sent = False
        self._reads = ReadIndex()
        self._due: set[NodeId] = set()
        """Master: peers for which there may be entries to send."""

        self._hard_state_durable = True
        self._hard_state_changed = False
        self._messages: list[Message] = []
        self._held: list[Message] = []
        """Messages that wait for (term, voted_for) to be durable."""
        self._truncate_from: int | None = None
        self._append: tuple[EntryMeta, ...] = ()
        self._noop_due = False
        self._noop_missing = False
        """Master: the no-op is not in the log yet."""
        self._read_states: list[ReadState] = []
        self._failed_reads: list[int] = []
        self._snapshot_wanted: Message | None = None
        self._stale_completions = 0
        self._told_commit_index = -1
        self._told_soft_state: tuple[Role, int, NodeId | None] | None = None

        if log.last_term > self.term:
            # The log was synced but the hard state was not; an entry of a term proves the term.
            self._set_hard_state(log.last_term, None)
        self._reset_election_deadline()

    # --- facts

    @property
    def membership(self) -> Membership:
        """The membership in force: the newest in the log, committed or not."""
        return self._history.current

    @property
    def hard_state(self) -> HardState:
        return HardState(term=self.term, voted_for=self.voted_for)

    @property
    def _soft_state(self) -> tuple[Role, int, NodeId | None]:
        return self.role, self.term, self.master_id

    @property
    def _may_stand(self) -> bool:
        return (
            self._electable
            and not self._non_counting
            and not self._stalled
            and not self._installing
            and not self._awaits_repair
            and self._history.may_be_voter(self.node_id)
        )

    @property
    def _awaits_repair(self) -> bool:
        """True while the log ends with entries that may be torn."""
        return self.synced_index < self._torn_through

    @property
    def _in_lease(self) -> bool:
        """True while this node is master or has heard its master within election_min_ms."""
        if self.role is Role.MASTER:
            return True
        heard_ms = self._now_ms - self._last_master_contact_ms
        return self.master_id is not None and heard_ms < self.config.election_min_ms

    @property
    def _durable_match(self) -> int:
        """The highest index that may be acknowledged: the log is durable here, and equal to the
        master's, up to it."""
        return min(max(self.matched_index, self.commit_index), self.synced_index)

    # --- outbox

    def _send(self, message: Message) -> None:
        assert message.target != self.node_id
        if self._non_counting:
            message = replace(message, non_counting=True)
        if self._hard_state_durable:
            self._messages.append(message)
        else:
            self._held.append(message)

    def _reply(
        self,
        to: Message,
        kind: MessageKind,
        *,
        log_index: int = 0,
        rejected: bool = False,
        hint_index: int = 0,
        hint_term: int = 0,
        term: int | None = None,
    ) -> None:
        self._send(
            Message(
                kind=kind,
                source=self.node_id,
                target=to.source,
                term=self.term if term is None else term,
                log_index=log_index,
                rejected=rejected,
                hint_index=hint_index,
                hint_term=hint_term,
                context=to.context,
            )
        )

    def _set_hard_state(self, term: int, voted_for: NodeId | None) -> None:
        assert term > self.term or (term == self.term and self.voted_for in (None, voted_for))
        if term > self.term:
            self._held.clear()
        self.term = term
        self.voted_for = voted_for
        self._hard_state_durable = False
        self._hard_state_changed = True

    # --- time

    def _observe(self, now_ms: int) -> None:
        """Takes the time; every input that knows the time calls it. A time during which this
        process was stopped proves nothing about the other nodes, which may have acted meanwhile."""
        gap_ms = now_ms - self._now_ms
        if gap_ms <= 0:
            return
        self._now_ms = now_ms
        if gap_ms <= self.config.loop_gap_ms:
            return
        if self.role is Role.MASTER:
            self._reads.distrust()
            for progress in self.progress.values():
                progress.last_contact_ms = now_ms
        else:
            self._reset_election_deadline()

    def _reset_election_deadline(self) -> None:
        config = self.config
        spread_ms = config.election_max_ms - config.election_min_ms + 1
        wait_ms = config.election_min_ms + int(self._random.random() * spread_ms)
        self._election_deadline_ms = self._now_ms + wait_ms

    # --- commit

    def _commit_to(self, index: int) -> None:
        """Commits the entries up to `index`; the caller knows that they match the master's log."""
        if index > self.commit_index:
            self.commit_index = index
            self._history.commit(index)

    # --- roles

    def _become_slave(self, term: int, master_id: NodeId | None) -> None:
        assert term >= self.term
        if term > self.term:
            self._set_hard_state(term, None)
            self.matched_index = 0
            self._acked_index = 0
        if self.role is Role.MASTER:
            self._failed_reads += self._reads.fail()
            self.progress.clear()
            self._due.clear()
            self._transferee = None
            self._noop_due = self._noop_missing = False
        self.role = Role.SLAVE
        self.master_id = master_id
        self._votes.clear()
        self._reset_election_deadline()

    def _become_pre_candidate(self) -> None:
        assert self.role is not Role.MASTER
        assert self._may_stand
        self.role = Role.PRE_CANDIDATE
        self.master_id = None
        self._campaign += 1
        self._votes = {self.node_id: True}
        self._reset_election_deadline()

    def _become_candidate(self) -> None:
        """Stands for election. This node's own vote counts once it is durable
        (`RaftCore.on_hard_state_synced`)."""
        assert self.role is not Role.MASTER
        assert self._may_stand
        self._set_hard_state(self.term + 1, self.node_id)
        self.matched_index = 0
        self._acked_index = 0
        self.role = Role.CANDIDATE
        self.master_id = None
        self._campaign += 1
        self.elections += 1
        self._votes = {}
        self._reset_election_deadline()

    def _become_master(self) -> None:
        assert self.role is Role.CANDIDATE
        assert self.voted_for == self.node_id
        assert self._hard_state_durable
        self.role = Role.MASTER
        self.master_id = self.node_id
        self._votes.clear()
        self._term_start = self.log.last_index + 1
        self._noop_due = self._noop_missing = True
        self.progress = {
            node: Progress(next_index=self._term_start, now_ms=self._now_ms)
            for node in sorted(self.membership.nodes)
            if node != self.node_id
        }


def last_at_most(log: LogView, index: int, term: int) -> tuple[int, int]:
    """The last (index, term) of the log at or below both, which is where two logs may still agree.

    Terms never fall along a log, so this is a binary search. When the log has no such entry left,
    it returns (first_index - 2, 0), whose term is unknown.
    """
    low = log.first_index - 1
    high = min(index, log.last_index)
    lowest_term = log.term_at(low)
    if high < low or lowest_term is None or lowest_term > term:
        return low - 1, 0
    while low < high:
        middle = (low + high + 1) // 2
        middle_term = log.term_at(middle)
        assert middle_term is not None
        if middle_term <= term:
            low = middle
        else:
            high = middle - 1
    return low, log.term_at(low) or 0
