"""The time that this node gives the entries it makes as master.

How it works. A new master starts from the later of two times: that of the newest entry in its log,
and the time that a majority of the voters' clocks has passed. Each vote carries its voter's clock.
From there on `LogClock` follows the wall clock without jumping.

Invariants
1. The time of an entry is never below that of an entry before it, whichever master made that one.

Not here: the arithmetic (`state/log_clock.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from semel.broker.log import Log
from semel.broker.raft import Message
from semel.broker.replica.clock import monotonic_us, wall_us
from semel.broker.state import LogClock, VoterClocks
from semel.protos.errors import SemelError
from semel.protos.frames import decode_frame_header
from semel.protos.ids import NodeId


class LogTime:
    """Log time as this node would continue it."""

    def __init__(self, node_id: NodeId, log: Log, on_fatal: Callable[[str], None]) -> None:
        self._node_id = node_id
        self._log = log
        self._on_fatal = on_fatal
        self._voters = VoterClocks()
        self._clock: LogClock | None = None
        self.started_us = wall_us()
        """When the node was started; another start has another time."""
        self.wall_us: Callable[[], int] = wall_us
        """The clock of this machine; tests set another one."""

    @property
    def has_begun(self) -> bool:
        """Whether this node was ever elected since it started."""
        return self._clock is not None

    def on_vote(self, vote: Message) -> None:
        """A vote for this node arrived; it carries the voter's clock."""
        self._voters.on_vote(
            vote.source,
            term=vote.term,
            clock_us=vote.hint_index,
            monotonic_us=monotonic_us(),
        )

    def begin(self, term: int, voters: Collection[int], applied_us: int) -> int:
        """Starts the clock of the master of `term` and returns the time of its first entry.

        `applied_us` is the log time of its state.
        """
        newest_us = max(applied_us, self._last_entry_time_us())
        now_us = monotonic_us()
        group_us = self._voters.now(voters, term=term, wall_us=self.wall_us(), monotonic_us=now_us)
        self._clock = LogClock(newest_us, wall_us=group_us, monotonic_us=now_us)
        return self.now_us()

    def now_us(self) -> int:
        """The time of the next entry; only after `begin`."""
        assert self._clock is not None
        return self._clock.now(wall_us=self.wall_us(), monotonic_us=monotonic_us())

    def _last_entry_time_us(self) -> int:
        """Log time must not fall behind the newest entry, which may not be applied yet.

        After a restart that entry is not in memory. It is read here on the loop, as elections are
        rare.
        """
        last = self._log.last_index
        if last < self._log.first_index:
            return 0
        frames = self._log.cached_frames(last, last + 1)
        if frames is None:
            try:
                frames = self._log.read_frames(last, last + 1)
            except SemelError as error:
                self._on_fatal(
                    f"node {self._node_id} was elected and cannot read its newest entry: "
                    f"{error}. It is repaired from a peer after the restart"
                )
                return 0
        return decode_frame_header(frames[0]).time_us
