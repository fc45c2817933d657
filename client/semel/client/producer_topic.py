"""An opened topic of one producer, and a producer's counts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from semel.client.config import ProducerConfig
from semel.client.core.routing import TopicRoute
from semel.client.lanes import Lane
from semel.protos.batch import BATCH_BYTES_DEFAULT, HEADER_BYTES, MESSAGE_BYTES_MAX

_BODY_ROOM: Final = HEADER_BYTES + 64 * 1024
"""A batch is cut so much below the topic's limit: offsets and padding come on top."""


@dataclass(slots=True)
class ProducerStats:
    """What a producer has done so far, in messages unless said otherwise."""

    sent: int = 0
    """Came in through `send` and `send_many`."""
    stored: int = 0
    """Acknowledged as new."""
    duplicates: int = 0
    """Acknowledged as stored before: retries that the broker recognised."""
    skipped: int = 0
    """Not sent: the queue had their positions when the producer was opened."""
    failed: int = 0
    batches: int = 0
    """Batches acknowledged."""
    retries: int = 0
    """Batches that were sent again."""
    bytes: int = 0
    """Of acknowledged batches, as stored."""


class ProducerTopic:
    """An opened topic of one producer."""

    def __init__(self, route: TopicRoute, lanes: list[Lane], config: ProducerConfig) -> None:
        self.route = route
        self.lanes = lanes
        self.by_key = {lane.key: lane for lane in lanes}
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
        if config.source_positions:
            self.resume = np.array([lane.resume for lane in lanes], np.int64)

    def replace(self, parent: Lane, children: list[Lane], route: TopicRoute) -> None:
        """A queue was split: its children's lanes take its place."""
        lanes = {lane.key: lane for lane in [*self.lanes, *children] if lane is not parent}
        self.route = route
        self.lanes = [lanes[queue.key] for queue in route.queues]
        self.by_key = lanes
        self.turn = 0
        if self.resume is not None:
            self.resume = np.array([lane.resume for lane in self.lanes], np.int64)
