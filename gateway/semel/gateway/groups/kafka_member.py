"""One member of a Kafka group, as its coordinator knows it. `KafkaGroup` alone changes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from semel.gateway.groups.results import Ticket


@dataclass(slots=True, kw_only=True)
class KafkaMember:
    """A member. Times are milliseconds."""

    member_id: str
    instance_id: str | None
    """`group.instance.id`; None for a dynamic member."""
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocols: Mapping[str, bytes]
    """Metadata by the name of the protocol, the preferred one first."""
    deadline_ms: int
    """The member is gone then, unless it waits for an answer: who waits sends no heartbeats."""
    is_new: bool = True
    """It has never been in a generation; its `deadline_ms` counts although it waits, because its
    client may be gone without ever having got its id."""
    joining: Ticket | None = None
    """Its JoinGroup that waits."""
    syncing: Ticket | None = None
    """Its SyncGroup that waits."""
    assignment: bytes = b""

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def waits(self) -> bool:
        """Whether it waits for an answer, and is therefore alive."""
        return not self.is_new and (self.joining is not None or self.syncing is not None)

    @property
    def size(self) -> int:
        """The bytes that it takes."""
        return len(self.assignment) + sum(
            len(name) + len(metadata) for name, metadata in self.protocols.items()
        )

    def offers_the_same(self, protocols: tuple[tuple[str, bytes], ...]) -> bool:
        """Whether a JoinGroup brings nothing new."""
        return tuple(self.protocols.items()) == protocols
