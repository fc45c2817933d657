"""The lanes and links of one producer: one lane per queue, one link per broker group.

How it works. A *lane* holds the parts that wait for a queue, and the queue's send window. A *link*
counts the bytes that its lanes have in flight, and puts lanes with something to send on the *wire*,
the stream to the group's master that all producers of a client share.

Invariants
1. New batches are encoded only while fewer than `max_in_flight_bytes` are in flight on the link.
2. `Wire.in_flight_bytes` is the sum over its open links.

Not here: streams (`transport/produce_stream.py`), what answers mean (`core/sequences.py`), fences
and outcomes (`producer/producer.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Final, Protocol

from semel.client.config import ProducerConfig
from semel.client.core.batching import Outcome, Part
from semel.client.core.encoding import encode_mark, encode_part, level_of
from semel.client.core.retry import Backoff, BackoffPolicy
from semel.client.core.routing import QueueRoute
from semel.client.core.sequences import Decision, InFlight, SendWindow
from semel.client.transport.produce_stream import SentAs, Wire
from semel.protos.errors import SemelError
from semel.protos.ids import GroupId, QueueKey, Sequence
from semel.protos.levels import lacking

LANE_POLICY: Final = BackoffPolicy(initial_ms=20, max_ms=500)


class LaneOwner(Protocol):
    """The part of a producer that lanes and links use."""

    config: ProducerConfig

    def settle(self, part: Part, outcome: Outcome) -> None:
        """Gives a part its outcome."""

    def perform(self, lane: Lane, decisions: list[Decision]) -> None:
        """Carries out what a window decided."""

    def on_resent(self, batches: int) -> None:
        """Counts batches that go out again."""

    def on_throttled(self, throttled_ms: int) -> None:
        """Batches have waited for a quota, for so much longer."""

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
        self.sent_as: SentAs | None = None
        """Set by the wire: the identity that the lane's last batch names."""
        self._owner = owner
        self._pause: asyncio.TimerHandle | None = None

    @property
    def free(self) -> bool:
        """A part that is put here would go out soon."""
        window = self.window
        return (
            not self.pending
            and not self.fencing
            and (window is None or window.room)
            and self.link.available
        )

    @property
    def last_planned(self) -> int:
        """The last sequence that is assigned or, with source positions, waits to be assigned."""
        for part in reversed(self.pending):
            if part.positions is not None:
                return int(part.positions[-1])
        return self.window.last_assigned if self.window is not None else -1

    def put(self, part: Part) -> None:
        while self.pending and self.pending[0].outcome is not None:
            self.pending.popleft()  # failed with TimedOut before it could go out
        self.pending.append(part)
        self.link.on_ready(self)

    def next_batch(self) -> InFlight | None:
        """Returns the batch to transmit now, or None."""
        window = self.window
        if window is None or self._pause is not None or self.fencing:
            return None
        batch = window.next_to_send()
        if batch is not None:
            return batch
        while self.pending and window.room and self.link.may_encode:
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
            self.link.count(new.size)
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
            needed = level_of(part)
            if self.link.wire.level < needed:
                where = f"broker group {self.link.group_id}"
                raise lacking(needed, self.link.wire.level, where)
            payload, base, last = encode_part(
                part,
                level=self.link.wire.level,
                producer_id=window.producer_id,
                epoch=window.epoch,
                session=window.session,
                previous_sequence=previous,
                codec=self._owner.config.codec,
            )
        return InFlight(
            previous=previous, base=base, last=last, count=part.count, payload=payload, tag=part
        )

    def on_answer(self, error: SemelError | None, decisions: list[Decision]) -> None:
        """The window has decided about an answer to one of the lane's batches."""
        self.link.on_answer(self, error, decisions)

    def refuse(self, error: SemelError) -> None:
        """Nothing can be sent to the queue's group: what has no sequence yet fails."""
        while self.pending:
            self._owner.settle(self.pending.popleft(), Outcome(error=error))

    def pause(self, after_ms: int) -> None:
        """Sends everything in flight again, after at least `after_ms`."""
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
    """One producer's lanes at one broker group, and the bytes they have in flight."""

    def __init__(self, owner: LaneOwner, wire: Wire) -> None:
        self.wire = wire
        self.in_flight_bytes = 0
        self._owner = owner
        self._lanes: dict[QueueKey, Lane] = {}
        self._refusal: SemelError | None = None
        """Why a batch was refused last; None once one was stored."""
        self._closed = False

    @property
    def group_id(self) -> GroupId:
        return self.wire.group_id

    @property
    def available(self) -> bool:
        """The group is not known to be without a master, and the link is not full."""
        return not self.wire.searching and self.may_encode

    @property
    def may_encode(self) -> bool:
        """New batches may be encoded."""
        return self.in_flight_bytes < self._owner.config.max_in_flight_bytes

    @property
    def last_error(self) -> SemelError | None:
        """Why something was refused, or the stream ended; None once something was stored."""
        return self._refusal or self.wire.last_error

    @property
    def lanes(self) -> list[Lane]:
        """All lanes that were added."""
        return list(self._lanes.values())

    def add(self, lane: Lane) -> None:
        self._lanes[lane.key] = lane
        self.wire.attach(self)

    def has(self, lane: Lane) -> bool:
        """The lane was added here and not removed."""
        return self._lanes.get(lane.key) is lane

    def remove(self, lane: Lane) -> None:
        lane.close()
        self._lanes.pop(lane.key, None)
        self.wire.forget(lane)

    def count(self, size: int) -> None:
        """Adds `size` bytes, which may be negative, to those in flight."""
        self.in_flight_bytes += size
        if not self._closed:
            self.wire.in_flight_bytes += size

    def on_ready(self, lane: Lane) -> None:
        """The lane may have something to send."""
        if not self._closed:
            self.wire.on_ready(lane)

    def on_settled(self, lane: Lane, batch: InFlight) -> None:
        """A batch has left its window, which frees room there and credit here."""
        full = not self.may_encode
        self.count(-batch.size)
        if full and self.may_encode:
            for each in self._lanes.values():
                if each.pending:
                    self.on_ready(each)
        elif lane.pending:
            self.on_ready(lane)

    def on_answer(self, lane: Lane, error: SemelError | None, decisions: list[Decision]) -> None:
        """A window has decided about an answer to one of its batches."""
        self._refusal = error
        self._owner.perform(lane, decisions)

    def on_throttled(self, throttled_ms: int) -> None:
        """The batches in flight have waited for a quota, for so much longer."""
        self._owner.on_throttled(throttled_ms)

    def on_room(self) -> None:
        """A stream is open, or nobody waits for one any more."""
        self._owner.on_room()

    def close(self) -> None:
        """Removes all lanes; nothing is sent from here on."""
        for lane in self.lanes:
            self.remove(lane)
        if not self._closed:
            self.wire.in_flight_bytes -= self.in_flight_bytes
        self._closed = True
        self.wire.detach(self)
