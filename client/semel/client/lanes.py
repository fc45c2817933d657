"""The produce side's wires: one lane a queue, one stream a broker group.

How it works. A *lane* holds the parts that wait for a queue and the queue's send window. A *link*
keeps a produce stream to the master of its group: one task writes what its lanes have to send, in
turn and several batches a message; one reads answers; one pings and listens for silence. Whatever
ends the stream, the link finds the master and every lane sends again what is in doubt.

Invariants
1. Answers are believed only from the stream that is open now.
2. New batches are encoded only while fewer than `max_in_flight_bytes` are in flight on the link.
3. A link without work does not look for a master.

Not here: what answers mean (`core/sequences.py`), fences and outcomes (`producer.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from typing import Any, Final, Protocol

import grpc

from semel.client.cluster import Cluster, translate
from semel.client.config import ProducerConfig
from semel.client.connection import Purpose, telling
from semel.client.core.batching import Outcome, Part
from semel.client.core.encoding import encode_mark, encode_part
from semel.client.core.retry import Backoff, BackoffPolicy
from semel.client.core.routing import Master, QueueRoute
from semel.client.core.sequences import Decision, InFlight, Moved, SendWindow
from semel.protos.errors import InternalError, SemelError, TimedOut, Unavailable, from_detail
from semel.protos.ids import GroupId, QueueKey, Sequence
from semel.protos.streams import PRODUCE_METHOD, encode_ping, encode_produce
from semel.protos.v1 import broker_pb2

logger = logging.getLogger(__name__)

MESSAGE_BYTES: Final = 1 << 20
"""Batches are gathered into one stream message up to about so much."""
LANE_POLICY: Final = BackoffPolicy(initial_ms=20, max_ms=500)
LINK_POLICY: Final = BackoffPolicy(initial_ms=5, max_ms=250)
_STORED: Final = (
    broker_pb2.PRODUCE_STATUS_COMMITTED,
    broker_pb2.PRODUCE_STATUS_DUPLICATE,
)


class LaneOwner(Protocol):
    """What lanes and links need of their producer."""

    config: ProducerConfig

    def settle(self, part: Part, outcome: Outcome) -> None:
        """A part has its outcome."""

    def perform(self, lane: Lane, decisions: list[Decision]) -> None:
        """A window has decided."""

    def on_resent(self, batches: int) -> None:
        """So many batches go out again."""

    def on_room(self) -> None:
        """A lane can take more: a part of it went out, or its stream is open again."""


class Lane:
    """One queue of one producer."""

    def __init__(self, owner: LaneOwner, route: QueueRoute, link: Link) -> None:
        self.route = route
        self.key: QueueKey = route.key
        self.link = link
        self.window: SendWindow | None = None
        """None until the first fence."""
        self.pending: deque[Part] = deque()
        """Parts that have no sequence yet."""
        self.resume = -1
        """Last sequence of the queue when the producer was opened."""
        self.fencing = False
        self.session = 0
        """The newest session that a fence was asked for with."""
        self.backoff = Backoff(LANE_POLICY, random.random)
        self._owner = owner
        self._pause: asyncio.TimerHandle | None = None

    @property
    def free(self) -> bool:
        """A part given to it would go out soon."""
        window = self.window
        return (
            not self.pending
            and not self.fencing
            and (window is None or window.room)
            and self.link.available
        )

    @property
    def holds(self) -> bool:
        """Something waits for it, or for an answer."""
        return bool(self.pending) or (self.window is not None and self.window.in_flight > 0)

    @property
    def last_planned(self) -> int:
        """Last sequence that is assigned or, with source positions, waits to be."""
        for part in reversed(self.pending):
            if part.positions is not None:
                return int(part.positions[-1])
        return self.window.last_assigned if self.window is not None else -1

    def put(self, part: Part) -> None:
        self.pending.append(part)
        self.link.on_ready(self)

    def next_batch(self, may_encode: bool) -> InFlight | None:
        """The batch to transmit now."""
        window = self.window
        if window is None or self._pause is not None or self.fencing:
            return None
        batch = window.next_to_send()
        if batch is not None:
            return batch
        while self.pending and may_encode and window.room:
            part = self.pending.popleft()
            if part.outcome is not None:
                continue
            try:
                new = self._encode(part, window)
            except SemelError as error:
                self._owner.settle(part, Outcome(error=error))
                continue
            if new is None:
                continue
            window.add(new)
            self.link.in_flight_bytes += new.size
            self._owner.on_room()
            return window.next_to_send()
        return None

    def _encode(self, part: Part, window: SendWindow) -> InFlight | None:
        previous = window.last_assigned
        if not part.count:
            assert part.positions is not None
            position = Sequence(int(part.positions[0]))
            if position <= previous:
                self._owner.settle(part, Outcome(duplicate=True))
                return None
            payload = encode_mark(
                part.queue,
                producer_id=window.producer_id,
                epoch=window.epoch,
                session=window.session,
                previous_sequence=previous,
                position=position,
                timestamp_us=part.chunk.created_us,
            )
            base = last = position
        else:
            payload, base, last = encode_part(
                part,
                producer_id=window.producer_id,
                epoch=window.epoch,
                session=window.session,
                previous_sequence=previous,
                codec=self._owner.config.codec,
            )
        return InFlight(
            previous=previous, base=base, last=last, count=part.count, payload=payload, tag=part
        )

    def pause(self, after_ms: int) -> None:
        """Sends everything in flight again after a while."""
        if self._pause is None:
            wait = max(after_ms, self.backoff.next_ms()) / 1000
            self._pause = asyncio.get_running_loop().call_later(wait, self._resume)

    def _resume(self) -> None:
        self._pause = None
        if self.window is not None:
            self._owner.on_resent(self.window.rewind())
            self.link.on_ready(self)

    def on_stream_lost(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self.window is not None:
            self._owner.on_resent(self.window.on_stream_lost())

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None


class Link:
    """The produce stream of one producer to one broker group."""

    def __init__(self, owner: LaneOwner, cluster: Cluster, group_id: GroupId) -> None:
        self.group_id = group_id
        self.in_flight_bytes = 0
        self.last_error: SemelError | None = None
        """Why the stream ended last; None once something was stored on a new one."""
        self._owner = owner
        self._cluster = cluster
        self._lanes: dict[tuple[int, int], Lane] = {}
        self._ready: deque[Lane] = deque()
        self._ready_set: set[Lane] = set()
        self._work = asyncio.Event()
        self._restart = asyncio.Event()
        self._generation = 0
        self._searching = False
        self._searching_since = 0.0
        self._closed = False
        self._heard = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def available(self) -> bool:
        """Not known to be without a master, and not full."""
        return not self._searching and self._may_encode

    @property
    def _may_encode(self) -> bool:
        return self.in_flight_bytes < self._owner.config.max_in_flight_bytes

    def add(self, lane: Lane) -> None:
        self._lanes[lane.key] = lane
        if self._task is None:
            self._task = self._cluster.spawn(self._run(), f"semel-produce-{self.group_id}")

    def has(self, lane: Lane) -> bool:
        """It sends what the lane has."""
        return self._lanes.get(lane.key) is lane

    @property
    def lost_s(self) -> float:
        """How long it has looked for a master, in seconds; 0 while it has one."""
        if not self._searching:
            return 0.0
        return asyncio.get_running_loop().time() - self._searching_since

    def remove(self, lane: Lane) -> None:
        lane.close()
        self._lanes.pop(lane.key, None)
        if lane in self._ready_set:
            self._ready_set.discard(lane)
            self._ready.remove(lane)

    def on_ready(self, lane: Lane) -> None:
        """The lane may have something to send."""
        if lane not in self._ready_set:
            self._ready_set.add(lane)
            self._ready.append(lane)
        self._work.set()

    def on_settled(self, lane: Lane, batch: InFlight) -> None:
        """A batch has left its window: room and credit."""
        full = not self._may_encode
        self.in_flight_bytes -= batch.size
        if full and self._may_encode:
            for each in self._lanes.values():
                if each.pending:
                    self.on_ready(each)
        elif lane.pending:
            self.on_ready(lane)

    def restart(self) -> None:
        """Ends the present stream: its answers are void from now on."""
        self._generation += 1
        self._restart.set()

    def close(self) -> None:
        """Nothing is sent from here on, though its task takes some turns of the loop to end."""
        self._closed = True
        for lane in self._lanes.values():
            lane.close()
        if self._task is not None:
            self._task.cancel()

    # --- the stream -----------------------------------------------------------------------------

    async def _run(self) -> None:
        backoff = Backoff(LINK_POLICY, random.random)
        while True:
            await self._work.wait()
            searching = self._cluster.routes.master(self.group_id) is None
            if searching and not self._searching:
                self._searching_since = asyncio.get_running_loop().time()
            self._searching = searching
            try:
                master = await self._cluster.master(self.group_id)
            except SemelError as error:
                self.last_error = error
                await asyncio.sleep(backoff.next_ms() / 1000)
                continue
            self._generation += 1
            self._restart.clear()
            for lane in self._lanes.values():
                lane.on_stream_lost()
                self.on_ready(lane)
            up_since = asyncio.get_running_loop().time()
            asked = False
            try:
                await self._stream(master.address)
            except* SemelError as group:
                self._on_ended(master, telling(group))
            except* _Restarted:
                asked = True
            except* Exception as group:
                logger.exception("produce stream failed group=%s", self.group_id, exc_info=group)
                self._on_ended(master, InternalError(f"client: {group.exceptions[0]!r}"))
            if asked or asyncio.get_running_loop().time() - up_since > 1.0:
                backoff.reset()
            if asked:
                # What had gone out is owed an answer that nobody will give: it goes out again, on
                # the next stream, also if nothing new comes.
                self._work.set()
                continue
            await asyncio.sleep(backoff.next_ms() / 1000)
            if self.in_flight_bytes <= 0 and not any(lane.pending for lane in self._lanes.values()):
                # Nothing to look for a master for. A lane of a link that searches is given
                # nothing, so whatever waits at the door must be told that this one does not.
                self._work.clear()
                self._searching = False
                self._owner.on_room()
            else:
                # The writer clears it when it has nothing more to write; answers are still owed.
                self._work.set()

    def _on_ended(self, master: Master, error: SemelError) -> None:
        logger.info(
            "produce stream ended group=%s address=%s error=%s",
            self.group_id,
            master.address,
            error.message,
        )
        self.last_error = error
        self._cluster.on_master_error(self.group_id, master, error)

    async def _stream(self, address: str) -> None:
        channel = self._cluster.connections.channel(address, Purpose.PRODUCE)
        call: Any = channel.stream_stream(
            PRODUCE_METHOD,
            request_serializer=None,
            response_deserializer=broker_pb2.ProduceReply.FromString,
        )()
        self._heard = asyncio.get_running_loop().time()
        if self._searching:
            self._searching = False
            self._owner.on_room()
        write_lock = asyncio.Lock()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read(call, address, self._generation))
                tasks.create_task(self._write(call, address, write_lock))
                tasks.create_task(self._watch(call, address, write_lock))
        finally:
            call.cancel()

    async def _read(self, call: Any, address: str, generation: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                reply = await call.read()
                if generation != self._generation:
                    raise _Restarted
                if reply is grpc.aio.EOF:
                    code = await call.code()
                    raise Unavailable(f"{address} ended the produce stream: {code.name}")
                self._heard = loop.time()
                self._on_reply(reply)
        except grpc.RpcError as error:
            raise translate(error, address) from None

    def _on_reply(self, reply: broker_pb2.ProduceReply) -> None:
        for ack in reply.acks:
            lane = self._lanes.get((ack.topic_id, ack.queue_id))
            if lane is None or lane.window is None:
                continue
            window = lane.window
            if ack.producer_id != window.producer_id:
                continue
            if ack.status in _STORED:
                self.last_error = None
                decisions = window.on_stored(
                    ack.base_sequence,
                    ack.last_sequence,
                    ack.base_offset,
                    ack.append_time_us,
                    ack.status == broker_pb2.PRODUCE_STATUS_DUPLICATE,
                )
            else:
                error = from_detail(ack.error)
                self.last_error = error
                decisions = window.on_refused(ack.base_sequence, ack.last_sequence, error)
            for decision in decisions:
                if isinstance(decision, Moved):
                    raise decision.error
            self._owner.perform(lane, decisions)
        if reply.HasField("error"):
            raise from_detail(reply.error)

    async def _write(self, call: Any, address: str, lock: asyncio.Lock) -> None:
        try:
            while True:
                batches = self._gather()
                if batches:
                    message = encode_produce(batches)
                    async with lock:
                        await call.write(message)
                    continue
                self._work.clear()
                await self._work.wait()
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            raise _ended(call, error, address) from None

    def _gather(self) -> list[bytes]:
        batches: list[bytes] = []
        size = 0
        while self._ready and size < MESSAGE_BYTES and not self._closed:
            lane = self._ready.popleft()
            batch = lane.next_batch(self._may_encode)
            if batch is None:
                self._ready_set.discard(lane)
                continue
            self._ready.append(lane)
            batches.append(batch.payload)
            size += len(batch.payload)
        return batches

    async def _watch(self, call: Any, address: str, lock: asyncio.Lock) -> None:
        """Pings while something is in flight, and ends a stream that is silent or to be ended."""
        loop = asyncio.get_running_loop()
        config = self._cluster.config
        interval = config.ping_ms / 1000
        number = 0
        idle = True
        while True:
            before = loop.time()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await self._restart.wait()
                raise _Restarted
            now = loop.time()
            late = now - before > 2 * interval
            if self.in_flight_bytes <= 0 or late or idle:
                # Nothing to wait for, just begun to wait, or this process itself was asleep.
                self._heard = now
                idle = self.in_flight_bytes <= 0
                if idle:
                    continue
            silent = now - self._heard
            if silent * 1000 >= config.silence_ms:
                raise TimedOut(f"{address} was silent for {silent * 1000:.0f} ms")
            if not lock.locked():
                number += 1
                try:
                    async with lock, asyncio.timeout(interval):
                        await call.write(encode_ping(number))
                except TimeoutError:
                    raise TimedOut(f"{address} does not take data") from None
                except (grpc.RpcError, asyncio.InvalidStateError) as error:
                    raise _ended(call, error, address) from None


class _Restarted(Exception):
    """The stream was ended on purpose."""


def _ended(call: Any, error: BaseException, address: str) -> SemelError:
    if isinstance(error, grpc.RpcError):
        return translate(error, address)
    return Unavailable(f"{address} ended the produce stream")
