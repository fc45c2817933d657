"""Message ids that move with a queue, from the records of two broker groups' logs.

How it works. IDS steps of a move have fingerprints. What was sent is known with whole ids, so the
fingerprints are translated back; that and the hash itself are all that is shared with the broker.

What is checked
1. A moved id is that of a message of that queue, or of one that it descends from, which had arrived
   at the source in the range that the step covers, and in that order.
2. It is not that of a message that was cancelled, ever: nobody would take it out at the target.
   It may be cancelled later at the source if the move sealed the queue and was given up.
3. When the queue is activated, all ids have come that its group knew of it when it was sealed, and
   until it left.

Not here: what ids mean once they have arrived (`message_ids.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from semel.broker.dedup.fingerprints import Fingerprints
from semel.protos.columns import Columns
from semel.protos.v1 import control_pb2
from tests.checking.stored import Queue

_COLUMNS = 5
_DELAYED = 1 << 32


class Message(NamedTuple):
    """A message, as far as ids go."""

    message_id: bytes | None
    value: bytes
    key: bytes | None = None


class Place(NamedTuple):
    """Where a message is; it has no offset if it was delayed."""

    queue_id: int
    offset: int
    due_us: int


class MovedId(NamedTuple):
    """One id of an IDS step."""

    message: Message | None
    """None if nobody has sent such a message."""
    place: Place


class Translator:
    """Knows the messages by their fingerprints under one seed."""

    def __init__(self, seed: bytes, messages: Iterable[Message]) -> None:
        known = sorted({each for each in messages if each.message_id is not None}, key=repr)
        self._messages: dict[tuple[int, int, int], Message] = {}
        if not known:
            return
        columns = Columns.from_arrow(
            [each.value for each in known],
            keys=[each.key for each in known],
            message_ids=[each.message_id for each in known],
        )
        fingerprints = Fingerprints(seed)
        assert columns.message_ids is not None
        keys, digests = fingerprints.keys(columns.message_ids), fingerprints.digests(columns)
        for row, message in enumerate(known):
            self._messages[int(keys[row, 0]), int(keys[row, 1]), int(digests[row])] = message

    def read(self, step: control_pb2.MoveQueue) -> list[MovedId]:
        """The ids of an IDS step."""
        columns = np.frombuffer(step.ids, "<u8").reshape(_COLUMNS, -1)
        found = []
        for high, low, digest, queue, value in columns.T.tolist():
            delayed = queue >= _DELAYED
            place = Place(queue % _DELAYED, -1 if delayed else value, value if delayed else 0)
            found.append(MovedId(self._messages.get((high, low, digest)), place))
        return found


class Taken(NamedTuple):
    """The ids of one IDS step, at the group that gets them."""

    entry: int
    job: tuple[Queue, int]
    source: int
    """The group that had the queue."""
    arrivals: range
    """The arrivals at the source that the step covers."""
    ids: list[MovedId]


class Known(NamedTuple):
    """An id that a group knows."""

    message: Message
    place: Place


@dataclass(slots=True)
class MovesOfIds:
    """What one group's log says about ids that leave and come."""

    sealed: dict[tuple[Queue, int], dict[int, Known]] = field(default_factory=dict)
    """The ids of messages of each queue that was sealed for a job, as they were known then, by
    arrival."""
    sealed_at: dict[tuple[Queue, int], int] = field(default_factory=dict)
    """The entry that sealed the queue for each job."""
    left: dict[tuple[Queue, int], int] = field(default_factory=dict)
    """Where the window began when the queue had left: what is older may have been forgotten before
    it was copied."""
    taken: list[Taken] = field(default_factory=list)
    activated: list[tuple[Queue, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Source:
    """The arrivals of one window of a topic, and which of them were cancelled."""

    base: int
    """The number of the first arrival."""
    arrivals: list[Known]
    cancelled: Mapping[int, int]
    """The entries that cancelled them."""
    superseded: Mapping[int, int] = field(default_factory=dict)
    """The entries from which on they did not count, because their queue was here again."""


def judge_moved(
    groups: Mapping[int, MovesOfIds],
    windows: Mapping[int, Mapping[int, list[Source]]],
    parents: Mapping[Queue, Queue],
) -> Iterator[str]:
    """Problems; `windows` are those that topics have had, by group and topic."""
    arrived: dict[tuple[Queue, int], set[Known]] = {}
    for group, moves in groups.items():
        for step in moves.taken:
            where = f"group {group}, entry {step.entry}, move {step.job}"
            family = {step.job[0][1]}
            queue: Queue | None = step.job[0]
            while (queue := parents.get(queue) if queue else None) is not None:
                family.add(queue[1])
            sources = windows[step.source].get(step.job[0][0], [])
            sealed_at = groups[step.source].sealed_at.get(step.job)
            found = _wrong(step, sources, family, sealed_at)
            yield from (f"{where}: {problem}" for problem in found)
            known = arrived.setdefault(step.job, set())
            known |= {Known(each.message, each.place) for each in step.ids if each.message}
    sealed = {
        job: [each for arrival, each in known.items() if arrival >= moves.left.get(job, 0)]
        for moves in groups.values()
        for job, known in moves.sealed.items()
    }
    for group, moves in groups.items():
        for job in moves.activated:
            lost = [each for each in sealed.get(job, ()) if each not in arrived.get(job, set())]
            if lost:
                yield f"group {group}: move {job} has lost {len(lost)} ids, as that of {lost[0]}"


def _wrong(
    step: Taken, sources: list[Source], family: set[int], sealed_at: int | None
) -> Iterator[str]:
    """The problems of one step: in one window at least there must be none."""
    found = [list(_wrong_of(step, source, family, sealed_at)) for source in sources]
    if step.ids and not any(not each for each in found):
        yield found[-1][0] if found else "ids come from a group that compares none"


def _wrong_of(
    step: Taken, source: Source, family: set[int], sealed_at: int | None
) -> Iterator[str]:
    base, since, never = source.base, sealed_at or 0, 1 << 62
    at, end = max(step.arrivals.start, base), min(step.arrivals.stop, base + len(source.arrivals))
    for each in step.ids:
        wanted = each.message, each.place
        while at < end and (
            source.arrivals[at - base] != wanted or source.superseded.get(at, never) < since
        ):
            at += 1
        if at >= end:
            yield f"{each} did not arrive at the source in {step.arrivals}, or not in this order"
            return
        if at in source.cancelled and (sealed_at is None or source.cancelled[at] < sealed_at):
            yield f"the id of {each} moves, and it was cancelled"
        if each.place.queue_id not in family:
            yield f"{each} is not the queue's"
        at += 1
