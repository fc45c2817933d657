"""The messages between the nodes of a group, and the hard state that a node must remember.

One flat class carries every kind of message: the fields that a kind does not use keep their
defaults. Terms and indexes are plain integers here, because the core adds and compares them all
the time; they are the `Term` and `Index` of `semel.protos.ids`.

    kind             log_index, log_term     other fields in use
    PRE_VOTE         the last entry          term (asked for), context (campaign), force
    PRE_VOTE_REPLY                           term (asked for; the sender's if rejected), context,
                                             rejected
    VOTE             the last entry          context (campaign), force
    VOTE_REPLY                               context, rejected, hint_index (the voter's wall clock
                                             in microseconds, set by the shell; 0: unknown)
    APPEND           the entry before        entries, commit_index
    APPEND_REPLY     durable and matched     rejected: log_index is the refused APPEND's, with
                                             hint_index, hint_term
    HEARTBEAT        the slave's match       commit_index, context (read round)
    HEARTBEAT_REPLY  durable and matched     context (echoed), rejected (stale term)
    SNAPSHOT_OFFER                           snapshot, commit_index
    SNAPSHOT_REPLY   durable and matched     rejected (the pull failed)
    TIMEOUT_NOW

Not here: the encoding (`raft/wire.py`), and how messages are handled (`raft/core.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from semel.broker.raft.membership_history import Membership
from semel.protos.ids import NodeId
from semel.protos.values import value


class MessageKind(IntEnum):
    """The kinds of messages. The numbers are part of the wire format; never reuse one."""

    PRE_VOTE = 1
    PRE_VOTE_REPLY = 2
    VOTE = 3
    VOTE_REPLY = 4
    APPEND = 5
    APPEND_REPLY = 6
    HEARTBEAT = 7
    HEARTBEAT_REPLY = 8
    SNAPSHOT_OFFER = 9
    SNAPSHOT_REPLY = 10
    TIMEOUT_NOW = 11


@value
class EntryMeta:
    """Everything that the core knows of an entry; only the shell handles its bytes."""

    index: int
    term: int
    size: int
    """Size of the whole frame in bytes, which windows and batching count."""
    membership: Membership | None = None
    """Set only for a membership entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardState:
    """The term and the vote, which must be durable before any message of this term leaves."""

    term: int = 0
    voted_for: NodeId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotMark:
    """A snapshot that replaces the entries up to `index`, which is committed."""

    index: int
    term: int
    membership: Membership
    """The membership in force at `index`."""


@value
class Message:
    """One message from `source` to `target`; the module's table says which fields count."""

    kind: MessageKind
    source: NodeId
    target: NodeId
    term: int
    log_index: int = 0
    log_term: int = 0
    commit_index: int = 0
    entries: tuple[EntryMeta, ...] = ()
    """Entries that are consecutive from log_index + 1, with terms that never fall."""
    rejected: bool = False
    hint_index: int = 0
    hint_term: int = 0
    context: int = 0
    snapshot: SnapshotMark | None = None
    force: bool = False
    """The master ordered this election, so a voter grants it even while the master is alive."""
    non_counting: bool = False
    """For any kind: the sender is a non-counting member, because it may have lost entries that it
    acknowledged."""
