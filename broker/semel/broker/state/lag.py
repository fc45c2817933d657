"""How far a consumer group is with each queue, and what waits for it there: counted once, here.

How it works. A group has a row for every queue that it has read, or that a split made of one that
it had read by then. What a later reader of a split queue has before it stands in the children too,
without a row: a child is not given to it before the parent's end is committed
(`state/apply/splits.py`). Those are counted as never committed.

Not here: who shows it (`server/group_offsets.py`, `probe.py`), rows (`state/apply/locks.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from semel.broker.state.apply.locks import ConsumerGroups, GroupQueue
from semel.broker.state.apply.queues import QueueState
from semel.protos.ids import QueueId, QueueKey


class Progress(NamedTuple):
    """One group on one queue."""

    queue: QueueState
    row: GroupQueue
    """Its row; one of a group that never was here when it has none."""

    @property
    def lag(self) -> int:
        """Messages that the group has not committed; without a commit all that the queue has."""
        done = max(self.row.committed_offset, self.queue.log_start_offset)
        return self.queue.log_end_offset - done


def progress(
    queues: Mapping[QueueKey, QueueState], groups: ConsumerGroups, group: str
) -> Iterator[Progress]:
    """All queues that the group has read or still has before it, each once, in no order.

    Safe to walk while the state changes: queues that are gone by then are left out.
    """
    rows = groups.copy_of(group)
    met = {key for key, _ in rows}
    for key, row in rows:
        queue = queues.get(key)
        if queue is None:
            continue
        yield Progress(queue, row)
        split = [queue]
        while split:
            for child in split.pop().children:
                child_key = QueueKey(key.topic_id, QueueId(child.queue_id))
                heir = queues.get(child_key)
                if heir is not None and child_key not in met:
                    met.add(child_key)
                    split.append(heir)
                    yield Progress(heir, GroupQueue(token=0))
