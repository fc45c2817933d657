"""Two broker groups, and the steps by which a queue moves from one to the other."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio

from semel.protos import compat
from semel.protos.ids import GroupId, QueueId, QueueKey
from semel.protos.queue_refs import queue_ref
from semel.protos.rpc import error_from_rpc
from semel.protos.v1 import broker_pb2, broker_pb2_grpc, common_pb2, control_pb2
from tests.kit.brokers import CLUSTER, QUEUE, QUICK_CLEANING, TOPIC, BrokerGroup, RawClient
from tests.kit.id_senders import SEED

OTHER = QueueKey(TOPIC, QueueId(1))
SETTINGS = common_pb2.TopicSettings(
    retention_bytes=50_000, dedup=common_pb2.IdDedup(window_bytes=1 << 20, seed=SEED)
)
SLOTS = {QUEUE: (0, 32_768), OTHER: (32_768, 65_536)}


def create_of(
    key: QueueKey,
    settings: common_pb2.TopicSettings = SETTINGS,
    slots: tuple[int, int] | None = None,
) -> control_pb2.CreateQueue:
    start, end = slots or SLOTS[key]
    return control_pb2.CreateQueue(
        queue=queue_ref(key), topic="t", slot_start=start, slot_end=end, settings=settings
    )


async def apply(group: BrokerGroup, **record: Any) -> None:
    request = broker_pb2.ApplyQueuesRequest(
        cluster_id=CLUSTER, records=[control_pb2.ControlRecord(**record)]
    )
    async with RawClient((await group.master()).address) as client:
        await client.call("ApplyQueues", request)


async def step(group: BrokerGroup, name: str, key: QueueKey, job: int, **fields: Any) -> None:
    record = control_pb2.MoveQueue(
        queue=queue_ref(key),
        job=job,
        group_id=3 - group.settings["group_id"],
        step=f"MOVE_STEP_{name}",
        **fields,
    )
    await apply(group, move_queue=record)


async def pull(
    source: BrokerGroup, target: BrokerGroup, key: QueueKey, job: int, *, finish: bool
) -> broker_pb2.PullQueueReply:
    request = broker_pb2.PullQueueRequest(
        cluster_id=CLUSTER,
        queue=queue_ref(key),
        job=job,
        sources=list(source.addresses.values()),
        finish=finish,
        max_ms=10_000,
    )
    master = await target.master()
    async with grpc.aio.insecure_channel(master.address) as channel:
        stub: Any = broker_pb2_grpc.MovesStub(channel)
        try:
            reply: broker_pb2.PullQueueReply = await stub.PullQueue(request, timeout=20)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None
    return reply


async def move(
    source: BrokerGroup,
    target: BrokerGroup,
    key: QueueKey,
    job: int,
    slots: tuple[int, int] | None = None,
) -> None:
    """What the controllers do. `slots` are those of a queue that a split has made."""
    create = create_of(key, slots=slots)
    await step(target, "BEGIN", key, job, create=create)
    found = await pull(source, target, key, job, finish=False)
    assert found.ids_left == 0
    await step(source, "SEAL", key, job)
    found = await pull(source, target, key, job, finish=True)
    assert found.ready
    await step(target, "ACTIVATE", key, job, create=create)
    await step(source, "FORWARD", key, job)


@contextlib.asynccontextmanager
async def groups(directory: Path, nodes: int = 1) -> AsyncIterator[tuple[BrokerGroup, BrokerGroup]]:
    """Two broker groups, of which the first one has both queues of the topic."""
    source = BrokerGroup(directory / "1", nodes, group_id=GroupId(1), **QUICK_CLEANING)
    target = BrokerGroup(directory / "2", nodes, group_id=GroupId(2), **QUICK_CLEANING)
    async with source, target:
        for key in SLOTS:
            await apply(source, create_queue=create_of(key))
        yield source, target


async def verify(group: BrokerGroup) -> list[Any]:
    """What the master recomputes. Its log is cleaned all the time, also while it is read."""
    async with compat.timeout(30), RawClient((await group.master()).address) as client:
        while True:
            try:
                return list((await client.verify()).values())
            except grpc.aio.AioRpcError as error:
                if "cleaned while they were read" not in str(error.details()):
                    raise
