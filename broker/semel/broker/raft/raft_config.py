"""Settings of the Raft core: its timing and its limits.

The timing assumes a local network and a shell that calls `tick` at least every `tick_ms`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """All settings of a Raft core; every node of a group should have the same.

    Raises ValueError for values that make no sense.
    """

    tick_ms: int = 50
    """Longest pause between two ticks of a healthy shell. Default 50 ms."""
    heartbeat_ms: int = 100
    """A master sends heartbeats this often, also while it sends entries. Default 100 ms."""
    election_min_ms: int = 500
    """Shortest election timeout. For as long, a slave that heard its master refuses votes to
    others. Default 500 ms."""
    election_max_ms: int = 1000
    """Longest election timeout; timeouts are uniform in [election_min_ms, election_max_ms]. Default
    1,000 ms."""
    unreachable_max_ms: int = 150
    """After its reconnect to the master was refused, a slave begins a pre-vote within 0 to this
    many milliseconds. Default 150 ms."""
    check_quorum_ms: int = 1000
    """A master that has not heard from a quorum for this long steps down. Default 1,000 ms."""
    log_stall_ms: int = 1000
    """While its oldest unsynced write is older than this, a node sends neither heartbeats nor
    entries and does not stand for election. Default 1,000 ms."""
    loop_gap_ms: int = 300
    """A longer pause between two inputs means that the process was stopped. Default 300 ms."""
    transfer_ms: int = 1000
    """A transfer of mastership that takes longer is given up. Default 1,000 ms."""
    append_bytes_max: int = 1 << 20
    """Bytes up to which entries are packed into one APPEND (at least one entry). Default 1 MiB."""
    inflight_bytes_max: int = 8 << 20
    """Unacknowledged bytes per peer; one APPEND may start below the limit. Default 8 MiB."""
    inflight_messages_max: int = 64
    """Unacknowledged APPENDs per peer. Default 64."""
    promote_lag_max: int = 1024
    """A learner that is further behind than this many entries may not become a voter. Default
    1,024."""

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
