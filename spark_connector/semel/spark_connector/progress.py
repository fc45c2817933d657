"""How far a stream is, as Spark stores it, and what it reads next. Pure.

How it works. Spark's checkpoint holds the *end* of every trigger as JSON and nothing else: on a
first run, and when the first trigger is repeated, Spark asks anew where the stream begins, and
"latest" would be somewhere else by then. So every end carries its start:

    {"version": 1, "fresh": false,
     "topics": {"orders": {"id": "6621…", "from": {"0": 5, "1": 0}, "to": {"0": 9, "1": 2}}}}

and a trigger is planned from its end alone. The first trigger is stored even when there is nothing
to read (`fresh`), so that where the stream began is known for ever.

`advance` takes the stored end and the queues as they are now. A queue that was not there before
begins at its start. One that came of a split waits until everything of its parent lies behind the
stream, in an earlier trigger: so messages of one key come in order.

Invariants
1. Equal progress is equal text: keys are sorted.
2. A topic's progress belongs to its id. A topic of the same name and another id is another topic.
3. An end never goes backwards, and never past what the queue has.
4. What is lost (trimmed before it was read, a topic that is gone) is told to `on_loss`, always.

Not here: asking the cluster (`stream.py`), how much a trigger takes (`limits.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from semel.protos.errors import InvalidRequest, OffsetOutOfRange, UnknownQueue, UnknownTopic
from semel.spark_connector.offsets import OnLoss, QueuePlace, QueueRange, QueueState

VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProgress:
    """What a trigger reads of one topic, by queue."""

    topic_id: int
    starts: Mapping[int, int]
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The end of one trigger, with its start."""

    topics: Mapping[str, TopicProgress]
    fresh: bool = False
    """Where a stream begins; nothing of it was stored yet."""

    @classmethod
    def beginning(cls, states: Sequence[QueueState], at: Mapping[QueuePlace, int]) -> Progress:
        """Where a stream begins."""
        return cls(topics=_by_topic(states, at, at), fresh=True)

    def to_json(self) -> dict[str, Any]:
        """As Spark stores it."""
        return {
            "version": VERSION,
            "fresh": self.fresh,
            "topics": {
                name: {
                    "id": str(topic.topic_id),
                    "from": {str(queue): topic.starts[queue] for queue in sorted(topic.starts)},
                    "to": {str(queue): topic.ends[queue] for queue in sorted(topic.ends)},
                }
                for name, topic in sorted(self.topics.items())
            },
        }

    @classmethod
    def from_json(cls, stored: Any) -> Progress:
        """Raises InvalidRequest for what this format has not written."""
        try:
            if stored["version"] != VERSION:
                raise InvalidRequest(
                    f"the checkpoint was written by another version: its offsets have format"
                    f" {stored['version']!r}, this one reads {VERSION}"
                )
            topics = {
                name: TopicProgress(
                    topic_id=int(topic["id"]),
                    starts={int(queue): int(at) for queue, at in topic["from"].items()},
                    ends={int(queue): int(at) for queue, at in topic["to"].items()},
                )
                for name, topic in stored["topics"].items()
            }
            found = cls(topics=topics, fresh=bool(stored["fresh"]))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InvalidRequest(
                f"the checkpoint's offsets are not those of a semel stream: {str(stored)[:200]}"
            ) from None
        for name, topic in found.topics.items():
            if set(topic.starts) != set(topic.ends) or any(
                not 0 <= topic.starts[queue] <= end for queue, end in topic.ends.items()
            ):
                raise InvalidRequest(f"the checkpoint's offsets of topic {name!r} are damaged")
        return found

    def ranges(self) -> list[QueueRange]:
        """What the trigger reads, by topic and queue."""
        return [
            QueueRange(
                topic=name,
                topic_id=topic.topic_id,
                queue=queue,
                start=topic.starts[queue],
                end=topic.ends[queue],
            )
            for name, topic in sorted(self.topics.items())
            for queue in sorted(topic.ends)
            if topic.starts[queue] < topic.ends[queue]
        ]

    def ends(self) -> dict[QueuePlace, int]:
        """One past the last message read, by queue."""
        return {
            (name, queue): end
            for name, topic in self.topics.items()
            for queue, end in topic.ends.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What a stream has not read yet."""

    states: Mapping[QueuePlace, QueueState]
    positions: Mapping[QueuePlace, int]
    """Where each queue is."""
    available: Mapping[QueuePlace, int]
    """Messages that may be read of each now."""
    moved: bool = False
    """Positions are not the stored ones any more: something was lost, or this is the beginning."""

    @property
    def rows(self) -> int:
        return sum(self.available.values())

    @property
    def turn(self) -> int:
        """Grows by what is read."""
        return sum(self.positions.values())

    def take(self, rows: Mapping[QueuePlace, int]) -> Progress | None:
        """The end of a trigger that reads so many of each queue; None when there is nothing."""
        if not self.moved and not any(rows.values()):
            return None
        ends = {place: at + rows.get(place, 0) for place, at in self.positions.items()}
        return Progress(topics=_by_topic(list(self.states.values()), self.positions, ends))


def backlog(
    done: Progress,
    states: Sequence[QueueState],
    on_loss: OnLoss,
    until: Mapping[tuple[int, int], int] | None = None,
) -> Backlog:
    """What is left behind `done`, of the queues that are subscribed now.

    `until` ends the stream: offsets by (topic id, queue), and nothing of other queues.
    """
    by_name: dict[str, int] = {state.topic: state.topic_id for state in states}
    moved = done.fresh
    for name, topic in done.topics.items():
        if name not in by_name:
            on_loss(UnknownTopic(f"topic {name!r} of this stream is deleted, or not subscribed"))
            moved = True
        elif by_name[name] != topic.topic_id:
            on_loss(
                UnknownTopic(
                    f"topic {name!r} was deleted and created again: the checkpoint is about"
                    f" {topic.topic_id}, the topic is {by_name[name]} now"
                )
            )
            moved = True
        else:
            there = {state.queue for state in states if state.topic == name}
            for queue in sorted(set(topic.ends) - there):
                on_loss(UnknownQueue(f"topic {name!r} has no queue {queue} any more"))
                moved = True
    read = {state.place: state for state in states if _is_read(state, until)}
    positions: dict[QueuePlace, int] = {}
    for place, state in read.items():
        known = done.topics.get(state.topic)
        at = None
        if known is not None and known.topic_id == state.topic_id:
            at = known.ends.get(state.queue)
        positions[place] = state.log_start_offset if at is None else _checked(state, at, on_loss)
        moved = moved or (at is not None and positions[place] != at)
    available = {place: _available(state, positions, read, until) for place, state in read.items()}
    return Backlog(states=read, positions=positions, available=available, moved=moved)


def _is_read(state: QueueState, until: Mapping[tuple[int, int], int] | None) -> bool:
    return until is None or (state.topic_id, state.queue) in until


def _checked(state: QueueState, at: int, on_loss: OnLoss) -> int:
    """Where the stream goes on in a queue."""
    start, end = state.log_start_offset, state.log_end_offset
    if start <= at <= end:
        return at
    which = f"queue {state.queue} of topic {state.topic!r}"
    told = (
        f"offsets {at} to {start} of {which} were trimmed before the stream read them"
        if at < start
        else f"{which} ends at {end}, and the stream was at {at} already"
    )
    on_loss(
        OffsetOutOfRange(
            f"{told} (failOnDataLoss=false goes on with what is left)",
            log_start_offset=start,
            log_end_offset=end,
        )
    )
    return max(at, start)


def _available(
    state: QueueState,
    positions: Mapping[QueuePlace, int],
    states: Mapping[QueuePlace, QueueState],
    until: Mapping[tuple[int, int], int] | None,
) -> int:
    """Messages of a queue that may be read: none before its parent is behind the stream."""
    if state.parent is not None:
        parent = states.get((state.topic, state.parent))
        if parent is not None and positions[parent.place] < parent.log_end_offset:
            return 0
    end = state.log_end_offset
    if until is not None:
        end = min(end, until[state.topic_id, state.queue])
    return max(0, end - positions[state.place])


def _by_topic(
    states: Sequence[QueueState], starts: Mapping[QueuePlace, int], ends: Mapping[QueuePlace, int]
) -> dict[str, TopicProgress]:
    ids = {state.topic: state.topic_id for state in states}
    return {
        name: TopicProgress(
            topic_id=topic_id,
            starts={queue: at for (topic, queue), at in starts.items() if topic == name},
            ends={queue: at for (topic, queue), at in ends.items() if topic == name},
        )
        for name, topic_id in ids.items()
    }
