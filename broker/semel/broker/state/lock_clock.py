"""Timeouts of the locks of consumer groups, by the master's monotonic clock.

How it works. The replicated state says who holds which lock, and knows no time. The master's lock
clock knows when it last heard of each holder, and whether the holder has messages that it has not
committed. `expired` names tokens, whose locks the master then releases with a ReleaseLock record. A
new master starts with `restore`, and a master whose loop was stopped calls `refresh_all`: every
lock gets its full time again, so a lock may expire late, never early. If a lock ends in another way
(a move seals the queue, the queue or the consumer group is deleted), its times stay here until they
are over; the release that follows then changes nothing in the state.

There are two timeouts. The *session* ends if no heartbeat, delivery or commit came for
`session_ms`. The *lock* ends if messages are delivered and nothing was committed for `lock_ms`.

Not here: granting and releasing (`state/apply/locks.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from semel.broker.state.apply.locks import METADATA_ONLY, GroupQueue
from semel.broker.state.apply.queues import QueueState
from semel.broker.state.apply.results import (
    ApplyResult,
    BatchApplied,
    CommitApplied,
    CommitsStaged,
    LockGranted,
    OffsetReset,
    Published,
    Released,
)
from semel.protos.ids import QueueKey

REPEAT_MS: Final = 1_000
"""An expired lock is named again after this time, in case its release was lost."""


@dataclass(slots=True, kw_only=True)
class _Held:
    token: int
    lock_ms: int
    session_ms: int
    session_deadline_ms: float
    since_ms: float
    """When it was granted, or when this master began."""
    older: bool
    """It was granted before this master began."""
    lock_deadline_ms: float | None = None
    """None if no delivered message is uncommitted."""
    delivered_end: int = -1
    """End offset of the messages that were delivered under this token."""
    named_ms: float | None = None
    """When `expired` named the lock."""


class LockAge(NamedTuple):
    """How long a lock has been held, as far as this master knows."""

    held_ms: float
    older: bool
    """It was granted before this master began: it is older than that."""
    uncommitted_ms: float
    """How long messages have been delivered since the last commit, and are not committed; 0 if none
    are. At `lock_ms` the lock ends. It begins anew with a new master, and after a stop of it."""
    lock_ms: int


class LockClock:
    """The deadlines of all held locks. `now_ms` is monotonic. A stale token changes nothing."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, QueueKey], _Held] = {}

    def restore(
        self,
        held: Iterable[tuple[str, QueueKey, GroupQueue]],
        queues: Mapping[QueueKey, QueueState],
        now_ms: float,
    ) -> None:
        """Starts anew from the replicated state (`ConsumerGroups.held`), with full time for all.

        It is not known which messages were delivered. Wherever there are uncommitted messages, they
        are taken for delivered.
        """
        self._held.clear()
        for group, key, state in held:
            self.on_granted(
                group,
                key,
                state.token,
                lock_ms=state.lock_ms,
                session_ms=state.session_ms,
                now_ms=now_ms,
                older=True,
            )
            end = queues[key].log_end_offset
            if state.committed_offset < end:
                self.on_delivered(group, key, state.token, end, now_ms)

    def on_applied(self, results: Iterable[ApplyResult], now_ms: float) -> None:
        """Takes over what an entry did to locks."""
        for result in results:
            if isinstance(result, BatchApplied):  # most are, and touch no lock
                continue
            if isinstance(result, LockGranted):
                self.on_granted(
                    result.group,
                    result.queue_key,
                    result.token,
                    lock_ms=result.lock_ms,
                    session_ms=result.session_ms,
                    now_ms=now_ms,
                )
            elif isinstance(result, CommitApplied | CommitsStaged):
                for outcome in result.outcomes:
                    if outcome.error is None and outcome.offset != METADATA_ONLY:
                        self.on_committed(
                            result.group, outcome.queue_key, outcome.token, outcome.offset, now_ms
                        )
            elif isinstance(result, Published):
                for done in result.progress:
                    self.on_committed(done.group, done.queue_key, done.token, done.offset, now_ms)
            elif isinstance(result, Released):
                self.on_released(result.group, result.queue_key, result.token)
            elif isinstance(result, OffsetReset) and result.error is None:
                self.on_reset(result.group, result.queue_key)

    def _current(self, group: str, key: QueueKey, token: int) -> _Held | None:
        held = self._held.get((group, key))
        return held if held is not None and held.token == token else None

    def on_granted(
        self,
        group: str,
        key: QueueKey,
        token: int,
        *,
        lock_ms: int,
        session_ms: int,
        now_ms: float,
        older: bool = False,
    ) -> None:
        """A lock was granted at apply; `older` for one of an earlier master's."""
        self._held[group, key] = _Held(
            token=token,
            lock_ms=lock_ms,
            session_ms=session_ms,
            session_deadline_ms=now_ms + session_ms,
            since_ms=now_ms,
            older=older,
        )

    def on_renewed(self, group: str, key: QueueKey, token: int, now_ms: float) -> bool:
        """The member is alive. False if it does not hold the lock any more.

        Also False if the lock was named as expired, because its release is under way.
        """
        held = self._current(group, key, token)
        if held is None or held.named_ms is not None:
            return False
        held.session_deadline_ms = now_ms + held.session_ms
        return True

    def on_delivered(
        self, group: str, key: QueueKey, token: int, end_offset: int, now_ms: float
    ) -> None:
        """Messages below `end_offset` were sent to the member."""
        held = self._current(group, key, token)
        if held is None:
            return
        held.session_deadline_ms = now_ms + held.session_ms
        if end_offset > held.delivered_end:
            held.delivered_end = end_offset
            if held.lock_deadline_ms is None:
                held.lock_deadline_ms = now_ms + held.lock_ms

    def on_committed(
        self, group: str, key: QueueKey, token: int, offset: int, now_ms: float
    ) -> None:
        """A commit was applied."""
        held = self._current(group, key, token)
        if held is None:
            return
        held.session_deadline_ms = now_ms + held.session_ms
        behind = offset < held.delivered_end
        held.lock_deadline_ms = now_ms + held.lock_ms if behind else None

    def on_released(self, group: str, key: QueueKey, token: int) -> None:
        """A release was applied."""
        if self._current(group, key, token) is not None:
            del self._held[group, key]

    def on_reset(self, group: str, key: QueueKey) -> None:
        """A reset was applied: nobody holds the lock."""
        self._held.pop((group, key), None)

    def age(self, group: str, key: QueueKey, token: int, now_ms: float) -> LockAge | None:
        """How long the lock of this token has been held; None if it is not."""
        held = self._current(group, key, token)
        if held is None:
            return None
        deadline_ms = held.lock_deadline_ms
        return LockAge(
            held_ms=now_ms - held.since_ms,
            older=held.older,
            uncommitted_ms=0.0 if deadline_ms is None else held.lock_ms - (deadline_ms - now_ms),
            lock_ms=held.lock_ms,
        )

    def refresh_all(self, now_ms: float) -> None:
        """Gives full time to every holder whose lock was not named as expired."""
        for held in self._held.values():
            if held.named_ms is not None:
                continue
            held.session_deadline_ms = now_ms + held.session_ms
            if held.lock_deadline_ms is not None:
                held.lock_deadline_ms = now_ms + held.lock_ms

    def expired(self, now_ms: float) -> list[tuple[str, QueueKey, int]]:
        """The locks to release, as (group, queue, token)."""
        found: list[tuple[str, QueueKey, int]] = []
        for (group, key), held in self._held.items():
            lock_deadline = held.lock_deadline_ms
            over = now_ms >= held.session_deadline_ms or (
                lock_deadline is not None and now_ms >= lock_deadline
            )
            if over and (held.named_ms is None or now_ms >= held.named_ms + REPEAT_MS):
                held.named_ms = now_ms
                found.append((group, key, held.token))
        return found
