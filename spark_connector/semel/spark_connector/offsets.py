"""Plans which offsets of which queues a batch covers, and where a stream begins. Pure.

How it works. The reader asks the cluster once for the `QueueState` of every queue, and for the
offsets at the times that the options name. `places` turns the options into one offset per queue,
and `plan_ranges` makes the ranges of a batch from these. Offsets are dense, so the length of a
range is exactly its number of messages.

Messages that retention has already removed are reported to `on_loss`, which raises or lets the read
go on with the rest (`failOnDataLoss`).

Invariants
1. A range lies within [log_start_offset, log_end_offset] of the state it was planned from, so a
   batch read sees one fixed set of messages however much is written meanwhile.
2. Every range carries the topic's id: a topic that is deleted and created again under the same name
   between planning and reading is another topic, and reading it is an error, never wrong rows.

Not here: the meaning of the options (`options.py`), tasks (`packing.py`), what a stream reads next
(`progress.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from semel.protos.errors import InvalidRequest, OffsetOutOfRange, SemelError
from semel.spark_connector.option_values import EARLIEST, LATEST
from semel.spark_connector.options import Asked, AtTimes, ReadOptions

QueuePlace = tuple[str, int]
"""Topic and queue."""
OnLoss = Callable[[SemelError], None]
"""Raises the error, or logs it and returns."""
Times = Mapping[tuple[str, int], Mapping[int, int]]
"""Topic and milliseconds since the epoch → queue → first offset at or after that time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """One queue as the cluster described it."""

    topic: str
    topic_id: int
    queue: int
    log_start_offset: int
    log_end_offset: int
    """One past the last committed offset."""
    bytes: int = 0
    parent: int | None = None
    """The queue from which it was split off."""

    @property
    def place(self) -> QueuePlace:
        return self.topic, self.queue

    @property
    def row_bytes(self) -> float:
        """Average size of a stored message, including its share of headers."""
        return self.bytes / max(1, self.log_end_offset - self.log_start_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRange:
    """Offsets [start, end) of one queue."""

    topic: str
    topic_id: int
    queue: int
    start: int
    end: int

    @property
    def count(self) -> int:
        """The number of offsets in the range: that of its messages, unless it was compacted."""
        return self.end - self.start


def raise_loss(error: SemelError) -> None:
    """The strict `on_loss`."""
    raise error


def times_asked(asked: Asked, states: Sequence[QueueState]) -> set[tuple[str, int]]:
    """Topics and times, in milliseconds, that must be looked up for `asked`."""
    if not isinstance(asked, AtTimes):
        return set()
    if isinstance(asked.each, int):
        return {(state.topic, asked.each) for state in states}
    return {(topic, at) for topic, queues in asked.each.items() for at in queues.values()}


def plan_ranges(
    states: Sequence[QueueState],
    options: ReadOptions,
    times: Times,
    on_loss: OnLoss = raise_loss,
) -> list[QueueRange]:
    """The non-empty range of each queue, in the order of `states`.

    Raises InvalidRequest when offsets name other queues than exist or end before they start, and
    OffsetOutOfRange when one lies outside its queue.
    """
    assert options.starting is not None
    starts = places("starting", states, options.starting, times, options.late_start, on_loss)
    ends = places("ending", states, options.ending, times, "latest", on_loss)
    ranges = []
    for state in states:
        start, end = starts[state.place], ends[state.place]
        if end < start:
            raise InvalidRequest(
                f"the read ends in queue {state.queue} of topic {state.topic!r} at {end}, "
                f"before its start at {start}"
            )
        if start < end:
            ranges.append(
                QueueRange(
                    topic=state.topic,
                    topic_id=state.topic_id,
                    queue=state.queue,
                    start=start,
                    end=end,
                )
            )
    return ranges


def places(
    side: str,
    states: Sequence[QueueState],
    asked: Asked,
    times: Times,
    late: str,
    on_loss: OnLoss,
) -> dict[QueuePlace, int]:
    """One offset for each queue: an existing one, or the end; `side` is starting or ending.

    Raises InvalidRequest and OffsetOutOfRange; passes what retention removed to `on_loss`.
    """
    if not isinstance(asked.each, int):
        _require_same_queues(side, states, asked)
    found = {}
    for state in states:
        each = asked.each
        number = each if isinstance(each, int) else each[state.topic][state.queue]
        if isinstance(asked, AtTimes):
            found[state.place] = _at_time(side, state, number, times, late)
        else:
            found[state.place] = _at_offset(side, state, number, on_loss)
    return found


def _at_offset(side: str, state: QueueState, offset: int, on_loss: OnLoss) -> int:
    start, end = state.log_start_offset, state.log_end_offset
    if offset == EARLIEST:
        return start
    if offset == LATEST:
        return end
    if start <= offset <= end:
        return offset
    error = OffsetOutOfRange(
        f"{side}Offsets {offset} of queue {state.queue} of topic {state.topic!r} is out of range; "
        f"the queue has {start} to {end}",
        log_start_offset=start,
        log_end_offset=end,
    )
    if offset > end:
        raise error
    on_loss(error)
    return start


def _at_time(side: str, state: QueueState, at_ms: int, times: Times, late: str) -> int:
    found = times[state.topic, at_ms].get(state.queue, state.log_end_offset)
    # The time was looked up after the state; messages stored in between are not part of the read.
    found = min(max(found, state.log_start_offset), state.log_end_offset)
    if found == state.log_end_offset and late == "error":
        raise OffsetOutOfRange(
            f"queue {state.queue} of topic {state.topic!r} has no message at or after the {side}"
            f" time {at_ms}; startingOffsetsByTimestampStrategy=latest begins at its end",
            log_start_offset=state.log_start_offset,
            log_end_offset=state.log_end_offset,
        )
    return found


def _require_same_queues(side: str, states: Sequence[QueueState], asked: Asked) -> None:
    assert not isinstance(asked.each, int)
    name = f"{side}OffsetsByTimestamp" if isinstance(asked, AtTimes) else f"{side}Offsets"
    topics = {state.topic for state in states}
    if unknown := sorted(set(asked.each) - topics):
        raise InvalidRequest(f"{name} names topic {unknown[0]!r}, which is not subscribed")
    if missing := sorted(topics - set(asked.each)):
        raise InvalidRequest(f"{name} says nothing of topic {missing[0]!r}")
    for topic, numbers in asked.each.items():
        existing = {state.queue for state in states if state.topic == topic}
        if strange := sorted(set(numbers) - existing):
            raise InvalidRequest(f"{name}: topic {topic!r} has no queue {strange[0]}")
        if silent := sorted(existing - set(numbers)):
            hint = "" if isinstance(asked, AtTimes) else " (-1 latest, -2 earliest)"
            if side == "ending" and hint:
                hint = " (-1 latest)"
            raise InvalidRequest(
                f"{name}: queue {silent[0]} of topic {topic!r} is missing; give every queue{hint}"
            )
