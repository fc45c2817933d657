"""One member's consensus: pysyncobj, behind a layer that adds what it lacks.

How it works. pysyncobj elects, replicates and commits. This class stands between it and the
messages, and passes on only what its code handles soundly:

* *Entries.* pysyncobj truncates its log at the place of every append, conflict or not, and so
  forgets entries that it has acknowledged when a shorter or older append comes late. Here the
  prefix that the log already has is removed first; a conflict above the commit index is passed on,
  and a conflict at or below it halts the process. An append without new entries is acknowledged
  here, up to the index that it matched, and passed on as a bare heartbeat. The commit index never
  goes beyond the index that the append has shown to match.
* *Acknowledgements and votes.* They count only in the term in which they were given, and one vote
  per voter and term; pysyncobj's carry no term and are counted each time.
* *Standing for election.* A member stands only after a majority has said within the last election
  timeout that it has not heard from a master either (pre-vote): a controller that was paused or cut
  off does not depose a working master. A master without a majority steps down by itself
  (pysyncobj's `leaderFallbackTimeout`). A candidate that was cut off with a newer term tells the
  master that it hears, which steps down once.
* *Lease.* A master knows until when no other one is to be expected: `LEASE_S` after the newest
  moment at which answers of a majority had arrived. It is the time of arrival that counts, because
  answers wait here while the disk hangs.
* *Dumps.* They are assembled and checked in memory, refused when the log already has their last
  entry, and durable before the log begins anew behind them.

Invariants
1. Every message leaves after the state that it reports is durable: `PeerTransport.send` syncs the
   journal first, and term and vote are synced when they change. So a master's own entries are
   durable before a slave can acknowledge them; a master that is alone in its group syncs each entry
   when it is added.
2. No entry at or below the commit index is ever replaced.
3. At most one master per term; an append from a second one halts the process.

Not here: pysyncobj's names (`exposed.py`), files (`journal.py`, `dump.py`), who is a voter
(`member.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, assert_never

from semel.controller.store.embedded import dump as dumps_module
from semel.controller.store.embedded.dump import Dumps
from semel.controller.store.embedded.exposed import ExposedSyncObj, OwnedJournal, now
from semel.controller.store.embedded.hard_state import HardStateFile
from semel.controller.store.embedded.journal import COMMAND, NO_OP, Entry, JournalFiles
from semel.controller.store.embedded.library import Node, SyncObjConf, Transport
from semel.controller.store.embedded.machine import Applied, Machine, State
from semel.controller.store.embedded.messages import entries_of, piece_of, to_message
from semel.protos.errors import DataDirectoryError, InternalError
from semel.protos.v1.metadata_store_pb2 import (
    AppendEntries,
    DumpChunk,
    GrantPreVote,
    GroupMessage,
    NewerTerm,
    NextIndex,
    PreVote,
)

log = logging.getLogger(__name__)

HEARTBEAT_S: Final = 0.1
ELECTION_MIN_S: Final = 0.5
ELECTION_MAX_S: Final = 1.0
LEASE_S: Final = ELECTION_MAX_S
"""How long a mastership lasts after a majority has answered: a slave that hears nothing stands by
then. The next one needs an election, and to begin an epoch, before it answers anything."""
RESIGNED_S: Final = 5.0
"""How long a master that has resigned leaves the election to the others."""
QUORUM_LOST_S: Final = 1.5
"""A master steps down when a majority has not answered it for this long."""
APPEND_BYTES_MAX: Final = 4 << 20
"""Above the largest command, so that pysyncobj never splits an entry into pickled pieces."""
COMMANDS_MAX: Final = 10_000
COMPACT_ENTRIES: Final = 5_000
COMPACT_BYTES: Final = 32 << 20

Peer = tuple[int, bool]
"""Another controller, and whether it is a non-counting member (gets entries, has no vote)."""
Send = Callable[[int, GroupMessage], None]
"""Sends to a controller, or drops the message."""


class PeerNode(Node):  # type: ignore[misc]
    """A controller as pysyncobj knows it; as a non-counting member it has another name."""

    def __init__(self, controller_id: int, *, non_counting: bool = False) -> None:
        super().__init__(f"{controller_id}{'~' if non_counting else ''}")
        self.controller_id = controller_id

    def __hash__(self) -> int:
        """Equal in every process: pysyncobj keeps nodes in sets, and a seed must replay."""
        return self.controller_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PeerNode) and bool(self.id == other.id)


def node_of(peer: Peer) -> PeerNode:
    """The node under which pysyncobj knows a peer."""
    return PeerNode(peer[0], non_counting=peer[1])


def controller_of(node: Node) -> int:
    """The number of the controller that `node` stands for."""
    assert isinstance(node, PeerNode)
    return node.controller_id


class FsyncJournal(OwnedJournal):
    """pysyncobj's journal over our files."""

    def __init__(
        self, files: JournalFiles, hard_state: HardStateFile, applied_index: int, *, alone: bool
    ) -> None:
        self._files = files
        self._hard_state = hard_state
        self._applied_index = applied_index
        self._alone = alone

    def add(self, command: bytes, idx: int, term: int) -> None:
        self._files.add(Entry(command, idx, term))
        if self._alone:
            self._files.sync()

    def clear(self) -> None:
        self._files.clear()

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N802, N803
        self._files.delete_from(self._files.entries[entryFrom].index)

    def deleteEntriesTo(self, entryTo: int) -> None:  # noqa: N802, N803
        self._files.delete_to(self._files.entries[entryTo].index)

    def __getitem__(self, item: int | slice) -> Entry | list[Entry]:
        return self._files.entries[item]

    def __len__(self) -> int:
        return len(self._files.entries)

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N802, N803
        """A no-op: the commit index is not kept, because the master sends it again."""

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        return self._applied_index

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:  # noqa: N802, N803
        self._hard_state.save_vote(term, None if votedForNodeId is None else int(votedForNodeId))

    def getCurrentTerm(self) -> int:  # noqa: N802
        assert self._hard_state.state is not None
        return self._hard_state.state.term

    def getVotedForNodeId(self) -> str | None:  # noqa: N802
        assert self._hard_state.state is not None
        voted_for = self._hard_state.state.voted_for
        return None if voted_for is None else str(voted_for)


class PeerTransport(Transport):  # type: ignore[misc]
    """Takes pysyncobj's messages: syncs what they promise, then sends them."""

    def __init__(self, journal: JournalFiles, send: Send, term: Callable[[], int]) -> None:
        super().__init__(None, None, ())
        self._journal = journal
        self._send = send
        self._term = term

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        self._journal.sync()
        self._send(controller_of(node), to_message(self._term(), message))
        return True

    def destroy(self) -> None:
        """A no-op: the links belong to the store."""


class ConsensusNode(ExposedSyncObj):
    """One member's part in the group's log. One thread; deterministic except for the clock."""

    def __init__(
        self,
        me: Peer,
        others: tuple[int, ...],
        *,
        journal: JournalFiles,
        hard_state: HardStateFile,
        dumps: Dumps,
        machine: Machine,
        applied_index: int,
        where: str,
        send: Send,
    ) -> None:
        controller_id, non_counting = me
        self._me = controller_id
        self._non_counting = non_counting
        self._journal = journal
        self._dumps = dumps
        self._machine = machine
        self._where = where
        self._send = send
        self._events: list[Applied | State] = []
        self._applied_terms: dict[bytes, int] = {}
        self._heard_master_at = float("-inf")
        self._votes: tuple[int, set[int]] = (0, set())
        self.founded = False
        """True when all others are voters; matters only in term 0, before the first election."""
        self._pre_vote_round = 0
        self._pre_vote_began = float("-inf")
        self._pre_vote_asked = float("-inf")
        self._pre_votes: set[int] = set()
        self._answered: dict[int, float] = {}
        """When each voter's newest answer of `_answered_term` to this leader arrived."""
        self._answered_term = 0
        adapter = FsyncJournal(
            journal, hard_state, applied_index, alone=not others and not non_counting
        )
        super().__init__(
            None if non_counting else PeerNode(controller_id),
            [PeerNode(other) for other in others],
            SyncObjConf(
                autoTick=False,
                appendEntriesUseBatch=False,
                appendEntriesPeriod=HEARTBEAT_S,
                appendEntriesBatchSizeBytes=APPEND_BYTES_MAX,
                raftMinTimeout=ELECTION_MIN_S,
                raftMaxTimeout=ELECTION_MAX_S,
                leaderFallbackTimeout=QUORUM_LOST_S,
                commandsQueueSize=COMMANDS_MAX,
                commandsWaitLeader=False,
                dynamicMembershipChange=False,
                logCompactionMinEntries=COMPACT_ENTRIES,
            ),
            journal=adapter,
            transport=PeerTransport(journal, send, lambda: self.term),
            dumps=dumps,
            applied_index=applied_index,
        )
        journal.sync()
        if not others:
            self.stand_soon()

    # --- called by its owner --------------------------------------------------------------------

    def tick(self, wait_s: float) -> list[Applied | State]:
        """Does the work that is due, waits up to `wait_s`, and returns what was applied, in order.

        After an OSError or a SemelError the process must end.
        """
        self._journal.sync()
        if self._journal.bytes > COMPACT_BYTES and not self._dumps.busy:
            self.compact_soon()
        self.doTick(wait_s)
        events, self._events = self._events, []
        return events

    def submit(self, command: bytes) -> None:
        """Sends a command to the master for the log; it may be lost."""
        self.put(command, COMMAND[0])

    def connected(self, peer: Peer) -> None:
        """Notes that messages can be sent to the peer from now on."""
        self.on_connected(node_of(peer), voter=not peer[1])

    def disconnected(self, peer: Peer) -> None:
        """Notes that messages to the peer are lost from now on."""
        self.on_disconnected(node_of(peer), voter=not peer[1])

    @property
    def master(self) -> int | None:
        """Number of the master, as far as this member knows; None while none is heard."""
        if self.is_leader:
            begun = self.applied_index >= self.no_op_index
            return self._me if begun and now() < self.lease_end else None
        if self.leader is None or now() - self._heard_master_at > ELECTION_MAX_S:
            return None
        return controller_of(self.leader)

    @property
    def lease_end(self) -> float:
        """When this master's lease ends, on the clock of `now`; `inf` when it is alone."""
        needed = (len(self.voters) + 1) // 2
        if not needed:
            return float("inf")
        if self._answered_term != self.term or len(self._answered) < needed:
            return float("-inf")
        return sorted(self._answered.values())[-needed] + LEASE_S

    def resign(self) -> None:
        """Ends this member's leadership, if there is another voter, and leaves the next election to
        the others."""
        if self.is_leader and self.voters:
            log.info("resigned term=%d", self.term)
            self.step_down(now() + RESIGNED_S)

    @property
    def compacting(self) -> bool:
        """A dump is being written."""
        return self._dumps.busy

    def term_of_barrier(self, nonce: bytes) -> int | None:
        """Term of the entry that holds this barrier; None until it is applied."""
        return self._applied_terms.get(nonce)

    # --- called by pysyncobj --------------------------------------------------------------------

    def apply_entry(self, command: bytes) -> None:
        """Applies one committed entry."""
        entry = self._journal.at(self.applied_index + 1)
        assert entry is not None
        assert entry.command == command
        match command[:1]:
            case b"\x01":
                assert command == NO_OP
            case b"\x00":
                applied = self._machine.apply(command[1:])
                if applied.barrier and self._non_counting:
                    self._applied_terms[applied.barrier] = entry.term
                self._events.append(applied)
                self.wake()  # ends the tick at once, so that waiting callers get the result
            case kind:
                raise InternalError(f"entry {entry.index} is of kind {kind.hex()}")

    def may_stand(self) -> bool:
        """Runs pre-votes; True once after a majority said that it hears no master either."""
        if not self.voters:
            return True
        if self.term == 0 and not self.founded:
            return False
        fresh = now() - self._pre_vote_began <= ELECTION_MIN_S
        if fresh and len(self._pre_votes) * 2 > len(self.voters) + 1:
            self._pre_vote_began = float("-inf")
            return True
        if not fresh:
            self._pre_vote_round += 1
            self._pre_vote_began = now()
            self._pre_vote_asked = float("-inf")
            self._pre_votes = {self._me}
        if now() - self._pre_vote_asked >= HEARTBEAT_S:
            self._pre_vote_asked = now()
            last = self._journal.last
            for node in self.voters:
                self._answer(
                    controller_of(node),
                    pre_vote=PreVote(
                        last_index=last.index, last_term=last.term, round=self._pre_vote_round
                    ),
                )
        return False

    # --- messages -------------------------------------------------------------------------------

    def receive(self, peer: Peer, message: GroupMessage, arrived: float) -> None:
        """Handles one checked message that arrived at that time (of `now`'s clock).

        Raises InternalError when the process must halt.
        """
        kind = message.WhichOneof("kind")
        assert kind is not None
        term = message.term
        controller_id, non_counting = peer
        if non_counting and kind not in ("next", "forward"):
            return
        match kind:
            case "append":
                self._on_append(controller_id, term, message.append)
            case "dump":
                self._on_dump(controller_id, term, message.dump)
            case "next":
                self._on_next(peer, term, message.next, arrived)
            case "vote":
                if term < self.term:
                    self._answer(controller_id, newer_term=NewerTerm())
                else:
                    self.handle(
                        node_of(peer),
                        {
                            "type": "request_vote",
                            "term": term,
                            "last_log_index": message.vote.last_index,
                            "last_log_term": message.vote.last_term,
                        },
                    )
            case "grant":
                self._on_grant(controller_id, term)
            case "pre_vote":
                self._on_pre_vote(controller_id, term, message.pre_vote)
            case "pre_grant":
                if message.pre_grant.round == self._pre_vote_round:
                    self._pre_votes.add(controller_id)
            case "forward":
                if self.is_leader:
                    command = message.forward.command
                    self.handle(node_of(peer), {"type": "apply_command", "command": command})
            case "newer_term":
                if term > self.term:
                    log.info("a newer term exists term=%d mine=%d", term, self.term)
                    self.follow_term(term)
            case _:
                assert_never(kind)

    def _on_append(self, sender: int, term: int, append: AppendEntries) -> None:
        if not self._hear_master(sender, term):
            return
        first = self._journal.entries[0]
        previous = Entry(b"", append.previous_index, append.previous_term)
        entries = entries_of(append)
        if previous.index < first.index:
            # Everything up to the first entry is committed, and so equal on all members.
            shown = previous.index + len(entries)
            entries = entries[first.index - previous.index :]
            if not entries:
                self._heartbeat(sender, term, 0)
                self._acknowledge(sender, shown)
                return
            previous = first
        matched = previous.index
        mine = self._journal.at(matched)
        if mine is None or mine.term != previous.term:
            if mine is not None:
                # Resume at the commit index, up to which the logs are equal: pysyncobj would go
                # back one entry per heartbeat.
                self._check_uncommitted(matched, mine.term, previous.term)
                self._heartbeat(sender, term, 0)
                wanted = NextIndex(next_index=self.commit_index + 1, reset=True)
                self._answer(sender, next=wanted)
                return
            entries = []
        else:
            while entries and (mine := self._journal.at(entries[0].index)) is not None:
                if mine.term != entries[0].term:
                    self._check_uncommitted(mine.index, mine.term, entries[0].term)
                    break
                matched = mine.index
                previous = entries.pop(0)
            if not entries:
                self._heartbeat(sender, term, min(append.commit_index, matched))
                self._acknowledge(sender, matched)
                return
        shown = entries[-1].index if entries else matched
        self.handle(
            node_of((sender, False)),
            {
                "type": "append_entries",
                "term": term,
                "commit_index": min(append.commit_index, shown),
                "entries": entries,
                "prevLogIdx": previous.index,
                "prevLogTerm": previous.term,
            },
        )

    def _on_dump(self, sender: int, term: int, chunk: DumpChunk) -> None:
        if not self._hear_master(sender, term):
            return
        piece = piece_of(chunk)
        raw = None if piece is None else self._dumps.take(piece)
        if raw is None:
            self._heartbeat(sender, term, 0)
            return
        try:
            dump = dumps_module.decode(raw, f"the dump of controller {sender}")
        except DataDirectoryError as error:
            log.error("dump not installed master=%d error=%s", sender, error)
            return
        mine = self._journal.at(dump.last.index)
        if mine is not None and mine.term == dump.last.term:
            # The log has all of the dump, and may have acknowledged more: it stays unchanged.
            self._heartbeat(sender, term, min(chunk.commit_index, dump.last.index))
            self._acknowledge(sender, dump.last.index)
            return
        if mine is not None:
            self._check_uncommitted(dump.last.index, mine.term, dump.last.term)
        if dump.last.index <= self.commit_index or self._dumps.busy:
            self._heartbeat(sender, term, 0)
            return
        self._heartbeat(sender, term, 0)  # makes the term durable before a dump of that term
        log.info("dump installed master=%d index=%d", sender, dump.last.index)
        self._dumps.install(raw, dump)
        self._machine.restore(dump.state)
        self._events.append(self._machine.state())
        self.handle(
            node_of((sender, False)),
            {
                "type": "append_entries",
                "term": term,
                "commit_index": dump.last.index,
                "serialized": dump,
            },
        )

    def _on_next(self, peer: Peer, term: int, answer: NextIndex, arrived: float) -> None:
        node = node_of(peer)
        if term != self.term or not self.is_leader or node not in self.followers:
            return
        if self._answered_term != term:
            self._answered_term = term
            self._answered.clear()
        if not peer[1]:
            self._answered[peer[0]] = arrived
        if not 2 <= answer.next_index <= self._journal.last.index + 1:
            log.warning(
                "a peer wants entries beyond the log peer=%s index=%d", node.id, answer.next_index
            )
            return
        self.handle(
            node,
            {
                "type": "next_node_idx",
                "next_node_idx": answer.next_index,
                "reset": answer.reset,
                "success": answer.success,
            },
        )

    def _on_grant(self, sender: int, term: int) -> None:
        if term != self.term or not self.is_candidate or PeerNode(sender) not in self.voters:
            return
        if self._votes[0] != term:
            self._votes = (term, set())
        if sender not in self._votes[1]:
            self._votes[1].add(sender)
            self.handle(node_of((sender, False)), {"type": "response_vote", "term": term})

    def _on_pre_vote(self, sender: int, term: int, question: PreVote) -> None:
        if self._non_counting or self.is_leader or now() - self._heard_master_at < ELECTION_MIN_S:
            return
        if term < self.term:
            self._answer(sender, newer_term=NewerTerm())
            return
        last = self._journal.last
        if (question.last_term, question.last_index) >= (last.term, last.index):
            self._answer(sender, pre_grant=GrantPreVote(round=question.round))

    def _hear_master(self, sender: int, term: int) -> bool:
        """Notes that a master was heard; returns False when the sender's term is over."""
        if term < self.term:
            self._answer(sender, newer_term=NewerTerm())
            return False
        if term == self.term and self.is_leader:
            raise InternalError(f"controllers {self._me} and {sender} both lead term {term}")
        self._heard_master_at = now()
        return True

    def _heartbeat(self, sender: int, term: int, commit_index: int) -> None:
        """Passes on an append that has no entries and does not touch the log."""
        message = {"type": "append_entries", "term": term, "commit_index": commit_index}
        self.handle(node_of((sender, False)), message)

    def _acknowledge(self, sender: int, matched: int) -> None:
        self._answer(sender, next=NextIndex(next_index=matched + 1, success=True))

    def _check_uncommitted(self, index: int, mine: int, theirs: int) -> None:
        if index <= self.commit_index:
            raise InternalError(
                f"{self._where}: entry {index} is committed with term {mine}, and the master has "
                f"it with term {theirs}. One of the two has lost its memory; do not start this "
                "controller again before it is known which"
            )

    def _answer(self, receiver: int, **kind: Any) -> None:
        self._journal.sync()
        self._send(receiver, GroupMessage(term=self.term, **kind))
