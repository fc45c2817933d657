"""One consumer group: its members, and the queues that each member should read.

How it works. Members join, send heartbeats and leave, and are dropped when they stay silent for
longer than their session. Each such change, and each change of a topic's queues, makes the group
*unsettled*. `plan` then computes the next generation from all changes so far, and `adopt` makes it
the current one after the shell has stored it. Changes between the two wait for the next plan. So a
hundred joins at once cost a few generations, not a hundred.

A member that chose its own id may ask for a *grace* time: if it is away for no longer than that (a
restart), it keeps its queues, which nobody reads meanwhile. Two processes with the same id would
take each other's locks for ever; so each process has an *incarnation*, and the one that joined last
is the member. Its joining makes a new generation, under which the brokers refuse locks to the other
process.

The world does not stop: the plan gives a queue to its new member at once, and the lock at
the broker decides when that member can begin, namely when the old member has released it.

Groups are of three kinds. *Consumers* of Semel's clients share queues. A group of *Kafka*'s clients
has one member at most, the gateway that coordinates them: whoever comes first, until it is gone
from the group of the *gateways*. These send heartbeats, once for all groups that they coordinate. A
group keeps its kind, so that the offsets and metadata of one kind are never read by the other.

Invariants
1. The generation rises with every adopted plan, and a plan is made only when something changes.
2. Every assignment in a reply is the stored one of its generation.
3. Nothing here looks at a clock; times are milliseconds of one monotonic clock.

Not here: the assignment itself (`balance.py`), storing and answering (`memberships.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from semel.controller.groups.balance import Assignment, balance
from semel.protos.errors import GroupKindConflict, InvalidRequest, MemberFenced, UnknownMember
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.v1.common_pb2 import QueueRef
from semel.protos.v1.controller_pb2 import GroupInfo, GroupMember, GroupMembershipReply
from semel.protos.v1.metadata_pb2 import (
    ConsumerGroupRecord,
    ConsumerMemberRecord,
    GroupKind,
    TopicQueues,
)

SESSION_MS_DEFAULT: Final = 10_000
SESSION_MS_MIN: Final = 200
SESSION_MS_MAX: Final = 600_000
GRACE_MS_MAX: Final = 24 * 3600 * 1000
INCARNATION_BYTES_MAX: Final = 64
HEARTBEATS_A_SESSION: Final = 3
HEARTBEAT_MS_MAX: Final = 1_000
"""A member learns of a new assignment with its next heartbeat, so heartbeats must not be rare."""
NAME_CHARACTERS_MAX: Final = 249
_WHOSE: Final = {
    GroupKind.GROUP_KIND_CONSUMERS: "consumers of Semel's clients",
    GroupKind.GROUP_KIND_KAFKA: "Kafka's clients",
    GroupKind.GROUP_KIND_GATEWAYS: "gateways",
}

Topics = Mapping[str, Sequence[QueueKey]]
"""The queues of every topic that exists, by name."""


def check_name(name: str, what: str = "group name") -> None:
    """Raises InvalidRequest for a name that no consumer group or member may have."""
    if not 1 <= len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
        raise InvalidRequest(
            f"{name[:60]!r} is no {what}: use 1 to {NAME_CHARACTERS_MAX} printable characters"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The settings that a member asks for when it joins."""

    topics: tuple[str, ...]
    session_ms: int = SESSION_MS_DEFAULT
    client: str = ""
    grace_ms: int = 0
    """How long the member keeps its queues while it is away, if that is longer than its session."""
    incarnation: bytes = b""
    """Identifies the process that uses the member's id; empty for a client that does not say."""
    kind: GroupKind = GroupKind.GROUP_KIND_CONSUMERS
    """Only consumers read topics."""
    address: str = ""
    """Where clients of Kafka find the member; empty for a consumer."""
    protocol: str = ""
    """How clients of Kafka reach a gateway, in Kafka's words; empty if it does not say."""

    def __post_init__(self) -> None:
        if self.kind not in _WHOSE:
            raise InvalidRequest(f"there is no kind {self.kind} of consumer groups")
        if self.kind != GroupKind.GROUP_KIND_CONSUMERS:
            if self.topics or self.grace_ms:
                raise InvalidRequest("a gateway reads no topics, and has no grace time")
            if not self.address or len(self.address) > NAME_CHARACTERS_MAX:
                raise InvalidRequest("a gateway needs the address where its clients find it")
            if len(self.protocol) > NAME_CHARACTERS_MAX:
                raise InvalidRequest(f"there is no protocol {self.protocol[:60]!r}")
        elif not self.topics:
            raise InvalidRequest("a member of a consumer group needs at least one topic")
        if not SESSION_MS_MIN <= self.session_ms <= SESSION_MS_MAX:
            raise InvalidRequest(
                f"session_ms is {self.session_ms}; allowed are {SESSION_MS_MIN} to {SESSION_MS_MAX}"
            )
        if self.grace_ms > GRACE_MS_MAX:
            raise InvalidRequest(f"grace_ms is {self.grace_ms}; allowed are 0 to {GRACE_MS_MAX}")
        if len(self.incarnation) > INCARNATION_BYTES_MAX:
            raise InvalidRequest(f"an incarnation has at most {INCARNATION_BYTES_MAX} bytes")


@dataclass(slots=True, kw_only=True)
class _Member:
    wish: Wish
    last_seen_ms: int
    assignment: list[QueueKey] = field(default_factory=list)

    @property
    def deadline_ms(self) -> int:
        return self.last_seen_ms + self.absence_ms

    @property
    def absence_ms(self) -> int:
        """How long the member may be silent."""
        return max(self.wish.session_ms, self.wish.grace_ms)

    def fences(self, incarnation: bytes) -> bool:
        """Whether another process has replaced the one with this incarnation."""
        return bool(incarnation) and incarnation != self.wish.incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The next generation, not yet stored."""

    generation: int
    wishes: Mapping[str, Wish]
    assignment: Assignment
    changes: int
    """The number of the group's changes that the plan covers."""


class ConsumerGroup:
    """The membership of one group."""

    def __init__(
        self,
        name: str,
        *,
        generation: int,
        kind: GroupKind = GroupKind.GROUP_KIND_CONSUMERS,
    ) -> None:
        self.name = name
        self.generation = generation
        self.kind = kind
        self.owner = ""
        """The user whose member was the first; empty if nobody proved who they are."""
        self.changes = 0
        """Changes so far; a plan that covers all of them settles the group."""
        self.settled_changes = 0
        self._members: dict[str, _Member] = {}
        self._adopted_wishes: Mapping[str, Wish] = {}

    @classmethod
    def restore(cls, record: ConsumerGroupRecord, now_ms: int) -> ConsumerGroup:
        """Makes the group of a stored record after a restart.

        Its members count as seen one longest session in the future: they could not send heartbeats
        while there was no controller, and nothing should move because of that.
        """
        group = cls(record.group, generation=record.generation, kind=record.kind)
        group.owner = record.owner
        grace_ms = max((member.session_ms for member in record.members), default=0)
        for member in record.members:
            group._members[member.member_id] = _Member(
                wish=Wish(
                    topics=tuple(member.topics),
                    session_ms=member.session_ms,
                    client=member.client,
                    grace_ms=member.grace_ms,
                    incarnation=member.incarnation,
                    kind=record.kind,
                    address=member.address,
                    protocol=member.protocol,
                ),
                last_seen_ms=now_ms + grace_ms,
                assignment=_unpack(member.assignment),
            )
        group._adopted_wishes = {m: member.wish for m, member in group._members.items()}
        group.changes = 1  # topics may have changed since the record was written
        return group

    @property
    def settled(self) -> bool:
        """Whether nothing has changed since the current generation."""
        return self.settled_changes == self.changes

    @property
    def empty(self) -> bool:
        """Whether the group has no members."""
        return not self._members

    @property
    def member_count(self) -> int:
        """The number of members."""
        return len(self._members)

    def has(self, member_id: str) -> bool:
        """Whether it is a member."""
        return member_id in self._members

    @property
    def coordinator(self) -> str:
        """The gateway that coordinates a group of Kafka's clients; empty if none does."""
        return next(iter(self._members), "") if self.kind == GroupKind.GROUP_KIND_KAFKA else ""

    def check_kind(self, kind: GroupKind) -> None:
        """Raises GroupKindConflict unless the group is of this kind."""
        if kind != self.kind:
            raise GroupKindConflict(
                f"group {self.name!r} is one of {_WHOSE[self.kind]}, not of {_WHOSE[kind]}: use"
                " another name, or delete the group first"
            )

    def check_protocol(self, member_id: str, protocol: str) -> None:
        """Raises InvalidRequest for a gateway that clients reach otherwise than the others."""
        for other_id, other in self._members.items():
            theirs = other.wish.protocol
            if other_id != member_id and protocol and theirs and theirs != protocol:
                raise InvalidRequest(
                    f"clients reach this gateway by {protocol}, and the one at"
                    f" {other.wish.address} by {theirs}: clients are led from one to another, so"
                    " give all gateways of a cluster TLS or none, and SASL or none"
                )

    def join(self, member_id: str, wish: Wish, now_ms: int) -> None:
        """Adds a member, or updates one that joins again, perhaps with other wishes.

        Raises GroupKindConflict. A coordinated group takes no second member.
        """
        self.check_kind(wish.kind)
        assert self.coordinator in ("", member_id)
        member = self._members.get(member_id)
        if member is None:
            self._members[member_id] = _Member(wish=wish, last_seen_ms=now_ms)
            self.changes += 1
            return
        member.last_seen_ms = max(member.last_seen_ms, now_ms)
        if member.wish != wish:
            member.wish = wish
            self.changes += 1

    def heartbeat(self, member_id: str, now_ms: int, incarnation: bytes = b"") -> None:
        """Notes that the member is alive.

        Raises UnknownMember, and MemberFenced when another process has replaced it.
        """
        member = self._members.get(member_id)
        if member is None:
            raise UnknownMember(
                f"group {self.name!r} has no member {member_id!r}: it left or was silent for too "
                "long; join again"
            )
        if member.fences(incarnation):
            raise MemberFenced(
                f"another process has joined group {self.name!r} as {member_id!r}: give each its "
                "own member_id"
            )
        member.last_seen_ms = max(member.last_seen_ms, now_ms)

    def leave(self, member_id: str, incarnation: bytes = b"") -> bool:
        """Removes the member; false when it had left before, or another process has replaced it."""
        member = self._members.get(member_id)
        if member is None or member.fences(incarnation):
            return False
        del self._members[member_id]
        self.changes += 1
        return True

    def expire(self, now_ms: int, gateways: ConsumerGroup | None = None) -> list[str]:
        """Drops the members that were silent for too long, and a coordinator that is none of the
        `gateways` any more; returns them."""
        if self.kind == GroupKind.GROUP_KIND_KAFKA:
            gone = sorted(m for m in self._members if gateways is None or not gateways.has(m))
        else:
            gone = sorted(m for m, member in self._members.items() if member.deadline_ms <= now_ms)
        for member_id in gone:
            self.leave(member_id)
        return gone

    def forgive(self, gap_ms: int) -> None:
        """Extends all sessions by a time during which the controller itself stood still."""
        for member in self._members.values():
            member.last_seen_ms += gap_ms

    def on_topic_changed(self, topic: str) -> None:
        """Notes that a topic came, went or has other queues."""
        if topic in self.topics():
            self.changes += 1

    def topics(self) -> set[str]:
        """Names of all topics that a member asked for."""
        return {name for member in self._members.values() for name in member.wish.topics}

    def plan(self, topics: Topics) -> Plan | None:
        """The next generation; None, and the group is settled, when nothing would change."""
        existing = [topics[name] for name in sorted(self.topics()) if topics.get(name)]
        queues: dict[int, Sequence[QueueKey]] = {found[0].topic_id: found for found in existing}
        ids = {name: found[0].topic_id for name, found in topics.items() if found}
        current = {member_id: member.assignment for member_id, member in self._members.items()}
        assignment = balance(
            {
                member_id: {ids[name] for name in member.wish.topics if name in ids}
                for member_id, member in self._members.items()
            },
            queues,
            current,
        )
        wishes = {member_id: member.wish for member_id, member in self._members.items()}
        if assignment == current and wishes == self._adopted_wishes:
            self.settled_changes = self.changes
            return None
        return Plan(
            generation=self.generation + 1,
            wishes=wishes,
            assignment=assignment,
            changes=self.changes,
        )

    def adopt(self, plan: Plan) -> None:
        """Makes a stored plan the current generation."""
        assert plan.generation == self.generation + 1
        self.generation = plan.generation
        self.settled_changes = plan.changes
        self._adopted_wishes = plan.wishes
        for member_id, assignment in plan.assignment.items():
            if member_id in self._members:
                self._members[member_id].assignment = assignment

    def record(self, plan: Plan) -> ConsumerGroupRecord:
        """The record of the group to store before `plan` is adopted."""
        return ConsumerGroupRecord(
            group=self.name,
            owner=self.owner,
            kind=self.kind,
            generation=plan.generation,
            members=[
                ConsumerMemberRecord(
                    member_id=member_id,
                    client=wish.client,
                    topics=wish.topics,
                    session_ms=wish.session_ms,
                    grace_ms=wish.grace_ms,
                    incarnation=wish.incarnation,
                    address=wish.address,
                    protocol=wish.protocol,
                    assignment=_pack(plan.assignment[member_id]),
                )
                for member_id, wish in sorted(plan.wishes.items())
            ],
        )

    def reply(self, member_id: str) -> GroupMembershipReply:
        """The reply to the member. Raises UnknownMember."""
        member = self._members.get(member_id)
        if member is None:
            raise UnknownMember(f"member {member_id!r} has left group {self.name!r}")
        return GroupMembershipReply(
            member_id=member_id,
            generation=self.generation,
            assignment=_refs(member.assignment),
            heartbeat_ms=min(member.wish.session_ms // HEARTBEATS_A_SESSION, HEARTBEAT_MS_MAX),
            address=member.wish.address,
        )

    def info(self, *, counts_only: bool = False) -> GroupInfo:
        """The group for people, without its members if they are only to be counted."""
        return GroupInfo(
            group=self.name,
            kind=self.kind,
            generation=self.generation,
            member_count=len(self._members),
            members=[
                GroupMember(
                    member_id=member_id,
                    client=member.wish.client,
                    topics=member.wish.topics,
                    assignment=_refs(member.assignment),
                    address=member.wish.address,
                )
                for member_id, member in sorted(self._members.items())
                if not counts_only
            ],
        )


def _refs(queues: Sequence[QueueKey]) -> list[QueueRef]:
    return [QueueRef(topic_id=queue.topic_id, queue_id=queue.queue_id) for queue in queues]


def _pack(queues: Sequence[QueueKey]) -> list[TopicQueues]:
    by_topic: dict[TopicId, list[QueueId]] = defaultdict(list)
    for queue in sorted(queues):
        by_topic[queue.topic_id].append(queue.queue_id)
    return [TopicQueues(topic_id=topic, queue_ids=ids) for topic, ids in by_topic.items()]


def _unpack(packed: Sequence[TopicQueues]) -> list[QueueKey]:
    return [
        QueueKey(TopicId(topic.topic_id), QueueId(queue_id))
        for topic in packed
        for queue_id in topic.queue_ids
    ]
