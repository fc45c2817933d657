"""Which offsets of which queues a read covers, and how they become partitions. Pure.

How it works. The reader asks the cluster once for the `QueueState` of every queue; `plan_ranges`
resolves the asked-for offsets against it, and `split_ranges` cuts ranges that are too long. Offsets
are dense, so the length of a range is exactly its number of messages.

Invariants
1. A range lies within [log_start_offset, log_end_offset] of the state it was planned from, so a
   batch read sees one fixed set of messages however much is written meanwhile.
2. Every range carries the topic's id: a topic that is deleted and created again under the same name
   between planning and reading is another topic, and reading it is an error, never wrong rows.
3. Splitting neither loses nor repeats an offset.

Not here: the meaning of the options (`options.py`), reading (`reader.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from semel.protos.errors import InvalidRequest, OffsetOutOfRange
from semel.spark_connector.options import EARLIEST, LATEST, QueueOffsets, ReadOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """One queue as the cluster described it."""

    topic: str
    topic_id: int
    queue: int
    log_start_offset: int
    log_end_offset: int
    """One past the last committed offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRange:
    """Offsets [start, end) of one queue: what one task reads."""

    topic: str
    topic_id: int
    queue: int
    start: int
    end: int

    @property
    def count(self) -> int:
        """Messages in it, exactly."""
        return self.end - self.start


def plan_ranges(states: Sequence[QueueState], options: ReadOptions) -> list[QueueRange]:
    """The non-empty range of each queue, in the order of `states`.

    Raises InvalidRequest when offsets name other queues than there are or end before they start,
    and OffsetOutOfRange when one lies where the queue has nothing.
    """
    _require_same_queues("startingOffsets", states, options.starting)
    _require_same_queues("endingOffsets", states, options.ending)
    ranges = []
    for state in states:
        start = _resolve("startingOffsets", state, options.starting)
        end = _resolve("endingOffsets", state, options.ending)
        if end < start:
            raise InvalidRequest(
                f"endingOffsets ends queue {state.queue} of topic {state.topic!r} at {end}, "
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


def split_ranges(ranges: Iterable[QueueRange], records_max: int | None) -> list[QueueRange]:
    """The same offsets in ranges of at most `records_max`, as equal as can be; None splits none."""
    return [part for each in ranges for part in _split(each, records_max)]


def _split(whole: QueueRange, records_max: int | None) -> Iterator[QueueRange]:
    parts = 1 if records_max is None else -(-whole.count // records_max)
    for part in range(parts):
        yield QueueRange(
            topic=whole.topic,
            topic_id=whole.topic_id,
            queue=whole.queue,
            start=whole.start + whole.count * part // parts,
            end=whole.start + whole.count * (part + 1) // parts,
        )


def _resolve(name: str, state: QueueState, asked: int | QueueOffsets) -> int:
    """An offset that exists, or the end."""
    offset = asked if isinstance(asked, int) else asked[state.topic][state.queue]
    if offset == EARLIEST:
        return state.log_start_offset
    if offset == LATEST:
        return state.log_end_offset
    if not state.log_start_offset <= offset <= state.log_end_offset:
        raise OffsetOutOfRange(
            f"{name} {offset} of queue {state.queue} of topic {state.topic!r} is out of range; "
            f"the queue has {state.log_start_offset} to {state.log_end_offset}",
            log_start_offset=state.log_start_offset,
            log_end_offset=state.log_end_offset,
        )
    return offset


def _require_same_queues(
    name: str, states: Sequence[QueueState], asked: int | QueueOffsets
) -> None:
    if isinstance(asked, int):
        return
    for topic, offsets in asked.items():
        existing = {state.queue for state in states if state.topic == topic}
        if unknown := sorted(set(offsets) - existing):
            raise InvalidRequest(f"{name}: topic {topic!r} has no queue {unknown[0]}")
        if missing := sorted(existing - set(offsets)):
            raise InvalidRequest(
                f"{name}: queue {missing[0]} of topic {topic!r} is missing; "
                f"give every queue (-1 latest{', -2 earliest' if name[0] == 's' else ''})"
            )
