"""The pending linearizable reads of a master, which see every acknowledged write without an entry.

How it works (Raft dissertation §6.4). A read notes the commit index at its arrival and waits for
a round of heartbeats that *starts later* and that a quorum answers: this proves that no newer
master had committed anything when the read arrived. Every round has a number, carried as the
heartbeat's context; a round confirms all reads that wait for it or an earlier one. Reads that
arrive while a round is under way share the next one. A new master knows the commit index only once
an entry of its own term is committed; its reads wait for that first.

Invariants
1. A read that arrives after round n was sent waits for round n + 1 or later.
2. `take` returns reads in the order of their rounds, each once; `fail` returns all others.
"""

from __future__ import annotations

from collections import deque

from semel.broker.raft.ready import ReadState


class ReadIndex:
    """The pending reads of one master."""

    __slots__ = ("_early", "_pending", "round")

    def __init__(self) -> None:
        self.round = 0
        """Number of the newest round that was sent; it never falls, also across terms."""
        self._early: list[int] = []
        self._pending: deque[tuple[int, ReadState]] = deque()

    def add(self, context: int, commit_index: int | None) -> None:
        """Adds a read. `commit_index` is None while no entry of this term is committed."""
        if commit_index is None:
            self._early.append(context)
        else:
            self._pending.append((self.round + 1, ReadState(context=context, index=commit_index)))

    def on_own_commit(self, commit_index: int) -> None:
        """Gives early reads their index, because an entry of the master's term is committed."""
        early, self._early = self._early, []
        for context in early:
            self.add(context, commit_index)

    @property
    def wants_round(self) -> bool:
        """True when reads wait only for a round that was not sent yet."""
        pending = self._pending
        return bool(pending) and pending[0][0] > self.round

    def start_round(self) -> int:
        self.round += 1
        return self.round

    def take(self, confirmed_round: int) -> list[ReadState]:
        """Removes and returns the reads that are confirmed, because a quorum has answered
        `confirmed_round`."""
        done = []
        pending = self._pending
        while pending and pending[0][0] <= confirmed_round:
            done.append(pending.popleft()[1])
        return done

    def distrust(self) -> None:
        """Discards the answers so far: all reads wait for a round that is not sent yet."""
        following = self.round + 1
        self._pending = deque((following, read) for _, read in self._pending)

    def fail(self) -> list[int]:
        """Forgets all pending reads, because mastership is lost; returns their contexts."""
        contexts = self._early + [read.context for _, read in self._pending]
        self._early = []
        self._pending.clear()
        return contexts
