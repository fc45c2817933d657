"""What batches of one produce stream wait for: quotas, and a fair turn.

How it works. A message is not worked on, and the stream not read, before the quotas of its
principal let its batches pass and it has its turn (`before`). Meanwhile the client hears from the
node, so that it does not take it for dead, and how long it waits. The quotas of a topic hold its
batches alone (`hold`): the stream goes on with those of other topics, and batches that are held are
submitted in the order in which they came, so that each producer's sequences stay in order. What is
held is bounded; beyond that, the stream is not read either.

The quotas of what a topic may have stored, delayed or staged, refuse a batch with Throttled
(`refusal`) when it has waited for all else, since others may fill the topic meanwhile. The client
sends it again later.

Invariants
1. A batch is submitted at most once, and batches of one topic in the order of their arrival.
2. Whatever the stream held when it ended is not submitted: the client was not answered, and sends
   it again.
3. Without quotas and other principals a message costs two comparisons.

Not here: the buckets (`protos/security/meters.py`), the turns (`turns.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from semel.broker.quotas.broker_quotas import BrokerQuotas, StreamRates
from semel.broker.replica.fetch_waiters import finish
from semel.protos.batch import BatchHeader, decode_header
from semel.protos.errors import Throttled
from semel.protos.ids import TopicId
from semel.protos.security.meters import FREE, Meter

LOOK_S: Final = 0.2
"""How often the client hears that its stream waits, and what it waits for is looked at again."""
STREAM_HELD_MAX: Final = 4 << 20
"""Bytes of batches that one stream may hold for their topics' quotas."""


class _Cost(NamedTuple):
    """What was taken out of a meter."""

    meter: Meter
    cost: float
    mark: float


class _Held(NamedTuple):
    """A batch that waits for the quota of its topic."""

    costs: list[_Cost]
    length: int
    submit: Callable[[], None]


class WritePace:
    """What one produce stream waits for."""

    def __init__(self, quotas: BrokerQuotas, principal: str, tell: Callable[[int], None]) -> None:
        """`principal` is "" for everybody without a name. `tell` lets the client hear that it has
        waited for so many milliseconds more."""
        self._quotas = quotas
        self._meters = quotas.meters
        self._turns = quotas.write_turns
        self._principal = principal
        self._tell = tell
        self._rates = StreamRates(quotas, principal)
        self._lines: dict[TopicId, deque[_Held]] = {}
        """Batches that are held, by topic; no line is empty."""
        self._timers: dict[TopicId, asyncio.TimerHandle] = {}
        self.held_bytes = 0
        """Bytes of batches that it holds."""
        self._held_since_s = 0.0
        self._released: asyncio.Future[None] | None = None
        self._turns.enter(principal)

    @property
    def slows(self) -> bool:
        """Something may make the stream wait, or does."""
        return self._meters.active or self._turns.contended or bool(self._lines)

    async def before(self, batches: Sequence[bytes], size: int) -> None:
        """Returns when the batches of a message of `size` bytes may be worked on."""
        if self._meters.active:
            await self._pass(batches, size)
        turn = self._turns.ask(self._principal, size)
        if turn is not None:
            await self._until(turn)

    def hold(self, header: BatchHeader, length: int, submit: Callable[[], None]) -> bool:
        """Whether the batch has to wait for the quota of its topic; `submit` is called then."""
        if not self._meters.active and not self._lines:
            return False
        self._rates.renew()
        rates = self._rates.of_topic(header.queue_key)
        line = self._lines.get(header.topic_id)
        if line is None and rates is FREE:
            return False
        now_s = self._meters.clock_s()
        costs = [_taken(meter, length, now_s) for meter in rates.write_bytes]
        costs += [_taken(meter, header.count, now_s) for meter in rates.messages]
        if line is None:
            if _left_s(costs, now_s) <= 0:
                return False
            line = self._lines[header.topic_id] = deque()
            if len(self._lines) == 1:
                self._held_since_s = now_s
        line.append(_Held(costs, length, submit))
        self.held_bytes += length
        self._quotas.held_bytes += length
        if len(line) == 1:
            self._release(header.topic_id)
        return True

    def refusal(self, header: BatchHeader) -> Throttled | None:
        """Why the topic has no room for the batch now; None if it has."""
        return self._quotas.amounts.refusal(header) if self._meters.active else None

    async def room(self) -> None:
        """Returns once the stream may hold more."""
        while self.held_bytes > STREAM_HELD_MAX or (
            self.held_bytes and self._quotas.held_bytes > self._quotas.held_bytes_max
        ):
            self._released = asyncio.get_running_loop().create_future()
            await self._until(self._released)

    def close(self) -> None:
        """The stream has ended: what it holds is dropped."""
        for timer in self._timers.values():
            timer.cancel()
        for line in self._lines.values():
            for held in line:
                _put_back(held.costs)
        self._quotas.held_bytes -= self.held_bytes
        self.held_bytes = 0
        self._lines.clear()
        self._timers.clear()
        self._turns.leave(self._principal)

    async def _pass(self, batches: Sequence[bytes], size: int) -> None:
        """Waits for the quotas of the principal."""
        self._rates.renew()
        own = self._rates.own
        producers = self._quotas.producers
        if producers.limits(self._principal):
            for batch in batches:
                producers.on_batch(self._principal, decode_header(batch).producer_id)
        if own is FREE:
            return
        clock_s = self._meters.clock_s
        began_s = clock_s()
        costs = [_taken(meter, 1, began_s) for meter in own.requests]
        costs += [_taken(meter, size, began_s) for meter in own.write_bytes]
        if own.messages:
            messages = sum(decode_header(batch).count for batch in batches)
            costs += [_taken(meter, messages, began_s) for meter in own.messages]
        try:
            while (left_s := _left_s(costs, began_s)) > 0:
                await asyncio.sleep(min(left_s, LOOK_S))
                ended_s = clock_s()
                self._waited(costs, ended_s - began_s)
                began_s = ended_s
        except asyncio.CancelledError:
            _put_back(costs)
            raise

    async def _until(self, done: asyncio.Future[None]) -> None:
        """Waits, and lets the client hear of it."""
        try:
            while not done.done():
                await asyncio.wait((done,), timeout=LOOK_S)
                self._tell(0)
        finally:
            done.cancel()

    def _release(self, topic_id: TopicId) -> None:
        """Submits the batches of a topic whose time has come."""
        self._timers.pop(topic_id, None)
        line = self._lines[topic_id]
        now_s = self._meters.clock_s()
        if now_s > self._held_since_s:
            self._waited(line[0].costs, now_s - self._held_since_s)
            self._held_since_s = now_s
        while line:
            left_s = _left_s(line[0].costs, now_s)
            if left_s > 0:
                self._timers[topic_id] = asyncio.get_running_loop().call_later(
                    min(left_s, LOOK_S), self._release, topic_id
                )
                break
            held = line.popleft()
            self.held_bytes -= held.length
            self._quotas.held_bytes -= held.length
            held.submit()
        else:
            del self._lines[topic_id]
        finish(self._released)

    def _waited(self, costs: Sequence[_Cost], seconds: float) -> None:
        """Something has waited for these costs."""
        for cost in costs:
            cost.meter.on_wait(seconds / len(costs))
        self._tell(round(seconds * 1000))


def _taken(meter: Meter, cost: float, now_s: float) -> _Cost:
    return _Cost(meter, cost, meter.take(cost, now_s))


def _put_back(costs: Sequence[_Cost]) -> None:
    for cost in costs:
        cost.meter.put_back(cost.mark, cost.cost)


def _left_s(costs: Sequence[_Cost], now_s: float) -> float:
    return max((cost.meter.bucket.left_s(cost.mark, now_s) for cost in costs), default=0.0)
