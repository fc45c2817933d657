"""The slave's side of replication: taking entries from the master, and acknowledging them.

How it works. An APPEND names the entry before its own entries. If the slave has that entry, the
logs agree up to there (log matching), and the new entries follow. The slave skips entries that
it already has, so duplicate, reordered and shortened APPENDs change nothing. Only an entry of
*another term* at the same index is a conflict; then the slave truncates its log from that entry
on. Acknowledgements are cumulative and name the last index that is both matched and synced. An
APPEND with new entries is answered when the disk is done (`RaftCore.on_synced`), any other APPEND
at once.

Invariants
1. Nothing at or below commit_index is ever truncated.
2. An acknowledged index is durable, and the log equals the master's up to there.
3. Nothing is appended after an entry that may be torn, before that entry is repaired or cut: an
   entry that follows it would prove to the next recovery that it was durable.
4. commit_index follows the master's, clamped to the last entry known to match.

Not here: from which index the master sends (`raft/replicating.py`).
"""

from __future__ import annotations

from semel.broker.raft.messages import EntryMeta, Message, MessageKind, SnapshotMark
from semel.broker.raft.raft_state import RaftState, last_at_most
from semel.broker.raft.ready import Role


class Following(RaftState):
    """The inputs from the master of this term."""

    def _on_append(self, message: Message) -> None:
        if self._installing:
            return
        previous, entries = message.log_index, message.entries
        last_new = previous + len(entries)
        commit_index = self.commit_index
        if previous < commit_index:
            # Committed entries match any master's log, so only the entries after them matter.
            known = entries[: commit_index - previous]
            assert not known or self.log.term_at(known[-1].index) in (None, known[-1].term), (
                f"entry {known[-1].index} is committed, and the master has another"
            )
            entries = entries[commit_index - previous :]
        elif self.log.term_at(previous) != message.log_term:
            self._reject(message)
            return
        if entries and not self._take(entries):
            return
        self.matched_index = max(self.matched_index, last_new)
        self._commit_to(min(message.commit_index, self.matched_index))
        if self._durable_match >= last_new:
            self._acked_index = max(self._acked_index, self._durable_match)
            self._reply(message, MessageKind.APPEND_REPLY, log_index=self._durable_match)

    def _take(self, entries: tuple[EntryMeta, ...]) -> bool:
        """Takes the unknown ones of `entries`, whose predecessor is in the log.

        Returns False when entries must wait for the repair of a possibly torn one.
        """
        log = self.log
        last_index = log.last_index
        at = 0
        for entry in entries:
            if entry.index > last_index:
                break
            if log.term_at(entry.index) != entry.term:
                self._truncate(entry.index)
                break
            at += 1
        if at < len(entries) and self._awaits_repair:
            return False  # The master sends them again.
        self._append = entries[at:]
        for entry in self._append:
            if entry.membership is not None:
                self._history.append(entry.index, entry.membership)
        return True

    def _truncate(self, from_index: int) -> None:
        assert from_index > self.commit_index, f"entry {from_index} is committed"
        self._truncate_from = from_index
        self.synced_index = min(self.synced_index, from_index - 1)
        self._torn_through = min(self._torn_through, from_index - 1)
        self._history.truncate(from_index)

    def cut_torn(self, from_index: int, now_ms: int) -> bool:
        """Truncates the log from `from_index`, a possibly torn write here that no node of the group
        holds, so that it was never committed. Returns False when this node cannot truncate now."""
        self._assert_performed()
        self._observe(now_ms)
        assert from_index > self.synced_index, f"entry {from_index} is durable"
        if self.role is not Role.SLAVE or self._installing:
            return False
        self._truncate(from_index)
        self.matched_index = min(self.matched_index, from_index - 1)
        return True

    def _reject(self, message: Message) -> None:
        """Rejects an APPEND whose previous entry is missing or of another term, and hints where the
        logs may agree."""
        hint_index, hint_term = last_at_most(self.log, message.log_index, message.log_term)
        if hint_index < self.commit_index:
            hint_index = self.commit_index
            hint_term = self.log.term_at(hint_index) or 0
        self._reply(
            message,
            MessageKind.APPEND_REPLY,
            log_index=message.log_index,
            rejected=True,
            hint_index=hint_index,
            hint_term=hint_term,
        )

    def _on_heartbeat(self, message: Message) -> None:
        if self._installing:
            self._reply(message, MessageKind.HEARTBEAT_REPLY)
            return
        match = message.log_index
        if match > self.matched_index and self.log.term_at(match) == message.log_term:
            self.matched_index = match
        self._commit_to(min(message.commit_index, self.matched_index))
        self._reply(message, MessageKind.HEARTBEAT_REPLY, log_index=self._durable_match)

    def _on_snapshot_offer(self, message: Message) -> None:
        mark = message.snapshot
        assert mark is not None
        if self._installing:
            return
        if self.log.term_at(mark.index) == mark.term:
            self.matched_index = max(self.matched_index, mark.index)
            self._commit_to(mark.index)
        if mark.index <= self.commit_index:
            self._reply(message, MessageKind.SNAPSHOT_REPLY, log_index=self._durable_match)
            return
        self._snapshot_wanted = message

    def _acknowledge_synced(self) -> None:
        """Acknowledges newly synced entries to the master, if there is one."""
        durable = self._durable_match
        if (
            self.role is Role.SLAVE
            and self.master_id is not None
            and not self._installing
            and durable > self._acked_index
        ):
            self._acked_index = durable
            self._tell_master(MessageKind.APPEND_REPLY, durable)

    def _tell_master(self, kind: MessageKind, log_index: int, *, rejected: bool = False) -> None:
        assert self.master_id is not None
        self._send(
            Message(
                kind=kind,
                source=self.node_id,
                target=self.master_id,
                term=self.term,
                log_index=log_index,
                rejected=rejected,
            )
        )

    # --- snapshots

    def begin_snapshot(self, mark: SnapshotMark) -> bool:
        """Asks whether the shell should replace the log by the whole snapshot that it has pulled.

        False: the snapshot is not needed any more and can be discarded. True: install it; until
        `on_snapshot_installed` or `on_snapshot_failed` the core takes and acknowledges nothing.
        """
        assert not self._installing, "one snapshot at a time"
        self._assert_performed()
        needless = mark.index <= self.commit_index or self.log.term_at(mark.index) == mark.term
        if self.role is Role.MASTER or needless:
            return False
        if self.role is not Role.SLAVE:
            self._become_slave(self.term, None)
        self._installing = True
        return True

    def begin_rebuild(self) -> int | None:
        """Begins to replace the whole log by a snapshot, because this node's log has an entry that
        it cannot read and no peer provides.

        Returns the lowest index that the snapshot may have, so that no acknowledged entry is lost,
        or None when the rebuild cannot begin now. Until `on_snapshot_installed` or
        `on_snapshot_failed` the core takes and acknowledges nothing.
        """
        self._assert_performed()
        if self.role is not Role.SLAVE or self.master_id is None or self._installing:
            return None
        self._installing = True
        return self.log.last_index

    def on_snapshot_installed(self, mark: SnapshotMark, now_ms: int) -> None:
        """Handles that the snapshot is installed: durably, the log is empty and starts after
        `mark`, and the state is the snapshot's."""
        assert self._installing, "begin_snapshot or begin_rebuild comes first"
        assert self.log.first_index == mark.index + 1
        assert self.log.last_index == mark.index
        assert mark.index >= self.commit_index
        self._installing = False
        self._observe(now_ms)
        self.synced_index = self._torn_through = mark.index
        self.commit_index = mark.index
        self._history = type(self._history)(mark.membership, mark.index)
        if self.master_id is not None:
            self._acked_index = mark.index
            self._tell_master(MessageKind.SNAPSHOT_REPLY, mark.index)

    def on_snapshot_failed(self, now_ms: int) -> None:
        """Handles that the pull or the switch was given up, so that the old log remains. The master
        will offer a snapshot again."""
        self._installing = False
        self._observe(now_ms)
        if self.master_id is not None and self.role is Role.SLAVE:
            self._tell_master(MessageKind.SNAPSHOT_REPLY, self._durable_match, rejected=True)

    def _assert_performed(self) -> None:
        """Asserts that the shell has taken the last Ready: the core reads the log only after its
        appends and truncation were performed."""
        performed = not self._append and self._truncate_from is None
        assert performed, "take ready() after each APPEND"
