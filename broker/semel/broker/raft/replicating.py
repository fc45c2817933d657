"""The master's side of replication: sending entries, committing them, confirming mastership.

How it works. Proposals and acknowledgements only mark peers as due; `_replicate` sends when the
shell takes its Ready, so all entries of one turn of the loop leave in one APPEND per peer. There is
no retransmission timer. Instead, when a peer that is behind answers a heartbeat, the master sends
an empty APPEND that follows the last one sent. If a message was lost on the way, the peer rejects
the empty APPEND, and the master goes back to where the logs agree.

Invariants
1. The master commits only an entry of its own term by counting (Raft paper §5.4.2); older entries
   are committed with it.
2. The master counts itself like any other voter: by its synced_index.
3. No message with entries leaves before the no-op is in the log.
4. A non-counting member gets entries like any other peer, and no quorum counts it.
5. With a stalled disk the master sends neither heartbeats nor entries, so that another node can
   take over.

Not here: what a peer may have in flight (`raft/progress.py`), reads (`raft/read_index.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from semel.broker.raft.membership_history import Membership, check_step
from semel.broker.raft.messages import EntryMeta, Message, MessageKind, SnapshotMark
from semel.broker.raft.progress import Progress, ProgressState
from semel.broker.raft.raft_state import RaftState, last_at_most
from semel.broker.raft.ready import Role
from semel.protos.errors import InvalidRequest, NotMaster, Throttled
from semel.protos.ids import NodeId


class _Run(NamedTuple):
    """Consecutive entries for one APPEND."""

    previous_term: int
    """Term of the entry before them."""
    entries: tuple[EntryMeta, ...]
    size: int
    """Size of their frames in bytes."""


class Replicating(RaftState):
    """The inputs of a master, and the messages that it initiates."""

    # --- proposals

    @property
    def accepts_proposals(self) -> bool:
        """True for a master whose no-op is in the log, whose disk is not stalled, and that is not
        handing over."""
        return (
            self.role is Role.MASTER
            and not self._noop_missing
            and not self._stalled
            and self._transferee is None
        )

    def next_index(self) -> int:
        """The index of the next proposal, whose term is `term`. Raises NotMaster when this node
        takes no proposals."""
        is_noop = self._noop_missing and not self._noop_due
        if not self.accepts_proposals and not is_noop:
            known = self.master_id if self.role is not Role.MASTER else None
            raise NotMaster(
                f"node {self.node_id} is {self.role.name.lower()} in term {self.term} and takes "
                "no proposals now; ask the master, or again later",
                master_id=known or 0,
                term=self.term,
            )
        return self.log.last_index + 1

    def proposed(self, meta: EntryMeta) -> None:
        """Handles that the entry of `next_index()` and `term` is in the log, not necessarily
        synced."""
        assert self.role is Role.MASTER, "next_index() comes first"
        assert meta.term == self.term, "next_index() comes first"
        assert meta.index == self.log.last_index, "append to the log, then call proposed()"
        assert not self._noop_due, "the no-op is the first entry of a term"
        if meta.membership is not None:
            self._check_change(meta.membership)
            self._history.append(meta.index, meta.membership)
            self._on_membership_changed()
        self._noop_missing = False
        self._due.update(self.progress)

    def propose_membership_allowed(self, membership: Membership) -> None:
        """Checks whether the change may be proposed. Raises NotMaster, InvalidRequest when it is
        not allowed, or Throttled when it is not allowed yet.

        An entry of the master's term must be committed before a change. Otherwise two masters could
        each change a different node on top of the same membership, with quorums that do not meet.
        """
        if self.role is not Role.MASTER:
            raise NotMaster(f"node {self.node_id} is not the master", master_id=self.master_id or 0)
        self._check_change(membership)
        for node in membership.voters - self.membership.voters:
            lag = self.log.last_index - self.progress[node].match_index
            if lag > self.config.promote_lag_max or not self.progress[node].counts:
                raise Throttled(f"node {node} is {lag} entries behind; let it catch up first")

    def _check_change(self, membership: Membership) -> None:
        if self.commit_index < self._term_start:
            raise Throttled("the new master has committed nothing yet; try again")
        if self._history.index > self.commit_index:
            raise Throttled("another change of membership is under way; try again")
        check_step(self.membership, membership)

    def _on_membership_changed(self) -> None:
        """Updates the peers after the last entry has changed the membership; a new peer gets that
        entry first."""
        members = self.membership.nodes
        for node in [node for node in self.progress if node not in members]:
            del self.progress[node]
            self._due.discard(node)
            if self._transferee == node:
                self._transferee = None
        for node in sorted(members - self.progress.keys() - {self.node_id}):
            self.progress[node] = Progress(next_index=self.log.last_index, now_ms=self._now_ms)

    # --- sending

    def _replicate(self) -> None:
        due, self._due = self._due, set()
        if self._stalled or self._noop_missing:
            return
        runs: dict[int, _Run] = {}
        for node in sorted(due):
            self._replicate_to(node, self.progress[node], runs)

    def _replicate_to(self, node: NodeId, progress: Progress, runs: dict[int, _Run]) -> None:
        """`runs` holds, by first index, the runs that were just sent to other peers, because peers
        that keep up get the same runs."""
        config, end = self.config, self.log.last_index + 1
        while progress.next_index < end and progress.may_send(config):
            first = progress.next_index
            run = runs.get(first) or self._run(first, end)
            if run is None:
                self._offer_snapshot(node, progress)
                return
            runs[first] = run
            self._send_append(node, first - 1, run.previous_term, run.entries)
            progress.on_sent(first + len(run.entries) - 1, run.size)

    def _run(self, first: int, end: int) -> _Run | None:
        """The entries of [first, end) that one APPEND may carry; None when `first` is gone."""
        log = self.log
        previous_term = log.term_at(first - 1)
        if first < log.first_index or previous_term is None:
            return None
        hi = log.fit(first, end, self.config.append_bytes_max)
        entries = tuple([log.meta(index) for index in range(first, hi)])
        return _Run(previous_term, entries, sum([entry.size for entry in entries]))

    def _send_append(
        self,
        node: NodeId,
        previous_index: int,
        previous_term: int,
        entries: tuple[EntryMeta, ...],
    ) -> None:
        self._send(
            Message(
                kind=MessageKind.APPEND,
                source=self.node_id,
                target=node,
                term=self.term,
                log_index=previous_index,
                log_term=previous_term,
                commit_index=self.commit_index,
                entries=entries,
            )
        )

    def _poke(self, node: NodeId, progress: Progress) -> None:
        """Sends a peer that is behind an empty APPEND after the last one, which shows whether that
        was lost."""
        previous = progress.next_index - 1
        previous_term = self.log.term_at(previous)
        if previous_term is None or previous < self.log.first_index - 1:
            self._offer_snapshot(node, progress)
        else:
            self._send_append(node, previous, previous_term, ())

    def _offer_snapshot(self, node: NodeId, progress: Progress) -> None:
        """Offers the peer a snapshot. The mark is the oldest snapshot that helps; the peer pulls
        the newest one that exists."""
        if progress.state is not ProgressState.SNAPSHOT:
            progress.become_snapshot()
        index = self.log.first_index - 1
        term = self.log.term_at(index)
        assert term is not None, "the log knows the term of its snapshot"
        mark = SnapshotMark(index=index, term=term, membership=self._history.at(index))
        self._send(
            Message(
                kind=MessageKind.SNAPSHOT_OFFER,
                source=self.node_id,
                target=node,
                term=self.term,
                commit_index=self.commit_index,
                snapshot=mark,
            )
        )

    def _beat(self) -> None:
        """Sends one round of heartbeats: they assert mastership, carry the commit index, and ask
        for an answer to the read round."""
        self._heartbeat_due_ms = self._now_ms + self.config.heartbeat_ms
        if self._stalled:
            return
        read_round = self._reads.start_round()
        for node, progress in self.progress.items():
            match = progress.match_index
            match_term = self.log.term_at(match)
            if match_term is None:
                match = match_term = 0
            self._send(
                Message(
                    kind=MessageKind.HEARTBEAT,
                    source=self.node_id,
                    target=node,
                    term=self.term,
                    log_index=match,
                    log_term=match_term,
                    commit_index=min(self.commit_index, match),
                    context=read_round,
                )
            )
        self._confirm_reads()

    # --- answers

    def _on_append_reply(self, message: Message, progress: Progress) -> None:
        if message.rejected:
            self._on_rejected(message, progress)
        else:
            self._on_match(message.source, progress, message.log_index)

    def _on_rejected(self, message: Message, progress: Progress) -> None:
        refused = message.log_index
        if message.non_counting and message.hint_index < progress.match_index:
            progress.forget()
        if progress.state is ProgressState.SNAPSHOT or refused <= progress.match_index:
            return
        if progress.state is ProgressState.PROBE and refused != progress.next_index - 1:
            return
        agreed, _ = last_at_most(self.log, message.hint_index, message.hint_term)
        progress.become_probe(max(min(agreed + 1, refused), progress.match_index + 1))
        self._due.add(message.source)

    def _on_match(self, node: NodeId, progress: Progress, index: int) -> None:
        assert index <= self.log.last_index, f"node {node} has entries that were never sent"
        rose = progress.on_acknowledged(index)
        state = progress.state
        if state is ProgressState.PROBE:
            if index >= progress.next_index - 1:
                progress.become_replicate()
        elif state is ProgressState.SNAPSHOT and progress.match_index + 1 >= self.log.first_index:
            progress.become_replicate()
        if progress.next_index <= self.log.last_index:
            self._due.add(node)
        if rose:
            self._maybe_commit()
            self._maybe_hand_over()

    def _on_heartbeat_reply(self, message: Message, progress: Progress) -> None:
        if message.non_counting and message.log_index < progress.match_index:
            # The peer lost its disk once more; no quorum has counted its entries meanwhile.
            progress.forget()
            progress.become_probe(max(self.log.last_index, 1))
            self._due.add(message.source)
        if message.context > progress.acked_round:
            progress.acked_round = message.context
            self._confirm_reads()
        self._on_match(message.source, progress, message.log_index)
        if self.role is not Role.MASTER or self._noop_missing or self._stalled:
            return
        if progress.state is ProgressState.SNAPSHOT:
            self._offer_snapshot(message.source, progress)
        elif progress.match_index < self.log.last_index and (
            progress.probe_sent or progress.inflight
        ):
            self._poke(message.source, progress)

    def _on_snapshot_reply(self, message: Message, progress: Progress) -> None:
        if message.rejected and progress.state is ProgressState.SNAPSHOT:
            progress.become_probe(progress.next_index)
        self._on_match(message.source, progress, message.log_index)

    def _on_stream_broken(self, node: NodeId) -> None:
        """Goes back to match_index for this peer, because everything in flight to it is lost."""
        progress = self.progress.get(node)
        if progress is not None and progress.state is not ProgressState.SNAPSHOT:
            progress.become_probe(progress.match_index + 1)
            self._due.add(node)

    # --- counting

    def _maybe_commit(self) -> None:
        """Commits the entries that a quorum has synced, if the last of them is of this term."""
        progress, own = self.progress, self.node_id
        matches = sorted(
            [
                self.synced_index if node == own else progress[node].counted_match
                for node in self.membership.voters
            ]
        )
        index = matches[(len(matches) - 1) // 2]
        if index <= self.commit_index or not self._may_count(index):
            return
        assert index <= self.log.last_index
        first_own = self.commit_index < self._term_start
        self._commit_to(index)
        if first_own:
            self._reads.on_own_commit(self.commit_index)
        if self._history.index <= index and own not in self.membership.voters:
            self._become_slave(self.term, None)

    def _may_count(self, index: int) -> bool:
        return self.log.term_at(index) == self.term

    def _confirm_reads(self) -> None:
        progress, own = self.progress, self.node_id
        rounds = sorted(
            [
                self._reads.round if node == own else progress[node].counted_round
                for node in self.membership.voters
            ]
        )
        self._read_states += self._reads.take(rounds[(len(rounds) - 1) // 2])

    def _hears_quorum(self) -> bool:
        oldest_ms = self._now_ms - self.config.check_quorum_ms
        heard = sum(
            1
            for node in self.membership.voters
            if node == self.node_id
            or (self.progress[node].counts and self.progress[node].last_contact_ms >= oldest_ms)
        )
        return heard >= self.membership.quorum

    # --- handing over

    def transfer_mastership(self, target: NodeId, now_ms: int) -> None:
        """Starts a transfer: takes no more proposals, brings `target` up to date, tells it to
        stand.

        The transfer is given up after transfer_ms. Raises NotMaster, InvalidRequest, Throttled.
        """
        self._observe(now_ms)
        if self.role is not Role.MASTER:
            raise NotMaster(f"node {self.node_id} is not the master", master_id=self.master_id or 0)
        if target == self.node_id or target not in self.membership.voters:
            raise InvalidRequest(f"node {target} is not another voter of the group")
        if not self.progress[target].counts:
            raise Throttled(f"node {target} has not caught up yet; try again")
        self._transferee = target
        self._transfer_deadline_ms = now_ms + self.config.transfer_ms
        self._transfer_sent = False
        self._maybe_hand_over()

    def _maybe_hand_over(self) -> None:
        node = self._transferee
        if node is None or self._transfer_sent or self.role is not Role.MASTER:
            return
        if self.progress[node].match_index == self.log.last_index and not self._noop_missing:
            self._transfer_sent = True
            self._send(
                Message(
                    kind=MessageKind.TIMEOUT_NOW,
                    source=self.node_id,
                    target=node,
                    term=self.term,
                )
            )
