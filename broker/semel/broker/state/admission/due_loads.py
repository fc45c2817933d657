"""How much is due in a second of a topic, what is accepted included, and whether more has room.

How it works. The applied state has an index of seconds; here are the delayed batches that are
accepted and not applied yet, and the messages of pinned transactions, which are certain to be
delayed. Both live as long as the admission does.

Invariants
1. `_pending` has the accepted, unapplied delayed batches, and no others.
2. The slots of a topic are counted anew once queues came or went.

Not here: the index (`state/apply/due_seconds.py`), shares and errors
(`state/apply/delay_limits.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Many
from typing import Final

from semel.broker.state.apply.delay_limits import (
    Second,
    pinned_loads,
    share_of,
    throttled,
)
from semel.broker.state.apply.due_seconds import DueLoad, second_of
from semel.broker.state.apply.results import (
    ApplyResult,
    Done,
    MoveApplied,
    Published,
    TransactionApplied,
)
from semel.broker.state.apply.state_machine import State
from semel.protos.batch import BatchHeader
from semel.protos.delays import due_of
from semel.protos.ids import QueueKey

_QUEUES_CHANGE: Final = ("create_queue", "delete_queue", "split_queue")


class DueLoads:
    """The loads of seconds as they will be once everything accepted is applied."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._pending: dict[Second, DueLoad] = {}
        self._slots: dict[int, int] = {}
        """Slots of topics that were asked for."""
        self._pinned: Counter[Second] | None = None
        """None: count anew."""

    def of(self, header: BatchHeader) -> DueLoad | None:
        """Returns the load of a delayed batch's second; None for any other batch."""
        due_us = due_of(header)
        return self.load(header.topic_id, due_us) if due_us else None

    def load(self, topic_id: int, due_us: int) -> DueLoad:
        """Returns the load of the second of `due_us`, applied or accepted."""
        second = second_of(due_us)
        applied = self._state.delays.seconds.load(topic_id, second)
        pending = self._pending.get((topic_id, second))
        if pending is None:
            return applied
        return DueLoad(applied.messages + pending.messages, applied.bytes + pending.bytes)

    def check(self, key: QueueKey, due_us: int, messages: int) -> None:
        """Raises DelayThrottled if the second of `due_us` has no room for so many messages more."""
        queue = self._state.queues.get(key)
        if not messages or queue is None or not queue.settings.delay_per_second_max:
            return
        topic_id, second = key.topic_id, second_of(due_us)
        if topic_id not in self._slots:
            self._slots[topic_id] = self._state.queues.slots_of(topic_id)
        if self._pinned is None:
            self._pinned = pinned_loads(self._state.transactions.staging)
        most = share_of(queue.settings.delay_per_second_max, self._slots[topic_id])
        due = self.load(topic_id, due_us).messages + self._pinned[topic_id, second]
        if due + messages > most:
            raise throttled(queue, second, messages, due, most)

    def use(self, key: QueueKey, due_us: int, messages: int, length: int) -> None:
        """Notes an accepted delayed batch."""
        self._change(key, due_us, messages, length)

    def end_use(self, key: QueueKey, due_us: int, messages: int, length: int) -> None:
        """The batch is applied."""
        self._change(key, due_us, -messages, -length)

    def _change(self, key: QueueKey, due_us: int, messages: int, length: int) -> None:
        second = key.topic_id, second_of(due_us)
        before = self._pending.get(second, DueLoad())
        after = DueLoad(before.messages + messages, before.bytes + length)
        if any(after):
            self._pending[second] = after
        else:
            del self._pending[second]

    def on_applied(self, results: Many[ApplyResult]) -> None:
        """Forgets what the records of a frame may have changed."""
        for result in results:
            if isinstance(result, Done) and result.what in _QUEUES_CHANGE:
                self._slots.clear()
                self._pinned = None
            elif isinstance(result, MoveApplied):
                self._slots.clear()
            elif isinstance(result, TransactionApplied | Published):
                self._pinned = None
