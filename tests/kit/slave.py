"""A slave that gets a master's APPENDs, and the log that they leave."""

from __future__ import annotations

from random import Random

from semel.broker.raft import (
    EntryMeta,
    HardState,
    Membership,
    Message,
    MessageKind,
    RaftConfig,
    RaftCore,
)
from semel.protos.ids import NodeId
from tests.sim.disk import SimDisk, SimEntry

ME, MASTER = NodeId(1), NodeId(2)
GROUP = Membership(voters=frozenset({ME, MASTER, NodeId(3)}))
TERM = 9


class Slave:
    """A core on a disk; every entry's payload is its term, so that logs can be compared."""

    def __init__(self, terms: list[int], core_class: type[RaftCore] = RaftCore) -> None:
        self.disk = SimDisk(GROUP)
        self.disk.durable.entries.extend(entry(i, term) for i, term in enumerate(terms, 1))
        self.disk.view = self.disk.durable.copy()
        self.core = core_class(
            RaftConfig(),
            node_id=ME,
            hard_state=HardState(term=TERM),
            membership=GROUP,
            log=self.disk,
            applied_index=0,
            random=Random(0),
            now_ms=0,
        )
        self.truncations: list[int] = []
        self.replies: list[Message] = []

    @property
    def terms(self) -> list[int]:
        return [entry.meta.term for entry in self.disk.view.entries]

    def take(self, message: Message) -> None:
        self.core.step(message, 10)
        ready = self.core.ready()
        if ready.truncate_from is not None:
            assert ready.truncate_from > ready.commit_index or ready.append
            self.truncations.append(ready.truncate_from)
            self.disk.truncate(ready.truncate_from)
        if ready.append:
            assert ready.append[0].index == self.disk.last_index + 1
            self.disk.write(tuple(entry(meta.index, meta.term) for meta in ready.append))
        self.replies += ready.messages

    def sync(self) -> None:
        index, term = self.disk.start_flush()
        self.disk.end_flush()
        self.core.on_synced(index, term, 10)
        self.replies += self.core.ready().messages


def entry(index: int, term: int) -> SimEntry:
    return SimEntry(EntryMeta(index=index, term=term, size=100), term)


def append(terms: list[int], previous: int, count: int, commit: int) -> Message:
    """Entries behind `previous` of a master's log with these terms."""
    entries = tuple(
        EntryMeta(index=index, term=terms[index - 1], size=100)
        for index in range(previous + 1, min(previous + count, len(terms)) + 1)
    )
    return Message(
        kind=MessageKind.APPEND,
        source=MASTER,
        target=ME,
        term=TERM,
        log_index=previous,
        log_term=terms[previous - 1] if previous else 0,
        commit_index=commit,
        entries=entries,
    )
