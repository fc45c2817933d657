"""What everybody raises for a request about a group that is not served."""

from __future__ import annotations

from semel.gateway.groups.results import GroupError


class Refused(Exception):
    """A request about a group cannot be served here."""

    def __init__(self, error: GroupError) -> None:
        super().__init__(error.name)
        self.error = error
