"""An opened topic of one producer, and a producer's counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from semel.client.config import ProducerConfig
from semel.client.core.batching import Part
from semel.client.core.routing import QueueRoute, TopicRoute
from semel.client.producer.lanes import Lane
from semel.protos.batch import BATCH_BYTES_DEFAULT, HEADER_BYTES, MESSAGE_BYTES_MAX
from semel.protos.ids import GroupId, QueueKey

_BODY_ROOM: Final = HEADER_BYTES + 64 * 1024
"""Bytes that a batch stays below the topic's limit, for offsets and padding."""


@dataclass(slots=True)
class ProducerStats:
    """Counts of a producer so far, in messages unless said otherwise."""

    sent: int = 0
    """Passed to `send` and `send_many`."""
    stored: int = 0
    """Acknowledged as new."""
    duplicates: int = 0
    """Acknowledged as stored before: retries that the broker recognised, and messages whose id the
    topic has."""
    skipped: int = 0
    """Not sent: the queue had their positions when the producer was opened."""
    failed: int = 0
    """Not stored, conflicts included."""
    conflicts: int = 0
    """Not stored: the topic has another message with their id."""
    batches: int = 0
    """Batches acknowledged."""
    retries: int = 0
    """Batches that were sent again."""
    bytes: int = 0
    """Bytes of acknowledged batches, as stored."""
    throttled_ms: int = 0
    """Milliseconds for which batches in flight waited for a quota, at all broker groups together;
    those of other producers of the client on the same stream count as well."""


class ProducerTopic:
    """An opened topic of one producer.

    A lane is made when its queue is first written to: a topic may have thousands of queues, and a
    process thousands of producers.
    """

    def __init__(
        self,
        route: TopicRoute,
        lanes: list[Lane],
        config: ProducerConfig,
        make_lane: Callable[[QueueRoute], Lane],
    ) -> None:
        """`lanes` are those needed from the start: with source positions, all of them."""
        self.route = route
        self._make_lane = make_lane
        self._lanes = {lane.key: lane for lane in lanes}
        self.unsettled = 0
        """Parts that were routed and are not settled."""
        self.turn = 0
        self.routed_position = -1
        """Newest position whose message is in its lane, with all before it."""
        self.linger: asyncio.TimerHandle | None = None
        self.resume: np.ndarray[Any, np.dtype[np.int64]] | None = None
        batch_bytes_max = route.batch_bytes_max or BATCH_BYTES_DEFAULT
        message_bytes_max = route.message_bytes_max or MESSAGE_BYTES_MAX
        self.batch_bytes = max(1, min(config.batch_bytes, batch_bytes_max - _BODY_ROOM))
        self.message_bytes_max = min(message_bytes_max, MESSAGE_BYTES_MAX)
        for lane in lanes:
            lane.link.add(lane)
        if config.source_positions:
            self.resume = self._resume()

    def _resume(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.array([self._lanes[queue.key].resume for queue in self.route.queues], np.int64)

    @property
    def lanes(self) -> list[Lane]:
        """The lanes made so far, by queue."""
        return list(self._lanes.values())

    def find(self, key: QueueKey) -> Lane | None:
        """Returns the lane of a queue, or None if it was not made."""
        return self._lanes.get(key)

    def has(self, lane: Lane) -> bool:
        """The lane belongs to this topic."""
        return self._lanes.get(lane.key) is lane

    def lane(self, key: QueueKey) -> Lane:
        """Returns the lane of an open queue, made now if missing."""
        lane = self._lanes.get(key)
        if lane is None:
            queue = self.route.find(key.queue_id)
            assert queue is not None, f"{key} is not of {self.route.name!r}"
            assert queue.key == key, f"{key} is not of {self.route.name!r}"
            lane = self._lanes[key] = self._make_lane(queue)
            lane.link.add(lane)
        return lane

    def put(self, part: Part) -> None:
        """Gives a part to its lane."""
        self.lane(part.queue).put(part)

    def rehome(self, home: Callable[[QueueRoute], GroupId]) -> None:
        """Takes a newer route: queues without a lane may have moved, and get theirs by it."""
        self.route = replace(
            self.route,
            queues=tuple(
                queue
                if queue.key in self._lanes or (group := home(queue)) == queue.group_id
                else replace(queue, group_id=group)
                for queue in self.route.queues
            ),
        )

    def replace(self, parent: Lane, children: list[Lane], route: TopicRoute) -> None:
        """A queue was split: its children's lanes take its place."""
        lanes = {lane.key: lane for lane in [*self.lanes, *children] if lane is not parent}
        self.route = route
        self._lanes = {queue.key: lanes[queue.key] for queue in route.queues if queue.key in lanes}
        self.turn = 0
        for child in children:
            child.link.add(child)
        if self.resume is not None:
            self.resume = self._resume()
