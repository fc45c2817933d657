"""A cluster as one consumer sees it: controllers that assign, and a broker that keeps locks.

It takes the place of `Cluster`. Calls are answered at once, unless a test holds a method back, and
are noted. Nothing is fetched: tests put batches in line themselves.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from semel.client.config import ClientConfig, build
from semel.client.consumer.consumer import ConsumerCore
from semel.client.consumer.consumer_config import ConsumerConfig
from semel.client.core.routing import QueueRoute
from semel.client.message import Message
from semel.client.reading.feed_queue import Delivery, FeedQueue
from semel.protos.batch import BrokerHeader, Codec
from semel.protos.columns import Columns, encode_batch
from semel.protos.errors import InvalidRequest, LockLost, SemelError, Unavailable, to_detail
from semel.protos.ids import GroupId, Offset, QueueId, QueueKey, Term, TopicId
from semel.protos.queue_refs import queue_key_of, queue_ref
from semel.protos.v1 import broker_pb2, controller_pb2

TOPIC = "orders"
HOME = GroupId(1)


def key_of(number: int) -> QueueKey:
    return QueueKey(TopicId(7), QueueId(number))


@dataclass
class Lock:
    """One queue, as the broker has it."""

    end: int = 100
    start: int = 0
    token: int = 0
    owner: str = ""
    committed: int = -1


@dataclass
class SimulatedGroup:
    """Controllers and broker groups."""

    locks: dict[QueueKey, Lock] = field(default_factory=lambda: {key_of(0): Lock()})
    homes: dict[QueueKey, GroupId] = field(default_factory=dict)
    """Broker groups of queues that are not at HOME."""
    masterless: dict[GroupId, asyncio.Event] = field(default_factory=dict)
    """Calls to these broker groups wait for a master, and then fail."""
    calls: list[str] = field(default_factory=list)
    """Methods of the broker that were answered, in order."""
    held_back: dict[str, asyncio.Event] = field(default_factory=dict)
    """Events for which answers wait, by method."""
    unavailable: set[str] = field(default_factory=set)
    """Methods that are carried out and not answered."""
    refused: SemelError | None = None
    """The error with which commits are refused; None while they are accepted."""
    before_commit: Callable[[], None] = lambda: None
    opened: ExitStack = field(default_factory=ExitStack)
    """Contexts that end with the test."""
    membership: controller_pb2.GroupMembershipReply = field(
        default_factory=lambda: controller_pb2.GroupMembershipReply(
            member_id="m", generation=1, heartbeat_ms=1_000_000
        )
    )

    def __post_init__(self) -> None:
        self.config = build(ClientConfig, {})
        self.routes = self
        self.cluster_id = "c" * 32
        self.tasks: set[asyncio.Task[Any]] = set()

    # --- what a consumer needs of its cluster

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self.tasks.add(task)
        return task

    def _route(self, key: QueueKey) -> QueueRoute:
        home = self.homes.get(key, HOME)
        return QueueRoute(key=key, group_id=home, slot_start=0, slot_end=65_536)

    def topics(self) -> Iterable[Any]:
        return [SimpleNamespace(name=TOPIC, every=[self._route(key) for key in self.locks])]

    def by_home(self, queues: Iterable[QueueRoute]) -> dict[GroupId, list[QueueKey]]:
        found: dict[GroupId, list[QueueKey]] = {}
        for queue in queues:
            found.setdefault(self.home(queue), []).append(queue.key)
        return found

    def home(self, queue: QueueRoute) -> GroupId:
        return self.homes.get(queue.key, HOME)

    def on_moved(self, error: Any) -> None:
        pass

    async def topic(self, name: str, *, refresh: bool = False) -> Any:
        return SimpleNamespace(name=name)

    async def master(self, group_id: GroupId) -> Any:
        await asyncio.Event().wait()

    async def controller(self, method: str, request: Any, timeout_s: float | None = None) -> Any:
        return self.membership

    async def call_master(
        self, group_id: GroupId, method: str, request: Any, timeout_s: float | None = None
    ) -> Any:
        if group_id in self.masterless:
            await self.masterless[group_id].wait()
            raise Unavailable(f"broker group {group_id} has no master")
        answer = {
            "AcquireLocks": self._acquire_locks,
            "Commit": self._commit,
            "ReleaseLocks": self._release_locks,
            "RenewLocks": self._renew_locks,
            "ResetOffsets": self._reset_offsets,
        }
        reply = answer[method](request)
        if method in self.held_back:
            await self.held_back[method].wait()
        if method in self.unavailable:
            raise Unavailable(f"{method}: nobody answers")
        self.calls.append(method)
        return reply

    # --- the broker

    def _acquire_locks(self, request: Any) -> Any:
        reply = broker_pb2.AcquireLocksReply()
        for ref in request.queues:
            lock = self.locks[queue_key_of(ref)]
            lock.token += 1
            lock.owner = request.member_id
            reply.grants.add(
                queue=ref,
                token=lock.token,
                committed_offset=lock.committed,
                high_watermark=lock.end,
                log_start_offset=lock.start,
            )
        return reply

    def _commit(self, request: Any) -> Any:
        reply = broker_pb2.CommitReply()
        self.before_commit()
        for one in request.commits:
            lock = self.locks[queue_key_of(one.queue)]
            outcome = reply.outcomes.add()
            if self.refused is not None:
                outcome.error.CopyFrom(to_detail(self.refused))
            elif not lock.owner or lock.token != one.token:
                outcome.error.CopyFrom(to_detail(LockLost("stale", current_token=lock.token)))
            elif 0 <= one.offset < lock.committed:
                outcome.error.CopyFrom(to_detail(InvalidRequest("it needs a reset")))
            else:
                lock.committed = max(lock.committed, one.offset)
        return reply

    def _release_locks(self, request: Any) -> Any:
        for one in request.locks:
            lock = self.locks[queue_key_of(one.queue)]
            if lock.token == one.token:
                lock.owner = ""
        return broker_pb2.ReleaseLocksReply()

    def _renew_locks(self, request: Any) -> Any:
        stale = [
            one for one in request.locks if self.locks[queue_key_of(one.queue)].token != one.token
        ]
        return broker_pb2.RenewLocksReply(lost=stale)

    def _reset_offsets(self, request: Any) -> Any:
        for one in request.offsets:
            self.take_away(one.queue.queue_id, committed=one.offset)
        return broker_pb2.ResetOffsetsReply()

    # --- what tests do

    def take_away(self, number: int = 0, *, committed: int | None = None) -> None:
        """Changes the token, as another owner, a reset or a move does."""
        lock = self.locks[key_of(number)]
        lock.token += 1
        lock.owner = ""
        if committed is not None:
            lock.committed = committed

    def assign(self, *numbers: int, generation: int | None = None) -> None:
        reply = self.membership = controller_pb2.GroupMembershipReply()
        reply.member_id, reply.heartbeat_ms = "m", 1_000_000
        reply.generation = generation if generation is not None else 1
        for number in numbers:
            reply.assignment.append(queue_ref(key_of(number)))


class Program:
    """One consumer, whose background tasks a test runs step by step."""

    def __init__(self, cluster: SimulatedGroup, **options: Any) -> None:
        self.cluster = cluster
        config = build(ConsumerConfig, {"member_id": "m", **options})
        runtime = SimpleNamespace(call_soon=lambda function, *given: function(*given))
        self.runtime: Any = runtime
        self.core = ConsumerCore(cluster, self.runtime, "g", [TOPIC], config)  # type: ignore[arg-type]
        self.outstanding = self.core.puller.outstanding

    async def join(self, *numbers: int) -> None:
        """Joins with these queues assigned, and acquires them."""
        if self.core._stored is not None:
            self.core._stored.cluster_id = self.cluster.cluster_id
        self.cluster.assign(*numbers)
        await self.core._membership.join()
        await self.acquire()

    async def acquire(self) -> None:
        """One round of acquiring what is assigned and not held."""
        self.core.locks.acquire(math.inf)
        await self.rest()

    async def rest(self) -> None:
        """Lets everything in the background run until it has ended, or waits."""
        for _ in range(20):
            await asyncio.sleep(0)
        others = [t for t in self.cluster.tasks if t.get_name() == "semel-consumer-begin"]
        if others and not self.cluster.held_back:
            await asyncio.wait(others)

    def queue(self, number: int = 0) -> FeedQueue:
        return self.core.locks.held[key_of(number)]

    def put(self, start: int, end: int, number: int = 0, queue: FeedQueue | None = None) -> None:
        """Fetches offsets `[start, end)`."""
        queue = queue or self.queue(number)
        values = [b"%d" % offset for offset in range(start, end)]
        batch = encode_batch(
            Columns.from_arrow(values),
            topic_id=queue.key.topic_id,
            queue_id=queue.key.queue_id,
            producer_id=5,
            epoch=1,
            session=1,
            previous_sequence=start - 1,
            base_sequence=start,
            last_sequence=end - 1,
            timestamp_us=777,
            codec=Codec.NONE,
        )
        header = BrokerHeader(base_offset=Offset(start), append_time_us=1, term=Term(1))
        stored = memoryview(header.encode() + batch)
        queue.offset = end
        self.core.feed.deliver(
            [Delivery(queue, queue.turn, queue.token, stored, start, 0, end - start)]
        )

    async def poll(self, limit: int = 100) -> list[Message]:
        """Takes messages as `Consumer.poll` does, without waiting."""
        await self.give_back()
        return self.core.puller.messages(limit)

    async def give_back(self) -> None:
        out = self.outstanding
        if out.must_give_back:
            await self.core.give_back(out.back, in_doubt=out.in_doubt)
            out.on_given_back()

    async def commit(self, message: Message | None = None) -> None:
        """Commits as `Consumer.commit` does."""
        await self.give_back()
        out = self.outstanding
        spans = out.spans() if message is None else out.up_to(message)
        self.core.settle(await self.core.commit(spans))
