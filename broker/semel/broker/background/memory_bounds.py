"""Keeps topics in memory within their bounds: the master trims the oldest messages.

How it works. The master looks many times a second at the bytes that it has of each topic. Where a
bound is passed it proposes a TRIM for each queue that has the oldest batches (`memory/bounds.py`).
While trimming lags behind, producers of the topic are throttled (`Replica.submit_batch`).

Not here: retention by age and by the size of a queue, which hold for topics in memory as well
(`background/retention.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from typing import Final

from semel.broker.background.propose import propose
from semel.broker.memory.bounds import excess, oldest, share
from semel.broker.replica.replica import Replica
from semel.broker.state import QueueState
from semel.protos.queue_refs import queue_ref
from semel.protos.v1 import control_pb2

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.02
_LOOK_FOR_ANY_S: Final = 0.1
"""A pause while nothing is in memory: until a look, only the bound of the node holds."""
_LOOKS_A_SHARE: Final = 25
"""Shares are computed anew after so many looks: it takes a look at every topic."""


class MemoryBounds:
    """The background work of one replica; `run` ends only by cancellation."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.dropped: Counter[str] = Counter()
        """Messages that went because of a bound, by topic, since the start."""

    async def run(self) -> None:
        """Looks at the bounds again and again."""
        looks = 0
        while True:
            if not self._replica.bodies.bytes:
                await asyncio.sleep(_LOOK_FOR_ANY_S)
                continue
            await asyncio.sleep(_LOOK_S)
            if looks % _LOOKS_A_SHARE == 0:
                self._share()
            looks += 1
            if self._replica.is_master:
                await self._look()

    def _share(self) -> None:
        """Computes this group's part of each topic's bound, with queues on their way here."""
        state, bounds = self._replica.state, dict[int, int]()
        queues = state.queues
        for topic_id in queues.topics():
            queue = next(queues.of_topic(topic_id))
            if queue.in_memory:
                settings, slots = queue.settings, state.live_slots(topic_id)
                bounds[topic_id] = share(settings.memory_bytes, slots, settings.batch_bytes_max)
        self._replica.bodies.bounds = bounds

    async def _look(self) -> None:
        bodies = self._replica.bodies
        for topic_id, held in list(bodies.topics.items()):
            bound = bodies.bounds.get(topic_id)
            if bound is not None and excess(held, bound):
                self._share()  # a queue that moves here has its share from its first copy on
                bound = bodies.bounds.get(topic_id)
            if bound is not None and (surplus := excess(held, bound)):
                await self._drop(self._replica.state.queues.of_topic(topic_id), surplus)
        bound = self._replica.config.memory_topic_bytes_max
        if surplus := excess(bodies.bytes, bound):
            queues = self._replica.state.queues.values()
            await self._drop((queue for queue in queues if queue.in_memory), surplus)

    async def _drop(self, queues: Iterable[QueueState], surplus: int) -> None:
        """Drops the oldest batches of so many bytes, in one entry if possible."""
        trims = []
        unsealed = (queue for queue in queues if not queue.frozen)
        for key, start in oldest(unsealed, surplus).items():
            queue = self._replica.state.queues[key]
            self.dropped[queue.topic] += start - queue.log_start_offset
            trim = control_pb2.Trim(queue=queue_ref(key), log_start_offset=start)
            trims.append(propose(self._replica, control_pb2.ControlRecord(trim=trim)))
        await asyncio.gather(*trims)
