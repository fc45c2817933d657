"""Bugs in moving queues whose topics compare message ids, for the worlds of `parts/ids.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import numpy as np

from semel.broker.background.queue_copy import QueuePull
from semel.broker.dedup.moved_ids import Pass
from semel.broker.replica.message_ids import MessageIds
from semel.broker.state.apply import moves
from semel.protos.v1 import control_pb2


def loses_ids_of_what_is_trimmed() -> AbstractContextManager[object]:
    """Only ids of messages that are retained move."""
    step = QueuePull._step

    async def bad(self: QueuePull, kind: Any, **fields: Any) -> None:
        if kind == control_pb2.MOVE_STEP_IDS and "ids" in fields:
            columns = np.frombuffer(fields["ids"], "<u8").reshape(5, -1)
            start = self._incoming().queue.log_start_offset
            kept = (columns[3] >= 1 << 32) | (columns[4] >= start)
            fields["ids"] = columns[:, kept].tobytes()
        await step(self, kind, **fields)

    return patch.object(QueuePull, "_step", bad)


def leaves_the_last_ids_behind() -> AbstractContextManager[object]:
    """What has arrived since the last copy before the seal does not move."""
    copy = QueuePull._copy_ids

    async def bad(self: QueuePull, until: float, *, finish: bool) -> int:
        if not finish:
            return await copy(self, until, finish=finish)
        copied = self._copied_ids()
        return min(copied.arrival, copied.waiting)

    return patch.object(QueuePull, "_copy_ids", bad)


def moves_ids_of_other_queues() -> AbstractContextManager[object]:
    find: Any = Pass.of.__func__  # type: ignore[attr-defined]

    def bad(cls: Any, index: Any, arrivals: range, _: Any, *rest: Any) -> Pass:
        found: Pass = find(cls, index, arrivals, (), *rest)
        return found

    return patch.object(Pass, "of", classmethod(bad))


def adds_no_ids_that_move() -> AbstractContextManager[object]:
    """The window counts them, and the index does not have them: a slave's, that is."""

    def bad(self: MessageIds, record: Any) -> None:
        topic = self._topics.get(record.queue.topic_id)
        if topic is not None and topic.ids.end_arrival < record.first_arrival + (
            count := len(record.ids) // 40
        ):
            topic.ids.skip_to(record.first_arrival + count)

    return patch.object(MessageIds, "add_moved", bad)


def begins_windows_at_nought() -> AbstractContextManager[object]:
    """A window that begins again has the arrivals of the one before, whose index some have."""
    return patch.object(moves, "arrivals_from", lambda _: 0)


PLANTS: dict[str, tuple[Callable[[], AbstractContextManager[object]], str, Sequence[int]]] = {
    "loses ids of what is trimmed": (loses_ids_of_what_is_trimmed, "has lost", (128, 180)),
    "leaves the last ids behind": (leaves_the_last_ids_behind, "has lost", (5, 17)),
    "moves ids of other queues": (moves_ids_of_other_queues, "is not the queue's", (5, 6)),
    "adds no ids that move": (adds_no_ids_that_move, "nothing has lost them", (6, 32)),
    "begins windows at nought": (begins_windows_at_nought, "ids arrive as", range(30)),
}
"""Each with words of its error, and seeds of which one at least finds it."""
