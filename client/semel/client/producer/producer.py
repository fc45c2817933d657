"""The part of a producer that lives on the I/O thread: fences, routing of chunks, outcomes.

How it works. Chunks come from the intake (`producer/intake.py`), are routed to lanes
(`producer/lanes.py`) and come back as outcomes. A topic is *opened* before its first message goes
out: the producer fetches the topic's route, and a named producer fences all its queues; the replies
say what earlier incarnations wrote. An anonymous producer fences a queue when it first uses it.
Later fences settle doubts (`core/sequences.py`). The producer leaves a queue that was split for the
queue's children. It fences them, since their rows in the sequence table begin where the parent's
ended. Messages that the parent does not hold go to the children by slot, in order and ahead of
everything that comes later (`producer/split_lanes.py`).

Invariants
1. Nothing is sent to a queue before a fence of this incarnation was applied there.
2. Messages without a key or position go to a queue with room, a batch at a time. Once a batch has a
   sequence, only a fence can free its messages for another queue.
3. With source positions the first failure ends the producer: messages after a hole must not be
   stored, or an exact resume would skip the hole.

Not here: id and epoch (`producer/identity.py`), the API (`api/aio.py`). It is one file of
more than 600 lines because fences, routing and outcomes change the same few fields, one task at a
time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from dataclasses import replace
from typing import Final, assert_never

import numpy as np

from semel.client.config import ProducerConfig
from semel.client.core.batching import Chunk, Outcome, Part, route
from semel.client.core.dropped_rows import DroppedRows
from semel.client.core.retry import Looks
from semel.client.core.routing import QueueRoute, TopicRoute
from semel.client.core.sequences import (
    Decision,
    Elsewhere,
    Failed,
    Fatal,
    Fence,
    InFlight,
    Known,
    Moved,
    Retry,
    Sealed,
    SendWindow,
    Settled,
)
from semel.client.producer.futures import await_settled
from semel.client.producer.identity import Identity
from semel.client.producer.intake import SEAL_BYTES_MAX, Intake, TopicIntake
from semel.client.producer.lanes import Lane, Link
from semel.client.producer.split_lanes import hand_over, open_children
from semel.client.producer.topic import ProducerStats, ProducerTopic
from semel.client.transport.cluster import Cluster
from semel.protos.errors import (
    Closed,
    DedupStateExpired,
    InternalError,
    InvalidRequest,
    ProducerFenced,
    QueueSealed,
    SemelError,
    TimedOut,
    UnknownQueue,
    UnknownTopic,
)
from semel.protos.ids import GroupId
from semel.protos.v1 import broker_pb2, control_pb2

logger = logging.getLogger(__name__)

FIRST_SESSION: Final = 1
ANSWERS_WAIT_S: Final = 1.0
"""Time in seconds that a reopen waits for answers that are still on their way."""
FAILURES_MAX: Final = 1_000
"""Number of failures that are kept for the next flush."""
EXPIRY_CHECK_S: Final = (0.05, 1.0)
"""Bounds in seconds of the interval between two checks for messages past their delivery timeout.
The interval is a twentieth of that timeout."""
MOVED_PAUSE_MS: Final = 20


class ProducerCore:
    """One producer. Everything but `intake` lives on the I/O thread."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        config: ProducerConfig,
        intake: Intake,
        *,
        identity: Identity | None = None,
    ) -> None:
        """`identity` replaces the one that the controllers would give."""
        self.config = config
        self.identity = identity or Identity(cluster, name)
        self.intake = intake
        self.stats = ProducerStats()
        self._failures: list[tuple[Chunk, Exception]] = []
        """The first failures since the last flush."""
        self._cluster = cluster
        self._topics: dict[str, ProducerTopic] = {}
        self._opening: dict[str, asyncio.Task[ProducerTopic]] = {}
        self._links: dict[GroupId, Link] = {}
        self._lanes_to_fence: list[Lane] = []
        self._forgotten_session = 0
        """The highest session of the lanes of forgotten topics."""
        self._inside: list[Chunk] = []
        """Chunks on their way that did not pass the intake: position marks, a relay's copies."""
        self._flushing = 0
        self._pump_due = False
        self._expiry: asyncio.Task[None] | None = None
        self._done = False

    # --- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the task that gives late messages their outcome."""
        self._expiry = self._cluster.spawn(self._expire(), "semel-producer-expiry")
        self._expiry.add_done_callback(self._on_expiry_ended)

    def _on_expiry_ended(self, task: asyncio.Task[None]) -> None:
        """Ends the producer if that task failed: late messages would never get an outcome."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.fail(InternalError(f"client: {task.get_name()}: {error!r}"))

    def fail(self, error: Exception) -> None:
        """Ends the producer: everything that is not settled fails with `error`."""
        if self._done:
            return
        self._done = True
        for chunk in self.intake.fail(error):
            self._fail_chunk(chunk, error)
        for chunk in [*self.intake.snapshot(), *self._inside]:
            self._fail_chunk(chunk, error)
        for link in self._links.values():
            link.close()
        if self._expiry is not None:
            self._expiry.cancel()

    def close(self) -> None:
        """Ends at once; call `flush` before."""
        self.fail(Closed("the producer is closed"))

    async def _expire(self) -> None:
        looks = Looks(random.random)  # a group without a master for long: have its queues moved?
        looking: asyncio.Task[None] | None = None
        least, most = EXPIRY_CHECK_S
        pause_s = min(most, max(least, self.config.delivery_timeout_ms / 20_000))
        while True:
            await asyncio.sleep(pause_s)
            now = time.monotonic()
            self._end_late(now)
            lost_s = max((link.wire.lost_s for link in self._links.values()), default=0.0)
            busy = looking is not None and not looking.done()
            if looks.is_due(lost_s, self._cluster.is_one_of_many) and not busy:
                looking = self._cluster.spawn(self._look_for_queues(), "semel-look-for-queues")

    def _end_late(self, now: float) -> None:
        """Fails every message past its delivery timeout with TimedOut, wherever it waits. A batch
        in a window stays there: its outcome is unknown, and the chain needs it."""
        inside = [chunk for chunk in self._inside if chunk.deadline <= now]
        for chunk in [*self.intake.expired(now), *inside]:
            if chunk.parts is None:
                self._fail_chunk(chunk, self._timed_out(chunk, None))
                continue
            topic = self._topics.get(chunk.topic)
            for part in list(chunk.parts):
                if part.outcome is None:
                    lane = topic.find(part.queue) if topic is not None else None
                    self.settle(part, Outcome(error=self._timed_out(chunk, lane)))

    def _timed_out(self, chunk: Chunk, lane: Lane | None) -> TimedOut:
        reason = lane.link.last_error if lane is not None else None
        why = f": {reason.message}" if reason is not None else ""
        return TimedOut(
            f"not acknowledged within {self.config.delivery_timeout_ms / 1000:g} s"
            f" (topic {chunk.topic!r}){why}"
        )

    # --- opening --------------------------------------------------------------------------------

    async def open_topic(self, name: str) -> ProducerTopic:
        """Returns the topic once it can be sent to. Raises SemelError."""
        if self._done:
            raise self._ending
        topic = self._topics.get(name)
        if topic is not None:
            return topic
        task = self._opening.get(name)
        if task is None:
            task = self._cluster.spawn(self._open(name), f"semel-open-{name}")
            self._opening[name] = task
            task.add_done_callback(lambda _: self._opening.pop(name, None))
        return await asyncio.shield(task)

    @property
    def _ending(self) -> Exception:
        """Why the producer has ended."""
        return self.intake.failure() or Closed("the producer is closed")

    async def _open(self, name: str) -> ProducerTopic:
        route, _ = await asyncio.gather(self._cluster.topic(name), self.identity.ensure())
        needs_all = bool(self.identity.name) or self.config.source_positions
        lanes = self._lanes_of(route) if needs_all else []
        if self.identity.name:
            try:
                try:
                    route, lanes = await self._fence_all(route, lanes)
                except (UnknownQueue, UnknownTopic):
                    # The route may be of a topic that was deleted and created again.
                    route = await self._cluster.topic(name, refresh=True)
                    route, lanes = await self._fence_all(route, self._lanes_of(route))
            except DedupStateExpired as error:
                raise self.identity.forgotten(name, error) from None
            except ProducerFenced as error:
                self.fail(error)
                raise
        if self._done:  # its lanes would stay with the wire, which all producers share
            raise self._ending
        topic = ProducerTopic(route, lanes, self.config, self.lane_to)
        intake = self.intake.topic(name)
        intake.message_bytes_max = topic.message_bytes_max
        intake.id_rules = route.id_rules
        intake.opened = True
        intake.seal_bytes = topic.batch_bytes
        intake.seal_bytes_routed = max(
            topic.batch_bytes, min(SEAL_BYTES_MAX, topic.batch_bytes * len(route.queues))
        )
        self._topics[name] = topic
        return topic

    async def _fence_all(
        self, route: TopicRoute, lanes: list[Lane]
    ) -> tuple[TopicRoute, list[Lane]]:
        """Fences every open queue of a topic, also if the route is older than a split."""
        while True:
            try:
                await self.fence(lanes)
                return route, lanes
            except QueueSealed as error:
                split = control_pb2.SplitQueue.FromString(error.split_record)
                route = route.after_split(split)
                self._cluster.routes.on_split(route.name, split)
                lanes = self._lanes_of(route)

    def _lanes_of(self, route: TopicRoute) -> list[Lane]:
        return [self.lane_to(queue) for queue in route.queues]

    def lane_to(self, queue: QueueRoute) -> Lane:
        """Returns a new lane, which is not yet part of its link."""
        lane = Lane(self, queue, self._link(queue.group_id))
        lane.session = self._forgotten_session
        return lane

    def _link(self, group_id: GroupId) -> Link:
        link = self._links.get(group_id)
        if link is None:
            link = self._links[group_id] = Link(self, self._cluster.wires.to(group_id))
        return link

    # --- moves ----------------------------------------------------------------------------------

    def _follow(self, lane: Lane) -> bool:
        """Directs a lane to the group that has the queue now; returns False if it sends there
        already. Batches in doubt go out again there, unchanged: the sequence table has moved with
        the queue."""
        home, old = self._cluster.routes.home(lane.route), lane.link
        if home == old.group_id:
            return False
        lane.route = replace(lane.route, group_id=home)
        lane.link = self._link(home)
        if old.has(lane):
            in_flight = 0 if lane.window is None else sum(b.size for b in lane.window.batches())
            old.remove(lane)
            old.count(-in_flight)
            lane.link.count(in_flight)
            lane.on_stream_lost()
            lane.link.add(lane)
            lane.link.on_ready(lane)
            self._pump_soon()
        logger.info("queue has moved queue=%s group=%s", lane.key.queue_id, home)
        return True

    async def _look_for_queues(self) -> None:
        """Fetches the routes: a group has had no master for long, so its queues may have moved."""
        for topic in list(self._topics.values()):
            with contextlib.suppress(SemelError):
                await self._cluster.topic(topic.route.name, refresh=True)
            topic.rehome(self._cluster.routes.home)
            for lane in topic.lanes:
                self._follow(lane)
            self._pump_soon()

    # --- fences ---------------------------------------------------------------------------------

    async def fence(self, lanes: list[Lane]) -> None:
        """Sends the first FENCE of lanes and gives each its window. Raises SemelError."""
        session = max(lane.session for lane in lanes) + 1
        for lane in lanes:
            lane.session = session
        # An anonymous producer stored nothing before its first fence: no state can have expired.
        after_expiry = not self.identity.name or self.config.after_expiry == "restart"
        for attempt in range(3):
            producer_id, epoch = self.identity.pair
            try:
                rows = await self._ask_fence(lanes, session, after_expiry=after_expiry)
                for lane in lanes:
                    self._follow(lane)
                break
            except DedupStateExpired:
                if attempt == 2 or not after_expiry:
                    raise
                await self.identity.reopen((producer_id, epoch))
        for lane, row in zip(lanes, rows, strict=True):
            lane.resume = row.last_sequence
            lane.window = SendWindow(
                producer_id=producer_id,
                epoch=epoch,
                session=session,
                last_sequence=row.last_sequence,
                max_in_flight=self.config.max_in_flight,
                positions=self.config.source_positions,
            )

    async def _ask_fence(
        self, lanes: list[Lane], session: int, *, after_expiry: bool
    ) -> list[broker_pb2.ProducerRow]:
        timeout_s = self.config.delivery_timeout_ms / 1000
        queues = [lane.route for lane in lanes]
        return await self.identity.fence(queues, session, timeout_s, after_expiry=after_expiry)

    def _fence_later(self, lane: Lane) -> None:
        """Sends the first fence of a lane in use. All lanes of one loop turn and broker group share
        a request."""
        if lane.fencing:
            return
        lane.fencing = True
        if not self._lanes_to_fence:
            asyncio.get_running_loop().call_soon(self._start_first_fences)
        self._lanes_to_fence.append(lane)

    def _start_first_fences(self) -> None:
        lanes, self._lanes_to_fence = self._lanes_to_fence, []
        if self._done:
            return
        # One task for each broker group: a group without a master must not hold up the others.
        by_group: dict[GroupId, list[Lane]] = {}
        for lane in lanes:
            by_group.setdefault(self._cluster.routes.home(lane.route), []).append(lane)
        for some in by_group.values():
            self._cluster.spawn(self._first_fences(some), "semel-fence")

    async def _first_fences(self, lanes: list[Lane]) -> None:
        try:
            await self.fence(lanes)
        except QueueSealed as error:
            split = control_pb2.SplitQueue.FromString(error.split_record)
            for lane in lanes:
                lane.fencing = False
                if lane.key == (split.queue.topic_id, split.queue.queue_id):
                    self._leave(lane, split, ())
                else:
                    self._fence_later(lane)
            return
        except SemelError as error:
            for lane in lanes:
                lane.fencing = False
                self._fail_lane(lane, error)
            return
        for lane in lanes:
            lane.fencing = False
            lane.link.on_ready(lane)
        self._pump_soon()

    async def _fence_again(self, lane: Lane, reopen: bool) -> None:
        """Settles doubts about a lane; see `SendWindow.on_fenced`."""
        window = lane.window
        assert window is not None
        # This incarnation knows what it sent: what is lost of it is reported as unknown. But a name
        # has later incarnations, and to them a row that begins anew would say that nothing is
        # stored.
        may_restart = not self.identity.name or self.config.after_expiry == "restart"
        try:
            if reopen:
                give_up = time.monotonic() + ANSWERS_WAIT_S
                while window.answers_open and time.monotonic() < give_up:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                await self.identity.reopen((window.producer_id, window.epoch))
            producer_id, epoch = self.identity.pair
            same = (producer_id, epoch) == (window.producer_id, window.epoch)
            session = lane.session = lane.session + 1 if same else FIRST_SESSION
            window.claimed = max(window.claimed, (epoch, session))
            # Without a reopen the reply is final about what is in flight, so the row must be there.
            (row,) = await self._ask_fence([lane], session, after_expiry=reopen and may_restart)
        except ProducerFenced as error:
            self.fail(error)
            return
        except DedupStateExpired as error:
            if may_restart and not reopen:
                window.reopen_wanted = True
                await self._fence_again(lane, True)
                return
            lane.fencing = False
            told = error
            if self.identity.name:
                told = self.identity.forgotten(self._name_of(lane), error)
            self._fail_lane(lane, told)
            return
        except QueueSealed as error:
            lane.fencing = False
            split = control_pb2.SplitQueue.FromString(error.split_record)
            self.perform(lane, window.on_fence_sealed(split))
            return
        except SemelError as error:
            lane.fencing = False
            self._fail_lane(lane, error)
            return
        if lane.window is not window:
            return
        self._follow(lane)
        decisions = window.on_fenced(
            producer_id=producer_id,
            epoch=epoch,
            session=session,
            last_sequence=row.last_sequence,
            known=[
                Known(
                    entry.base_sequence,
                    entry.last_sequence,
                    entry.base_offset,
                    entry.count,
                    entry.dropped,
                )
                for entry in row.window
            ],
        )
        lane.fencing = False
        self.perform(lane, decisions)
        lane.link.on_ready(lane)

    # --- splits ---------------------------------------------------------------------------------

    def _leave(
        self, lane: Lane, split: control_pb2.SplitQueue, batches: tuple[InFlight, ...]
    ) -> None:
        """The lane's queue was split and holds none of `batches`."""
        lane.fencing = True  # no batch goes out any more
        for batch in batches:
            lane.link.on_settled(lane, batch)
        self._cluster.spawn(self._move_on(lane, split, batches), "semel-split")

    async def _move_on(
        self, lane: Lane, split: control_pb2.SplitQueue, batches: tuple[InFlight, ...]
    ) -> None:
        topic = next((each for each in self._topics.values() if each.has(lane)), None)
        try:
            if topic is not None:
                children, splits = await open_children(self, lane, split)
            if topic is None or self._topics.get(topic.route.name) is not topic:
                raise UnknownTopic("the topic was deleted while one of its queues was split")
        except ProducerFenced as error:
            self.fail(error)
            return
        except SemelError as error:
            told = error
            if topic is not None and self.identity.name and isinstance(error, DedupStateExpired):
                told = self.identity.forgotten(topic.route.name, error)
            lane.fencing = False
            for batch in batches:
                assert isinstance(batch.tag, Part)
                self.settle(batch.tag, Outcome(error=told))
            self._fail_lane(lane, told)
            return
        if self._done:
            return  # everything has failed already
        route = topic.route
        for each in splits:
            route = route.after_split(each)
            self._cluster.routes.on_split(route.name, each)
        topic.replace(lane, children, route)
        lane.link.remove(lane)
        logger.info(
            "queue was split topic=%s queue=%s children=%s",
            route.name,
            lane.key.queue_id,
            [child.key.queue_id for child in children],
        )
        by_id = route.id_rules.compared
        for parts, done in hand_over(lane, batches, self._heirs(children), by_id=by_id):
            topic.unsettled += len(parts) - 1
            self.stats.duplicates += sum(part.count for part in done)
            for part in parts:
                topic.put(part)
            for part in done[:1]:
                part.chunk.wake()
                if part.chunk.settled:
                    self._finish(part.chunk)
        self._pump_soon()

    def _heirs(self, children: list[Lane]) -> list[Lane]:
        """Returns the children that get what the parent does not hold, each by its slots."""
        return children

    def _fail_lane(self, lane: Lane, error: SemelError) -> None:
        """The queue cannot be written: its waiting messages fail. A deleted topic is forgotten."""
        for part in list(lane.pending):
            self.settle(part, Outcome(error=error))
        lane.pending.clear()
        if lane.window is not None:
            for batch in lane.window.batches():
                assert isinstance(batch.tag, Part)
                lane.link.count(-batch.size)
                self.settle(batch.tag, Outcome(error=error))
            lane.window = None
        if isinstance(error, UnknownTopic | UnknownQueue):
            for name, topic in list(self._topics.items()):
                if topic.has(lane):
                    self._forget(name, topic, error)

    def _name_of(self, lane: Lane) -> str:
        """Returns the name of the lane's topic; empty if the topic was forgotten."""
        return next((name for name, topic in self._topics.items() if topic.has(lane)), "")

    def _forget(self, name: str, topic: ProducerTopic, error: SemelError) -> None:
        """Forgets a topic that is said to be unknown. It may be known again: a user may have been
        forbidden to see it for a moment. Batches that were in flight may be stored even then, so
        later fences need a higher session."""
        del self._topics[name]
        self._cluster.on_topic_gone(name, topic.route.topic_id)
        self.intake.forget(name)
        for lane in topic.lanes:
            lane.link.remove(lane)
            self._fail_lane(lane, error)
            self._forgotten_session = max(self._forgotten_session, lane.session)

    # --- chunks in ------------------------------------------------------------------------------

    def pump(self) -> None:
        """Takes from the intake the chunks that may go out now."""
        self._pump_due = False
        if self._done:
            return
        for intake in self.intake.on_woken():
            topic = self._topics.get(intake.name)
            if topic is None:
                if intake.name not in self._opening:
                    self._cluster.spawn(self._open_for(intake), f"semel-open-for-{intake.name}")
                continue
            self._pump_topic(intake, topic)

    async def _open_for(self, intake: TopicIntake) -> None:
        try:
            await self.open_topic(intake.name)
        except SemelError as error:
            while (chunk := self.intake.take(intake, open_too=True)) is not None:
                self._fail_chunk(chunk, error)
            self.intake.forget(intake.name)
            return
        self.pump()

    def _pump_soon(self) -> None:
        if not self._pump_due and not self._done:
            self._pump_due = True
            asyncio.get_running_loop().call_soon(self.pump)

    def _pump_topic(
        self, intake: TopicIntake, topic: ProducerTopic, lingered: bool = False
    ) -> None:
        anywhere = topic.resume is None
        while True:
            sticky = self._next_lane(topic) if anywhere else 0
            if sticky is None:
                return
            now = lingered or self._flushing > 0 or not topic.unsettled
            chunk = self.intake.take(intake, open_too=now)
            if chunk is None:
                break
            self._route(topic, chunk, sticky)
        if intake.open is not None and topic.linger is None:
            loop = asyncio.get_running_loop()
            topic.linger = loop.call_later(
                self.config.linger_ms / 1000, self._lingered, intake, topic
            )

    def _lingered(self, intake: TopicIntake, topic: ProducerTopic) -> None:
        topic.linger = None
        if not self._done and self._topics.get(intake.name) is topic:
            self._pump_topic(intake, topic, lingered=True)

    def _next_lane(self, topic: ProducerTopic) -> int | None:
        """Returns the index of the next queue, in turn, that would send at once, or None."""
        queues = topic.route.queues
        for step in range(len(queues)):
            place = (topic.turn + step) % len(queues)
            lane = topic.find(queues[place].key)
            if self._link(queues[place].group_id).available if lane is None else lane.free:
                return place
        return None

    def _route(self, topic: ProducerTopic, chunk: Chunk, sticky: int) -> None:
        position = int(chunk.positions[-1]) if chunk.positions is not None else -1
        try:
            parts = route(
                chunk,
                topic.route,
                sticky=sticky,
                batch_bytes=topic.batch_bytes,
                resume=topic.resume,
            )
        except SemelError as error:
            self._fail_chunk(chunk, error)
            return
        topic.turn = (sticky + 1) % len(topic.route.queues)
        topic.routed_position = max(topic.routed_position, position)
        skipped = chunk.count - sum(part.count for part in parts)
        self.stats.skipped += skipped
        topic.unsettled += len(parts)
        for part in parts:
            lane = topic.lane(part.queue)
            if lane.window is None:
                self._fence_later(lane)
            topic.put(part)
        if skipped:
            chunk.wake()
        if chunk.settled:
            self._finish(chunk)

    # --- outcomes -------------------------------------------------------------------------------

    def perform(self, lane: Lane, decisions: list[Decision]) -> None:
        """Carries out the decisions of a window."""
        for decision in decisions:
            match decision:
                case Settled(batch=batch):
                    lane.backoff.reset()
                    lane.link.on_settled(lane, batch)
                    part = batch.tag
                    assert isinstance(part, Part)
                    self.stats.batches += 1
                    self.stats.bytes += len(batch.payload)
                    self.settle(part, stored_outcome(decision, part))
                case Failed(batch=batch):
                    lane.link.on_settled(lane, batch)
                    assert isinstance(batch.tag, Part)
                    self.settle(batch.tag, Outcome(error=decision.error))
                case Retry():
                    lane.pause(decision.after_ms)
                case Fence():
                    if not lane.fencing:
                        lane.fencing = True
                        self._cluster.spawn(self._fence_again(lane, decision.reopen), "semel-fence")
                case Elsewhere():
                    self._cluster.routes.on_moved(decision.error)
                    if not self._follow(lane):
                        lane.pause(MOVED_PAUSE_MS)  # told to go where it is
                case Sealed():
                    self._leave(lane, decision.split, decision.batches)
                case Fatal():
                    self.fail(decision.error)
                case Moved():
                    raise decision.error
                case _:
                    assert_never(decision)

    def settle(self, part: Part, outcome: Outcome) -> None:
        """Gives a part its outcome. The first outcome stands."""
        if part.outcome is not None:
            return
        chunk = part.chunk
        topic = self._topics.get(chunk.topic)
        if topic is not None and topic.find(part.queue) is not None:
            topic.unsettled -= 1
        if outcome.error is not None:
            self.stats.failed += part.count
            self._note(chunk, outcome.error)
        elif outcome.duplicate:
            self.stats.duplicates += part.count
        else:
            self.stats.stored += part.count - outcome.trimmed
            self.stats.duplicates += outcome.trimmed
            if outcome.dropped is not None:
                self._on_dropped(chunk, outcome.dropped)
        chunk.settle(part, outcome)
        if chunk.settled:
            self._finish(chunk)
        if outcome.error is not None and self.config.source_positions:
            self.fail(outcome.error)
        self._pump_soon()

    def _on_dropped(self, chunk: Chunk, dropped: DroppedRows) -> None:
        """Counts rows that were not stored because of their ids. A conflict leaves no hole: its
        sequence is taken, so a producer with source positions goes on."""
        duplicates, conflicts = dropped.duplicates, dropped.conflicts
        self.stats.stored -= duplicates + conflicts
        self.stats.duplicates += duplicates
        self.stats.conflicts += conflicts
        self.stats.failed += conflicts
        if (error := dropped.first_conflict(chunk.topic)) is not None:
            self._note(chunk, error)

    def _fail_chunk(self, chunk: Chunk, error: Exception) -> None:
        if chunk.parts is None:
            self.stats.failed += chunk.count
            self._note(chunk, error)
            chunk.fail(error)
            self._finish(chunk)
        else:
            for part in chunk.parts:
                self.settle(part, Outcome(error=error))
        if self.config.source_positions:
            self.fail(error)

    def _finish(self, chunk: Chunk) -> None:
        self.intake.release(chunk)

    def _note(self, chunk: Chunk, error: Exception) -> None:
        if len(self._failures) < FAILURES_MAX:
            self._failures.append((chunk, error))

    def on_resent(self, batches: int) -> None:
        self.stats.retries += batches

    def on_throttled(self, throttled_ms: int) -> None:
        self.stats.throttled_ms += throttled_ms

    def on_room(self) -> None:
        self._pump_soon()

    # --- asked from outside ---------------------------------------------------------------------

    async def flush(self) -> None:
        """Waits until everything sent before is settled. With source positions idle queues get
        marks, so that the minimum over the queues moves. Raises the first failure since the last
        flush that neither a future nor `send` has told."""
        self._flushing += 1
        try:
            self.pump()
            marks: list[Chunk] = []
            if self.config.source_positions and not self._done:
                marks = await self._put_marks()
            for chunk in [*self.intake.snapshot(), *marks]:
                await await_settled(chunk, lambda chunk=chunk: chunk.settled)  # type: ignore[misc]
        finally:
            self._flushing -= 1
        failures, self._failures = self._failures, []
        for chunk, error in failures:
            told = chunk.told or (self.intake.told and error is self.intake.failure())
            if not told:
                raise error

    async def _put_marks(self) -> list[Chunk]:
        """Moves queues that are behind the newest position of their topic."""
        for name in list(self._opening):
            await self.open_topic(name)
        self.pump()
        marks: list[Chunk] = []
        if self._done:
            return marks
        for topic in self._topics.values():
            # Not the newest that was sent: another thread's may not be routed yet.
            position = topic.routed_position
            behind = [lane for lane in topic.lanes if lane.last_planned < position]
            if not behind:
                continue
            marks.append(self._mark(topic, behind, position))
        return marks

    def _mark(self, topic: ProducerTopic, lanes: list[Lane], position: int) -> Chunk:
        """Moves the last sequence of lanes to `position` with empty batches."""
        chunk = Chunk(topic.route.name, time.time_ns() // 1000, self._deadline())
        chunk.parts = []
        for lane in lanes:
            part = Part(chunk, lane.key, 0, 0, 0)
            part.positions = np.array([position], np.int64)
            chunk.parts.append(part)
        chunk.open_parts = len(chunk.parts)
        topic.unsettled += len(chunk.parts)
        for part in list(chunk.parts):
            topic.put(part)
        self._keep(chunk)
        return chunk

    def _keep(self, chunk: Chunk) -> None:
        self._inside = [each for each in self._inside if not each.settled]
        self._inside.append(chunk)

    def _deadline(self) -> float:
        return time.monotonic() + self.config.delivery_timeout_ms / 1000

    async def opened(self, name: str) -> None:
        """Returns once the topic can be sent to. Raises SemelError."""
        await self.open_topic(name)

    async def wait_room(self) -> None:
        """Returns once the buffer has room. Raises what the producer failed with."""
        while not self.intake.has_room():
            failure = self.intake.failure()
            if failure is not None:
                raise failure
            chunks = self.intake.snapshot()
            if chunks:
                oldest = chunks[0]
                await await_settled(oldest, lambda chunk=oldest: chunk.settled)  # type: ignore[misc]

    async def last_sequences(self, name: str) -> dict[int, int]:
        """Returns the last stored sequence by queue, -1 for none. Raises SemelError."""
        if not self.identity.name:
            raise InvalidRequest("only a named producer has a last sequence: producer(name)")
        topic = await self.open_topic(name)
        return {
            lane.key.queue_id: lane.window.last_settled if lane.window is not None else -1
            for lane in topic.lanes
        }

    def snapshot_stats(self) -> ProducerStats:
        stats = self.stats
        return ProducerStats(
            sent=self.intake.messages,
            stored=stats.stored,
            duplicates=stats.duplicates,
            skipped=stats.skipped,
            failed=stats.failed,
            conflicts=stats.conflicts,
            batches=stats.batches,
            retries=stats.retries,
            bytes=stats.bytes,
            throttled_ms=stats.throttled_ms,
        )


def stored_outcome(settled: Settled, part: Part) -> Outcome:
    """Returns the outcome of a part whose batch is stored."""
    batch, dropped = settled.batch, None
    if settled.dropped is not None:
        dropped = DroppedRows.of(settled.dropped, batch.payload, part.positions, batch.trimmed)
    return Outcome(
        base_offset=settled.base_offset,
        base_sequence=batch.base,
        append_time_us=settled.append_time_us,
        # Only the answer to a batch that went out twice says both: its other rows are new.
        duplicate=settled.duplicate and dropped is None,
        trimmed=batch.trimmed,
        dropped=dropped,
        due_in_second=settled.due_in_second,
    )
