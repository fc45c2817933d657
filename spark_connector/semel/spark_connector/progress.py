"""A stream's progress as Spark stores it, and what the stream reads next. Pure.

How it works. Spark's checkpoint holds only the *end* of every trigger, as JSON. On a first run, and
when the first trigger is repeated, Spark asks again where the stream begins, and by then "latest"
would be another place. So every end carries its start:

    {"version": 1, "fresh": false,
     "topics": {"orders": {"id": "6621…", "from": {"0": 5, "1": 0}, "to": {"0": 9, "1": 2}}}}

and a trigger is planned from its end alone. The first trigger is stored even when there is nothing
to read (`fresh`), so that the beginning of the stream stays known for ever.

`backlog` takes the stored end and the present queues. A queue that did not exist before begins at
its start. A queue that was split off another waits until the stream has read all of its parent in
an earlier trigger, so messages of one key arrive in order.

Invariants
1. Equal progress is equal text: keys are sorted.
2. A topic's progress belongs to its id. A topic with the same name and another id is another topic.
3. An end never goes backwards, and never past what the queue has.
4. Every loss (messages trimmed before they were read, a deleted topic) is reported to `on_loss`.

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
    """The offsets that a trigger reads of one topic, by queue."""

    topic_id: int
    starts: Mapping[int, int]
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The end of one trigger, with its start."""

    topics: Mapping[str, TopicProgress]
    fresh: bool = False
    """True for the beginning of a stream, before any progress was stored."""

    @classmethod
    def beginning(cls, states: Sequence[QueueState], at: Mapping[QueuePlace, int]) -> Progress:
        """The progress of a stream that begins at these offsets."""
        return cls(topics=_by_topic(states, at, at), fresh=True)

    def to_json(self) -> dict[str, Any]:
        """The form that Spark stores."""
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
        """Raises InvalidRequest for anything that `to_json` has not written."""
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
        """The ranges that the trigger reads, ordered by topic and queue."""
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
    """The messages that a stream has not read yet."""

    states: Mapping[QueuePlace, QueueState]
    positions: Mapping[QueuePlace, int]
    """The stream's position in each queue."""
    available: Mapping[QueuePlace, int]
    """The number of messages of each queue that may be read now."""
    moved: bool = False
    """True when the positions differ from the stored ones: after a loss, and at the beginning."""

    @property
    def rows(self) -> int:
        return sum(self.available.values())

    @property
    def turn(self) -> int:
        """A number that grows by the messages read."""
        return sum(self.positions.values())

    def take(self, rows: Mapping[QueuePlace, int]) -> Progress | None:
        """The end of a trigger that reads `rows` of each queue; None when that is nothing."""
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
    """The messages after `done` in the queues that are subscribed now.

    `until` ends the stream: it has offsets by (topic id, queue), and other queues are not read.
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
    """The offset at which the stream continues in a queue."""
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
    """Messages of a queue that may be read: none until the stream has read its parent."""
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
