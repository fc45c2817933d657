"""Bugs that the simulation must notice: what pysyncobj does by itself, and what others have done.

Each plant changes the production code for the time of one run.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import pysyncobj.syncobj as library
import pytest

from semel.controller.store.embedded import dump as dump_module
from semel.controller.store.embedded import journal as journal_module
from semel.controller.store.embedded.consensus import ConsensusNode, Peer, PeerTransport, node_of
from semel.controller.store.embedded.dump import Dump
from semel.controller.store.embedded.files import Files
from semel.controller.store.embedded.hard_state import HardState, HardStateFile
from semel.controller.store.embedded.journal import Entry, JournalFiles
from semel.controller.store.embedded.machine import Applied, Machine
from semel.controller.store.embedded.member import Member
from semel.controller.store.embedded.messages import entries_of, piece_of, to_message
from semel.protos.v1.metadata_store_pb2 import (
    AppendEntries,
    DumpChunk,
    GroupMessage,
    MembershipReply,
    NextIndex,
    StoreTransaction,
)
from tests.unit.controller.store.embedded.world import Violation, World

Plant = Callable[[pytest.MonkeyPatch], None]


def answers_before_it_has_synced(patch: pytest.MonkeyPatch) -> None:
    """etcd #14370; pysyncobj never syncs its journal at all."""

    def send(self: PeerTransport, node: Any, message: dict[str, Any]) -> bool:
        self._send(node.controller_id, to_message(self._term(), message))
        return True

    def answer(self: ConsensusNode, receiver: int, **kind: Any) -> None:
        self._send(receiver, GroupMessage(term=self.term, **kind))

    patch.setattr(PeerTransport, "send", send)
    patch.setattr(ConsensusNode, "_answer", answer)


def keeps_its_vote_in_memory(patch: pytest.MonkeyPatch) -> None:
    """pysyncobj up to 0.3.14."""
    save = HardStateFile.save

    def forgets(self: HardStateFile, state: HardState) -> None:
        if self.state is None or state.incarnation != self.state.incarnation:
            save(self, state)
        else:
            self.state = state

    patch.setattr(HardStateFile, "save", forgets)


def cuts_the_log_at_every_append(patch: pytest.MonkeyPatch) -> None:
    """pysyncobj: a shorter append that comes late takes acknowledged entries away."""

    def on_append(self: ConsensusNode, sender: int, term: int, append: AppendEntries) -> None:
        if self._hear_master(sender, term):
            self.handle(
                node_of((sender, False)),
                {
                    "type": "append_entries",
                    "term": term,
                    "commit_index": append.commit_index,
                    "entries": entries_of(append),
                    "prevLogIdx": append.previous_index,
                    "prevLogTerm": append.previous_term,
                },
            )

    patch.setattr(ConsensusNode, "_on_append", on_append)


def believes_every_commit_index(patch: pytest.MonkeyPatch) -> None:
    """copycat #265: also beyond what the append has shown to match."""
    on_append, heartbeat = ConsensusNode._on_append, ConsensusNode._heartbeat

    def append_of(self: ConsensusNode, sender: int, term: int, append: AppendEntries) -> None:
        patch.setattr(
            ConsensusNode,
            "_heartbeat",
            lambda self, sender, term, _: heartbeat(self, sender, term, append.commit_index),
        )
        on_append(self, sender, term, append)

    patch.setattr(ConsensusNode, "_on_append", append_of)


def counts_acknowledgements_of_any_term(patch: pytest.MonkeyPatch) -> None:
    """pysyncobj: `next_node_idx` carries no term."""
    on_next = ConsensusNode._on_next

    def any_term(
        self: ConsensusNode, peer: Peer, term: int, answer: NextIndex, arrived: float
    ) -> None:
        on_next(self, peer, self.term, answer, arrived)

    patch.setattr(ConsensusNode, "_on_next", any_term)


def counts_a_vote_each_time(patch: pytest.MonkeyPatch) -> None:
    """pysyncobj: `__votesCount` counts repeats."""

    def on_grant(self: ConsensusNode, sender: int, term: int) -> None:
        if term == self.term:
            self.handle(node_of((sender, False)), {"type": "response_vote", "term": term})

    patch.setattr(ConsensusNode, "_on_grant", on_grant)


def commits_entries_of_older_terms_by_counting(patch: pytest.MonkeyPatch) -> None:
    """LogCabin #44, figure 8 of the Raft paper."""
    source = textwrap.dedent(inspect.getsource(library.SyncObj._onTick))
    assert "commitTerm != self.__raftCurrentTerm" in source
    source = source.replace("commitTerm != self.__raftCurrentTerm", "False")
    space: dict[str, Any] = {}
    body = "class SyncObj:\n" + textwrap.indent(source, "    ")
    exec(body, vars(library), space)
    patch.setattr(library.SyncObj, "_onTick", space["SyncObj"]._onTick)


def lets_a_forgetful_disk_vote(patch: pytest.MonkeyPatch) -> None:
    """Every Raft without a bootstrap step."""

    def learn(self: Member, replies: Sequence[MembershipReply]) -> None:
        if self.node is None:
            self.form()
        assert self.node is not None
        self.node.founded = True

    patch.setattr(Member, "learn", learn)


def counts_non_counting_members(patch: pytest.MonkeyPatch) -> None:
    """Feeds a lost disk under its old name."""
    connected, disconnected = ConsensusNode.connected, ConsensusNode.disconnected
    receive = ConsensusNode.receive
    patch.setattr(ConsensusNode, "connected", lambda self, peer: connected(self, (peer[0], False)))
    patch.setattr(
        ConsensusNode, "disconnected", lambda self, peer: disconnected(self, (peer[0], False))
    )
    patch.setattr(
        ConsensusNode, "receive", lambda self, peer, m, at: receive(self, (peer[0], False), m, at)
    )


def clears_a_journal_that_begins_before_its_dump(patch: pytest.MonkeyPatch) -> None:
    """pysyncobj's `__loadDumpFile`: a crash between dump and trim loses what came after it."""

    def fit(journal: JournalFiles, dump: Dump | None, files: Files) -> None:
        if dump is not None and journal.entries[0] != dump.previous:
            journal.replace([dump.previous, dump.last])

    patch.setattr(dump_module, "fit", fit)


def installs_every_dump(patch: pytest.MonkeyPatch) -> None:
    """pysyncobj: also one that ends before what the log has acknowledged since."""

    def on_dump(self: ConsensusNode, sender: int, term: int, chunk: DumpChunk) -> None:
        if not self._hear_master(sender, term):
            return
        piece = piece_of(chunk)
        raw = None if piece is None else self._dumps.take(piece)
        if raw is None or self._dumps.busy:
            return
        dump = dump_module.decode(raw, "dump")
        self._dumps.install(raw, dump)
        self._machine.restore(dump.state)
        self._events.append(self._machine.state())
        message = {"type": "append_entries", "term": term, "commit_index": chunk.commit_index}
        self.handle(node_of((sender, False)), {**message, "serialized": dump})

    patch.setattr(ConsensusNode, "_on_dump", on_dump)


def applies_what_is_asked_twice_twice(patch: pytest.MonkeyPatch) -> None:
    """A request whose reply was lost is done again; its own success comes back as a conflict."""
    transact = Machine._transact

    def forgets(self: Machine, request: StoreTransaction) -> Applied:
        session = self.sessions.get(request.controller_id)
        if session is not None:
            session.results.clear()
        return transact(self, request)

    patch.setattr(Machine, "_transact", forgets)


def reads_what_it_has(patch: pytest.MonkeyPatch) -> None:
    """etcd #7331: a slave, or a master that was replaced, answers from memory."""

    def read(self: World, number: int) -> None:
        member = self.nodes[number].member
        if member is not None and member._machine.table.revision < self.returned:
            raise Violation("a read came after something newer had returned")

    patch.setattr(World, "read", read)


def stands_without_being_asked(patch: pytest.MonkeyPatch) -> None:
    """pysyncobj: whoever hears nothing raises the term."""
    patch.setattr(ConsensusNode, "may_stand", lambda self: True)


def takes_a_torn_frame(patch: pytest.MonkeyPatch) -> None:
    """A checksum that nobody looks at."""

    def trusting(image: bytes, position: int, number: int, generation: int) -> bytes | None:
        head = image[position : position + journal_module.FRAME_STRUCT.size]
        if len(head) < journal_module.FRAME_STRUCT.size:
            return None
        magic, length, _, _, _ = journal_module.FRAME_STRUCT.unpack(head)
        start = position + journal_module.FRAME_STRUCT.size
        if magic != journal_module.FRAME_MAGIC or len(image) < start + length:
            return None
        return image[start : start + length]

    patch.setattr(journal_module, "_good_frame", trusting)


def believes_what_it_finds(patch: pytest.MonkeyPatch) -> None:
    """etcd #14370, fsyncgate: at start the page cache is taken for the disk."""
    load = JournalFiles._load

    def trusts(self: JournalFiles, images: list[bytes]) -> None:
        replace = self.replace

        def replaces(entries: Sequence[Entry]) -> None:
            if images[0] != images[1] or len(images[0]) != self.bytes:
                replace(entries)

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self, "replace", replaces)
            load(self, images)

    patch.setattr(JournalFiles, "_load", trusts)
