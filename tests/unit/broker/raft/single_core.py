"""One core on a simulated disk that is given one input at a time."""

from __future__ import annotations

from random import Random
from typing import Any

from semel.broker.raft import (
    EntryMeta,
    HardState,
    Membership,
    Message,
    MessageKind,
    RaftConfig,
    RaftCore,
    Ready,
    Role,
)
from semel.broker.raft.progress import ProgressState
from semel.protos.ids import NodeId
from tests.sim.disk import SimDisk, SimEntry

ME, OTHER, THIRD, FOURTH = NodeId(1), NodeId(2), NodeId(3), NodeId(4)
GROUP = Membership(voters=frozenset({ME, OTHER, THIRD}))
CONFIG = RaftConfig()
BYTES = 100


class Node:
    """A core and its disk; `perform` does what it asks for, and everything syncs at once."""

    def __init__(
        self,
        *terms: int,
        membership: Membership = GROUP,
        config: RaftConfig = CONFIG,
        term: int = 0,
        torn: int = 0,
    ) -> None:
        """The last `torn` of the entries may be torn."""
        self.disk = SimDisk(membership)
        self.disk.durable.entries.extend(entry(i, one) for i, one in enumerate(terms, 1))
        self.disk.view = self.disk.durable.copy()
        del self.disk.durable.entries[len(terms) - torn :]
        self.now_ms = 0
        self.core = RaftCore(
            config,
            node_id=ME,
            hard_state=HardState(term=max((term, *terms))),
            membership=membership,
            log=self.disk,
            applied_index=0,
            random=Random(1),
            now_ms=0,
        )
        self.sent: list[Message] = []
        self.reads: list[tuple[int, int]] = []
        self.reads_failed: list[int] = []
        self.perform()
        self.sent.clear()

    def perform(self, *, sync: bool = True) -> Ready:
        first = ready = self.core.ready()
        while True:
            if ready.truncate_from is not None:
                self.disk.truncate(ready.truncate_from)
            if ready.append:
                self.disk.write(tuple(SimEntry(meta, 0) for meta in ready.append))
            if ready.append_noop:
                self.propose(noop=True)
            self.sent += [*ready.messages, *ready.messages_after_hard_state]
            self.reads += [(read.context, read.index) for read in ready.reads]
            self.reads_failed += ready.reads_failed
            if ready.hard_state is not None:
                self.core.on_hard_state_synced(ready.hard_state)
            if sync and self.disk.wants_flush:
                self.sync()
            if not self.core.has_ready():
                return first
            ready = self.core.ready()

    def sync(self) -> None:
        index, term = self.disk.start_flush()
        self.disk.end_flush()
        self.core.on_synced(index, term, self.now_ms)

    def repair(self) -> None:
        """What may have been torn is whole."""
        self.disk.durable = self.disk.view.copy()
        self.core.on_synced(self.disk.last_index, self.disk.last_term, self.now_ms)
        self.perform()

    def propose(self, *, noop: bool = False, membership: Membership | None = None) -> None:
        index = self.core.next_index()
        meta = EntryMeta(index=index, term=self.core.term, size=BYTES, membership=membership)
        self.disk.write((SimEntry(meta, 0),))
        self.core.proposed(meta)
        if not noop:
            self.perform()

    def hear(
        self, kind: MessageKind, source: NodeId = OTHER, *, term: int | None = None, **fields: Any
    ) -> list[Message]:
        """What it says to that message, in any direction."""
        term = self.core.term if term is None else term
        message = Message(kind=kind, source=source, target=ME, term=term, **fields)
        before = len(self.sent)
        self.core.step(message, self.now_ms)
        self.perform()
        return self.sent[before:]

    def tick(self, after_ms: int) -> list[Message]:
        """In steps that no node takes for a stop of the process."""
        before = len(self.sent)
        end_ms = self.now_ms + after_ms
        while self.now_ms < end_ms:
            self.now_ms = min(self.now_ms + 100, end_ms)
            self.core.tick(self.now_ms)
            self.perform()
        return self.sent[before:]


def entry(index: int, term: int) -> SimEntry:
    return SimEntry(EntryMeta(index=index, term=term, size=BYTES), 0)


def metas(first: int, *terms: int) -> tuple[EntryMeta, ...]:
    return tuple(
        EntryMeta(index=index, term=term, size=BYTES) for index, term in enumerate(terms, first)
    )


def role_of(node: Node) -> Role:
    """The present role. mypy narrows an attribute after a check, but not the result of a call."""
    return node.core.role


def elected(
    *terms: int, membership: Membership = GROUP, config: RaftConfig = CONFIG, commit: bool = True
) -> Node:
    """A master by the vote of OTHER; its no-op is committed unless told otherwise."""
    node = Node(*terms, membership=membership, config=config)
    while node.core.role is not Role.PRE_CANDIDATE:
        node.tick(50)
    asked = node.sent[-1]
    node.hear(MessageKind.PRE_VOTE_REPLY, term=asked.term, context=asked.context)
    assert role_of(node) is Role.CANDIDATE
    node.hear(MessageKind.VOTE_REPLY, context=node.sent[-1].context)
    assert role_of(node) is Role.MASTER
    if commit:
        node.hear(MessageKind.APPEND_REPLY, log_index=node.disk.last_index)
        assert node.core.commit_index == node.disk.last_index
    node.sent.clear()
    return node


def kinds(messages: list[Message]) -> list[tuple[MessageKind, NodeId]]:
    return [(message.kind, message.target) for message in messages]


def replicating(*terms: int, config: RaftConfig = CONFIG) -> Node:
    """Both peers have everything, and are sent more without waiting."""
    node = elected(*terms, config=config)
    for peer in (OTHER, THIRD):
        node.hear(MessageKind.APPEND_REPLY, peer, log_index=node.disk.last_index)
        assert node.core.progress[peer].state is ProgressState.REPLICATE
    node.sent.clear()
    return node


def asking(node: Node) -> Message:
    """The node has lost its master, and asks whether it would be voted for."""
    while node.core.role is not Role.PRE_CANDIDATE:
        node.tick(50)
    return node.sent[-1]


def standing(node: Node) -> Message:
    asked = asking(node)
    node.hear(MessageKind.PRE_VOTE_REPLY, term=asked.term, context=asked.context)
    assert node.core.role is Role.CANDIDATE
    return node.sent[-1]
