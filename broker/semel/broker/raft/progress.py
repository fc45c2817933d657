"""What a master knows of one peer's log, and how much it may have on its way there.

How it works. Three states, as in etcd/raft:

    PROBE      the master guesses next_index; one APPEND at a time until the peer accepts
    REPLICATE  the guess was right; APPENDs are pipelined within a window of bytes and messages
    SNAPSHOT   the peer needs entries that are gone; nothing but offers until it has caught up

    PROBE -> REPLICATE      an acknowledgement at or above next_index - 1
    REPLICATE -> PROBE      a rejection, or a broken stream
    PROBE, REPLICATE -> SNAPSHOT   the entry before next_index is gone
    SNAPSHOT -> REPLICATE   an acknowledgement from which entries can go on
    SNAPSHOT -> PROBE       the peer gave its pull up

Invariants
1. match_index < next_index, and match_index falls only when the peer says that its disk was lost.
2. inflight is empty outside of REPLICATE; inflight_bytes is the sum of its bytes.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum

from semel.broker.raft.config import RaftConfig


class ProgressState(IntEnum):
    """The three states of the table above."""

    PROBE = 0
    REPLICATE = 1
    SNAPSHOT = 2


class Progress:
    """One peer, as seen by the master of one term."""

    __slots__ = (
        "acked_round",
        "counts",
        "inflight",
        "inflight_bytes",
        "last_contact_ms",
        "match_index",
        "muted_round",
        "next_index",
        "probe_sent",
        "state",
    )

    def __init__(self, *, next_index: int, now_ms: int) -> None:
        self.state = ProgressState.PROBE
        self.match_index = 0
        """Durable at the peer, and equal to the master's log up to there."""
        self.next_index = next_index
        """First index of the next APPEND."""
        self.probe_sent = False
        """PROBE: an APPEND is out, and no other is sent before an answer."""
        self.inflight: deque[tuple[int, int]] = deque()
        """Last index and bytes of every unacknowledged APPEND."""
        self.inflight_bytes = 0
        self.last_contact_ms = now_ms
        self.acked_round = 0
        """Highest read round that the peer has answered."""
        self.counts = True
        """False from a muted message on: the peer is fed, but no quorum counts it."""
        self.muted_round = 0
        """The read round under way when the peer last said that it is muted."""

    @property
    def counted_match(self) -> int:
        """match_index, for a quorum that commits."""
        return self.match_index if self.counts else 0

    @property
    def counted_round(self) -> int:
        """acked_round, for a quorum that confirms."""
        return self.acked_round if self.counts else 0

    def on_muted(self, read_round: int, last_index: int) -> bool:
        """The peer says that it may have lost what it acknowledged; true when that is news.

        Nothing that it said before is believed any more: it is probed from the log's end.
        """
        self.muted_round = read_round
        if not self.counts:
            return False
        self.counts = False
        self.acked_round = 0
        self.forget()
        self.become_probe(max(last_index, 1))
        return True

    def forget(self) -> None:
        """What the muted peer acknowledged is not there (any more); nobody has counted on it."""
        assert not self.counts
        self.match_index = 0

    def on_not_muted(self, answered_round: int) -> bool:
        """A message without the flag, of a peer that had it; true when it counts again.

        A message of before the loss may still be on its way. Only the answer to a round that began
        after the last muted message proves that the peer has caught up since.
        """
        self.counts = answered_round > self.muted_round
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
        """An APPEND with entries up to `last_index` leaves."""
        assert self.state is not ProgressState.SNAPSHOT
        if self.state is ProgressState.PROBE:
            self.probe_sent = True
            return
        assert last_index >= self.next_index
        self.inflight.append((last_index, size))
        self.inflight_bytes += size
        self.next_index = last_index + 1

    def on_acknowledged(self, index: int) -> bool:
        """The peer has everything up to `index`, durably; true when that is news."""
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
