"""A peer's progress: what the master knows of the peer's log, and how much may be in flight to it.

How it works. A peer is in one of three states, as in etcd/raft:

    PROBE      the master guesses next_index; one APPEND at a time until the peer accepts
    REPLICATE  the guess was right; APPENDs are pipelined within a window of bytes and messages
    SNAPSHOT   the peer needs entries that are gone; only offers are sent until it has caught up

    PROBE -> REPLICATE      an acknowledgement at or above next_index - 1
    REPLICATE -> PROBE      a rejection, or a broken stream
    PROBE, REPLICATE -> SNAPSHOT   the entry before next_index is gone
    SNAPSHOT -> REPLICATE   an acknowledgement after which the master has the next entries
    SNAPSHOT -> PROBE       the peer gave its pull up

The first message with the `non_counting` flag also leads to PROBE, from any state.

Invariants
1. match_index < next_index, and match_index falls only when the peer says that its disk was lost.
2. inflight is empty outside of REPLICATE; inflight_bytes is the sum of its bytes.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum

from semel.broker.raft.raft_config import RaftConfig


class ProgressState(IntEnum):
    """The three states of the module's table."""

    PROBE = 0
    REPLICATE = 1
    SNAPSHOT = 2


class Progress:
    """One peer, as the master of one term sees it."""

    __slots__ = (
        "acked_round",
        "counts",
        "inflight",
        "inflight_bytes",
        "last_contact_ms",
        "match_index",
        "next_index",
        "non_counting_round",
        "probe_sent",
        "state",
    )

    def __init__(self, *, next_index: int, now_ms: int) -> None:
        self.state = ProgressState.PROBE
        self.match_index = 0
        """The peer's log is durable, and equal to the master's, up to this index."""
        self.next_index = next_index
        """First index of the next APPEND."""
        self.probe_sent = False
        """PROBE: an APPEND is under way, and no other is sent before its answer."""
        self.inflight: deque[tuple[int, int]] = deque()
        """Last index and size in bytes of every unacknowledged APPEND."""
        self.inflight_bytes = 0
        self.last_contact_ms = now_ms
        self.acked_round = 0
        """Highest read round that the peer has answered."""
        self.counts = True
        """False for a non-counting member: the peer gets entries, but no quorum counts it. A
        message with the `non_counting` flag sets it to False."""
        self.non_counting_round = 0
        """The read round under way when the peer last sent a message with that flag."""

    @property
    def counted_match(self) -> int:
        """match_index for a quorum that commits; 0 for a non-counting member."""
        return self.match_index if self.counts else 0

    @property
    def counted_round(self) -> int:
        """acked_round for a quorum that confirms reads; 0 for a non-counting member."""
        return self.acked_round if self.counts else 0

    def on_non_counting(self, read_round: int, last_index: int) -> bool:
        """Handles a message that says that the peer may have lost acknowledged entries; returns
        whether that is news.

        The master discards everything that the peer said before, and probes from the log's end.
        """
        self.non_counting_round = read_round
        if not self.counts:
            return False
        self.counts = False
        self.acked_round = 0
        self.forget()
        self.become_probe(max(last_index, 1))
        return True

    def forget(self) -> None:
        """Resets match_index, because a non-counting peer may have lost the entries that it
        acknowledged."""
        assert not self.counts
        self.match_index = 0

    def on_counting(self, answered_round: int) -> bool:
        """Handles a non-counting peer's message without the `non_counting` flag; returns whether
        the peer counts again.

        A message from before the loss may still be on its way. Only the answer to a round that
        began after the last message with the flag proves that the peer has caught up since.
        """
        self.counts = answered_round > self.non_counting_round
        return self.counts

    def may_send(self, config: RaftConfig) -> bool:
        """True when an APPEND with entries may leave now."""
        if self.state is ProgressState.REPLICATE:
            return (
                self.inflight_bytes < config.inflight_bytes_max
                and len(self.inflight) < config.inflight_messages_max
            )
        return self.state is ProgressState.PROBE and not self.probe_sent

    def on_sent(self, last_index: int, size: int) -> None:
        """Records that an APPEND with entries up to `last_index` leaves."""
        assert self.state is not ProgressState.SNAPSHOT
        if self.state is ProgressState.PROBE:
            self.probe_sent = True
            return
        assert last_index >= self.next_index
        self.inflight.append((last_index, size))
        self.inflight_bytes += size
        self.next_index = last_index + 1

    def on_acknowledged(self, index: int) -> bool:
        """Records that the peer durably has everything up to `index`; returns whether that is
        news."""
        if index <= self.match_index:
            return False
        self.match_index = index
        inflight = self.inflight
        while inflight and inflight[0][0] <= index:
            self.inflight_bytes -= inflight.popleft()[1]
        if self.next_index <= index:
            self.next_index = index + 1
        return True

    def become_probe(self, next_index: int) -> None:
        self._become(ProgressState.PROBE, next_index)

    def become_replicate(self) -> None:
        self._become(ProgressState.REPLICATE, self.match_index + 1)

    def become_snapshot(self) -> None:
        self._become(ProgressState.SNAPSHOT, self.next_index)

    def _become(self, state: ProgressState, next_index: int) -> None:
        assert next_index > self.match_index
        self.state = state
        self.next_index = next_index
        self.probe_sent = False
        self.inflight.clear()
        self.inflight_bytes = 0
