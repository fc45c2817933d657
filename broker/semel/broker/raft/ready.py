"""The core's interface besides messages: the log that it reads, and the decisions that it returns.

Every decision is handed out once, in one `Ready`. The shell performs a `Ready` in this order,
without an await between 1 and 3:

1. `truncate_from`, then `append`: the frames come from the APPEND that was stepped just before.
2. `append_noop`: build a NOOP frame at `core.next_index()` and `core.term`, append it, and call
   `proposed`.
3. `hard_state` goes to its writer. `messages_after_hard_state` leave once *it* is durable;
   `on_hard_state_synced` is called then. Hard states are saved in the order handed out.
4. `messages` leave at once, in order per target and kind.
5. Entries up to `commit_index` may be applied, and each read in `reads` may be answered once its
   index is applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from semel.broker.raft.membership_history import Membership
from semel.broker.raft.messages import EntryMeta, HardState, Message
from semel.protos.ids import NodeId
from semel.protos.values import value


class LogView(Protocol):
    """The node's log as the core reads it, including unsynced entries. All reads are cheap and
    synchronous."""

    @property
    def first_index(self) -> int:
        """Lowest index whose entry can be sent; last_index + 1 when there is none."""
        ...

    @property
    def last_index(self) -> int:
        """Highest appended index, synced or not."""
        ...

    @property
    def last_term(self) -> int:
        """Term of last_index (of the snapshot when there is no entry, 0 at the very start)."""
        ...

    @property
    def synced_index(self) -> int:
        """Index up to which *the log as it is now* is durable.

        A write that completes after its entries were truncated and replaced never raises this
        index over the replaced part, even when the same (index, term) was written again since.
        """
        ...

    def term_at(self, index: int) -> int | None:
        """Term of the entry, or of the snapshot at first_index - 1; None for any other."""
        ...

    def fit(self, lo: int, hi_max: int, max_bytes: int) -> int:
        """The largest hi in (lo, hi_max] such that the entries [lo, hi) fit, but at least one
        entry."""
        ...

    def meta(self, index: int) -> EntryMeta:
        """The entry at an index within [first_index, last_index]."""
        ...


class Role(IntEnum):
    """The role of a node. A learner is a slave that never stands."""

    SLAVE = 0
    PRE_CANDIDATE = 1
    CANDIDATE = 2
    MASTER = 3


@value
class ReadState:
    """A read that may be served once entries up to `index` are applied."""

    context: int
    index: int


@value
class Ready:
    """The core's decisions. Everything is new since the last `Ready`, except role, master, term and
    commit index, which are always set."""

    role: Role
    master_id: NodeId | None
    term: int
    commit_index: int
    role_changed: bool = False
    """True when role, term or master differ from the last Ready."""
    hard_state: HardState | None = None
    truncate_from: int | None = None
    append: tuple[EntryMeta, ...] = ()
    append_noop: bool = False
    messages: tuple[Message, ...] = ()
    messages_after_hard_state: tuple[Message, ...] = ()
    """Not empty only together with `hard_state`."""
    reads: tuple[ReadState, ...] = ()
    reads_failed: tuple[int, ...] = ()
    """Contexts of reads that this node cannot confirm, because it is not master (any more)."""
    snapshot_wanted: Message | None = None
    """Slave: the SNAPSHOT_OFFER for which the shell should pull a snapshot, at least as new. The
    shell passes over it while it pulls another one: the master repeats the offer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerProgress:
    """One peer as the master sees it, for status pages and tests."""

    match_index: int
    next_index: int
    state: str
    inflight_bytes: int
    recently_active: bool
    counts: bool
    """False while the peer is a non-counting member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftStatus:
    """The present state of one core."""

    node_id: NodeId
    role: Role
    term: int
    voted_for: NodeId | None
    master_id: NodeId | None
    commit_index: int
    last_index: int
    synced_index: int
    membership: Membership
    progress: Mapping[NodeId, PeerProgress]
    """Empty unless this node is the master."""
    stale_completions: int
    """Number of completed writes since the start that no longer counted."""
