"""Bugs in moves of queues with delayed messages, for the worlds of `parts/moves.py` and of ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

from semel.broker.background.queue_copy import QueuePull
from semel.broker.dedup import id_index
from semel.broker.state import Admission, Delays
from semel.broker.state.admission.delay_admission import propose_release
from semel.broker.state.apply import delayed_copies
from semel.broker.state.apply.cancelled_rows import CancelledRows
from semel.broker.state.apply.delayed_copies import DelayedCopies
from semel.broker.state.apply.delayed_extent import EXTENT
from semel.broker.state.apply.delayed_queue import DelayedQueue
from semel.broker.state.apply.moved_origins import no_origins
from semel.protos.v1 import control_pb2

EARLY_US = 300_000


def releases_while_it_is_sealed() -> AbstractContextManager[object]:
    """The source goes on releasing what the target has got."""
    original = Delays.release

    def propose(self: Any, queue_key: Any, *, now_us: int, batches_max: int = 1_000) -> Any:
        queue = self._pending.queue(queue_key)
        if queue is None or self.queues.sealed(queue_key) is not None:
            return None
        return propose_release(self._state.delays, self._pending, queue, now_us, batches_max, None)

    def release(self: Any, record: Any, queue: Any, *entry: Any) -> Any:
        frozen, queue.frozen = queue.frozen, False
        try:
            return original(self, record, queue, *entry)
        finally:
            queue.frozen = frozen

    plants = ExitStack()
    plants.enter_context(patch.object(Admission, "propose_release", propose))
    plants.enter_context(patch.object(Delays, "release", release))
    return plants


def _left(
    change: Callable[[DelayedQueue, DelayedQueue], DelayedQueue],
) -> AbstractContextManager[object]:
    """Has `change` make what goes on to wait of the copies that count, and of all copies."""
    original = DelayedCopies.left

    def left(self: DelayedCopies, wanted: DelayedQueue) -> DelayedQueue | None:
        found = original(self, wanted)
        return None if found is None else change(found, self.queue)

    found: AbstractContextManager[object] = patch.object(DelayedCopies, "left", left)
    return found


def keeps_what_the_source_has_released() -> AbstractContextManager[object]:
    """What was released after it was copied waits at the target as well."""
    plants = ExitStack()
    every = _left(lambda _, every: DelayedQueue.of(every.table().tobytes(), CancelledRows()))
    plants.enter_context(every)
    plants.enter_context(patch.object(delayed_copies, "origins_after", lambda *_: no_origins()))
    return plants


def brings_back_what_is_cancelled() -> AbstractContextManager[object]:
    """All rows of a batch that was copied wait."""
    return _left(lambda found, _: DelayedQueue.of(found.table().tobytes(), CancelledRows()))


def is_early_at_the_target() -> AbstractContextManager[object]:
    def change(found: DelayedQueue, _: DelayedQueue) -> DelayedQueue:
        table = found.table().copy()
        table["due_us"] -= EARLY_US
        return DelayedQueue.of(table.tobytes(), found.cancelled)

    return _left(change)


def loses_the_order() -> AbstractContextManager[object]:
    """Batches of one due time come in the contrary order."""

    def change(found: DelayedQueue, _: DelayedQueue) -> DelayedQueue:
        table = found.table().copy()
        for due_us in set(table["due_us"].tolist()):
            same = table["due_us"] == due_us
            for name in set(EXTENT.names or ()) - {"due_us", "ordinal"}:
                table[name][same] = table[name][same][::-1]
        return DelayedQueue.of(table.tobytes(), found.cancelled)

    return _left(change)


def believes_what_it_knew() -> AbstractContextManager[object]:
    """Ids of messages that waited when their queue left count when it comes back."""
    step = QueuePull._step

    async def bad(self: QueuePull, kind: Any, **fields: Any) -> None:
        if kind == control_pb2.MOVE_STEP_SUPERSEDE:
            fields["arrivals"] = b""
        await step(self, kind, **fields)

    return patch.object(QueuePull, "_step", bad)


def leaves_ids_of_what_waits_behind() -> AbstractContextManager[object]:
    step = QueuePull._step

    async def bad(self: QueuePull, kind: Any, **fields: Any) -> None:
        if fields.get("waiting"):
            fields["ids"] = b""
        await step(self, kind, **fields)

    return patch.object(QueuePull, "_step", bad)


def forgets_that_windows_ended() -> AbstractContextManager[object]:
    """A node that starts misses what a window counts that is over."""
    return patch.object(id_index, "decode_end", lambda *_: 0)


Plant = Callable[[], AbstractContextManager[object]]

PLANTS: dict[str, tuple[Plant, str, Sequence[int]]] = {
    "releases while it is sealed": (releases_while_it_is_sealed, "a release in queue", (0, 1, 6)),
    "keeps what the source has released": (
        keeps_what_the_source_has_released,
        r"are released, \d+ waited",
        range(20),
    ),
    "is early at the target": (is_early_at_the_target, "early: what is due", range(30)),
    "loses the order": (loses_the_order, "is not what the log holds", (0, 1)),
}
"""For worlds in which queues move and messages are delayed. Each with words of its error, and seeds
of which one at least finds it."""

PLANTS_OF_IDS: dict[str, tuple[Plant, str, Sequence[int]]] = {
    "brings back what is cancelled": (
        brings_back_what_is_cancelled,
        "that are not cancelled",
        range(40),
    ),
    "believes what it knew": (believes_what_it_knew, "still counts", range(30)),
    "leaves ids of what waits behind": (leaves_ids_of_what_waits_behind, "has lost", (5, 23)),
    "forgets that windows ended": (forgets_that_windows_ended, "nothing has lost them", (16,)),
}
"""For worlds whose topics compare ids."""
