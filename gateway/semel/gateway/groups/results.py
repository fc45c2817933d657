"""What the group coordinator is asked and what it answers, as plain values, with Kafka's errors.

How it works. JoinGroup and SyncGroup are answered later, when other members have come or the leader
has decided. So whoever asks gives a *ticket*, a number of its own, and the answer is a reply with
that ticket. All other questions are answered at once.

Not here: the rules (`kafka_group.py`), Kafka's bytes (kio), the cluster (`coordination/`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NewType

Ticket = NewType("Ticket", int)
"""Names one JoinGroup or SyncGroup request that waits for its answer."""


class GroupError(IntEnum):
    """The errors of groups, by Kafka's names and codes."""

    NONE = 0
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    GROUP_AUTHORIZATION_FAILED = 30
    INVALID_REQUEST = 42
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86


class GroupState(StrEnum):
    """The states of a group, by the names that Kafka's tools show."""

    EMPTY = "Empty"
    """It has no members; it may have offsets."""
    PREPARING = "PreparingRebalance"
    """Members are asked to join again, and those that did wait for the others."""
    COMPLETING = "CompletingRebalance"
    """All have joined; the leader's assignment is awaited."""
    STABLE = "Stable"
    DEAD = "Dead"
    """It is not coordinated here any more, or unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """What one gateway takes, and how long it waits. Times are milliseconds."""

    session_ms_min: int = 1_000
    session_ms_max: int = 1_800_000
    rebalance_ms_max: int = 1_800_000
    """Longer rebalance timeouts are cut to this."""
    initial_delay_ms: int = 500
    """How long an empty group waits for more members after the first one; each that comes meanwhile
    extends it, up to the rebalance timeout. Kafka's `group.initial.rebalance.delay.ms`."""
    new_member_ms: int = 300_000
    """How long a member that is new may wait in a JoinGroup before it counts as gone."""
    members_max: int = 1_000
    """Members of one group."""
    groups_max: int = 10_000
    """Groups that one gateway coordinates."""
    protocols_max: int = 64
    """Protocols that a member offers."""
    name_bytes_max: int = 4_096
    """Bytes of any name: of a protocol, of a client, of an instance."""
    member_bytes_max: int = 1 << 20
    """Bytes of all protocols that a member offers, and of its assignment."""
    group_bytes_max: int = 64 << 20
    """Bytes of all protocols and assignments of one group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A JoinGroup request."""

    member_id: str = ""
    """Empty for a member that has none yet."""
    instance_id: str | None = None
    """`group.instance.id` of a static member."""
    client_id: str = ""
    client_host: str = ""
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Name and metadata of each protocol, the preferred one first."""
    id_required: bool = False
    """The client takes MEMBER_ID_REQUIRED and joins again with the id: JoinGroup from version 4
    on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """A member as the leader is told of it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    """The answer to a JoinGroup."""

    error: GroupError = GroupError.NONE
    generation: int = -1
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    member_id: str = ""
    members: tuple[JoinedMember, ...] = ()
    """All members, for the leader alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """A SyncGroup request."""

    member_id: str
    generation: int
    instance_id: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()
    """The assignment of each member, from the leader alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """The answer to a SyncGroup."""

    error: GroupError = GroupError.NONE
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to whoever asked with this ticket."""

    ticket: Ticket
    result: JoinResult | SyncResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaver:
    """A member that a LeaveGroup request names: by its id, its instance, or both."""

    member_id: str = ""
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    """A member for people."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group for people."""

    state: GroupState
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()
