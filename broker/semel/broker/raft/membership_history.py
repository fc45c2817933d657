"""The membership of a broker group, and its allowed changes.

How it works. A membership is an entry of the log and takes effect when it is *appended*, not
when it is committed; truncating the entry restores the membership before it. A node joins as a
learner (it gets entries, but does not count), becomes a voter when it has caught up, and leaves
in one step. One node changes at a time, so any two consecutive quorums share a node.

Invariants
1. Voters and learners are disjoint, and there is always a voter.
2. A step changes the membership status of exactly one node (`check_step`).
3. `MembershipHistory` is never empty; its entries rise by index; all entries except the first are
   in the log and may still be truncated.

Not here: when a change may be proposed (`propose_membership_allowed` in `raft/replicating.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from semel.protos.errors import InvalidRequest
from semel.protos.ids import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The voters and learners of a group. Raises InvalidRequest when invariant 1 is broken."""

    voters: frozenset[NodeId]
    learners: frozenset[NodeId] = frozenset()

    def __post_init__(self) -> None:
        if not self.voters:
            raise InvalidRequest("a group needs at least one voter")
        if both := self.voters & self.learners:
            raise InvalidRequest(f"nodes {sorted(both)} cannot be voters and learners")
        if min(self.nodes) < 1:
            raise InvalidRequest(f"node ids start at 1, not {min(self.nodes)}")

    @property
    def nodes(self) -> frozenset[NodeId]:
        return self.voters | self.learners

    @property
    def quorum(self) -> int:
        """Number of voters that a decision needs."""
        return len(self.voters) // 2 + 1


def add_learner(old: Membership, node: NodeId) -> Membership:
    """Adds `node` as a learner. Raises InvalidRequest when it is a member already."""
    if node in old.nodes:
        raise InvalidRequest(f"node {node} is already a member of the group")
    return Membership(voters=old.voters, learners=old.learners | {node})


def promote(old: Membership, node: NodeId) -> Membership:
    """Makes learner `node` a voter. Raises InvalidRequest when it is no learner."""
    if node not in old.learners:
        raise InvalidRequest(f"node {node} is no learner of the group; add it as one first")
    return Membership(voters=old.voters | {node}, learners=old.learners - {node})


def remove(old: Membership, node: NodeId) -> Membership:
    """Removes `node`. Raises InvalidRequest when it is no member, or the last voter."""
    if node not in old.nodes:
        raise InvalidRequest(f"node {node} is no member of the group")
    return Membership(voters=old.voters - {node}, learners=old.learners - {node})


def check_step(old: Membership, new: Membership) -> None:
    """Raises InvalidRequest unless one node joined as a learner, was promoted, or left."""
    changed = (old.voters ^ new.voters) | (old.learners ^ new.learners)
    if len(changed) != 1:
        raise InvalidRequest(f"one node changes at a time, not {sorted(changed)}")
    (node,) = changed
    if node not in old.nodes and node in new.voters:
        raise InvalidRequest(f"node {node} must join as a learner before it votes")
    if node in old.voters and node in new.learners:
        raise InvalidRequest(f"voter {node} cannot become a learner; remove it and add it again")


class MembershipHistory:
    """The membership in force, and those that a truncation may restore."""

    __slots__ = ("_entries",)

    def __init__(self, base: Membership, index: int) -> None:
        self._entries: list[tuple[int, Membership]] = [(index, base)]

    @property
    def current(self) -> Membership:
        return self._entries[-1][1]

    @property
    def index(self) -> int:
        """Index of the entry that holds the current membership."""
        return self._entries[-1][0]

    def at(self, index: int) -> Membership:
        """The membership in force at `index`, which is not below the base."""
        for start, membership in reversed(self._entries):
            if start <= index:
                return membership
        return self._entries[0][1]

    def may_be_voter(self, node: NodeId) -> bool:
        """Whether `node` is a voter in the membership at the commit index or in a later one.

        A node that an *uncommitted* entry removes must still be able to stand: it may be the only
        one whose log is long enough (dissertation §4.2.2).
        """
        return any(node in membership.voters for _, membership in self._entries)

    def append(self, index: int, membership: Membership) -> None:
        assert index > self.index, f"membership at {index} after one at {self.index}"
        self._entries.append((index, membership))

    def truncate(self, from_index: int) -> bool:
        """Forgets the memberships at and above `from_index`; returns whether the current one
        changed."""
        before = len(self._entries)
        while len(self._entries) > 1 and self._entries[-1][0] >= from_index:
            self._entries.pop()
        return len(self._entries) != before

    def commit(self, index: int) -> None:
        """Moves the base up, because entries up to `index` cannot be truncated any more."""
        while len(self._entries) > 1 and self._entries[1][0] <= index:
            self._entries.pop(0)
