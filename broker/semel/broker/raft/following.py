"""A follower's side: taking entries from the master, and saying what is durable.

How it works. An APPEND names the entry before its own. If that one is here, the logs agree up to
there (log matching), and the new entries follow; those that are here already are skipped, so
duplicates, reordered and shortened APPENDs change nothing. Only an entry of *another term* at
the same index is a conflict, and then everything from it on goes. Acknowledgements are
cumulative and name what is both matched and synced: an APPEND that brings news is answered when
the disk is done (`RaftCore.on_synced`), one that brings none at once.

Invariants
1. Nothing at or below commit_index is ever truncated.
2. An acknowledged index is durable, and equal to the master's log.
3. Nothing is appended behind an entry that may be torn, before that is mended or cut: whatever
   follows an entry says to the next recovery that it was durable.
4. commit_index follows the master's, clamped to the last entry known to match.

Not here: where the master sends from (`replicating.py`).
"""

from __future__ import annotations

from semel.broker.raft.messages import EntryMeta, Message, MessageKind, SnapshotMark
from semel.broker.raft.ready import Role
from semel.broker.raft.state import RaftState, last_at_most


class Following(RaftState):
    """Inputs from the master of this term."""

    def _on_append(self, message: Message) -> None:
        if self._installing:
            return
        previous, entries = message.log_index, message.entries
        last_new = previous + len(entries)
        commit_index = self.commit_index
        if previous < commit_index:
            # What is committed matches any master's log: go on from there.
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
        """Entries whose predecessor is here: keep what is known, take what is not.

        False when they are not all here then.
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
        if at < len(entries) and self._awaits_mending:
            return False  # they are sent again
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
        """The whole group has said that nobody holds `from_index`, which may be a torn write here:
        it was never committed, so it goes, with all behind it. False when it is not the time."""
        self._assert_performed()
        self._observe(now_ms)
        assert from_index > self.synced_index, f"entry {from_index} is durable"
        if self.role is not Role.FOLLOWER or self._installing:
            return False
        self._truncate(from_index)
        self.matched_index = min(self.matched_index, from_index - 1)
        return True

    def _reject(self, message: Message) -> None:
        """The entry before is missing or of another term: say where to try next."""
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
            self._offered = None
            self._reply(message, MessageKind.SNAPSHOT_REPLY, log_index=self._durable_match)
            return
        offer = (message.source, message.term, mark.index)
        if offer != self._offered:
            self._offered = offer
            self._snapshot_wanted = message

    def _acknowledge_synced(self) -> None:
        """The disk has done more: say so to the master, if there is one."""
        durable = self._durable_match
        if (
            self.role is Role.FOLLOWER
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
        """The shell has pulled a whole snapshot, and wants to put it in place of the log.

        False: it is not needed any more, throw it away. True: do it; until
        `on_snapshot_installed` or `on_snapshot_failed` the core takes and acknowledges nothing.
        """
        assert not self._installing, "one snapshot at a time"
        self._assert_performed()
        self._offered = None
        needless = mark.index <= self.commit_index or self.log.term_at(mark.index) == mark.term
        if self.role is Role.MASTER or needless:
            return False
        if self.role is not Role.FOLLOWER:
            self._become_follower(self.term, None)
        self._installing = True
        return True

    def begin_rebuild(self) -> int | None:
        """The own log has an entry that cannot be read here and is given by nobody: the shell is
        going to pull a snapshot and put it in place of the whole log.

        The lowest index that the snapshot may have, so that nothing acknowledged is forgotten;
        None: not now. From here to `on_snapshot_installed` or `on_snapshot_failed` the core takes
        and acknowledges nothing.
        """
        self._assert_performed()
        if self.role is not Role.FOLLOWER or self.master_id is None or self._installing:
            return None
        self._offered = None
        self._installing = True
        return self.log.last_index

    def on_snapshot_installed(self, mark: SnapshotMark, now_ms: int) -> None:
        """The log now starts behind `mark` and is empty, durably; the state is the mark's."""
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
        """The pull or the switch was given up, and the old log stands. It is offered again."""
        self._installing = False
        self._offered = None
        self._observe(now_ms)
        if self.master_id is not None and self.role is Role.FOLLOWER:
            self._tell_master(MessageKind.SNAPSHOT_REPLY, self._durable_match, rejected=True)

    def _assert_performed(self) -> None:
        """The log must show what the last Ready asked for before it is looked at again."""
        performed = not self._append and self._truncate_from is None
        assert performed, "take ready() after each APPEND"
