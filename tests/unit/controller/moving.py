"""Brokers of the controller's tests whose queues are those of the real replicated state."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from semel.broker.state import Duplicate, MoveApplied, MoveState, move_refusal
from semel.protos import compat, errors
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.protos.levels import MOVE_LEVEL
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import broker_pb2, common_pb2, control_pb2
from semel.protos.v1 import controller_pb2 as pb
from semel.protos.v1.broker_pb2_grpc import (
    MovesServicer,
    add_BrokerServicer_to_server,
    add_MovesServicer_to_server,
)
from tests.kit.controller_cluster import Client, Cluster, FakeBroker
from tests.kit.state_log import control, header
from tests.unit.broker.state.moving import Home, bring_slice, copy_some

MESSAGES = 30


class MovingBroker(FakeBroker, MovesServicer):
    """The only node of a group. Each new queue gets three batches of producer 1 at once."""

    everybody: dict[str, MovingBroker]

    def __init__(
        self, group_id: int, everybody: dict[str, MovingBroker], level: int = MOVE_LEVEL
    ) -> None:
        super().__init__(group_id, group_id * 10, {})
        self.home = Home(group_id, at_level=level)
        self.everybody = everybody
        """By address."""
        self.batches_a_pull = 2
        self.after_figures: Callable[[], Awaitable[object]] | None = None
        """Awaited before the figures of a queue that is to move are told."""
        self.pulls = 0

    async def start(self) -> None:
        add_BrokerServicer_to_server(self, self._server)
        add_MovesServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self.everybody[self.address] = self
        await self._server.start()

    def _apply(self, record: control_pb2.ControlRecord) -> None:
        which = record.WhichOneof("record")
        if which == "move_queue":
            self.home.key = queue_key_of(record.move_queue.queue)
            self.home.commit()
            (result,) = self.home.apply(control(move_queue=record.move_queue))
            assert isinstance(result, MoveApplied)
            if result.error is not None:
                raise result.error
            return
        self.home.apply(control(**{str(which): getattr(record, str(which))}))
        if which == "create_queue":
            key = queue_key_of(record.create_queue.queue)
            if self.home.state.producers.find(key, 1) is None:
                self.home.fence(keys=[key])
                for number in range(3):
                    last = 10 * number - 1
                    batch = header(last, last=last + 10, crc=number + 1, key=key)
                    self.home.produce(batch)

    def report(self, **changes: Any) -> Any:
        return super().report(queues=len(self.home.state.queues), **changes)

    async def CopyQueue(  # noqa: N802
        self, request: broker_pb2.CopyQueueRequest, context: Any
    ) -> broker_pb2.CopyQueueReply:
        assert request.figures_only
        key = queue_key_of(request.queue)
        queues = self.home.state.queues
        if key not in queues:
            raise self.home.state.absent(key)
        state = self.home.state
        level = state.feature_level
        if (refusal := move_refusal(queues, queues[key], state.delays, level, ())) is not None:
            raise refusal
        reply = broker_pb2.CopyQueueReply(log_end_offset=queues[key].log_end_offset)
        if self.after_figures is not None:
            await self.after_figures()
        return reply

    async def PullQueue(  # noqa: N802
        self, request: broker_pb2.PullQueueRequest, context: Any
    ) -> broker_pb2.PullQueueReply:
        self.pulls += 1
        if self.before is not None:
            await self.before()
        key = queue_key_of(request.queue)
        source = self.everybody[request.sources[0]].home
        source.key = self.home.key = key
        place = self.home.state.moves.places.get(key)
        if place is None or place.job != request.job:
            raise errors.InvalidRequest("no such move")
        copy_some(source, self.home, 99 if request.finish else self.batches_a_pull)
        if request.finish and place.state is not MoveState.READY:
            frozen = source.state.moves.places.get(key)
            assert frozen is not None
            assert (frozen.state, frozen.job) == (MoveState.FROZEN, request.job)
            error = bring_slice(source, self.home, request.job)
            if error is not None:
                raise error
        if self.after is not None:
            await self.after()
        incoming = self.home.state.moves.incoming[key].queue
        return broker_pb2.PullQueueReply(
            copied_offset=incoming.log_end_offset,
            log_end_offset=source.state.queues[key].log_end_offset,
            # As if each message were a megabyte: it is not sealed before all is copied.
            copied_bytes=incoming.log_end_offset << 20,
            total_bytes=source.state.queues[key].log_end_offset << 20,
            ready=self.home.state.moves.places[key].state is MoveState.READY,
        )


async def add_groups(
    cluster: Cluster, count: int = 2, *, level: int = MOVE_LEVEL
) -> list[MovingBroker]:
    """Groups 1 to `count`, of one node each."""
    everybody: dict[str, MovingBroker] = {}
    made = [MovingBroker(number, everybody, level) for number in range(1, count + 1)]
    for broker in made:
        await broker.start()
        cluster.brokers.append(broker)
    await cluster.report()
    return made


def key_of(topic: Any, queue_id: int = 0) -> QueueKey:
    """The queue, from a topic's route."""
    return QueueKey(TopicId(topic.topic_id), QueueId(queue_id))


def reference(key: QueueKey) -> common_pb2.QueueRef:
    return common_pb2.QueueRef(topic_id=key.topic_id, queue_id=key.queue_id)


async def move(client: Client, target: int = 2, **fields: Any) -> Any:
    request = pb.MoveQueueRequest(name="orders", group_id=target, **fields)
    return await client.call("MoveQueue", request)


async def statuses(client: Client) -> list[pb.MoveStatus]:
    reply = await client.call("ListMoves", pb.ListMovesRequest())
    return list(reply.moves)


async def settled(cluster: Cluster) -> list[pb.MoveStatus]:
    """Waits until no move is under way; those that were given up."""
    async with compat.timeout(20):
        while any(each.stage != "aborted" for each in await statuses(cluster.client)):
            await asyncio.sleep(0.005)
    return await statuses(cluster.client)


async def topic_of(cluster: Cluster) -> Any:
    (topic,) = (await cluster.client.routes()).topics
    return topic


def check_whole(brokers: list[MovingBroker], topic: Any, queue_id: int = 0) -> int:
    """The queue lives where the routes say, whole, and nowhere else; returns the group."""
    key = key_of(topic, queue_id)
    homes = [broker for broker in brokers if key in broker.home.state.queues]
    (route,) = [queue for queue in topic.queues if queue.queue_id == queue_id]
    assert [broker.group_id for broker in homes] == [route.group_id]
    home = homes[0].home
    queue = home.state.queues[key]
    assert (queue.log_end_offset, queue.frozen) == (MESSAGES, False)
    assert home.produce(header(-1, last=9, crc=1, key=key)) == Duplicate(0)  # type: ignore[arg-type]
    for broker in brokers:
        assert not broker.home.state.moves.incoming
        assert not broker.home.tables.problems
    return int(route.group_id)
