"""Names of consumer groups that belong to Semel itself.

Semel's own programs hold locks and store metadata under these names; nobody joins such a group, and
its progress is neither set nor removed from outside. Controllers and brokers refuse that, and the
client does before it calls them. Other names that begin with `semel.` are the user's.

Not here: what redrives store (`semel.client.dead_letters.redrive_lock`).
"""

from __future__ import annotations

from typing import Final

from semel.protos.errors import InvalidRequest

REDRIVE_GROUP: Final = "semel.redrive"
"""The group whose locks and records redrives use. It has no members and no progress."""


def check_not_reserved(group: str) -> None:
    """Raises InvalidRequest if the group is one of Semel's own."""
    if group == REDRIVE_GROUP:
        raise InvalidRequest(
            f"group {group!r} is Semel's own and holds what redrives must remember: without it"
            " letters could come back twice. Use another name; what it holds goes with the"
            " dead-letter topics and their .redriven topics"
        )
