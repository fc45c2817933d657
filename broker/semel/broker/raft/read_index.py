"""Reads that must see every acknowledged write, without an entry of their own.

How it works (Raft dissertation §6.4). A read notes the commit index of its arrival and waits for
a round of heartbeats that *starts later* and that a quorum answers: no newer master can have
committed anything by then. Every round has a number, carried as the heartbeat's context; a round
confirms all reads that wait for it or an earlier one. Reads that come while a round is out share
the next one. A new master knows the commit index only once an entry of its own term is
committed; reads wait for that first.

Invariants
1. A read that came after round n was sent waits for round n + 1 or later.
2. `take` gives reads in the order of their rounds, each once; `fail` gives all others.
"""

from __future__ import annotations

from collections import deque

from semel.broker.raft.ready import ReadState


class ReadIndex:
    """The pending reads of one master."""

    __slots__ = ("_early", "_pending", "round")

    def __init__(self) -> None:
        self.round = 0
        """Number of the newest round that was sent; never falls, over all terms."""
        self._early: list[int] = []
        self._pending: deque[tuple[int, ReadState]] = deque()

    def add(self, context: int, commit_index: int | None) -> None:
        """A read arrives; commit_index is None while none of this term is known."""
        if commit_index is None:
            self._early.append(context)
        else:
            self._pending.append((self.round + 1, ReadState(context=context, index=commit_index)))

    def on_own_commit(self, commit_index: int) -> None:
        """An entry of the own term is committed: early reads get their index."""
        early, self._early = self._early, []
        for context in early:
            self.add(context, commit_index)

    @property
    def wants_round(self) -> bool:
        """True when a read waits for a round, and none is out that reads wait for."""
        pending = self._pending
        return bool(pending) and pending[0][0] > self.round

    def start_round(self) -> int:
        self.round += 1
        return self.round

    def take(self, confirmed_round: int) -> list[ReadState]:
        """A quorum has answered `confirmed_round`."""
        done = []
        pending = self._pending
        while pending and pending[0][0] <= confirmed_round:
            done.append(pending.popleft()[1])
        return done

    def distrust(self) -> None:
        """Answers so far do not count any more: all reads wait for a round yet to be sent."""
        following = self.round + 1
        self._pending = deque((following, read) for _, read in self._pending)

    def fail(self) -> list[int]:
        """Mastership is lost: the contexts of all pending reads, which are forgotten."""
        contexts = self._early + [read.context for _, read in self._pending]
        self._early = []
        self._pending.clear()
        return contexts
