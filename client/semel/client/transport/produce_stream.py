"""One produce stream per broker group, shared by all producers of a client.

How it works. A *wire* keeps a stream to the master of its group. One task writes the batches of all
producers' lanes, lane by lane and several batches per message. One task reads answers. One task
pings and listens for silence. Whenever the stream ends, the wire finds the master, and every lane
sends its batches in doubt again. Sharing the stream makes a thousand producers as cheap as one:
messages are fewer and larger, and there is one stream at either end.

Invariants
1. An answer counts only if it comes from the stream that is open now, and only for the lane that
   has sent under the identity (producer, epoch and session, queue) that the answer names. What was
   sent under an older session is void, and two incarnations of one producer get their own answers.
2. A wire without work does not search for a master.
3. The stream stays open when the last producer is closed; the next one finds it.
4. The group's feature level is the same as long as a stream is open: the broker ends the streams
   when it rises.

Not here: windows and credit (`producer/lanes.py`), what answers mean (`core/sequences.py`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Collection, Coroutine, Iterable, Iterator
from typing import Any, Final, Protocol, TypeAlias

from semel.client.config import ClientConfig
from semel.client.core.dropped_rows import read_table
from semel.client.core.due_in_second import DueInSecond
from semel.client.core.retry import Backoff, BackoffPolicy
from semel.client.core.routing import Master, RouteTable
from semel.client.core.sequences import Decision, InFlight, Moved
from semel.client.transport.connection import Purpose, telling
from semel.client.transport.streams import PATIENCE_MAX, Stream, Streams
from semel.protos import compat
from semel.protos.errors import (
    InternalError,
    SemelError,
    TimedOut,
    UnsupportedVersion,
    from_detail,
)
from semel.protos.ids import GroupId, ProducerId, QueueKey
from semel.protos.streams import encode_ping, encode_produce
from semel.protos.v1 import broker_pb2

logger = logging.getLogger(__name__)

MESSAGE_BYTES: Final = 1 << 20
"""Bytes of batches after which a stream message is full."""
WIRE_POLICY: Final = BackoffPolicy(initial_ms=5, max_ms=250)
_STORED: Final = (
    broker_pb2.PRODUCE_STATUS_COMMITTED,
    broker_pb2.PRODUCE_STATUS_DUPLICATE,
)

SentAs: TypeAlias = tuple[int, int, int, int, int]
"""Topic, queue, producer, epoch, session: the identity that an answer names."""


class Masters(Protocol):
    """The part of a client's view of the cluster that a wire uses."""

    config: ClientConfig
    routes: RouteTable
    streams: Streams

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Starts a task that ends at the latest with the client."""

    async def master(self, group_id: GroupId) -> Master:
        """Waits until the group has a master. Raises SemelError."""

    def on_master_error(self, group_id: GroupId, master: Master, error: SemelError) -> None:
        """A stream to `master` ended with `error`."""


class WireWindow(Protocol):
    """The part of a send window that a wire uses. `SendWindow` says what the calls mean."""

    producer_id: ProducerId
    epoch: int
    session: int

    def on_stored(
        self,
        base: int,
        last: int,
        base_offset: int,
        append_time_us: int,
        duplicate: bool,
        dropped: Any = None,
        due_in_second: DueInSecond | None = None,
    ) -> list[Decision]:
        """Handles the answer COMMITTED or DUPLICATE."""

    def on_refused(self, base: int, last: int, error: SemelError) -> list[Decision]:
        """Handles the answer FAILED with `error`."""


class WireLane(Protocol):
    """The part of a producer's lane that a wire uses: one queue of one producer."""

    key: QueueKey
    sent_as: SentAs | None
    """The wire sets it: the identity that the lane's last batch names."""

    @property
    def window(self) -> WireWindow | None:
        """None until the first fence."""

    @property
    def pending(self) -> Collection[object]:
        """Parts that have no sequence yet."""

    def next_batch(self) -> InFlight | None:
        """Returns the batch to transmit now, or None."""

    def on_answer(self, error: SemelError | None, decisions: list[Decision]) -> None:
        """The window has decided about an answer to one of the lane's batches."""

    def on_stream_lost(self) -> None:
        """Everything in flight goes out again."""

    def refuse(self, error: SemelError) -> None:
        """Nothing can be sent to the queue's group."""


class WireLink(Protocol):
    """The part of a producer's link that a wire uses."""

    @property
    def lanes(self) -> Iterable[WireLane]:
        """The producer's queues in the wire's group."""

    @property
    def in_flight_bytes(self) -> int:
        """Unanswered bytes of the producer."""

    def on_throttled(self, throttled_ms: int) -> None:
        """The batches in flight have waited for a quota, for so much longer."""

    def on_room(self) -> None:
        """A stream is open, or nobody waits for one any more."""


class Wires:
    """The wires of one client."""

    def __init__(self, cluster: Masters) -> None:
        self._cluster = cluster
        self._wires: dict[GroupId, Wire] = {}

    def to(self, group_id: GroupId) -> Wire:
        """Returns the wire to a group, made now if missing."""
        wire = self._wires.get(group_id)
        if wire is None:
            wire = self._wires[group_id] = Wire(self._cluster, group_id)
        return wire


class Wire:
    """The produce stream of a client to one broker group."""

    def __init__(self, cluster: Masters, group_id: GroupId) -> None:
        self.group_id = group_id
        self.in_flight_bytes = 0
        """The sum over all links."""
        self.searching = False
        """The group is known to be without a master."""
        self.last_error: SemelError | None = None
        """The error that ended the last stream; None once a batch was stored on a new one."""
        self.level = 0
        """The feature level up to which the open stream may be used, as its broker told."""
        self._cluster = cluster
        self._links: dict[WireLink, None] = {}
        self._sent: dict[SentAs, WireLane] = {}
        """Lanes that have sent, by the identity that their batches name."""
        self._ready: deque[WireLane] = deque()
        self._ready_set: set[WireLane] = set()
        self._work = asyncio.Event()
        self._searching_since = 0.0
        self._heard = 0.0
        self._patience = 1
        """How many times `silence_ms` a broker may be silent. It grows while streams end without an
        answer: a broker that very many clients have come to at once needs longer for all."""
        self._task: asyncio.Task[None] | None = None

    @property
    def lost_s(self) -> float:
        """Seconds for which it has searched for a master; 0 while it has one."""
        if not self.searching:
            return 0.0
        return asyncio.get_running_loop().time() - self._searching_since

    def attach(self, link: WireLink) -> None:
        """A link may have something to send from now on."""
        self._links[link] = None
        if self._task is None:
            self._task = self._cluster.spawn(self._run(), f"semel-produce-{self.group_id}")

    def detach(self, link: WireLink) -> None:
        self._links.pop(link, None)

    def forget(self, lane: WireLane) -> None:
        """Sends nothing of the lane any more, and gives it no answers."""
        if lane in self._ready_set:
            self._ready_set.discard(lane)
            self._ready.remove(lane)
        self._disown(lane)

    def on_ready(self, lane: WireLane) -> None:
        """The lane may have something to send."""
        if lane not in self._ready_set:
            self._ready_set.add(lane)
            self._ready.append(lane)
        self._work.set()

    # --- the stream -----------------------------------------------------------------------------

    async def _run(self) -> None:
        backoff = Backoff(WIRE_POLICY, random.random)
        while True:
            await self._work.wait()
            searching = self._cluster.routes.master(self.group_id) is None
            if searching and not self.searching:
                self._searching_since = asyncio.get_running_loop().time()
            self.searching = searching
            try:
                master = await self._cluster.master(self.group_id)
            except SemelError as error:
                self._on_no_stream(error)
                await self._rest(backoff)
                continue
            for lane in list(self._lanes()):
                lane.on_stream_lost()
                self.on_ready(lane)
            up_since = asyncio.get_running_loop().time()
            try:
                await self._stream(master.address)
            except* SemelError as group:
                self._on_ended(master, telling(group))
            except* Exception as group:
                logger.exception("produce stream failed group=%s", self.group_id, exc_info=group)
                self._on_ended(master, InternalError(f"client: {group.exceptions[0]!r}"))
            if asyncio.get_running_loop().time() - up_since > 1.0:
                backoff.reset()
            await self._rest(backoff)

    async def _rest(self, backoff: Backoff) -> None:
        """Pauses after the end of a stream, or after a search without success."""
        await asyncio.sleep(backoff.next_ms() / 1000)
        if self.in_flight_bytes <= 0 and not any(lane.pending for lane in self._lanes()):
            # No lane needs a master. A lane of a wire that searches is given
            # nothing, so chunks in the intake must learn that this wire no longer searches.
            self._work.clear()
            self.searching = False
            self._tell_room()
        else:
            # The writer clears it when it has nothing more to write; answers are still owed.
            self._work.set()

    def _lanes(self) -> Iterator[WireLane]:
        return (lane for link in self._links for lane in link.lanes)

    def _tell_room(self) -> None:
        for link in list(self._links):
            link.on_room()

    def _on_ended(self, master: Master, error: SemelError) -> None:
        logger.info(
            "produce stream ended group=%s address=%s error=%s",
            self.group_id,
            master.address,
            error.message,
        )
        self._cluster.on_master_error(self.group_id, master, error)
        self._on_no_stream(error)

    def _on_no_stream(self, error: SemelError) -> None:
        self.last_error = error
        if isinstance(error, UnsupportedVersion):
            # Waiting does not help. Batches sent before, to another master, stay in doubt.
            for lane in list(self._lanes()):
                lane.refuse(error)
            self.searching = False
            self._tell_room()

    async def _stream(self, address: str) -> None:
        stream = await self._cluster.streams.open(address, Purpose.PRODUCE)
        self._heard = asyncio.get_running_loop().time()
        self.level = stream.level
        if self.searching:
            self.searching = False
            self._tell_room()
        write_lock = asyncio.Lock()
        try:
            async with compat.TaskGroup() as tasks:
                tasks.create_task(self._read(stream))
                tasks.create_task(self._write(stream, write_lock))
                tasks.create_task(self._watch(stream, address, write_lock))
        finally:
            stream.close()

    async def _read(self, stream: Stream) -> None:
        loop = asyncio.get_running_loop()
        while True:
            message = await stream.read()
            self._heard = loop.time()
            self._patience = 1
            self._on_reply(broker_pb2.ProduceReply.FromString(bytes(message)))

    def _on_reply(self, reply: broker_pb2.ProduceReply) -> None:
        if reply.throttled_ms:
            for link in self._links:
                if link.in_flight_bytes:
                    link.on_throttled(reply.throttled_ms)
        for ack in reply.acks:
            lane = self._sent.get(
                (ack.topic_id, ack.queue_id, ack.producer_id, ack.epoch, ack.session)
            )
            window = None if lane is None else lane.window
            if lane is None or window is None:
                continue
            if ack.status in _STORED:
                self.last_error = refusal = None
                decisions = window.on_stored(
                    ack.base_sequence,
                    ack.last_sequence,
                    ack.base_offset,
                    ack.append_time_us,
                    ack.status == broker_pb2.PRODUCE_STATUS_DUPLICATE,
                    read_table(ack.dropped) if ack.dropped else None,
                    DueInSecond.of(ack),
                )
            else:
                refusal = from_detail(ack.error)
                decisions = window.on_refused(ack.base_sequence, ack.last_sequence, refusal)
            for decision in decisions:
                if isinstance(decision, Moved):
                    raise decision.error
            lane.on_answer(refusal, decisions)
        if reply.HasField("error"):
            raise from_detail(reply.error)

    async def _write(self, stream: Stream, lock: asyncio.Lock) -> None:
        while True:
            batches = self._gather()
            if batches:
                message = encode_produce(batches)
                async with lock:
                    await stream.write(message)
                continue
            self._work.clear()
            await self._work.wait()

    def _gather(self) -> list[bytes]:
        batches: list[bytes] = []
        size = 0
        while self._ready and size < MESSAGE_BYTES:
            lane = self._ready.popleft()
            self._ready_set.discard(lane)
            # A batch that cannot be encoded may end its producer, which removes its lanes here.
            batch = lane.next_batch()
            if batch is None:
                continue
            self._ready_set.add(lane)
            self._ready.append(lane)
            self._note(lane)
            batches.append(batch.payload)
            size += len(batch.payload)
        return batches

    def _note(self, lane: WireLane) -> None:
        """Directs answers to the lane's latest batch to the lane."""
        window = lane.window
        assert window is not None
        sent_as = (*lane.key, window.producer_id, window.epoch, window.session)
        if sent_as != lane.sent_as:
            self._disown(lane)
            lane.sent_as = sent_as
        self._sent[sent_as] = lane

    def _disown(self, lane: WireLane) -> None:
        """Drops answers to everything that the lane has sent so far."""
        if lane.sent_as is not None and self._sent.get(lane.sent_as) is lane:
            del self._sent[lane.sent_as]
        lane.sent_as = None

    async def _watch(self, stream: Stream, address: str, lock: asyncio.Lock) -> None:
        """Pings while something is in flight, and ends a stream that is silent."""
        loop = asyncio.get_running_loop()
        config = self._cluster.config
        interval = config.ping_ms / 1000
        number = 0
        idle = True
        while True:
            before = loop.time()
            await asyncio.sleep(interval)
            now = loop.time()
            late = now - before > 2 * interval
            if self.in_flight_bytes <= 0 or late or idle:
                # Nothing to wait for, just begun to wait, or this process itself was asleep.
                self._heard = now
                idle = self.in_flight_bytes <= 0
                if idle:
                    continue
            silent = now - self._heard
            if silent * 1000 >= config.silence_ms * self._patience:
                self._patience = min(2 * self._patience, PATIENCE_MAX)
                raise TimedOut(f"{address} was silent for {silent * 1000:.0f} ms")
            if not lock.locked():
                number += 1
                try:
                    async with lock, compat.timeout(interval):
                        await stream.write(encode_ping(number))
                except TimeoutError:
                    raise TimedOut(f"{address} does not take data") from None
