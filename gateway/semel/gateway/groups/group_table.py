"""The Kafka groups that one gateway coordinates: found by name, bounded, with their timers.

How it works. A group comes into being when the gateway has become its coordinator, and ends when it
is that no more. What the groups answer collects here; `on_time` wakes those that are due.

Not here: one group (`kafka_group.py`), how a gateway becomes the coordinator
(`coordination/roles.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from semel.gateway.groups.kafka_group import KafkaGroup
from semel.gateway.groups.results import GroupError, GroupLimits, Reply


class GroupTable:
    """The groups by name. `new_id` returns text that it never returns again."""

    def __init__(self, limits: GroupLimits, new_id: Callable[[], str]) -> None:
        self.limits = limits
        self._new_id = new_id
        self._groups: dict[str, KafkaGroup] = {}
        self._ended = 0
        """Generations of groups that are coordinated here no more."""

    def __len__(self) -> int:
        """Number of groups."""
        return len(self._groups)

    @property
    def member_count(self) -> int:
        """Number of members of all groups."""
        return sum(len(group.members) for group in self._groups.values())

    @property
    def rebalances(self) -> int:
        """Number of generations that groups have begun here."""
        return self._ended + sum(group.generation for group in self._groups.values())

    def find(self, group_id: str) -> KafkaGroup | None:
        """The group, if it is coordinated here."""
        return self._groups.get(group_id)

    @property
    def is_full(self) -> bool:
        """Whether there is no room for one more."""
        return len(self._groups) >= self.limits.groups_max

    def begin(self, group_id: str) -> KafkaGroup:
        """The gateway has become the coordinator: the group begins without members."""
        assert group_id not in self._groups
        group = self._groups[group_id] = KafkaGroup(group_id, self.limits, self._new_id)
        return group

    def end(self, group_id: str, error: GroupError) -> list[Reply]:
        """The gateway is the coordinator no more. Returns the last answers."""
        group = self._groups.pop(group_id, None)
        if group is None:
            return []
        self._ended += group.generation
        group.end(error)
        return taken(group)

    def on_time(self, now_ms: int) -> list[Reply]:
        """Does what is due. Returns the answers to be sent."""
        for group in self._groups.values():
            group.on_time(now_ms)
        return self.take()

    def forgive(self, gap_ms: int) -> None:
        """Puts all deadlines off by a time during which the gateway itself stood still."""
        for group in self._groups.values():
            group.forgive(gap_ms)

    def take(self) -> list[Reply]:
        """Returns the answers to be sent, once."""
        return [reply for group in self._groups.values() for reply in taken(group)]


def taken(group: KafkaGroup) -> list[Reply]:
    """Returns the answers of one group to be sent, once."""
    replies, group.replies = group.replies, []
    return replies
