"""Names of consumer groups that belong to Semel itself.

Semel's own programs are members, hold locks and store metadata under these names; nobody else joins
such a group, and its progress is neither set nor removed from outside. Controllers and brokers
refuse that, and the client does before it calls them. Other names that begin with `semel.` are the
user's.

Not here: what redrives store (`semel.client.dead_letters.redrive_lock`), what gateways coordinate
(`semel.gateway.coordination`).
"""

from __future__ import annotations

from typing import Final

from semel.protos.errors import InvalidRequest

REDRIVE_GROUP: Final = "semel.redrive"
"""The group whose locks and records redrives use. It has no members and no progress."""
GATEWAY_GROUP: Final = "semel.gateways"
"""The group whose members are the Kafka gateways. It reads nothing."""


def check_not_reserved(group: str) -> None:
    """Raises InvalidRequest if the group is one of Semel's own."""
    if group == REDRIVE_GROUP:
        raise InvalidRequest(
            f"group {group!r} is Semel's own and holds what redrives must remember: without it"
            " letters could come back twice. Use another name; what it holds goes with the"
            " dead-letter topics and their .redriven topics"
        )
    if group == GATEWAY_GROUP:
        raise InvalidRequest(
            f"group {group!r} is Semel's own: its members are the Kafka gateways. Use another name"
        )
