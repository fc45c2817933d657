"""The feed of a reader or consumer: long polls to every broker group, and a buffer of batches.

How it works. A *feed* belongs to one reader or consumer. For each broker group it keeps a *link*,
which has a seat on the client's fetch stream to the master and asks for every queue that has room
in the buffer. It cuts answers into
*deliveries* of one stored batch each, which wait in one bounded line. The caller's own thread takes
and decodes them, so the I/O thread never touches a message. Queues that are read to their end are
fetched by *standing* polls, which the broker answers repeatedly as they grow. A small answer costs
no more than its request, and the request keeps the caller's thread from taking messages.

A queue with a *delay* (retries) gives out a batch only that long after its append. A fetch under
the lock would start the lock's clock. So the feed first *peeks* at the next batch, without a group,
and fetches it alone when it is due. A clock that is behind makes the batch late by at most the
delay again.

A feed that may read from *any replica* asks one node of each broker group, chosen at random. It
asks the master for the rest as soon as that node fails, refuses or turns out to be behind.

Invariants
1. A delivery from before a seek, a pause of the lock or a loss of the queue is never given out: its
   *turn* is no longer the queue's.
2. Buffered bytes exceed `prefetch_bytes` by at most the replies under way.

Not here: which queues are read, and from which offset (`reading/reader.py`,
`consumer/consumer.py`), where a batch is cut (`reading/feed_queue.py`), the streams, which all
feeds of a client share (`transport/fetch_streams.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from semel.client.core.retry import Backoff, BackoffPolicy
from semel.client.core.routing import Master
from semel.client.reading.feed_queue import Delivery, FeedQueue, cut
from semel.client.transport.cluster import Cluster
from semel.client.transport.fetch_streams import MAX_WAIT_MS, Seat
from semel.protos.batch import decode_broker_header
from semel.protos.errors import (
    InternalError,
    NotMaster,
    QueueMoved,
    SemelError,
    Throttled,
    Unavailable,
    from_detail,
)
from semel.protos.ids import GroupId, NodeId, QueueKey, Term
from semel.protos.v1 import broker_pb2, common_pb2

logger = logging.getLogger(__name__)

STANDING_BYTES: Final = 64 << 10
"""Total bytes of answers after which a standing poll ends. Larger answers may come through shared
memory, or are worth a poll each."""
POLLS: Final = 2
"""Number of polls under way at a time, each for a share of the queues."""
TIMER_S: Final = 0.002
"""Timers of whole milliseconds may be early by this much, and an early one does not fire again."""
REST_S: Final = 0.05
"""Pause after an answer that says "not now"."""
LINK_POLICY: Final = BackoffPolicy(initial_ms=10, max_ms=300)


class _Asked(NamedTuple):
    """One queue of a poll."""

    queue: FeedQueue
    turn: int
    peek: bool


class FeedOwner(Protocol):
    """The part of a reader or consumer that its feed calls, on the I/O thread."""

    group: str
    """Consumer group; empty for none."""

    def on_queue_end(self, queue: FeedQueue) -> None:
        """The queue was split, and everything it holds was fetched. It is not fetched again."""

    def on_queue_error(self, queue: FeedQueue, error: SemelError) -> None:
        """The broker refuses to read the queue. The queue still counts as asked, so it is not
        fetched again until `FeedQueue.fetch_from` or the owner (`Feed.ask_later`) resets that."""


class Feed:
    """The queues of one reader or consumer, and their deliveries."""

    def __init__(
        self,
        owner: FeedOwner,
        cluster: Cluster,
        *,
        fetch_bytes: int,
        prefetch_bytes: int,
        call_soon: Callable[[Callable[[], None]], None],
        any_replica: bool = False,
    ) -> None:
        """`call_soon` runs a function on the I/O thread, from any thread. With `any_replica` every
        queue must have an end that exists: a node with nothing to return is then behind."""
        self.owner = owner
        self.cluster = cluster
        self.fetch_bytes = fetch_bytes
        self.prefetch_bytes = prefetch_bytes
        self.any_replica = any_replica
        self.queues: dict[QueueKey, FeedQueue] = {}
        self.buffered = 0
        self.ended = False
        self.throttled_ms = 0
        """Milliseconds for which polls waited for a quota, all together."""
        self._links: dict[GroupId, _FetchLink] = {}
        self._call_soon = call_soon
        self._line: deque[Delivery] = deque()
        self._lock = threading.Lock()
        self._waiters: list[Callable[[], None]] = []
        self._failure: SemelError | None = None
        self._ahead = 0
        """Number of deliveries in line that come before the failure; guarded by the lock."""
        self._final: SemelError | None = None
        self._room_wanted = False
        """Some queue is not fetched because there is no room; guarded by the lock."""

    # --- the I/O thread -------------------------------------------------------------------------

    def add(self, queue: FeedQueue) -> None:
        """Begins to fetch a queue."""
        self.queues[queue.key] = queue
        link = self._links.get(queue.group_id)
        if link is None:
            link = self._links[queue.group_id] = _FetchLink(self, queue.group_id)
        link.wake()

    def remove(self, key: QueueKey) -> FeedQueue | None:
        """Ends a queue and drops its buffered deliveries."""
        queue = self.queues.pop(key, None)
        if queue is not None:
            queue.turn += 1
        return queue

    def wake(self) -> None:
        """Asks again: queues have moved, or there is room."""
        for link in self._links.values():
            link.wake()

    def ask_later(self, queue: FeedQueue, pause_s: float) -> None:
        """Fetches a queue that was refused again after `pause_s`, unless it has begun elsewhere or
        was removed by then."""
        turn = queue.turn

        def ask() -> None:
            if queue.turn == turn:
                queue.asked = False
                self.wake()

        asyncio.get_running_loop().call_later(pause_s, ask)

    def wanted(self, group_id: GroupId) -> list[FeedQueue]:
        """Returns the queues to fetch at this moment, the emptiest first; none after a final
        error, which is raised once the line is empty."""
        if self._final is not None:
            return []
        with self._lock:
            if self.buffered >= self.prefetch_bytes:
                self._room_wanted = True
                return []
        now = time.monotonic()
        share = max(1, self.prefetch_bytes // max(1, len(self.queues)))
        askable = [
            queue
            for queue in self.queues.values()
            if queue.group_id == group_id
            and not queue.asked
            and not queue.paused
            and not queue.ended
            and not queue.at_end
            and not queue.waits(now)
        ]
        with self._lock:
            found = [queue for queue in askable if queue.buffered < queue.room(share)]
            self._room_wanted = self._room_wanted or len(found) < len(askable)
        found.sort(key=lambda queue: queue.buffered)
        # Several polls: while one answer is on its way the broker works on the next.
        return found[: max(1, (len(self.queues) + POLLS - 1) // POLLS)]

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Appends deliveries to the line."""
        with self._lock:
            for delivery in deliveries:
                self._count(delivery, 1)
            self._line.extend(deliveries)
        self.notify()

    def _count(self, delivery: Delivery, sign: int) -> None:
        """Adds a delivery to the buffered bytes, or with -1 takes it away. The lock is held."""
        self.buffered += sign * len(delivery.stored)
        delivery.queue.buffered += sign * len(delivery.stored)

    def _fetch_again(self, delivery: Delivery) -> None:
        """Fetches a queue again from the caller's position, unless the delivery is void."""
        queue = delivery.queue
        if queue.turn == delivery.turn:
            queue.fetch_again()
            self.wake()

    @property
    def room(self) -> int:
        """Bytes that may still be buffered."""
        return self.prefetch_bytes - self.buffered

    def notify(self) -> None:
        """Calls all waiters, since something changed."""
        with self._lock:
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter()

    def fail(self, error: SemelError, *, final: bool = False) -> None:
        """Has a call of the caller's raise `error`, after the deliveries that are in line now:
        those that come later could hide it for as long as any queue is busy. Of several errors that
        wait the newest is raised, in the place of the first. If it is `final`, every call raises it
        once the line is empty, and nothing more is fetched."""
        with self._lock:
            if self._final is None:
                if self._failure is None:
                    self._ahead = len(self._line)
                self._final = error if final else None
                self._failure = error
        self.notify()

    def close(self) -> None:
        self.end()
        for link in self._links.values():
            link.close()

    def end(self) -> None:
        """Gives out nothing more. Any thread may call it."""
        self.ended = True
        self.notify()

    # --- the caller's thread --------------------------------------------------------------------

    def take(self) -> Delivery | None:
        """Returns the next valid delivery, or None if there is none now. Raises the feed's
        error."""
        while True:
            with self._lock:
                failure, final = self._failure, self._final
                if failure is not None and (not self._line or (final is None and self._ahead <= 0)):
                    self._failure = final
                    raise failure
                if not self._line:
                    return None
                delivery = self._line.popleft()
                self._ahead -= 1
                self._count(delivery, -1)
                # A reader that keeps up wakes no task: that would cost as much as a small batch.
                tell = self._room_wanted and self.buffered < self.prefetch_bytes
                if tell:
                    self._room_wanted = False
            if tell:
                self._call_soon(self.wake)
            if delivery.turn == delivery.queue.turn:
                return delivery

    def put_back(self, delivery: Delivery) -> None:
        """Returns a delivery that cannot be decoded to the head of the line, so that nothing
        behind it is given out before it, and has its queue fetched again."""
        with self._lock:
            self._count(delivery, 1)
            self._line.appendleft(delivery)
            self._ahead += 1
        self._call_soon(lambda: self._fetch_again(delivery))

    @property
    def finished(self) -> bool:
        """Every queue has an end, is there, and was given out up to it."""
        # Judged by what the caller's thread does itself: the I/O thread moves a queue's offset on
        # before the batches are in line.
        return bool(self.queues) and all(queue.finished for queue in self.queues.values())

    @property
    def ready(self) -> bool:
        """`take` would return a delivery or raise, or nothing will ever come."""
        return bool(self._line) or self._failure is not None or self.ended or self.finished

    def add_waiter(self, waiter: Callable[[], None]) -> None:
        """Calls `waiter` once when something changes, from the I/O thread."""
        with self._lock:
            self._waiters.append(waiter)

    def remove_waiter(self, waiter: Callable[[], None]) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._waiters.remove(waiter)


class _FetchLink:
    """What one feed asks of one broker group."""

    def __init__(self, feed: Feed, group_id: GroupId) -> None:
        self._feed = feed
        self._group_id = group_id
        self._wake = asyncio.Event()
        self._asked: dict[int, list[_Asked]] = {}
        """By the number of a poll whose last answer has not come."""
        self._not_before = 0.0
        self._failed = False
        """The last seat ended with a bug of this client, and no answer was decoded since."""
        self._any = feed.any_replica
        """Any node may be asked; False once the chosen one has failed."""
        self._task = feed.cluster.spawn(self._run(), f"semel-fetch-{group_id}")

    def wake(self) -> None:
        self._wake.set()

    def close(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        feed = self._feed
        backoff = Backoff(LINK_POLICY, random.random)
        while True:
            while not feed.wanted(self._group_id):
                self._wake.clear()
                await self._wake.wait()
            try:
                master = self._replica() or await feed.cluster.master(self._group_id)
            except SemelError as error:
                feed.fail(error)
                await asyncio.sleep(1.0)
                continue
            began = time.monotonic()
            try:
                await self._stay(master.address)
            except SemelError as error:
                self._on_ended(master, error)
            except Exception as error:
                logger.exception("fetch stream failed group=%s", self._group_id)
                ours = InternalError(f"client: {error!r}")
                if self._failed:  # again, with no answer in between: a retry would not help
                    feed.fail(ours)
                self._failed = True
                self._on_ended(master, ours)
            for asked in self._asked.values():
                for queue, turn, _ in asked:
                    if queue.turn == turn:
                        queue.asked = False
            self._asked.clear()
            if time.monotonic() - began > 1.0:
                backoff.reset()
            await asyncio.sleep(backoff.next_ms() / 1000)

    def _replica(self) -> Master | None:
        """Returns a random node, to be asked as if it were the master."""
        addresses = self._feed.cluster.routes.replicas(self._group_id) if self._any else ()
        if not addresses:
            return None
        return Master(address=random.choice(addresses), node_id=NodeId(0), term=Term(0))

    def _on_ended(self, master: Master, error: SemelError) -> None:
        logger.info(
            "fetch stream ended group=%s address=%s error=%s",
            self._group_id,
            master.address,
            error.message,
        )
        if self._any:
            self._any = False
        elif error.retriable or isinstance(error, InternalError):
            self._feed.cluster.on_master_error(self._group_id, master, error)
        else:
            self._feed.fail(error)

    async def _stay(self, address: str) -> None:
        """Asks a node until it fails. Raises SemelError, and whatever `on_reply` raised."""
        feed = self._feed
        seat = await feed.cluster.fetches.join(
            address, self, answer_bytes=feed.fetch_bytes, held_bytes=feed.prefetch_bytes
        )
        try:
            await self._ask(seat)
        finally:
            seat.leave()

    async def _ask(self, seat: Seat) -> None:
        feed = self._feed
        while True:
            if seat.failure is not None:
                raise seat.failure
            queues = feed.wanted(self._group_id)
            if not queues:
                self._wake.clear()
                await self._wake.wait()
                continue
            wait = self._not_before - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
                continue
            number = seat.new_number()
            request = broker_pb2.FetchRequest(
                correlation_id=number,
                max_bytes=feed.fetch_bytes,
                max_wait_ms=MAX_WAIT_MS,
                any_replica=self._any,
            )
            asked = []
            for queue in queues:
                queue.asked = True
                peek = queue.delay_ms > 0 and queue.due is None
                asked.append(_Asked(queue, queue.turn, peek))
                request.queues.add(
                    queue=common_pb2.QueueRef(
                        topic_id=queue.key.topic_id, queue_id=queue.key.queue_id
                    ),
                    offset=queue.offset,
                    max_bytes=1 if queue.delay_ms else feed.fetch_bytes,
                    group="" if peek else feed.owner.group,
                    token=0 if peek else queue.token,
                )
            slot = seat.exchange.name_place(request, time.monotonic())
            if slot is None and not self._any and all(queue.keeps_up for queue in queues):
                request.standing_bytes = min(STANDING_BYTES, max(1, feed.room))
            self._asked[number] = asked
            seat.ask(request, slot)
            del slot  # the poll has it until its answer

    def on_reply(self, header: broker_pb2.FetchReplyHeader, parts: Sequence[memoryview]) -> None:
        """Raises SemelError when another node has to be asked."""
        number = header.correlation_id
        asked = self._asked[number] if header.more else self._asked.pop(number)
        self._feed.throttled_ms += header.throttled_ms
        turns = {each.queue.key: each for each in asked if each.queue.turn == each.turn}
        if not header.more:
            for each in turns.values():
                each.queue.asked = False
        if header.HasField("error"):
            error = from_detail(header.error)
            if isinstance(error, Throttled):
                self._not_before = time.monotonic() + _rest_s(error)
                self._wake.set()
                return
            raise error
        if self._any and not header.results and not header.throttled_ms:
            raise Unavailable("the node is behind")
        deliveries: list[Delivery] = []
        at = 0
        moved: SemelError | None = None
        for result in header.results:
            batches = result.batches
            some = parts[at : at + len(batches)]
            at += len(batches)
            found = turns.get(QueueKey(result.queue.topic_id, result.queue.queue_id))  # type: ignore[arg-type]
            if found is None:
                continue
            queue, turn, peek = found
            if result.HasField("error"):
                error = from_detail(result.error)
                if isinstance(error, QueueMoved):
                    self._feed.cluster.routes.on_moved(error)
                    queue.asked = True
                    self._feed.owner.on_queue_error(queue, error)
                elif self._any or isinstance(error, NotMaster):
                    moved = error
                elif error.retriable:  # the other queues go on
                    queue.asked = True
                    self._feed.ask_later(queue, _rest_s(error))
                else:
                    queue.asked = True
                    self._feed.owner.on_queue_error(queue, error)
                continue
            queue.high_watermark = result.high_watermark
            if peek and some:
                self._wait_until_due(queue, some[0])
                continue
            queue.due = None
            for batch, stored in zip(batches, some, strict=True):
                cut(deliveries, queue, turn, batch, stored)
            if result.sealed and queue.offset >= result.high_watermark and not queue.at_end:
                queue.at_end = True
                self._feed.owner.on_queue_end(queue)
        if deliveries or any(each.queue.ended for each in turns.values()):
            self._feed.deliver(deliveries)
        if not header.more:
            self._wake.set()
        self._failed = False
        if moved is not None:
            raise moved

    def _wait_until_due(self, queue: FeedQueue, stored: memoryview) -> None:
        """Handles the answer to a peek at the next batch of a queue with a delay."""
        appended_us = decode_broker_header(stored).append_time_us
        now_us = time.monotonic_ns() // 1000
        # It was appended before now. The bound that this gives for the brokers' clock is kept, so
        # that a clock that is behind makes the backlog late once, and not each of its batches.
        queue.clock_us = max(queue.clock_us, appended_us - now_us)
        log_us = max(time.time_ns() // 1000, now_us + queue.clock_us)
        left_s = max(appended_us - log_us + queue.delay_ms * 1000, 0) / 1e6
        queue.due = time.monotonic() + left_s
        asyncio.get_running_loop().call_later(left_s + TIMER_S, self.wake)


def _rest_s(error: SemelError) -> float:
    """Returns the seconds before what was refused is asked for again."""
    return max(REST_S, error.retry_after_ms / 1000 if isinstance(error, Throttled) else 0.0)
