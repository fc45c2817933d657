"""A reader of a topic without a consumer group: no locks, no commits, any offset.

How it works. The reader turns the start, and the end if one is given, into one offset per queue
before the first fetch; the feed does the rest. Messages are never left out silently: if a queue
cannot be read any further (retention trimmed it ahead of a slow reader, its topic was deleted, its
bytes are damaged), reading ends, and every further call raises the error. A reader of all queues
without an end continues with the children of a queue that is split meanwhile.

Not here: the API (`api/aio_reading.py`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Final

from semel.client.config import ReaderConfig
from semel.client.core.retry import Backoff, BackoffPolicy
from semel.client.reading.feed_queue import FeedQueue, pass_lost
from semel.client.reading.fetch import Feed
from semel.client.reading.offsets import Places, check_places, resolve_places
from semel.client.reading.pulling import Puller
from semel.client.transport.cluster import Cluster
from semel.client.transport.runtime import Runtime
from semel.protos.errors import InvalidRequest, OffsetsLost, QueueMoved, SemelError, UnknownTopic
from semel.protos.ids import GroupId, QueueKey

logger = logging.getLogger(__name__)

FOLLOW_POLICY: Final = BackoffPolicy(initial_ms=50, max_ms=1_000)


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
            any_replica=config.read_from == "any",
        )
        self._config = config
        self.puller = Puller(self.feed)
        self._topic = ""
        self._follows = False
        self._known: set[QueueKey] = set()
        """The queues that existed when it was opened, or were found since."""

    async def open(
        self, topic: str, queues: list[int] | None, start: Places, end: Places | None
    ) -> None:
        """Resolves the places and begins to fetch. Raises SemelError."""
        check_places("start", start)
        if end is not None:
            check_places("end", end)
        if end is None and self._config.read_from == "any":
            raise InvalidRequest("read_from='any' needs an end: only the master knows what is new")
        route = await self._cluster.topic(topic, refresh=True)
        if self._config.topic_id not in (0, route.topic_id):
            raise UnknownTopic(
                f"topic {topic!r} was deleted and created again: it is {route.topic_id} now, not"
                f" {self._config.topic_id}"
            )
        self._topic = topic
        self._follows = queues is None and end is None
        self._known = {queue.key for queue in route.every}
        chosen = list(route.every)
        if queues is not None:
            chosen = []
            for number in queues:
                found = route.find(number)
                if found is None:
                    raise InvalidRequest(f"topic {topic!r} has no queue {number!r}")
                chosen.append(found)
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

    def on_queue_end(self, queue: FeedQueue) -> None:
        """Continues with the queues into which it was split."""
        if self._follows:
            self._cluster.spawn(self._follow(queue.key), "semel-reader-split")

    async def _follow(self, parent: QueueKey) -> None:
        """Begins to read the children as soon as the controllers know them."""
        backoff = Backoff(FOLLOW_POLICY, random.random)
        while not self.feed.ended:
            try:
                route = await self._cluster.topic(self._topic, refresh=True)
            except UnknownTopic as error:
                self.feed.fail(error, final=True)
                return
            except SemelError as error:
                logger.info("children not found queue=%s error=%s", parent, error.message)
            else:
                children = [each for each in route.every if each.parent == parent.queue_id]
                for child in children:
                    if child.key not in self._known:
                        self._known.add(child.key)
                        self.feed.add(FeedQueue(self._topic, child.key, child.group_id, 0))
                if children:
                    return
            await asyncio.sleep(backoff.next_ms() / 1000)

    def on_queue_error(self, queue: FeedQueue, error: SemelError) -> None:
        if isinstance(error, QueueMoved):  # continues in the new group, at the same offset
            queue.group_id, queue.asked = GroupId(error.group_id), False
            self.feed.add(queue)
        elif isinstance(error, OffsetsLost):
            told = self._config.on_lost == "raise"
            if not told:
                logger.warning(
                    "messages are lost topic=%s queue=%s offset=%s goes_on=%s",
                    *(queue.topic, queue.key.queue_id, queue.offset, error.next_offset),
                )
            self.feed.deliver([pass_lost(queue, error, told=told)])
            self.feed.wake()
        else:  # going on without this queue would leave its messages out
            self.feed.fail(error, final=True)

    def positions(self) -> dict[int, int]:
        """Returns the next offset to give out, by queue."""
        return {key.queue_id: queue.delivered for key, queue in self.feed.queues.items()}

    def close(self) -> None:
        self.feed.close()
