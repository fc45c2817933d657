"""The queues of a topic that comes from another cluster: their slots, and splits among them."""

from __future__ import annotations

from collections.abc import Sequence

from semel.protos.errors import InvalidRequest
from semel.protos.slots import SLOT_COUNT, split_slots
from semel.protos.v1.metadata_pb2 import MirroredQueue, QueueRecord, RestorableQueue

Family = Sequence[RestorableQueue] | Sequence[MirroredQueue]


def check_numbers(topic: str, queues: Family) -> None:
    """Raises InvalidRequest unless they are numbered from 0 on."""
    if [queue.queue_id for queue in queues] != list(range(len(queues))):
        raise InvalidRequest(f"the queues of topic {topic!r} are not numbered from 0 on")


def check_lineage(topic: str, queues: Family) -> None:
    """Raises InvalidRequest unless they are all queues of a topic, by number."""
    check_numbers(topic, queues)
    at = 0
    for queue in sorted(_open(queues), key=lambda queue: queue.slot_start):
        if queue.slot_start != at or queue.slot_end <= at:
            raise InvalidRequest(f"no queue of topic {topic!r} owns slot {at}, or two do")
        at = queue.slot_end
    if at != SLOT_COUNT:
        raise InvalidRequest(f"no queue of topic {topic!r} owns slot {at}")


def _open(queues: Family) -> list[RestorableQueue | MirroredQueue]:
    return [queue for queue in queues if not queue.child_ids]


def queue_records(queues: Family) -> list[QueueRecord]:
    """Slots and lineage; none if they follow from the number of queues."""
    slots = [(queue.slot_start, queue.slot_end) for queue in queues]
    if len(_open(queues)) == len(queues) and slots == list(split_slots(len(queues))):
        return []
    return [
        QueueRecord(
            slot_start=queue.slot_start,
            slot_end=queue.slot_end,
            sealed=bool(queue.child_ids),
            parent_id=queue.parent_id if queue.HasField("parent_id") else None,
        )
        for queue in queues
    ]
