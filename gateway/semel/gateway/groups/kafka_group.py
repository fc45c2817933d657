"""One Kafka group: Kafka's classic group coordinator as a state machine.

How it works. Calls bring what members ask and the time, in milliseconds of one monotonic clock.
Heartbeats, leaves and commits are judged at once; the answers to JoinGroup and SyncGroup collect in
`replies`, for the shell to send. `wake_ms` says when `on_time` has something to do.

A rebalance has two halves. In *PreparingRebalance* the group waits until every member has joined
again, or the longest rebalance timeout is over; dynamic members that did not come are dropped, and
static ones keep their place until their session ends. In *CompletingRebalance* every member has the
new generation, and the leader's SyncGroup brings the assignment; whoever does not ask for it within
the rebalance timeout is dropped. An empty group lets its first rebalance wait for more members.

A static member (`group.instance.id`) that comes back without its id takes the place of the process
before it, whose requests are fenced from then on. If it brings the same protocols to a stable
group, there is no rebalance.

Invariants
1. The generation rises by one with each rebalance that ends, and never otherwise.
2. A ticket is answered once. A member has at most one JoinGroup and one SyncGroup that wait; a
   later one of the same kind ends the earlier with REBALANCE_IN_PROGRESS.
3. Nobody waits for a JoinGroup outside PreparingRebalance, nor for a SyncGroup outside
   CompletingRebalance.
4. A group without members is Empty or Dead; the leader is a member, and supports what all do.

Source: Kafka's `GroupCoordinator` and `GroupMetadata` (the classic protocol, KIP-62, -134, -345,
-394), from their documented behaviour.

Not here: which groups there are (`group_table.py`), offsets (`coordination/`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from semel.gateway.groups.join_checks import check_room, check_sizes, choose_protocol, supports
from semel.gateway.groups.kafka_member import KafkaMember
from semel.gateway.groups.results import (
    DescribedMember,
    GroupDescription,
    GroupError,
    GroupLimits,
    GroupState,
    Join,
    JoinedMember,
    JoinResult,
    Leaver,
    Reply,
    Sync,
    SyncResult,
    Ticket,
)

TRANSITIONS: Final[dict[GroupState, frozenset[GroupState]]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING, GroupState.DEAD}),
    GroupState.PREPARING: frozenset({GroupState.COMPLETING, GroupState.EMPTY, GroupState.DEAD}),
    GroupState.COMPLETING: frozenset({GroupState.STABLE, GroupState.PREPARING, GroupState.DEAD}),
    GroupState.STABLE: frozenset({GroupState.PREPARING, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}


class KafkaGroup:
    """The members of one group. `new_id` returns text that it never returns again."""

    def __init__(self, group_id: str, limits: GroupLimits, new_id: Callable[[], str]) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.era = 0
        """Rises when a partition may get another reader: with the generation, and with a static
        member that comes as another process."""
        self.protocol_type = ""
        """That of its members; it stays when the last one has left."""
        self.protocol = ""
        """The protocol of this generation; empty before the first."""
        self.leader = ""
        self.members: dict[str, KafkaMember] = {}
        """By id, in the order in which they came."""
        self.pending: dict[str, int] = {}
        """Ids that were given and not used yet, and when each is forgotten."""
        self.replies: list[Reply] = []
        self.wake_ms: int | None = None
        """When `on_time` may have something to do; None for never. Never late."""
        self._limits = limits
        self._new_id = new_id
        self._static: dict[str, str] = {}
        """Ids of static members by instance."""
        self._join_deadline_ms: int | None = None
        """When PreparingRebalance ends, whoever has come; None outside it."""
        self._join_until_ms = 0
        """Until when the first rebalance of an empty group may be put off."""
        self._initial = False
        """The group was empty: others may come within the initial delay."""
        self._came_meanwhile = False
        """A member was added since the initial delay began anew."""
        self._sync_deadline_ms: int | None = None
        """When members that have not asked for their assignment are dropped."""
        self._unsynced: set[str] = set()
        """Members that have not asked for their assignment in this generation."""

    @property
    def is_left(self) -> bool:
        """Whether nobody is in, or about to join."""
        return self.state is GroupState.EMPTY and not self.pending

    # --- JoinGroup --------------------------------------------------------------------------------

    def join(self, join: Join, ticket: Ticket, now_ms: int) -> None:
        """A JoinGroup request."""
        error = self._refusal(join)
        if error is not GroupError.NONE:
            self._answer_join(ticket, JoinResult(error=error, member_id=join.member_id))
        elif join.member_id:
            self._join_again(join, ticket, now_ms)
        elif join.instance_id is not None and join.instance_id in self._static:
            self._replace_static(join, ticket, now_ms)
        elif join.instance_id is None and join.id_required:
            member_id = self._id_for(join)
            self.pending[member_id] = now_ms + join.session_ms
            self._wake_at(self.pending[member_id])
            self._answer_join(
                ticket, JoinResult(error=GroupError.MEMBER_ID_REQUIRED, member_id=member_id)
            )
        else:
            self._add(self._id_for(join), join, ticket, now_ms)

    def _refusal(self, join: Join) -> GroupError:
        if self.state is GroupState.DEAD:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        error = check_sizes(join, self._limits)
        if error is not GroupError.NONE:
            return error
        replaced = join.member_id or self._static.get(join.instance_id or "", "")
        others = [member for member in self.members.values() if member.member_id != replaced]
        if not supports(join, self.protocol_type, others):
            return GroupError.INCONSISTENT_GROUP_PROTOCOL
        places = len(others) + len(self.pending) - (join.member_id in self.pending)
        return check_room(join, self._limits, others, places)

    def _join_again(self, join: Join, ticket: Ticket, now_ms: int) -> None:
        if join.member_id in self.pending and join.instance_id is None:
            self._add(join.member_id, join, ticket, now_ms)
            return
        member, error = self._member(join.member_id, join.instance_id)
        if member is None:
            self._answer_join(ticket, JoinResult(error=error, member_id=join.member_id))
            return
        same = member.offers_the_same(join.protocols)
        match self.state:
            case GroupState.COMPLETING if same:  # the answer to the JoinGroup before was lost
                self._answer_join(ticket, self._joined(member))
            case GroupState.STABLE if same and member.member_id != self.leader:
                # Only the leader starts a rebalance of its own accord: the topics changed.
                self._answer_join(ticket, self._joined(member))
            case GroupState.EMPTY | GroupState.DEAD:
                raise AssertionError(f"a member of a group that is {self.state}")
            case _:
                self._update(member, join, ticket, now_ms)
                self._rebalance(now_ms)
                return
        self._heard_of(member, now_ms)

    def _add(self, member_id: str, join: Join, ticket: Ticket, now_ms: int) -> None:
        """Adds a member that is new to the group."""
        self.pending.pop(member_id, None)
        if not self.members:
            self.protocol_type = join.protocol_type
        member = KafkaMember(
            member_id=member_id,
            instance_id=join.instance_id,
            client_id=join.client_id,
            client_host=join.client_host,
            session_ms=join.session_ms,
            rebalance_ms=self._rebalance_ms(join),
            protocols=dict(join.protocols),
            deadline_ms=now_ms + max(join.session_ms, self._limits.new_member_ms),
            joining=ticket,
        )
        self.members[member_id] = member
        self._wake_at(member.deadline_ms)
        if join.instance_id is not None:
            self._static[join.instance_id] = member_id
        self._came_meanwhile = True
        self._rebalance(now_ms)

    def _replace_static(self, join: Join, ticket: Ticket, now_ms: int) -> None:
        """A static member is back, perhaps as another process: the one before it is fenced."""
        assert join.instance_id is not None
        self.era += 1
        old = self.members.pop(self._static[join.instance_id])
        self._end_waits(old, GroupError.FENCED_INSTANCE_ID)
        old_id, was_leader = old.member_id, self.leader == old.member_id
        same = old.offers_the_same(join.protocols)
        old.member_id = self._id_for(join)
        self.members[old.member_id] = old
        self._static[join.instance_id] = old.member_id
        if old_id in self._unsynced:
            self._unsynced.remove(old_id)
            self._unsynced.add(old.member_id)
        if was_leader:
            self.leader = old.member_id
        if self.state is GroupState.STABLE and same:
            old.client_id, old.client_host = join.client_id, join.client_host
            old.session_ms, old.rebalance_ms = join.session_ms, self._rebalance_ms(join)
            self._heard_of(old, now_ms)
            # It gets its assignment by SyncGroup. As a leader it would assign anew, for nothing.
            leader = old_id if was_leader else self.leader
            self._answer_join(ticket, self._joined(old, leader=leader))
            return
        self._update(old, join, ticket, now_ms)
        self._rebalance(now_ms)

    def _update(self, member: KafkaMember, join: Join, ticket: Ticket, now_ms: int) -> None:
        """The member joins with perhaps other protocols and timeouts, and waits."""
        if member.joining is not None:
            superseded = JoinResult(
                error=GroupError.REBALANCE_IN_PROGRESS, member_id=member.member_id
            )
            self._answer_join(member.joining, superseded)
        member.joining = ticket
        member.client_id, member.client_host = join.client_id, join.client_host
        member.session_ms, member.rebalance_ms = join.session_ms, self._rebalance_ms(join)
        member.protocols = dict(join.protocols)
        self._heard_of(member, now_ms)

    def _rebalance_ms(self, join: Join) -> int:
        asked = join.rebalance_ms if join.rebalance_ms > 0 else join.session_ms
        return min(asked, self._limits.rebalance_ms_max)

    def _id_for(self, join: Join) -> str:
        return f"{join.instance_id or join.client_id or 'member'}-{self._new_id()}"

    # --- rebalances -------------------------------------------------------------------------------

    def _rebalance(self, now_ms: int) -> None:
        """Begins a rebalance, if none goes on, and ends it if nobody is missing."""
        if self.state is not GroupState.PREPARING:
            self._prepare(now_ms)
        self._maybe_complete_join(now_ms)

    def _prepare(self, now_ms: int) -> None:
        for member in self.members.values():
            if member.syncing is not None:
                ticket, member.syncing = member.syncing, None
                self._heard_of(member, now_ms)
                self._answer_sync(ticket, GroupError.REBALANCE_IN_PROGRESS)
        self._unsynced.clear()
        self._sync_deadline_ms = None
        rebalance_ms = self._longest_rebalance_ms()
        self._initial = self.state is GroupState.EMPTY and self._limits.initial_delay_ms > 0
        self._join_until_ms = now_ms + rebalance_ms
        if self._initial:
            self._came_meanwhile = False
            rebalance_ms = min(rebalance_ms, self._limits.initial_delay_ms)
        self._set_join_deadline(now_ms + rebalance_ms)
        self._become(GroupState.PREPARING)

    def _maybe_complete_join(self, now_ms: int) -> None:
        if self._initial or self.pending:
            return  # those that were given an id a moment ago are on their way
        if all(member.joining is not None for member in self.members.values()):
            self._complete_join(now_ms)

    def _on_join_deadline(self, now_ms: int) -> None:
        left_ms = self._join_until_ms - now_ms
        if self._initial and self._came_meanwhile and left_ms > 0:
            self._came_meanwhile = False
            self._set_join_deadline(now_ms + min(self._limits.initial_delay_ms, left_ms))
            return
        self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        """Begins the next generation with the members that have come."""
        for member in list(self.members.values()):
            if member.joining is None and not member.is_static:
                self._drop(member)
        came = [member for member in self.members.values() if member.joining is not None]
        if self.members and not came:
            # Only static members are left, and none is back yet: until one is, or their sessions
            # end.
            self._initial = False
            self._set_join_deadline(now_ms + self._longest_rebalance_ms())
            return
        self._initial = False
        self._join_deadline_ms = None
        self.generation += 1
        self.era += 1
        if not came:
            self.protocol, self.leader = "", ""
            self._become(GroupState.EMPTY)
            return
        if self.leader not in self.members or self.members[self.leader].joining is None:
            self.leader = came[0].member_id
        self.protocol = choose_protocol(self.members, self.leader)
        self._become(GroupState.COMPLETING)
        self._unsynced = {member.member_id for member in came}
        self._sync_deadline_ms = now_ms + self._longest_rebalance_ms()
        self._wake_at(self._sync_deadline_ms)
        for member in came:
            assert member.joining is not None
            ticket, member.joining = member.joining, None
            member.is_new = False
            self._heard_of(member, now_ms)
            self._answer_join(ticket, self._joined(member))

    def _joined(self, member: KafkaMember, *, leader: str | None = None) -> JoinResult:
        leader = self.leader if leader is None else leader
        return JoinResult(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=leader,
            member_id=member.member_id,
            members=tuple(
                JoinedMember(
                    member_id=each.member_id,
                    instance_id=each.instance_id,
                    metadata=each.protocols[self.protocol],
                )
                for each in self.members.values()
                if member.member_id == leader
            ),
        )

    def _longest_rebalance_ms(self) -> int:
        return max((member.rebalance_ms for member in self.members.values()), default=0)

    # --- SyncGroup --------------------------------------------------------------------------------

    def sync(self, sync: Sync, ticket: Ticket, now_ms: int) -> None:
        """A SyncGroup request."""
        member, error = self._current(sync.member_id, sync.instance_id, sync.generation)
        if member is None:
            self._answer_sync(ticket, error)
            return
        match self.state:
            case GroupState.STABLE:
                self._unsynced.discard(member.member_id)
                self._heard_of(member, now_ms)
                self._answer_sync(ticket, GroupError.NONE, member.assignment)
            case GroupState.COMPLETING:
                self._sync_now(member, sync, ticket, now_ms)
            case _:
                self._heard_of(member, now_ms)
                self._answer_sync(ticket, GroupError.REBALANCE_IN_PROGRESS)

    def _sync_now(self, member: KafkaMember, sync: Sync, ticket: Ticket, now_ms: int) -> None:
        if member.member_id == self.leader and not self._fits(sync):
            self._answer_sync(ticket, GroupError.INVALID_REQUEST)
            return
        if member.syncing is not None:
            self._answer_sync(member.syncing, GroupError.REBALANCE_IN_PROGRESS)
        member.syncing = ticket
        self._unsynced.discard(member.member_id)
        self._heard_of(member, now_ms)
        if member.member_id != self.leader:
            return
        given = dict(sync.assignments)
        for each in self.members.values():
            each.assignment = given.get(each.member_id, b"")
        self._become(GroupState.STABLE)
        for each in self.members.values():
            if each.syncing is not None:
                waiting, each.syncing = each.syncing, None
                self._heard_of(each, now_ms)
                self._answer_sync(waiting, GroupError.NONE, each.assignment)

    def _fits(self, sync: Sync) -> bool:
        """Whether there is room for the leader's assignment."""
        sizes = [len(assignment) for _, assignment in sync.assignments]
        held = sum(member.size - len(member.assignment) for member in self.members.values())
        return (
            max(sizes, default=0) <= self._limits.member_bytes_max
            and held + sum(sizes) <= self._limits.group_bytes_max
        )

    # --- Heartbeat, LeaveGroup, commits -----------------------------------------------------------

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> GroupError:
        """A Heartbeat request."""
        member, error = self._current(member_id, instance_id, generation)
        if member is None:
            return error
        self._heard_of(member, now_ms)
        if self.state is GroupState.PREPARING:
            return GroupError.REBALANCE_IN_PROGRESS
        return GroupError.NONE

    def leave(self, leaver: Leaver, now_ms: int) -> GroupError:
        """One member of a LeaveGroup request."""
        if self.state is GroupState.DEAD:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        if leaver.member_id in self.pending:
            del self.pending[leaver.member_id]
            if self.state is GroupState.PREPARING:
                self._maybe_complete_join(now_ms)
            return GroupError.NONE
        member_id = leaver.member_id
        if not member_id and leaver.instance_id is not None:  # an administrator's
            member_id = self._static.get(leaver.instance_id, "")
        member, error = self._member(member_id, leaver.instance_id)
        if member is None:
            return error
        self._remove(member, now_ms)
        return GroupError.NONE

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> GroupError:
        """Whether an OffsetCommit counts. One of a member is a sign of life."""
        error = self.judge_commit(member_id, instance_id, generation)
        member, _ = self._member(member_id, instance_id)
        if error is GroupError.NONE and member is not None:
            self._heard_of(member, now_ms)
        return error

    def judge_commit(self, member_id: str, instance_id: str | None, generation: int) -> GroupError:
        """The same, and changes nothing."""
        if self.state is GroupState.DEAD:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and not self.members and not member_id and instance_id is None:
            return GroupError.NONE  # the group only stores offsets
        if generation < 0 and not member_id and instance_id is None:
            return GroupError.UNKNOWN_MEMBER_ID
        member, error = self._current(member_id, instance_id, generation)
        if member is None:
            return error
        if self.state is GroupState.COMPLETING:
            # What it commits was read under an assignment that is over.
            return GroupError.REBALANCE_IN_PROGRESS
        return GroupError.NONE

    # --- time, and the end ------------------------------------------------------------------------

    def on_time(self, now_ms: int) -> None:
        """Does what is due."""
        if self.wake_ms is None or now_ms < self.wake_ms:
            return
        for member_id, deadline_ms in list(self.pending.items()):
            if deadline_ms <= now_ms:
                del self.pending[member_id]
        for member in list(self.members.values()):
            if member.deadline_ms <= now_ms and not member.waits:
                self._remove(member, now_ms)
        if self.state is GroupState.PREPARING:
            if self._join_deadline_ms is not None and self._join_deadline_ms <= now_ms:
                self._on_join_deadline(now_ms)
            else:
                self._maybe_complete_join(now_ms)
        if self._sync_deadline_ms is not None and self._sync_deadline_ms <= now_ms:
            self._sync_deadline_ms = None
            for member_id in sorted(self._unsynced & self.members.keys()):
                self._remove(self.members[member_id], now_ms)
            self._unsynced.clear()
        self._plan_wake(now_ms)

    def forgive(self, gap_ms: int) -> None:
        """Puts all deadlines off by a time during which the gateway itself stood still."""
        for member in self.members.values():
            member.deadline_ms += gap_ms
        self.pending = {member_id: at + gap_ms for member_id, at in self.pending.items()}
        self._join_until_ms += gap_ms
        if self._join_deadline_ms is not None:
            self._join_deadline_ms += gap_ms
        if self._sync_deadline_ms is not None:
            self._sync_deadline_ms += gap_ms

    def end(self, error: GroupError) -> None:
        """The group is not coordinated here any more; all that wait are told so."""
        for member in self.members.values():
            self._end_waits(member, error)
        self.members.clear()
        self.pending.clear()
        self._static.clear()
        self._unsynced.clear()
        self._join_deadline_ms = self._sync_deadline_ms = self.wake_ms = None
        self.leader = ""
        if self.state is not GroupState.DEAD:
            self._become(GroupState.DEAD)

    def describe(self) -> GroupDescription:
        """The group for people."""
        stable = self.state is GroupState.STABLE
        return GroupDescription(
            state=self.state,
            protocol_type=self.protocol_type,
            protocol=self.protocol if stable else "",
            members=tuple(
                DescribedMember(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    metadata=member.protocols[self.protocol] if stable else b"",
                    assignment=member.assignment if stable else b"",
                )
                for member in self.members.values()
            ),
        )

    # --- members ----------------------------------------------------------------------------------

    def _member(
        self, member_id: str, instance_id: str | None
    ) -> tuple[KafkaMember | None, GroupError]:
        """Finds a member by what it says of itself, or the error that it gets."""
        if instance_id is not None:
            known = self._static.get(instance_id)
            if known is None:
                return None, GroupError.UNKNOWN_MEMBER_ID
            if known != member_id:
                return None, GroupError.FENCED_INSTANCE_ID
        member = self.members.get(member_id)
        return member, GroupError.NONE if member is not None else GroupError.UNKNOWN_MEMBER_ID

    def _current(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[KafkaMember | None, GroupError]:
        """Finds a member that acts on the current generation, or the error that it gets."""
        if self.state is GroupState.DEAD:
            return None, GroupError.COORDINATOR_NOT_AVAILABLE
        member, error = self._member(member_id, instance_id)
        if member is not None and generation != self.generation:
            return None, GroupError.ILLEGAL_GENERATION
        return member, error

    def _remove(self, member: KafkaMember, now_ms: int) -> None:
        """A member left or was silent for too long: the others share anew."""
        self._drop(member)
        if self.state in (GroupState.STABLE, GroupState.COMPLETING):
            self._prepare(now_ms)
        if self.state is GroupState.PREPARING:
            self._maybe_complete_join(now_ms)

    def _drop(self, member: KafkaMember) -> None:
        self._end_waits(member, GroupError.UNKNOWN_MEMBER_ID)
        del self.members[member.member_id]
        self._unsynced.discard(member.member_id)
        if member.instance_id is not None:
            del self._static[member.instance_id]

    def _end_waits(self, member: KafkaMember, error: GroupError) -> None:
        if member.joining is not None:
            self._answer_join(member.joining, JoinResult(error=error, member_id=member.member_id))
        if member.syncing is not None:
            self._answer_sync(member.syncing, error)
        member.joining = member.syncing = None

    def _heard_of(self, member: KafkaMember, now_ms: int) -> None:
        """The member gives a sign of life: its session begins anew."""
        if not member.is_new:
            member.deadline_ms = now_ms + member.session_ms
            self._wake_at(member.deadline_ms)

    def _answer_join(self, ticket: Ticket, result: JoinResult) -> None:
        self.replies.append(Reply(ticket, result))

    def _answer_sync(self, ticket: Ticket, error: GroupError, assignment: bytes = b"") -> None:
        self.replies.append(Reply(ticket, SyncResult(error=error, assignment=assignment)))

    def _become(self, state: GroupState) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} to {state}"
        self.state = state

    # --- timers -----------------------------------------------------------------------------------

    def _set_join_deadline(self, at_ms: int) -> None:
        self._join_deadline_ms = at_ms
        self._wake_at(at_ms)

    def _wake_at(self, at_ms: int) -> None:
        if self.wake_ms is None or at_ms < self.wake_ms:
            self.wake_ms = at_ms

    def _plan_wake(self, now_ms: int) -> None:
        deadlines = [member.deadline_ms for member in self.members.values() if not member.waits]
        deadlines += self.pending.values()
        deadlines += [
            at for at in (self._join_deadline_ms, self._sync_deadline_ms) if at is not None
        ]
        self.wake_ms = max(now_ms + 1, min(deadlines)) if deadlines else None
