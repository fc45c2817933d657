"""How a producer leaves a queue that was split: lanes to the children, and the parts they get.

How it works. The children are fenced before anything is sent to them. Their rows in the sequence
table begin with the parent's values, so the new windows continue after those. With source positions
the fence also tells what an older or a newer incarnation stored there. A child that was split in
turn is replaced by its own children. Then, in one step of the loop, the lanes change places and
everything that the parent does not hold moves over, oldest first.

Not here: when a queue is left (`core/sequences.py`), how rows are divided (`core/splitting.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from semel.client.core.batching import Part
from semel.client.core.routing import QueueRoute, children_of
from semel.client.core.sequences import InFlight
from semel.client.core.splitting import Heir, divide, of_encoded, of_waiting
from semel.client.producer.lanes import Lane
from semel.protos.errors import QueueSealed
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import control_pb2


class Fencer(Protocol):
    """The methods of a producer that opening lanes needs."""

    def lane_to(self, queue: QueueRoute) -> Lane:
        """Returns a new lane."""

    async def fence(self, lanes: list[Lane]) -> None:
        """Gives the lanes their windows. Raises SemelError."""


async def open_children(
    producer: Fencer, parent: Lane, split: control_pb2.SplitQueue
) -> tuple[list[Lane], list[control_pb2.SplitQueue]]:
    """Returns fenced lanes to the open queues that a split led to, by slot, and every split passed.

    Raises SemelError.
    """
    queues = children_of(parent.route, split)
    splits = [split]
    while True:
        lanes = [producer.lane_to(queue) for queue in queues]
        for lane in lanes:
            lane.session = parent.session  # the rows were copied: they know this session
        try:
            await producer.fence(lanes)
        except QueueSealed as error:
            deeper = control_pb2.SplitQueue.FromString(error.split_record)
            key = queue_key_of(deeper.queue)
            queues = [
                each
                for queue in queues
                for each in (children_of(queue, deeper) if queue.key == key else [queue])
            ]
            splits.append(deeper)
            continue
        return lanes, splits


def hand_over(
    parent: Lane, batches: Sequence[InFlight], children: Sequence[Lane], *, by_id: bool
) -> Iterator[tuple[list[Part], list[Part]]]:
    """Divides the parent's parts, oldest first. Yields for each the parts to send and those that
    are settled already. The caller must not await anything meanwhile. `by_id` is that of
    `divide`."""
    heirs = [
        Heir(
            key=child.key,
            slot_start=child.route.slot_start,
            last_sequence=child.window.last_settled if child.window is not None else -1,
        )
        for child in children
    ]
    inherited = []
    for batch in batches:
        assert isinstance(batch.tag, Part)
        if batch.tag.outcome is None:
            inherited.append(of_encoded(batch.tag, batch.payload, batch.trimmed))
    inherited += [of_waiting(part) for part in parent.pending if part.outcome is None]
    parent.pending.clear()
    for number, one in enumerate(inherited):
        made = divide(one, heirs, number % len(heirs), by_id=by_id)
        yield (
            [part for part in made if part.outcome is None],
            [part for part in made if part.outcome is not None],
        )
