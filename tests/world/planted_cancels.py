"""Bugs in cancelling delayed messages by their ids, for the worlds of `parts/ids.py` to find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from semel.broker.dedup import looked_up
from semel.broker.server import id_calls, stored_rows
from semel.broker.server.id_calls import IdCalls
from semel.broker.state import DelayedCancelled
from semel.broker.state.admission import delay_admission
from semel.broker.state.apply.delayed_extent import DelayedPlace
from semel.broker.state.apply.delays import Delays
from semel.broker.state.apply.id_windows import IdWindows
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import broker_pb2


def cancels_what_is_due() -> AbstractContextManager[object]:
    """As long as it is not released."""

    def bad(self: Delays, record: Any, _: int) -> Any:
        queue = self.queues.get(queue_key_of(record.queue))
        extent = None
        if queue is not None:
            extent = queue.find(DelayedPlace(record.due_us, record.ordinal))
        if queue is None or extent is None or queue.cancelled.holds(extent.ordinal, record.row):
            return None
        return extent

    begin = IdCalls.__init__

    def bad_begin(self: IdCalls, replica: Any, *rest: Any) -> None:
        begin(self, replica, *rest)
        self._replica = _Timeless(replica)  # type: ignore[assignment]

    plants = ExitStack()
    plants.enter_context(patch.object(Delays, "to_cancel", bad))
    plants.enter_context(patch.object(IdCalls, "__init__", bad_begin))
    return plants


class _Timeless:
    """A replica for which nothing is ever due."""

    def __init__(self, replica: Any) -> None:
        self._replica = replica

    def log_time_us(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replica, name)


def delivers_what_is_cancelled() -> AbstractContextManager[object]:
    """The id is free, and the message stays where it is."""

    def bad(self: Delays, record: Any, *_: Any) -> DelayedCancelled:
        key = queue_key_of(record.queue)
        return DelayedCancelled(
            queue_key=key, ordinal=record.ordinal, row=record.row, arrival=record.arrival
        )

    return patch.object(Delays, "cancel", bad)


def releases_what_is_being_cancelled() -> AbstractContextManager[object]:
    """A release does not heed the cancellations in front of it in the same entry, or in flight."""
    return patch.object(
        delay_admission, "left", lambda delays, queue, extent: delays.left(queue.key, extent)
    )


def keeps_ids_of_what_is_cancelled() -> AbstractContextManager[object]:
    def bad(arrivals: Any, _: Any) -> Any:
        return np.ones(len(arrivals), np.bool_)

    return patch.object(looked_up, "counting", bad)


def knows_nothing_of_what_it_has_cancelled() -> AbstractContextManager[object]:
    """A caller that asks again, because the first answer was lost, is told of no such id."""
    find = IdCalls._find

    async def bad(self: IdCalls, *arguments: Any) -> Any:
        found = await find(self, *arguments)
        if found[0].fate != broker_pb2.MESSAGE_FATE_CANCELLED:
            return found
        return broker_pb2.FindMessageReply(offset=-1), -1, None

    return patch.object(IdCalls, "_find", bad)


def cancels_the_first_of_the_batch() -> AbstractContextManager[object]:
    read = stored_rows.read_row

    def bad(*arguments: Any) -> Any:
        found: Any = read(*arguments)
        delayed = found is not None and found.candidate.extent is None
        return replace(found, row=0) if delayed else found

    return patch.object(id_calls, "read_row", bad)


def forgets_cancels_in_checkpoints() -> AbstractContextManager[object]:
    """After a restart the ids count again."""
    read: Any = IdWindows.read_parts.__func__  # type: ignore[attr-defined]

    def bad(cls: Any, reader: Any, /, **options: Any) -> IdWindows:
        found: IdWindows = read(cls, reader, **options)
        for window in found.topics.values():
            del window.cancelled[:]
        return found

    return patch.object(IdWindows, "read_parts", classmethod(bad))


def says_that_it_is_delivered_while_it_waits() -> AbstractContextManager[object]:
    """A caller that cancels too late is sent away before the message is in the queue."""
    find = IdCalls._find

    async def bad(self: IdCalls, *arguments: Any) -> Any:
        reply, arrival, row = await find(self, *arguments)
        due = 0 < reply.due_us <= self._replica.log_time_us() + 30_000
        if reply.fate == broker_pb2.MESSAGE_FATE_DELAYED and due:
            reply.fate, reply.offset = broker_pb2.MESSAGE_FATE_STORED, 0
        return reply, arrival, row

    return patch.object(IdCalls, "_find", bad)


PLANTS: dict[str, tuple[Callable[[], AbstractContextManager[object]], str, Sequence[int]]] = {
    "cancels what is due": (cancels_what_is_due, "cancels what is due", range(70)),
    "delivers what is cancelled": (delivers_what_is_cancelled, "not cancelled", (5, 0)),
    "releases what is being cancelled": (
        releases_what_is_being_cancelled,
        "releases",
        range(250),
    ),
    "keeps ids of what is cancelled": (
        keeps_ids_of_what_is_cancelled,
        "which was cancelled",
        (5, 16),
    ),
    "knows nothing of its cancels": (
        knows_nothing_of_what_it_has_cancelled,
        "was known all the time",
        (2, 52),
    ),
    "cancels the first of the batch": (
        cancels_the_first_of_the_batch,
        "is cancelled as",
        (2, 8),
    ),
    "forgets cancels in checkpoints": (
        forgets_cancels_in_checkpoints,
        "is not the fold",
        (54, 81),
    ),
    "says delivered too early": (
        says_that_it_is_delivered_while_it_waits,
        "loss: the message is not there",
        (8, 16),
    ),
}
"""Each with words of its error, and seeds of which one at least finds it."""
