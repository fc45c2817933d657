"""Reading a topic without a consumer group: no locks, no commits, any offset.

How it works. The start (and the end, if one is wanted) is turned into one offset a queue before
the first fetch; then the feed does the rest. A queue that is trimmed behind a slow reader ends the
reading with OffsetOutOfRange: messages are never left out silently.

Not here: the API (`sync.py`, `aio.py`).
"""

from __future__ import annotations

import logging

from semel.client.cluster import Cluster
from semel.client.config import ReaderConfig
from semel.client.fetch import Feed, FeedQueue
from semel.client.offsets import Places, check_places, resolve_places
from semel.client.pulling import Puller
from semel.client.runtime import Runtime
from semel.protos.errors import InvalidRequest, SemelError

logger = logging.getLogger(__name__)


class ReaderCore:
    """One reader. Lives on the I/O thread; `puller` belongs to the caller's."""

    group = ""

    def __init__(self, cluster: Cluster, runtime: Runtime, config: ReaderConfig) -> None:
        self._cluster = cluster
        self.feed = Feed(
            self,
            cluster,
            fetch_bytes=config.fetch_bytes,
            prefetch_bytes=config.prefetch_bytes,
            call_soon=runtime.call_soon,
        )
        self.puller = Puller(self.feed)

    async def open(
        self, topic: str, queues: list[int] | None, start: Places, end: Places | None
    ) -> None:
        """Resolves the places and begins to fetch. Raises SemelError."""
        check_places("start", start)
        if end is not None:
            check_places("end", end)
        route = await self._cluster.topic(topic)
        chosen = list(route.queues)
        if queues is not None:
            chosen = []
            for number in queues:
                place = route.position_of(number)
                if place is None:
                    raise InvalidRequest(f"topic {topic!r} has no queue {number!r}")
                chosen.append(route.queues[place])
        starts = await resolve_places(self._cluster, route, chosen, start)
        ends = await resolve_places(self._cluster, route, chosen, end) if end is not None else None
        for queue in chosen:
            number = queue.key.queue_id
            if number not in starts or (ends is not None and number not in ends):
                continue
            entry = FeedQueue(topic, queue.key, queue.group_id, starts[number])
            if ends is not None:
                entry.end = max(ends[number], starts[number])
            self.feed.add(entry)
        if not self.feed.queues:
            raise InvalidRequest("the reader has no queue to read")

    def on_queue_error(self, queue: FeedQueue, error: SemelError) -> None:
        self.feed.fail(error)

    def positions(self) -> dict[int, int]:
        """Next offset that the caller will be given, by queue."""
        return {key.queue_id: queue.delivered for key, queue in self.feed.queues.items()}

    def close(self) -> None:
        self.feed.close()
