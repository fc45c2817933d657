"""One controller of a group, whose other members a test plays itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from semel.controller.store.embedded.consensus import ConsensusNode
from semel.controller.store.embedded.identity import Identity
from semel.controller.store.embedded.journal import COMMAND
from semel.controller.store.embedded.machine import (
    barrier_command,
)
from semel.controller.store.embedded.member import Member
from semel.protos.v1.metadata_store_pb2 import (
    CONTROLLER_MEMBERSHIP_UNFORMED,
    CONTROLLER_MEMBERSHIP_VOTER,
    AppendEntries,
    GrantPreVote,
    GrantVote,
    GroupEntry,
    GroupMessage,
    MembershipReply,
)
from tests.unit.controller.store.embedded.disk import SimDisk
from tests.unit.controller.store.embedded.world import World, running


class Lone:
    """Controller 1 of a group; the others are the test's."""

    def __init__(self, clock: World, size: int = 3, disk: SimDisk | None = None) -> None:
        self.clock = clock
        self.disk = SimDisk() if disk is None else disk
        self.size = size
        self.sent: list[tuple[int, GroupMessage]] = []
        self.on_send: Callable[[GroupMessage], None] = lambda message: None
        self.open()
        if self.member.membership == CONTROLLER_MEMBERSHIP_UNFORMED:
            self.member.form()
            self.member.learn(replies(*[0] * (size - 1)))

    def open(self) -> None:
        """Starts it over its disk."""
        members = tuple(range(1, self.size + 1))
        identity = Identity(cluster_id="c", controller_id=1, members=members)
        self.member = Member(
            self.disk, identity, send=self._send, run_aside=lambda function: function()
        )
        for other in members[1:]:
            self.member.connected((other, False))

    def _send(self, receiver: int, message: GroupMessage) -> None:
        self.on_send(message)
        self.sent.append((receiver, message))

    @property
    def node(self) -> ConsensusNode:
        assert self.member.node is not None
        return self.member.node

    @property
    def last_index(self) -> int:
        return self.member._journal.last.index

    def said(self, kind: str) -> list[GroupMessage]:
        """What it has sent of one kind; forgotten then."""
        found = [message for _, message in self.sent if message.WhichOneof("kind") == kind]
        self.sent.clear()
        return found

    def hear(self, sender: int, term: int, *, non_counting: bool = False, **kind: Any) -> None:
        """A message comes in."""
        self.member.receive((sender, non_counting), GroupMessage(term=term, **kind))

    def append(
        self, term: int, previous: tuple[int, int], terms: Sequence[int] = (), commit: int = 0
    ) -> None:
        """Entries from controller 2, each a barrier of its index and term."""
        index = previous[0]
        entries = [
            GroupEntry(
                index=index + number,
                term=entry_term,
                command=COMMAND + barrier_command(b"%d/%d" % (index + number, entry_term)),
            )
            for number, entry_term in enumerate(terms, 1)
        ]
        message = AppendEntries(
            previous_index=index, previous_term=previous[1], entries=entries, commit_index=commit
        )
        self.hear(2, term, append=message)

    def pass_time(self, seconds: float) -> None:
        """Ticks as time goes by."""
        for _ in range(round(seconds / 0.05)):
            self.clock.now += 0.05
            self.member.tick(0)

    def stand(self) -> int:
        """Controller 2 has heard nothing either: it becomes a candidate; its term."""
        self.sent.clear()
        for _ in range(100):
            self.pass_time(0.05)
            for question in self.said("pre_vote"):
                for other in range(2, self.size // 2 + 2):
                    grant = GrantPreVote(round=question.pre_vote.round)
                    self.hear(other, question.term, pre_grant=grant)
            if self.node.is_candidate:
                return self.node.term
        raise AssertionError("it never stands")

    def lead(self) -> int:
        """It wins an election with the least votes; its term."""
        term = self.stand()
        for other in range(2, self.size // 2 + 2):
            self.hear(other, term, grant=GrantVote())
        assert self.node.is_leader
        self.pass_time(0.05)
        return term


@contextmanager
def lone(size: int = 3) -> Iterator[Lone]:
    with running(World(1)) as clock:
        one = Lone(clock, size)
        try:
            yield one
        finally:
            one.member.close()


def replies(*terms: int) -> list[MembershipReply]:
    return [
        MembershipReply(membership=CONTROLLER_MEMBERSHIP_VOTER, term=term, has_history=term > 0)
        for term in terms
    ]
