"""A producer's id and epoch, and its fences, on a cluster that is played by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from semel.client.core.routing import QueueRoute
from semel.client.producer.identity import Identity
from semel.protos.errors import ProducerFenced, QueueMoved, SemelError, Unavailable
from semel.protos.ids import GroupId, QueueId, QueueKey, TopicId
from semel.protos.v1 import broker_pb2, controller_pb2

QUEUE = QueueRoute(
    key=QueueKey(TopicId(7), QueueId(0)), group_id=GroupId(1), slot_start=0, slot_end=65_536
)


class Played:
    """Controllers that give out epochs, and brokers that fence."""

    def __init__(self) -> None:
        self.routes = self
        self.epoch = 0
        self.answers = asyncio.Event()
        """Controllers answer once it is set."""
        self.answers.set()
        self.failure: SemelError | None = None
        self.on_fence: Callable[[broker_pb2.FenceProducerRequest], None] = lambda request: None
        self.fences: list[tuple[int, int, int]] = []

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(coroutine)

    async def controller(self, method: str, request: Any) -> controller_pb2.OpenProducerReply:
        await self.answers.wait()
        if self.failure is not None:
            raise self.failure
        self.epoch += 1
        return controller_pb2.OpenProducerReply(producer_id=5, epoch=self.epoch)

    def by_home(self, queues: list[QueueRoute]) -> dict[GroupId, list[QueueKey]]:
        return {GroupId(1): [queue.key for queue in queues]}

    async def call_master(
        self, group_id: GroupId, method: str, request: Any, timeout_s: float
    ) -> broker_pb2.FenceProducerReply:
        self.fences.append((request.producer_id, request.epoch, request.session))
        self.on_fence(request)
        reply = broker_pb2.FenceProducerReply()
        for _ in request.queues:
            reply.rows.add(last_sequence=-1)
        return reply


@pytest.fixture
def cluster() -> Played:
    return Played()


async def opened(cluster: Played) -> Identity:
    identity = Identity(cluster, "loader")  # type: ignore[arg-type]
    await identity.ensure()
    return identity


async def test_lanes_that_reopen_at_once_share_one_epoch(cluster: Played) -> None:
    """Two would look like a producer that was opened elsewhere, and end it."""
    identity = await opened(cluster)
    old = identity.pair
    await asyncio.gather(identity.reopen(old), identity.reopen(old))
    await identity.reopen(old)
    assert identity.pair == (5, 2)


async def test_a_lane_that_reopens_for_another_that_gave_up_is_not_left_alone(
    cluster: Played,
) -> None:
    identity = await opened(cluster)
    old = identity.pair
    cluster.answers.clear()
    first = asyncio.create_task(identity.reopen(old))
    second = asyncio.create_task(identity.reopen(old))
    await asyncio.sleep(0)
    first.cancel()
    cluster.answers.set()
    await second
    assert identity.pair == (5, 2)


async def test_a_reopen_that_failed_is_tried_again(cluster: Played) -> None:
    identity = await opened(cluster)
    old = identity.pair
    cluster.failure = Unavailable("no controller")
    with pytest.raises(Unavailable):
        await identity.reopen(old)
    cluster.failure = None
    await identity.reopen(old)
    assert identity.pair == (5, 2)


async def test_a_producer_that_was_opened_elsewhere_ends(cluster: Played) -> None:
    identity = await opened(cluster)
    old = identity.pair
    cluster.epoch += 1  # somebody else's
    told = await asyncio.gather(*(identity.reopen(old) for _ in range(2)), return_exceptions=True)
    assert [type(each) for each in told] == [ProducerFenced, ProducerFenced]
    with pytest.raises(ProducerFenced):
        await identity.reopen(old)  # a lane that comes later must not use the epoch either


async def test_a_reopen_that_failed_is_no_reason_to_open_no_other_topic(cluster: Played) -> None:
    identity = await opened(cluster)
    cluster.failure = Unavailable("no controller")
    with pytest.raises(Unavailable):
        await identity.reopen(identity.pair)
    await identity.ensure()


async def test_a_fence_names_one_identity_whatever_happens_meanwhile(cluster: Played) -> None:
    """The caller makes its window with what it read before."""
    identity = await opened(cluster)
    moved = [QueueMoved("gone", group_id=1)]

    def on_fence(request: broker_pb2.FenceProducerRequest) -> None:
        if moved:
            identity.epoch = 9
            raise moved.pop()

    cluster.on_fence = on_fence
    await identity.fence([QUEUE], 3, 60.0, after_expiry=False)
    assert cluster.fences == [(5, 1, 3), (5, 1, 3)]
