"""A master with a state and no group."""

from __future__ import annotations

from semel.broker.state import LockClock, State


class Master:
    """The state, and nobody who could have replaced this node."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.lock_clock = LockClock()

    def log_time_us(self) -> int:
        """The time of the newest entry."""
        return self.state.log_time_us

    async def confirm_read(self) -> None:
        """It is the master."""
