"""What enters and leaves the core besides messages: the log it reads, and what it decides.

`Ready` is handed out once: what stands in it will not be handed out again. The shell performs it
in this order, without awaiting between 1 and 3:

1. truncate_from, then append: the frames come from the APPEND that was stepped just before.
2. append_noop: build a NOOP frame at `core.next_index()` and `core.term`, append it, `proposed`.
3. hard_state goes to its writer. `messages_after_hard_state` leave once *it* is durable, and
   `on_hard_state_synced` is called then; hard states are saved in the order handed out.
4. messages leave at once, per target and kind in order.
5. entries up to commit_index may be applied, reads answered once commit is applied so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from semel.broker.raft.membership import Membership
from semel.broker.raft.messages import EntryMeta, HardState, Message
from semel.protos.ids import NodeId
from semel.protos.values import value


class LogView(Protocol):
    """The node's log as the core reads it: cheap, synchronous, unsynced entries included."""

    @property
    def first_index(self) -> int:
        """Lowest index whose entry can be sent; last_index + 1 when there is none."""
        ...

    @property
    def last_index(self) -> int:
        """Highest index appended, synced or not."""
        ...

    @property
    def last_term(self) -> int:
        """Term of last_index (of the snapshot when there is no entry, 0 at the very start)."""
        ...

    @property
    def synced_index(self) -> int:
        """Everything up to here *of the log as it is now* is durable.

        A write that completes after its entries were truncated and replaced never raises it
        over the replaced part, even when the same (index, term) was written again since.
        """
        ...

    def term_at(self, index: int) -> int | None:
        """Term of the entry, or of the snapshot at first_index - 1; None for any other."""
        ...

    def fit(self, lo: int, hi_max: int, max_bytes: int) -> int:
        """The largest hi in (lo, hi_max] whose entries [lo, hi) fit; at least one entry."""
        ...

    def meta(self, index: int) -> EntryMeta:
        """The entry at an index within [first_index, last_index]."""
        ...


class Role(IntEnum):
    """A learner is a follower that never stands."""

    FOLLOWER = 0
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
    """What to do now. Everything in it is new since the last one but the four standing facts: role,
    master, term and commit index."""

    role: Role
    master_id: NodeId | None
    term: int
    commit_index: int
    role_changed: bool = False
    """Role, term or master differ from the last Ready."""
    hard_state: HardState | None = None
    truncate_from: int | None = None
    append: tuple[EntryMeta, ...] = ()
    append_noop: bool = False
    messages: tuple[Message, ...] = ()
    messages_after_hard_state: tuple[Message, ...] = ()
    """Only ever set together with hard_state."""
    reads: tuple[ReadState, ...] = ()
    reads_failed: tuple[int, ...] = ()
    """Contexts of reads that will not be confirmed here: mastership was lost."""
    snapshot_wanted: Message | None = None
    """Follower: pull a snapshot at least as new as this SNAPSHOT_OFFER."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerProgress:
    """One peer as the master sees it, for status pages and tests."""

    match_index: int
    next_index: int
    state: str
    inflight_bytes: int
    recently_active: bool
    counts: bool
    """False while the peer is muted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftStatus:
    """A look at one core; changes nothing."""

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
    """Completed writes that no longer counted, since the start."""
