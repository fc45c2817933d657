"""Idempotent Kafka producers at the brokers: their lanes, their links, their fences.

How it works. A *lane* is one producer's way to one queue: its window (`kafka_window.py`), which a
fence opens, and what waits for that. All lanes of a broker group share a *link* on the client's
stream to its master. A lane whose producer is silent for `LANE_IDLE_S` is forgotten; the next batch
opens it anew, since the fence tells all that it needs.

Fences. All gateways fence a producer under the same incarnation, (id, epoch, session 1). Such a
fence is no more than a question where the row is there already, so changing the gateway fences
nobody. A higher epoch of the same producer fences the lower one, as it should.

What is forgotten. A queue that has no row of a producer, and may have had one, refuses the fence:
the producer is unknown there (UNKNOWN_PRODUCER_ID). librdkafka then gets a new id. Java's client
keeps its id, raises its epoch and begins at 0 again: so the fence for such a batch says that the
client knows what is forgotten. A batch that is not the first of its epoch, where the table has
nothing of this epoch, is unknown as well: what came before it may be forgotten, so that it cannot
be told apart from a gap.

Splits. A queue that was split refuses what it has not stored, for ever. The client hears
NOT_LEADER_OR_FOLLOWER and sends the batch again, and by then its partition goes on in another
queue. There the producer's row begins with what the parent has, so a batch that was stored is a
duplicate.

Invariants
1. A batch is sent only after a fence of its incarnation was applied at its queue.
2. Every batch that is put is told its outcome once.

Not here: what answers mean (`kafka_window.py`), requests (`produce.py`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from semel.client.core.retry import Backoff, BackoffPolicy
from semel.client.core.routing import QueueRoute
from semel.client.core.sequences import (
    Decision,
    Elsewhere,
    Failed,
    Fence,
    InFlight,
    Moved,
    Retry,
    Settled,
)
from semel.client.producer.identity import Identity
from semel.client.transport.cluster import Cluster
from semel.client.transport.produce_stream import SentAs, Wire
from semel.gateway.partitions import PartitionLine
from semel.gateway.producing.kafka_numbers import (
    FIRST_EPOCH,
    Numbers,
    first_sequence,
    kafka_epoch,
)
from semel.gateway.producing.kafka_window import SESSION, KafkaWindow
from semel.protos.batch import HEADER_BYTES, decode_header
from semel.protos.errors import (
    DedupStateExpired,
    QueueSealed,
    SemelError,
    SequenceConflict,
    TimedOut,
)
from semel.protos.ids import GroupId, ProducerId, QueueKey, Sequence, TopicId
from semel.protos.levels import lacking

logger = logging.getLogger(__name__)

LANE_IDLE_S: Final = 600.0
GIVE_UP_S: Final = 120.0
"""Seconds after which a batch that cannot be stored is given up; clients send it again."""
SWEEP_S: Final = 5.0
FENCE_TIMEOUT_S: Final = 30.0
WAITING_MAX: Final = 64
"""Batches that wait for the first fence of a lane: more than clients have under way."""
LANE_POLICY: Final = BackoffPolicy(initial_ms=20, max_ms=500)
MOVED_PAUSE_MS: Final = 20


class ProducerKey(NamedTuple):
    """A producer at one queue."""

    queue: QueueKey
    producer_id: int
    epoch: int
    """The table's."""


class BatchOutcome(NamedTuple):
    """What became of a batch."""

    base_offset: int = -1
    """-1 if it is not known, or the batch is delayed."""
    error: SemelError | None = None


OnOutcome = Callable[[BatchOutcome], None]


class NumberedBatch:
    """A batch of a client, on its way to one queue."""

    __slots__ = ("base_sequence", "count", "encode", "level", "put_at", "tell")

    def __init__(
        self,
        *,
        base_sequence: int,
        count: int,
        encode: Callable[[ProducerId, int, int, Numbers], bytes],
        level: int,
        tell: OnOutcome,
    ) -> None:
        self.base_sequence = base_sequence
        """The client's."""
        self.count = count
        self.encode = encode
        """Returns the batch under a producer id, an epoch, a session and its sequences. Raises
        SemelError."""
        self.level = level
        """The feature level that the broker group needs."""
        self.tell = [tell]
        """Called once each."""
        self.put_at = time.monotonic()

    def finish(self, outcome: BatchOutcome) -> None:
        tell, self.tell = self.tell, []
        for each in tell:
            each(outcome)


class KafkaLane:
    """One producer's way to one queue."""

    def __init__(
        self, owner: KafkaProducers, key: ProducerKey, route: QueueRoute, generation: int
    ) -> None:
        """`generation` is the partition's."""
        self.producer = key
        self.key = key.queue
        self.route = route
        self.generation = generation
        self.window: KafkaWindow | None = None
        """None until the first fence."""
        self.sent_as: SentAs | None = None
        """Set by the wire."""
        self.waiting: deque[NumberedBatch] = deque()
        """Batches without sequences."""
        self.fencing = False
        self.used_at = time.monotonic()
        self.backoff = Backoff(LANE_POLICY, random.random)
        self.link = owner.link(route.group_id)
        self._owner = owner
        self._pause: asyncio.TimerHandle | None = None

    @property
    def pending(self) -> deque[NumberedBatch]:
        """Batches that have no sequence yet."""
        return self.waiting

    @property
    def begins_anew(self) -> bool:
        """It opens with the first batch of a raised epoch: a client raises it when it has lost
        count, so it knows that what it stored may be forgotten."""
        opens = self.window is None and self.producer.epoch > FIRST_EPOCH and bool(self.waiting)
        return opens and not self.waiting[0].base_sequence

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self.fencing and not (self.window and self.window.in_flight)

    def next_batch(self) -> InFlight | None:
        """Returns the batch to transmit now, or None."""
        window = self.window
        if window is None or self._pause is not None or self.fencing:
            return None
        while (batch := window.next_to_send()) is not None:
            tag = batch.tag
            assert isinstance(tag, NumberedBatch)
            if self.link.wire.level >= tag.level:
                return batch
            where = f"broker group {self.link.group_id}"
            error = lacking(tag.level, self.link.wire.level, where)
            self._owner.perform(self, window.on_refused(batch.base, batch.last, error))
        return None

    def on_answer(self, error: SemelError | None, decisions: list[Decision]) -> None:
        """The window has decided about an answer to one of the lane's batches."""
        self._owner.perform(self, decisions)

    def refuse(self, error: SemelError) -> None:
        """Nothing can be sent to the queue's group: what has no sequence yet fails."""
        while self.waiting:
            self.waiting.popleft().finish(BatchOutcome(error=error))

    def pause(self, after_ms: int) -> None:
        """Sends everything that is not decided again, after at least `after_ms`."""
        if self._pause is None:
            wait = max(after_ms, self.backoff.next_ms()) / 1000
            self._pause = asyncio.get_running_loop().call_later(wait, self._resume)

    def _resume(self) -> None:
        self._pause = None
        if self.window is not None:
            self.window.rewind()
            self.link.wire.on_ready(self)

    def on_stream_lost(self) -> None:
        self.close()
        if self.window is not None:
            self.window.on_stream_lost()

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None


class KafkaLink:
    """The lanes at one broker group, and the bytes that they have in flight."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.in_flight_bytes = 0
        self.throttled_ms = 0
        """Milliseconds for which batches have waited for a quota."""
        self._lanes: dict[ProducerKey, KafkaLane] = {}
        wire.attach(self)

    @property
    def group_id(self) -> GroupId:
        return self.wire.group_id

    @property
    def lanes(self) -> Iterable[KafkaLane]:
        return self._lanes.values()

    def add(self, lane: KafkaLane) -> None:
        self._lanes[lane.producer] = lane

    def remove(self, lane: KafkaLane) -> None:
        self._lanes.pop(lane.producer, None)
        self.wire.forget(lane)

    def count(self, size: int) -> None:
        """Adds `size` bytes, which may be negative, to those in flight."""
        self.in_flight_bytes += size
        self.wire.in_flight_bytes += size

    def on_throttled(self, throttled_ms: int) -> None:
        self.throttled_ms += throttled_ms

    def on_room(self) -> None:
        """A stream is open, or nobody waits for one any more."""


class KafkaProducers:
    """The idempotent producers of one gateway. Lives on the client's I/O thread."""

    def __init__(self, cluster: Cluster, on_sealed: Callable[[TopicId, QueueSealed], None]) -> None:
        """`on_sealed` is told of a queue that was split."""
        self.duplicates = 0
        """Batches that were stored before."""
        self.stored = 0
        """Batches that were stored."""
        self._cluster = cluster
        self._on_sealed = on_sealed
        self._lanes: dict[ProducerKey, KafkaLane] = {}
        self._links: dict[GroupId, KafkaLink] = {}
        self._to_fence: list[KafkaLane] = []

    def start(self) -> None:
        self._cluster.spawn(self._sweep(), "semel-kafka-lanes")

    @property
    def lane_count(self) -> int:
        return len(self._lanes)

    @property
    def throttled_ms(self) -> int:
        """Milliseconds for which batches have waited for a quota, at all groups together."""
        return sum(link.throttled_ms for link in self._links.values())

    def link(self, group_id: GroupId) -> KafkaLink:
        link = self._links.get(group_id)
        if link is None:
            link = self._links[group_id] = KafkaLink(self._cluster.wires.to(group_id))
        return link

    def put(self, line: PartitionLine, producer_id: int, epoch: int, batch: NumberedBatch) -> None:
        """Sends a batch to a partition; its `tell` is called with the outcome, maybe at once.
        `epoch` is the table's."""
        key = ProducerKey(line.open.key, producer_id, epoch)
        lane = self._lanes.get(key)
        if lane is None:
            lane = KafkaLane(self, key, line.open, line.generation)
            self._add(lane)
        self._put_in(lane, batch)

    def _add(self, lane: KafkaLane) -> None:
        self._lanes[lane.producer] = lane
        lane.link.add(lane)

    def _put_in(self, lane: KafkaLane, batch: NumberedBatch) -> None:
        lane.used_at = time.monotonic()
        if lane.window is None:
            if len(lane.waiting) >= WAITING_MAX:
                batch.finish(BatchOutcome(error=TimedOut("too many batches wait for the queue")))
                return
            lane.waiting.append(batch)
            self._fence_soon(lane)
            return
        self._number(lane, lane.window, batch)

    def _number(self, lane: KafkaLane, window: KafkaWindow, batch: NumberedBatch) -> None:
        try:
            numbers = window.numbers(batch.base_sequence, batch.count)
            payload = batch.encode(window.producer_id, window.epoch, window.session, numbers)
        except SemelError as error:
            batch.finish(BatchOutcome(error=error))
            return
        known = window.find(numbers)
        if known is not None:
            _join(known, payload, batch)
            return
        one = InFlight(
            previous=Sequence(numbers.previous),
            base=Sequence(numbers.base),
            last=Sequence(numbers.last),
            count=batch.count,
            payload=payload,
            tag=batch,
        )
        window.add(batch.base_sequence, one)
        lane.link.count(one.size)
        lane.link.wire.on_ready(lane)

    def perform(self, lane: KafkaLane, decisions: list[Decision]) -> None:
        """Carries out the decisions of a window."""
        for decision in decisions:
            match decision:
                case Settled(batch=batch):
                    lane.backoff.reset()
                    lane.link.count(-batch.size)
                    self.stored += not decision.duplicate
                    self.duplicates += decision.duplicate
                    _finish(batch, BatchOutcome(decision.base_offset))
                case Failed(batch=batch):
                    lane.link.count(-batch.size)
                    if isinstance(decision.error, QueueSealed):
                        self._on_sealed(lane.key.topic_id, decision.error)
                    _finish(batch, BatchOutcome(error=decision.error))
                    if isinstance(decision.error, DedupStateExpired):
                        self._end(lane, decision.error)
                case Retry():
                    lane.pause(decision.after_ms)
                case Fence():
                    self._fence_soon(lane)
                case Elsewhere():
                    self._cluster.routes.on_moved(decision.error)
                    if not self._follow(lane):
                        lane.pause(MOVED_PAUSE_MS)
                case Moved():
                    raise decision.error
                case _:
                    raise AssertionError(f"{decision} is none of this window's")

    # ------------------------------------------------------------------------------------- fences

    def _fence_soon(self, lane: KafkaLane) -> None:
        """Fences a lane; all of one producer in one turn of the loop share requests."""
        if lane.fencing:
            return
        lane.fencing = True
        if not self._to_fence:
            asyncio.get_running_loop().call_soon(self._start_fences)
        self._to_fence.append(lane)

    def _start_fences(self) -> None:
        lanes, self._to_fence = self._to_fence, []
        together: dict[tuple[GroupId, int, int, bool], list[KafkaLane]] = {}
        for lane in lanes:
            home = self._cluster.routes.home(lane.route)
            _, producer_id, epoch = lane.producer
            together.setdefault((home, producer_id, epoch, lane.begins_anew), []).append(lane)
        for some in together.values():
            self._cluster.spawn(self._fence(some), "semel-kafka-fence")

    async def _fence(self, lanes: list[KafkaLane]) -> None:
        _, producer_id, epoch = lanes[0].producer
        identity = Identity.given(self._cluster, "", ProducerId(producer_id), epoch)
        try:
            rows = await identity.fence(
                [lane.route for lane in lanes],
                SESSION,
                FENCE_TIMEOUT_S,
                after_expiry=lanes[0].begins_anew,
            )
        except SemelError as error:
            if len(lanes) > 1:  # one queue refuses, and the others must not suffer
                for lane in lanes:
                    await self._fence([lane])
                return
            lanes[0].fencing = False
            if isinstance(error, QueueSealed):
                self._on_sealed(lanes[0].key.topic_id, error)
            self._end(lanes[0], error)
            return
        for lane, row in zip(lanes, rows, strict=True):
            lane.fencing = False
            if self._lanes.get(lane.producer) is lane:
                self._on_fenced(lane, row.last_sequence)

    def _on_fenced(self, lane: KafkaLane, last_sequence: int) -> None:
        self._follow(lane)
        if lane.window is not None:
            self.perform(lane, lane.window.on_fenced(last_sequence))
            lane.link.wire.on_ready(lane)
            return
        producer = lane.producer
        first = first_sequence(kafka_epoch(producer.epoch), lane.generation)
        if last_sequence < first and lane.waiting and lane.waiting[0].base_sequence:
            self._end(
                lane,
                DedupStateExpired(
                    f"queue {lane.key.queue_id} knows nothing of producer {producer.producer_id},"
                    f" which is at sequence {lane.waiting[0].base_sequence}"
                ),
            )
            return
        lane.window = KafkaWindow(
            producer_id=producer.producer_id,
            epoch=producer.epoch,
            last_sequence=last_sequence,
            generation=lane.generation,
        )
        while lane.waiting:
            self._number(lane, lane.window, lane.waiting.popleft())

    def _follow(self, lane: KafkaLane) -> bool:
        """Directs a lane to the group that has the queue now; returns False if it sends there
        already."""
        home = self._cluster.routes.home(lane.route)
        if home == lane.link.group_id:
            return False
        size = 0 if lane.window is None else lane.window.in_flight_bytes
        lane.link.remove(lane)
        lane.link.count(-size)
        lane.route = replace(lane.route, group_id=home)
        lane.link = self.link(home)
        lane.link.count(size)
        lane.on_stream_lost()
        lane.link.add(lane)
        lane.link.wire.on_ready(lane)
        return True

    def _end(self, lane: KafkaLane, error: SemelError) -> None:
        """Fails everything of a lane and forgets it; the next batch opens it anew."""
        self._forget(lane)
        lane.refuse(error)
        if lane.window is not None:
            for failed in lane.window.end(error):
                lane.link.count(-failed.batch.size)
                _finish(failed.batch, BatchOutcome(error=error))

    def _forget(self, lane: KafkaLane) -> None:
        lane.close()
        if self._lanes.get(lane.producer) is lane:
            del self._lanes[lane.producer]
        lane.link.remove(lane)

    async def _sweep(self) -> None:
        """Forgets idle lanes, and gives up what cannot be stored."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now = time.monotonic()
            for lane in list(self._lanes.values()):
                if lane.is_idle:
                    if now - lane.used_at > LANE_IDLE_S:
                        self._end(lane, TimedOut("idle"))
                elif now - _oldest(lane) > GIVE_UP_S:
                    error = TimedOut(f"not stored within {GIVE_UP_S:g} s")
                    self._end(lane, error)


def _oldest(lane: KafkaLane) -> float:
    """Returns when the oldest batch of a lane came."""
    window = () if lane.window is None else lane.window.batches()
    tags = [batch.tag for batch in window]
    every = [*(tag for tag in tags if isinstance(tag, NumberedBatch)), *lane.waiting]
    return min((batch.put_at for batch in every), default=time.monotonic())


def _finish(batch: InFlight, outcome: BatchOutcome) -> None:
    assert isinstance(batch.tag, NumberedBatch)
    batch.tag.finish(outcome)


def _join(known: InFlight, payload: bytes, batch: NumberedBatch) -> None:
    """A client has sent a batch again that is under way: it gets the same answer."""
    assert isinstance(known.tag, NumberedBatch)
    ours = decode_header(payload[:HEADER_BYTES])
    theirs = decode_header(known.payload[:HEADER_BYTES])
    if (ours.count, ours.content_crc) == (theirs.count, theirs.content_crc):
        known.tag.tell += batch.tell
        return
    error = SequenceConflict(f"another batch with sequence {batch.base_sequence} is under way")
    batch.finish(BatchOutcome(error=error))
