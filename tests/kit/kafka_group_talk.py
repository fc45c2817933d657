"""A talk with one Kafka group in unit tests: requests, with a clock and tickets of its own."""

from __future__ import annotations

import itertools
from typing import Any

from semel.gateway.groups.kafka_group import KafkaGroup
from semel.gateway.groups.results import (
    GroupError,
    GroupLimits,
    GroupState,
    Join,
    JoinResult,
    Leaver,
    Sync,
    SyncResult,
    Ticket,
)

RANGE = (("range", b"range-metadata"),)
SESSION_MS = 10_000
REBALANCE_MS = 30_000


class GroupTalk:
    """One group, and what it has answered."""

    def __init__(self, limits: GroupLimits | None = None, kind: type[KafkaGroup] = KafkaGroup):
        ids = itertools.count(1)
        self.group = kind("g", limits or GroupLimits(initial_delay_ms=0), lambda: f"{next(ids)}")
        self.now_ms = 1_000
        self.answers: dict[Ticket, JoinResult | SyncResult] = {}
        self.asked = 0
        """Tickets given out."""

    @property
    def state(self) -> GroupState:
        """The group's state."""
        return self.group.state

    def _ticket(self) -> Ticket:
        self.asked += 1
        return Ticket(self.asked)

    def join(self, member_id: str = "", **wishes: Any) -> Ticket:
        """Sends a JoinGroup; returns its ticket."""
        asked: dict[str, Any] = {
            "session_ms": SESSION_MS,
            "rebalance_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": RANGE,
            "client_id": "c",
        }
        ticket = self._ticket()
        self.group.join(Join(member_id=member_id, **(asked | wishes)), ticket, self.now_ms)
        self.take()
        return ticket

    def joined(self, member_id: str = "", **wishes: Any) -> JoinResult:
        """Sends a JoinGroup that is answered at once; returns the answer."""
        return self.join_answer(self.join(member_id, **wishes))

    def join_answer(self, ticket: Ticket) -> JoinResult:
        """The answer to a JoinGroup."""
        answer = self.answers[ticket]
        assert isinstance(answer, JoinResult)
        return answer

    def sync(self, result: JoinResult, **assignments: bytes) -> Ticket:
        """Sends the SyncGroup that follows the answer to a JoinGroup; returns its ticket."""
        ticket = self._ticket()
        sync = Sync(
            member_id=result.member_id,
            generation=result.generation,
            assignments=tuple((name.replace("_", "-"), it) for name, it in assignments.items()),
        )
        self.group.sync(sync, ticket, self.now_ms)
        self.take()
        return ticket

    def sync_answer(self, ticket: Ticket) -> SyncResult:
        """The answer to a SyncGroup."""
        answer = self.answers[ticket]
        assert isinstance(answer, SyncResult)
        return answer

    def heartbeat(self, result: JoinResult, instance_id: str | None = None) -> GroupError:
        """Sends a Heartbeat of a member as it was told to be."""
        return self.group.heartbeat(result.member_id, instance_id, result.generation, self.now_ms)

    def leave(self, member_id: str = "", instance_id: str | None = None) -> GroupError:
        """Sends a LeaveGroup."""
        leaver = Leaver(member_id=member_id, instance_id=instance_id)
        error = self.group.leave(leaver, self.now_ms)
        self.take()
        return error

    def stable(self, count: int) -> list[JoinResult]:
        """Brings so many members into a stable group, the leader first."""
        self.joined()
        tickets = [self.join() for _ in range(count - 1)]
        leader = next(iter(self.group.members))
        tickets.insert(0, self.join(leader))
        results = [self.join_answer(ticket) for ticket in tickets]
        for result in results[1:]:
            self.sync(result)
        given = {member.member_id: member.member_id.encode() for member in results[0].members}
        self.sync(results[0], **{name.replace("-", "_"): it for name, it in given.items()})
        return results

    def after(self, milliseconds: int) -> None:
        """Lets time pass, and wakes the group whenever it asks for it."""
        end_ms = self.now_ms + milliseconds
        while self.group.wake_ms is not None and self.group.wake_ms <= end_ms:
            self.now_ms = max(self.now_ms, self.group.wake_ms)
            self.group.on_time(self.now_ms)
            self.take()
        self.now_ms = end_ms

    def take(self) -> None:
        """Takes the answers in; none may be answered twice."""
        for reply in self.group.replies:
            assert reply.ticket not in self.answers, "a ticket was answered twice"
            self.answers[reply.ticket] = reply.result
        self.group.replies.clear()
