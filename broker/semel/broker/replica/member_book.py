"""The members of a group with their addresses, as the log names them.

How it works. The Raft core knows members by number; connections need addresses. A membership entry
carries both. `MemberBook` goes through the same history as the core does: an appended entry is in
force, a truncated one is undone, a committed one cannot be undone any more.

A node that was away while nodes were replaced may get messages from a master that its own log does
not know, and could not answer it. So members that another member names are *heard*: until the log
has caught up, their messages are accepted and their addresses are known. They count for no quorum.

Invariants
1. The newest `Members` of the book and the core's membership name the same nodes.

Not here: when a change may be made (`raft/membership_history.py`), making one
(`membership/changes.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from semel.broker.raft import Membership
from semel.broker.state import Membership as AppliedMembership
from semel.protos.control_records import decode_membership, encode_membership
from semel.protos.frames import RecordKind, iter_records
from semel.protos.ids import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """Voters and learners with their addresses, HOST:PORT."""

    voters: Mapping[NodeId, str]
    learners: Mapping[NodeId, str] = field(default_factory=dict)

    @property
    def addresses(self) -> dict[NodeId, str]:
        """HOST:PORT of all members."""
        return {**self.voters, **self.learners}

    @property
    def membership(self) -> Membership:
        """The same without addresses, as the Raft core knows it."""
        return Membership(voters=frozenset(self.voters), learners=frozenset(self.learners))

    def with_membership(self, membership: Membership, addresses: Mapping[NodeId, str]) -> Members:
        """The members of `membership`; `addresses` are those of new members."""
        known = {**addresses, **self.addresses}
        return Members(
            voters={node: known[node] for node in membership.voters},
            learners={node: known[node] for node in membership.learners},
        )

    def encode(self) -> bytes:
        """Payload of a MEMBERSHIP record."""
        return encode_membership(self.voters, self.learners)

    @classmethod
    def decode(cls, payload: bytes | memoryview) -> Self:
        """The members that a MEMBERSHIP record names. Raises CorruptFrame."""
        record = decode_membership(payload)
        return cls(
            voters={NodeId(node.node_id): node.address for node in record.voters},
            learners={NodeId(node.node_id): node.address for node in record.learners},
        )

    @classmethod
    def of_frame(cls, frame: bytes) -> Self:
        """The members that a frame names, whose first record is a MEMBERSHIP."""
        _, kind, payload = next(iter_records(frame))
        assert kind is RecordKind.MEMBERSHIP
        return cls.decode(payload)

    @classmethod
    def of_state(cls, applied: AppliedMembership) -> Self | None:
        """The members that a replicated state names; None while no membership was ever logged."""
        if not applied.voters:
            return None
        return cls(
            voters={node.node_id: node.address for node in applied.voters},
            learners={node.node_id: node.address for node in applied.learners},
        )


class MemberBook:
    """The members in force, and those that truncation may bring back."""

    def __init__(self, base: Members, base_index: int, logged: Mapping[int, Members]) -> None:
        """`base` came with entry `base_index` (0: founding); `logged` are those behind it."""
        self._base = base
        self._base_index = base_index
        self._logged = dict(sorted(logged.items()))
        self._heard: Mapping[NodeId, str] = {}
        self._heard_index = 0

    @property
    def current(self) -> Members:
        """The members of the newest entry in the log, committed or not."""
        return next(reversed(self._logged.values()), self._base)

    @property
    def index(self) -> int:
        """Index of the entry that brought the current members; 0 for the founding ones."""
        return next(reversed(self._logged), self._base_index)

    @property
    def reachable(self) -> Mapping[NodeId, str]:
        """HOST:PORT of all members, and of members that were only heard of."""
        known = self.current.addresses
        return {**known, **self._heard} if self._heard_index > self.index else known

    def hear(self, index: int, addresses: Mapping[NodeId, str]) -> bool:
        """A member names the members since entry `index`; True if this node did not know them."""
        if index <= max(self.index, self._heard_index):
            return False
        self._heard, self._heard_index = addresses, index
        return True

    def append(self, index: int, members: Members) -> None:
        """A membership entry is in the log."""
        assert index > self.index, f"members at {index} after those at {self.index}"
        self._logged[index] = members

    def truncate(self, from_index: int) -> bool:
        """Entries from `from_index` on are gone; True if the members changed."""
        gone = [index for index in self._logged if index >= from_index]
        for index in gone:
            del self._logged[index]
        return bool(gone)

    def commit(self, index: int) -> None:
        """Entries up to `index` cannot be truncated any more."""
        for done in [logged for logged in self._logged if logged <= index]:
            self._base, self._base_index = self._logged.pop(done), done

    def reset(self, base: Members, base_index: int) -> None:
        """A snapshot has taken the log's place."""
        self._base, self._base_index = base, base_index
        self._logged.clear()
