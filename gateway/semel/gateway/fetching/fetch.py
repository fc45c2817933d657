"""Fetch: from a request to record batches, at once or when there are enough.

How it works. Each partition is looked at in its queue's reader. If all of them together have fewer
bytes than the client wants, the readers poll the brokers, and the request waits until a poll ends
or its time is over. Then everything is looked at again.

Sessions. A consumer with a session (`fetch_sessions.py`) names only what has changed, and is told
only what is news. They are kept in memory: at another gateway a consumer begins a new one.

Limits. A response has at most `max_bytes` of record batches, and at most as many of a partition as
that asks for, except that the first batch of a response is always given.

Splits. A partition is a line of queues (`partitions.py`), and each is read up to its end. A client
that is at the end of a queue of which this gateway did not know that it was split is told
NOT_LEADER_OR_FOLLOWER: it asks for metadata, and so finds the new partitions at once.

Not here: polls and what is kept of them (`queue_reader.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import operator
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from semel.client.core.routing import QueueRoute, TopicRoute
from semel.client.transport.cluster import Cluster
from semel.gateway.dispatch import Handler, RequestContext
from semel.gateway.fetching.fetch_response import Fetched, encode_fetched
from semel.gateway.fetching.fetch_sessions import (
    FINAL_EPOCH,
    NO_SESSION,
    Ask,
    FetchSessions,
    Place,
    asked,
    forgotten,
)
from semel.gateway.fetching.queue_polls import GroupPolls
from semel.gateway.fetching.queue_reader import QueueReader
from semel.gateway.partitions import PartitionedTopic, PartitionLine
from semel.gateway.records import RecordCodec
from semel.gateway.refusals import error_code
from semel.gateway.topic_book import TopicBook
from semel.gateway.versions import ApiKey
from semel.protos import compat
from semel.protos.errors import (
    QueueMoved,
    SemelError,
    UnknownQueue,
    UnknownTopic,
)
from semel.protos.ids import GroupId, QueueKey

HELD_BYTES_MAX: Final = 64 << 20
"""Bytes of record batches that are kept for consumers to come."""
HELD_S: Final = 5.0
"""Seconds for which they are kept if nobody reads them."""
RESPONSE_BYTES_MAX: Final = 50 << 20
WAIT_S_MAX: Final = 30.0
SWEEP_S: Final = 1.0


class _Wanted:
    """One partition of a request."""

    __slots__ = (
        "answer",
        "bytes_max",
        "end",
        "index",
        "line",
        "name",
        "offset",
        "place",
        "reader",
        "topic",
    )

    def __init__(self, name: str, index: int, ask: Ask) -> None:
        self.name = name
        self.index = index
        self.offset = ask.offset
        """The partition's, and from `refer` on the queue's."""
        self.bytes_max = max(0, ask.bytes_max)
        self.topic: TopicRoute | None = None
        self.line: PartitionLine | None = None
        self.place = 0
        """Index of the queue in the line."""
        self.reader: QueueReader | None = None
        """None if it is refused."""
        self.answer = Fetched(index)
        self.end = self.offset
        """Where the batches of the answer end; the queue's offset."""

    def refer(self, topic: TopicRoute, line: PartitionLine) -> None:
        """Finds the queue that has the offset."""
        self.topic, self.line = topic, line
        self.place, self.offset = line.spot(self.offset)
        self.end = self.offset

    @property
    def queue(self) -> QueueRoute:
        assert self.line is not None
        return self.line.queues[self.place]

    @property
    def shift(self) -> int:
        assert self.line is not None
        return self.line.starts[self.place]

    def is_at_end(self, reader: QueueReader) -> bool:
        """The answer has the last of a queue that was split: more comes from the next one."""
        assert self.line is not None
        end = reader.sealed_end if self.is_open else self.line.end(self.place)
        return 0 <= end <= self.end

    @property
    def is_open(self) -> bool:
        """As far as is known, the queue was not split."""
        assert self.line is not None
        return self.place == len(self.line.queues) - 1


class Fetching:
    """Reads for Kafka's consumers. Lives on the client's I/O thread."""

    def __init__(
        self,
        cluster: Cluster,
        topics: TopicBook,
        codec: RecordCodec = RecordCodec.NONE,
        held_bytes_max: Callable[[], int] = lambda: HELD_BYTES_MAX,
    ) -> None:
        """`codec` compresses the record batches; at most `held_bytes_max()` are kept."""
        self.bytes = 0
        """Bytes of record batches that were sent."""
        self.held_bytes = 0
        """Bytes of record batches that are kept."""
        self.sessions = FetchSessions(secrets.randbelow)
        self._cluster = cluster
        self._topics = topics
        self._codec = codec
        self._held_bytes_max = held_bytes_max
        self._readers: dict[QueueKey, QueueReader] = {}
        self._polls: dict[GroupId, GroupPolls] = {}

    def start(self) -> None:
        self._cluster.spawn(self._sweep(), "semel-kafka-readers")

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.FETCH: self.fetch}

    @property
    def reader_count(self) -> int:
        return len(self._readers)

    async def fetch(self, request: Any, context: RequestContext) -> Any:
        """Answers Fetch, versions 4 to 11."""
        version = context.version
        asks = asked(request)
        session = self.sessions.begin(
            getattr(request, "session_id", NO_SESSION),
            getattr(request, "session_epoch", FINAL_EPOCH),
            asks,
            forgotten(request),
            time.monotonic(),
        )
        if isinstance(session, ErrorCode):
            return encode_fetched((), version=version, error=session)
        throttled = self._throttled_ms
        wanted = await self._resolve(asks if session is None else session.asks())
        wait_s = min(WAIT_S_MAX, max(0.0, request.max_wait.total_seconds()))
        bytes_max = min(RESPONSE_BYTES_MAX, max(0, request.max_bytes))
        await self._gather(wanted, request.min_bytes, bytes_max, wait_s)
        for each in wanted:
            reader = each.reader
            self.bytes += sum(map(len, each.answer.batches))
            if reader is not None and each.answer.batches and each.end < reader.high_watermark:
                self._read_ahead(reader, each.queue, each.end)
        answers = [(each.name, each.answer) for each in wanted]
        return encode_fetched(
            _by_topic(answers if session is None else session.news(answers)),
            version=version,
            throttle_ms=self._throttled_ms - throttled,
            session_id=NO_SESSION if session is None else session.session_id,
        )

    @property
    def _throttled_ms(self) -> int:
        return sum(polls.throttled_ms for polls in self._polls.values())

    async def _resolve(self, asks: Sequence[tuple[Place, Ask]]) -> list[_Wanted]:
        """Returns the partitions, each with its reader or its refusal."""
        wanted = [_Wanted(name, index, ask) for (name, index), ask in asks]
        highest: dict[str, int] = {}
        for each in wanted:
            highest[each.name] = max(each.index, highest.get(each.name, 0))
        found: dict[str, PartitionedTopic | SemelError] = {}
        for name, number in highest.items():
            try:
                found[name] = await self._topics.find_with(name, number)
            except SemelError as error:
                found[name] = error
        for each in wanted:
            topic = found[each.name]
            if isinstance(topic, SemelError):
                each.answer = Fetched(each.index, error_code(topic))
                continue
            try:
                each.refer(topic.route, topic.partition(each.index))
            except SemelError as error:
                each.answer = Fetched(each.index, error_code(error))
                continue
            if each.offset < 0:
                each.answer = Fetched(each.index, ErrorCode.offset_out_of_range)
            else:
                each.reader = self._reader(each.queue.key, each.shift)
        return wanted

    async def _gather(
        self, wanted: Sequence[_Wanted], min_bytes: int, bytes_max: int, wait_s: float
    ) -> None:
        """Answers the partitions: once there is enough, an error, or no time left."""
        if self._look(wanted, min_bytes, bytes_max):
            return
        readers = {each.reader for each in wanted if each.reader is not None}
        news = asyncio.Event()
        for reader in readers:
            reader.listen(news)
        try:
            with contextlib.suppress(TimeoutError):
                async with compat.timeout(wait_s):
                    while True:
                        for each in wanted:
                            if each.reader is not None:
                                each.reader.want(each.queue, each.end)
                        await news.wait()
                        await asyncio.sleep(0)  # others may have come in the same turn
                        news.clear()
                        if self._look(wanted, min_bytes, bytes_max):
                            return
            self._look(wanted, min_bytes, bytes_max)
        finally:
            for reader in readers:
                reader.unlisten(news)

    def _look(self, wanted: Sequence[_Wanted], min_bytes: int, bytes_max: int) -> bool:
        """Answers with what is here; returns whether that is enough."""
        total, enough = 0, False
        for each in wanted:
            reader = each.reader
            if reader is None:
                enough = True
                continue
            try:
                batches = reader.take(each.offset)
            except SemelError as error:
                self._on_refused(each, error)
                enough = True
                continue
            if 0 <= reader.sealed_end <= each.offset and each.is_open:
                self._on_split(each)
                enough = True
                continue
            chosen: list[bytes] = []
            size = 0
            each.end = each.offset
            for batch in batches:
                length = len(batch.data)
                fits = size + length <= each.bytes_max and total + length <= bytes_max
                if not fits and (total or size):
                    enough = True
                    break
                chosen.append(batch.data)
                size += length
                total += length
                each.end = batch.next_offset
            enough = enough or (bool(chosen) and each.is_at_end(reader))
            each.answer = Fetched(
                each.index,
                high_watermark=self._high_watermark(each, reader),
                # Behind a split, the partition begins in another queue.
                log_start_offset=reader.log_start_offset if not each.place else -1,
                batches=chosen,
            )
        return enough or total >= max(1, min_bytes)

    def _high_watermark(self, each: _Wanted, reader: QueueReader) -> int:
        """Returns where a partition ends, as far as is known."""
        assert each.line is not None
        if each.is_open:
            return each.shift + max(reader.high_watermark, each.offset)
        last = self._readers.get(each.line.open.key)
        return each.line.shift + (0 if last is None else max(0, last.high_watermark))

    def _on_split(self, each: _Wanted) -> None:
        """A client is at the end of a queue that was split, and this gateway does not know into
        which ones."""
        assert each.topic is not None
        each.reader = None
        each.answer = Fetched(each.index, ErrorCode.not_leader_or_follower)
        self._topics.renew(each.topic.name)

    def _on_refused(self, each: _Wanted, error: SemelError) -> None:
        each.reader = None
        each.answer = Fetched(each.index, error_code(error))
        if isinstance(error, QueueMoved):
            self._cluster.routes.on_moved(error)
        elif isinstance(error, UnknownTopic | UnknownQueue) and each.topic is not None:
            self._cluster.on_topic_gone(each.topic.name, each.topic.topic_id)

    # ------------------------------------------------------------------------------------ readers

    def _reader(self, key: QueueKey, shift: int) -> QueueReader:
        reader = self._readers.get(key)
        if reader is None:
            reader = self._readers[key] = QueueReader(key, self._polls_of, self._on_held, shift)
        return reader

    def _on_held(self, size: int) -> None:
        """Readers keep `size` bytes more, or with a negative number less."""
        self.held_bytes += size
        most = self._held_bytes_max()
        if size <= 0 or self.held_bytes <= most:
            return
        for reader in sorted(self._readers.values(), key=lambda each: each.used_at):
            reader.forget(math.inf)
            if self.held_bytes <= most // 2:
                return

    def _polls_of(self, queue: QueueRoute) -> GroupPolls:
        home = self._cluster.routes.home(queue)
        polls = self._polls.get(home)
        if polls is None:
            polls = self._polls[home] = GroupPolls(self._cluster, home, self._codec)
        return polls

    def _read_ahead(self, reader: QueueReader, queue: QueueRoute, offset: int) -> None:
        """Fetches what a consumer that is behind asks for next."""
        if not reader.has(offset):
            reader.want(queue, offset)

    async def _sweep(self) -> None:
        """Forgets what nobody reads any more, and the oldest if there is too much."""
        while True:
            await asyncio.sleep(SWEEP_S)
            before = time.monotonic() - HELD_S
            for key, reader in list(self._readers.items()):
                reader.forget(before)
                if not reader.held_bytes and not reader.is_polling and reader.used_at < before:
                    del self._readers[key]


def _by_topic(answers: Sequence[tuple[str, Fetched]]) -> list[tuple[str, list[Fetched]]]:
    """Returns the answers of neighbours together, in their order."""
    return [
        (name, [answer for _, answer in some])
        for name, some in itertools.groupby(answers, key=operator.itemgetter(0))
    ]
