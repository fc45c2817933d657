"""Messages with ids that the SDK routes: no two broker groups store one, and answers are true.

How it works. The SDK must send an id to one queue, whoever sends it, whenever and with how many
others: a group finds only ids that it has seen. So while a group holds an id in its window, no
other group may store a message with it. A group holds it no longer when its window has left it
behind, when its message is cancelled, or when its queue begins to move away; after a split a
descendant counts, too. What one group's log says about its own ids is another checker's matter.

What is checked
1. No message is stored in one group while another group holds the id.
2. The place that an answer names holds the message that was sent; or one with its id, if it was a
   duplicate and the topic keeps the first.

Not here: the ids of each group by itself (`message_ids.py`), who sends (`tests/world/payers.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import inf
from typing import NamedTuple

from tests.checking.cancel_answers import Committed
from tests.checking.id_topics import Arrival, IdTopic
from tests.checking.message_ids import IdLog
from tests.checking.moved_ids import Message
from tests.checking.stored import Queue


@dataclass(frozen=True, slots=True, kw_only=True)
class SentAnswer:
    """What a caller of `send` was told about a message with an id."""

    topic_id: int
    message: Message
    queue: int
    offset: int
    """-1: not told."""
    duplicate: bool


class _Stay(NamedTuple):
    """The time for which a group that has stored an id holds it."""

    group: int
    arrival: Arrival
    from_s: float
    until_s: float


def judge_scattered(
    groups: Mapping[int, Committed], message_ids: Collection[bytes]
) -> Iterator[str]:
    """Problems, of these ids only: who chooses queues himself may scatter others."""
    parents = {
        child: parent for each in groups.values() for child, parent in each.log.parents.items()
    }
    stays: dict[tuple[int, bytes], list[_Stay]] = {}
    for group, committed in groups.items():
        for topic_id, windows in committed.log.all_windows.items():
            for window in windows:
                for name, stay in _stays(group, committed, topic_id, window, parents):
                    if name in message_ids:
                        stays.setdefault((topic_id, name), []).append(stay)
    for (topic_id, _), found in stays.items():
        found.sort(key=lambda stay: stay.from_s)
        for first, second in combinations(found, 2):
            if first.group != second.group and second.from_s < first.until_s:
                yield (
                    f"{second.arrival.message} of topic {topic_id} is stored in group"
                    f" {second.group} at {second.arrival.place}, and group {first.group} holds its"
                    f" id, of {first.arrival.place}"
                )


def _stays(
    group: int,
    committed: Committed,
    topic_id: int,
    window: IdTopic,
    parents: Mapping[Queue, Queue],
) -> Iterator[tuple[bytes, _Stay]]:
    log, at_s = committed
    for number, arrival in enumerate(window.arrivals, window.base or 0):
        name = arrival.message.message_id
        if name is None or arrival.sent is None:  # what moves is held before it counts
            continue
        ends = [entry for entry, first_arrival in window.evictions if first_arrival > number]
        ends += [
            each.entry
            for each in log.moving
            if each.entry > arrival.arrived
            and (topic_id, arrival.place.queue_id) in _family(each.job[0], parents)
        ]
        if number in window.cancelled:
            ends.append(window.cancelled[number])
        until_s = min((at_s[entry] for entry in ends), default=inf)
        yield name, _Stay(group, arrival, at_s[arrival.arrived], until_s)


def _family(queue: Queue, parents: Mapping[Queue, Queue]) -> list[Queue]:
    """The queue and those from which it descends."""
    found = [queue]
    while found[-1] in parents:
        found.append(parents[found[-1]])
    return found


def judge_sent(answers: Iterable[SentAnswer], logs: Collection[IdLog]) -> Iterator[str]:
    """Compares what callers were told with what is stored, in whichever log of those read."""
    places: dict[tuple[int, int, int], Message] = {}
    keep_first: set[int] = set()
    for log in logs:
        for topic_id, windows in log.all_windows.items():
            for window in windows:
                if window.settings.keep_first:
                    keep_first.add(topic_id)
                for arrival in window.arrivals:
                    place = topic_id, arrival.place.queue_id, arrival.place.offset
                    places[place] = arrival.message
    for answer in answers:
        if answer.offset < 0:
            continue
        found = places.get((answer.topic_id, answer.queue, answer.offset))
        same = found == answer.message or (
            found is not None
            and found.message_id == answer.message.message_id
            and answer.duplicate
            and answer.topic_id in keep_first
        )
        if not same:
            yield f"{answer} names the place of {found}: loss"
