"""The present state of the cluster for planning: topics, queues, offsets, times.

How it works. Everything is asked for through the SDK's admin calls, all topics at once. A topic may
be deleted between two calls; the calls are then repeated.

Not here: what is planned from it (`offsets.py`, `progress.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from semel.client import Client
from semel.protos.errors import InvalidRequest, UnknownQueue, UnknownTopic
from semel.spark_connector.offsets import QueueState, Times
from semel.spark_connector.options import Topics

_ATTEMPTS: Final = 5
"""Attempts to describe topics that are created and deleted meanwhile."""


def describe(client: Client, topics: Topics) -> list[QueueState]:
    """The queues of a batch read.

    Raises UnknownTopic, and InvalidRequest for an assigned queue that does not exist.
    """
    states = _describe(client, topics, lenient=bool(topics.pattern))
    if topics.queues is None:
        return states
    there = {state.place for state in states}
    for topic, queues in topics.queues.items():
        for queue in sorted(queues):
            if (topic, queue) not in there:
                raise InvalidRequest(f"option 'assign': topic {topic!r} has no queue {queue}")
    return [state for state in states if state.queue in topics.queues[state.topic]]


def describe_living(client: Client, topics: Topics) -> list[QueueState]:
    """The queues of a stream, without deleted topics, and with queues split off assigned ones."""
    states = _describe(client, topics, lenient=True)
    return states if topics.queues is None else with_heirs(states, topics.queues)


def with_heirs(
    states: Sequence[QueueState], assigned: Mapping[str, frozenset[int]]
) -> list[QueueState]:
    """The assigned queues and all queues split off them; a child has a higher number."""
    found: list[QueueState] = []
    places = {(topic, queue) for topic, queues in assigned.items() for queue in queues}
    for state in sorted(states, key=lambda state: state.place):
        if state.parent is not None and (state.topic, state.parent) in places:
            places.add(state.place)
        if state.place in places:
            found.append(state)
    return found


def _describe(client: Client, topics: Topics, *, lenient: bool) -> list[QueueState]:
    for attempt in range(_ATTEMPTS):
        names = list(topics.names)
        if lenient and (topics.pattern or attempt):
            existing = [topic.name for topic in client.admin.list_topics()]
            names = [name for name in topics.chosen(existing) if name in existing]
        try:
            found = client.admin.describe_topics(names)
        except (UnknownTopic, UnknownQueue) as error:
            if attempt == _ATTEMPTS - 1 or (not lenient and isinstance(error, UnknownTopic)):
                raise
            continue
        return [
            QueueState(
                topic=topic.name,
                topic_id=topic.topic_id,
                queue=queue.queue,
                log_start_offset=queue.log_start_offset,
                log_end_offset=queue.log_end_offset,
                bytes=queue.bytes,
                parent=queue.parent,
            )
            for topic in found
            for queue in sorted(topic.queues, key=lambda queue: queue.queue)
        ]
    raise AssertionError("unreachable: the last attempt returns or raises")


def look_up(client: Client, times: Iterable[tuple[str, int]]) -> Times:
    """First offsets at or after times in milliseconds, by topic and time. Raises UnknownTopic."""
    found: dict[tuple[str, int], Mapping[int, int]] = {}
    for topic, at_ms in sorted(set(times)):
        found[topic, at_ms] = client.admin.offsets_at(topic, at_ms * 1_000)
    return found
