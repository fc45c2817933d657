"""Progress and lag of a consumer group on each queue, computed in this one place.

How it works. A group has a row for every queue that it has read, and for the children of a split if
it had read the parent before. A group that began to read the parent later has no rows for the
children, because it gets them only after it has committed the parent's end
(`state/apply/splits.py`). Their messages count as never committed.

Not here: who shows it (`server/group_offsets.py`, `probe.py`), the rows (`state/apply/locks.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from semel.broker.state.apply.locks import ConsumerGroups, GroupQueue
from semel.broker.state.apply.queues import QueueState
from semel.protos.ids import QueueId, QueueKey


class Progress(NamedTuple):
    """The progress of one group on one queue."""

    queue: QueueState
    row: GroupQueue
    """The row of the group; if there is none, that of a group which never read the queue."""

    @property
    def lag(self) -> int:
        """How many messages the group has not committed; without a commit, all of the queue."""
        done = max(self.row.committed_offset, self.queue.log_start_offset)
        return self.queue.log_end_offset - done


def progress(
    queues: Mapping[QueueKey, QueueState], groups: ConsumerGroups, group: str
) -> Iterator[Progress]:
    """All queues that the group has read or has still to read, each once, in no particular order.

    It is safe to walk while the state changes: queues that are gone by then are left out.
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
