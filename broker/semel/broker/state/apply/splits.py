"""Rules of split queues: which splits are valid, and which children a consumer group may read.

How it works. A split seals a queue, the *parent*, for ever and makes *children* in the same broker
group that share its slots. What the parent holds stays there: consumers read it to its end, its
sequence table answers retries that name it, retention trims it. Whatever it does not hold at that
moment belongs to the children. The error that says so carries the split, so that a producer can go
on without asking anybody.

Invariants
1. Children are in the order of their slots, and together they own exactly the parent's slots.
2. A consumer group gets a child only after it has committed the end of every ancestor that still
   has messages. So the messages of one key are read in the order in which they were stored. A group
   of Kafka's clients says that it wants it before (`beside_parents`).

Not here: when to split (the controller), how a split is applied (`state_machine.py`), inherited
rows (`producers.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from semel.broker.state.apply.locks import ConsumerGroups
from semel.broker.state.apply.queues import Child, QueueState
from semel.protos.errors import ParentUnread, QueueSealed
from semel.protos.ids import QueueId, QueueKey
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import control_pb2

UNREAD_RETRY_MS: Final = 100


def children_of(record: control_pb2.SplitQueue) -> tuple[Child, ...]:
    """The children that a record names, in the order of the record."""
    return tuple(
        Child(child.queue_id, child.slot_start, child.slot_end) for child in record.children
    )


def invalid_split_reason(
    children: tuple[Child, ...], queue_id: int, slot_start: int, slot_end: int
) -> str | None:
    """Why queue `queue_id` with these slots cannot be split in this way; None if it can."""
    if len(children) < 2:
        return "a split makes two queues or more"
    if len({queue_id, *(child.queue_id for child in children)}) <= len(children):
        return "each child of a split needs a queue number of its own"
    expected = slot_start
    for child in children:
        if child.slot_start != expected or child.slot_end <= child.slot_start:
            return f"the children of a split must share slots {slot_start} to {slot_end} in order"
        expected = child.slot_end
    if expected != slot_end:
        return f"the children of a split must own all slots from {slot_start} to {slot_end}"
    return None


def split_record_of(queue: QueueState) -> control_pb2.SplitQueue:
    """The record of the split that sealed a queue."""
    assert queue.children
    return control_pb2.SplitQueue(
        queue=queue_ref(queue.key),
        children=[
            control_pb2.ChildQueue(queue_id=number, slot_start=start, slot_end=end)
            for number, start, end in queue.children
        ],
    )


def sealed_error(queue: QueueState) -> QueueSealed:
    """The error for a request that would append to a sealed queue."""
    numbers = ", ".join(str(child.queue_id) for child in queue.children)
    return QueueSealed(
        f"queue {queue.key.queue_id} of {queue.topic!r} was split into {numbers} and takes nothing"
        " new; refresh the routes",
        split_record=split_record_of(queue).SerializeToString(deterministic=True),
    )


def ancestors(queues: Mapping[QueueKey, QueueState], queue: QueueState) -> Iterator[QueueState]:
    """The queues that it descends from and that still exist, the parent first."""
    while queue.parent is not None:
        parent = queues.get(QueueKey(queue.key.topic_id, QueueId(queue.parent)))
        if parent is None:
            return
        yield parent
        queue = parent


def descendants(queues: Mapping[QueueKey, QueueState], queue: QueueState) -> Iterator[QueueState]:
    """The queues that descend from it and are here."""
    for child in queue.children:
        found = queues.get(QueueKey(queue.key.topic_id, QueueId(child.queue_id)))
        if found is not None:
            yield found
            yield from descendants(queues, found)


def unread_error(
    queues: Mapping[QueueKey, QueueState], groups: ConsumerGroups, group: str, queue: QueueState
) -> ParentUnread | None:
    """Why a consumer group may not read the queue yet; None if it may."""
    for parent in ancestors(queues, queue):
        if parent.log_start_offset == parent.log_end_offset:
            continue
        state = groups.lookup(group, parent.key)
        committed = -1 if state is None else state.committed_offset
        if committed < parent.log_end_offset:
            return ParentUnread(
                f"group {group!r} has committed {committed} of queue {parent.key.queue_id}, which"
                f" ends at {parent.log_end_offset}; its child {queue.key.queue_id} comes after it",
                retry_after_ms=UNREAD_RETRY_MS,
            )
    return None
