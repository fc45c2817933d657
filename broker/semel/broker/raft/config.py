"""How patient and how greedy a Raft core is.

Timing assumes a local network and that the shell calls `tick` at least every `tick_ms`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """Every node of a group should have the same values. Raises ValueError when senseless."""

    tick_ms: int = 50
    """Default 50. The longest pause between two ticks of a healthy shell."""
    heartbeat_ms: int = 100
    """Default 100. A master beats this often, also when it sends entries."""
    election_min_ms: int = 500
    """Default 500. Also the time for which a follower that heard its master refuses others."""
    election_max_ms: int = 1000
    """Default 1,000. Timeouts are uniform in [election_min_ms, election_max_ms]."""
    unreachable_max_ms: int = 150
    """Default 150. After a refused reconnect to the master: pre-vote within 0 to 150 ms."""
    check_quorum_ms: int = 1000
    """Default 1,000. A master that has not heard a quorum for so long steps down."""
    log_stall_ms: int = 1000
    """Default 1,000. With an older unsynced write a node neither beats, sends nor stands."""
    loop_gap_ms: int = 300
    """Default 300. A longer pause between inputs means that the process was stopped."""
    transfer_ms: int = 1000
    """Default 1,000. A transfer of mastership that takes longer is given up."""
    append_bytes_max: int = 1 << 20
    """Default 1 MiB. Entries are packed into one APPEND up to here (but at least one)."""
    inflight_bytes_max: int = 8 << 20
    """Default 8 MiB. Unacknowledged bytes per peer; one APPEND may start below the limit."""
    inflight_messages_max: int = 64
    """Default 64. Unacknowledged APPENDs per peer."""
    promote_lag_max: int = 1024
    """Default 1,024 entries. A learner further behind than this may not become a voter."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.heartbeat_ms * 2 <= self.election_min_ms <= self.election_max_ms:
            raise ValueError(
                "want 2 * heartbeat_ms <= election_min_ms <= election_max_ms, not "
                f"{self.heartbeat_ms}, {self.election_min_ms}, {self.election_max_ms}"
            )
        if self.tick_ms >= self.loop_gap_ms:
            raise ValueError(f"tick_ms {self.tick_ms} must be below loop_gap_ms {self.loop_gap_ms}")
