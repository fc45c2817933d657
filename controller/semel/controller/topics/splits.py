"""Splits of a topic's queues: how they are planned, sent to the groups and recorded.

How it works. The record of a topic names the splits that are decided (`splits`). The driver brings
them to the groups of the parents and then writes the record in which they are done. The numbers and
slots of the children are part of the decision, so that a repetition after a crash sends the same.

    decided   splits: parent, numbers and first slots of the children
    done      the parent is sealed; the children follow all other queues, in the parent's group

To reach a number of open queues, the widest queue is always cut first. A queue that would be cut
more than once is cut into equal ranges at once: one split, one step for its readers.

Not here: when a queue is split (`topics.py`), what a split does (the broker).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from semel.protos.errors import InvalidRequest, UnknownQueue
from semel.protos.slots import split_slots
from semel.protos.v1.common_pb2 import QueueRef
from semel.protos.v1.control_pb2 import ChildQueue, ControlRecord, SplitQueue
from semel.protos.v1.metadata_pb2 import QueueRecord, SplitRecord, TopicRecord


class Queue(NamedTuple):
    """One queue of a topic, as the topic's record describes it."""

    queue_id: int
    group_id: int
    slot_start: int
    slot_end: int
    sealed: bool
    parent_id: int | None


def queues_of(record: TopicRecord) -> list[Queue]:
    """All queues of a topic, by number, sealed ones included."""
    if not record.queues:
        return [
            Queue(number, group, start, end, False, None)
            for number, (group, (start, end)) in enumerate(
                zip(record.placement, split_slots(len(record.placement)), strict=True)
            )
        ]
    return [
        Queue(
            number,
            group,
            queue.slot_start,
            queue.slot_end,
            queue.sealed,
            queue.parent_id if queue.HasField("parent_id") else None,
        )
        for number, (group, queue) in enumerate(zip(record.placement, record.queues, strict=True))
    ]


def open_queues(record: TopicRecord) -> list[Queue]:
    """The queues that own slots now."""
    return [queue for queue in queues_of(record) if not queue.sealed]


def plan_count(record: TopicRecord, queues: int) -> list[SplitRecord]:
    """The splits after which the topic has this many open queues. Raises InvalidRequest."""
    present = open_queues(record)
    if queues < len(present):
        raise InvalidRequest(
            f"topic {record.name!r} has {len(present)} queues; there cannot be fewer, queues are"
            " not merged"
        )
    pieces = {queue.queue_id: 1 for queue in present}
    widths = {queue.queue_id: queue.slot_end - queue.slot_start for queue in present}
    heap: list[tuple[float, int]] = [(-width, number) for number, width in widths.items()]
    heapq.heapify(heap)
    for _ in range(queues - len(present)):
        _, number = heap[0]
        pieces[number] += 1
        heapq.heapreplace(heap, (-widths[number] / pieces[number], number))
    splits: list[SplitRecord] = []
    next_id = len(record.placement)
    for queue in present:
        count = pieces[queue.queue_id]
        if count > 1:
            splits.append(_split(queue, count, next_id))
            next_id += count
    return splits


def plan_queue(record: TopicRecord, queue_id: int, children: int) -> list[SplitRecord]:
    """The split of one queue; empty when the queue was split into as many before.

    Raises UnknownQueue, InvalidRequest.
    """
    queues = queues_of(record)
    if queue_id >= len(queues):
        raise UnknownQueue(f"topic {record.name!r} has no queue {queue_id}")
    queue = queues[queue_id]
    if queue.sealed:
        made = sum(each.parent_id == queue_id for each in queues)
        if made != children:
            raise InvalidRequest(
                f"queue {queue_id} of topic {record.name!r} was split into {made} before"
            )
        return []
    if not 2 <= children <= queue.slot_end - queue.slot_start:
        raise InvalidRequest(
            f"queue {queue_id} of topic {record.name!r} has {queue.slot_end - queue.slot_start}"
            f" slots: it can be split into 2 or more, at most into as many, not into {children}"
        )
    return [_split(queue, children, len(queues))]


def _split(queue: Queue, children: int, first_id: int) -> SplitRecord:
    width = queue.slot_end - queue.slot_start
    return SplitRecord(
        queue_id=queue.queue_id,
        child_ids=range(first_id, first_id + children),
        slot_starts=[queue.slot_start + width * number // children for number in range(children)],
    )


def split_records(record: TopicRecord, group_id: int) -> Iterator[ControlRecord]:
    """The records that bring the decided splits to one group."""
    queues = queues_of(record)
    for split in record.splits:
        parent = queues[split.queue_id]
        if parent.group_id == group_id:
            yield ControlRecord(
                split_queue=SplitQueue(
                    queue=QueueRef(topic_id=record.topic_id, queue_id=split.queue_id),
                    children=[
                        ChildQueue(queue_id=number, slot_start=start, slot_end=end)
                        for number, start, end in _ranges(split, parent)
                    ],
                )
            )


def _ranges(split: SplitRecord, parent: Queue) -> Iterator[tuple[int, int, int]]:
    starts = [*split.slot_starts, parent.slot_end]
    yield from zip(split.child_ids, starts, starts[1:], strict=False)


def after_splits(record: TopicRecord) -> TopicRecord:
    """The record as it is once all its splits are done."""
    done = TopicRecord()
    done.CopyFrom(record)
    queues = queues_of(record)
    del done.queues[:]
    for queue in queues:
        done.queues.add(
            slot_start=queue.slot_start,
            slot_end=queue.slot_end,
            sealed=queue.sealed,
            parent_id=queue.parent_id,
        )
    for split in record.splits:
        parent = queues[split.queue_id]
        done.queues[split.queue_id].sealed = True
        for number, start, end in _ranges(split, parent):
            assert number == len(done.placement), "children are numbered in the order of splits"
            done.placement.append(parent.group_id)
            done.queues.append(
                QueueRecord(slot_start=start, slot_end=end, parent_id=split.queue_id)
            )
    del done.splits[:]
    return done
