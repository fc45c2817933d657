"""The program of `floods` that floods: callers that ask again as soon as they have their answer.

How it works. It says that it has begun, floods until its input ends, and prints what became of its
calls as JSON. Reads of stored messages go through the stream of gRPC, each caller with one of its
own, from a place in the topic that moves on with each answer.

Not here: the process that starts it (`floods.py`).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

import grpc.aio

from benchmarks.floor_node import die_with_parent
from semel.client import connect
from semel.protos.rpc import CHANNEL_OPTIONS
from semel.protos.v1 import broker_pb2, broker_pb2_grpc, common_pb2, controller_pb2
from semel.protos.v1.controller_pb2_grpc import ControllerStub

BURNER: Final = "burner"
NICE: Final = 19
FETCH_BYTES: Final = 1 << 20
OFFSETS_QUEUES: Final = 64
LOCK_MS: Final = 10_000
GROUPS: Final = 50
"""Consumer groups that the joining members are of."""

Call = Callable[[int], Awaitable[Any]]


class Target:
    """Stubs for one cluster, and the topic."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        with connect(bootstrap, keep_routes=False) as client:
            self.topic = client.admin.describe_topic(topic)
            (group,) = client.admin.cluster_status().groups
        (master,) = [node for node in group.nodes if node.role == "master"]
        channel = grpc.aio.insecure_channel(master.address, options=CHANNEL_OPTIONS)
        self.broker = broker_pb2_grpc.BrokerStub(channel)
        self.routes = ControllerStub(channel)
        self.streams = broker_pb2_grpc.BrokerStreamStub(channel)
        controllers = grpc.aio.insecure_channel(bootstrap, options=CHANNEL_OPTIONS)
        self.controller = ControllerStub(controllers)
        self.queues = [
            common_pb2.QueueRef(topic_id=self.topic.topic_id, queue_id=queue.queue)
            for queue in self.topic.queues
        ]


def metadata(target: Target) -> Call:
    """Routes, and the rows of producers."""
    routes = controller_pb2.GetRoutesRequest()
    producers = broker_pb2.DescribeProducersRequest(queues=target.queues, windows=True)

    async def call(number: int) -> None:
        if number % 2:
            await target.routes.GetRoutes(routes)
        else:
            await target.broker.DescribeProducers(producers)

    return call


def list_offsets(target: Target) -> Call:
    """Offsets of many queues by time."""
    queues = [queue for _ in range(OFFSETS_QUEUES) for queue in target.queues][:OFFSETS_QUEUES]
    request = broker_pb2.ListOffsetsRequest(queues=queues, time_us=1)
    return lambda _: target.broker.ListOffsets(request)


def cold_reads(target: Target) -> Call:
    """Stored messages from the disk, a megabyte at a time."""
    places: dict[int, int] = {}
    streams: dict[int, Any] = {}

    async def call(number: int) -> None:
        queue = target.queues[number % len(target.queues)]
        stream = streams.get(number) or streams.setdefault(number, target.streams.Fetch())
        wanted = broker_pb2.FetchQueue(
            queue=queue, offset=places.get(number, 0), max_bytes=FETCH_BYTES
        )
        await stream.write(
            broker_pb2.FetchRequest(correlation_id=1, queues=[wanted], max_bytes=FETCH_BYTES)
        )
        answer = await stream.read()
        assert answer is not grpc.aio.EOF
        places[number] = places.get(number, 0) + 500 if len(answer.data) > FETCH_BYTES // 2 else 0

    return call


def verify(target: Target) -> Call:
    """The whole topic recomputed from the log."""

    async def call(_: int) -> None:
        replies: AsyncIterator[Any] = target.broker.VerifyQueues(
            broker_pb2.VerifyQueuesRequest(queues=target.queues)
        )
        async for _reply in replies:
            pass

    return call


def joins(target: Target) -> Call:
    """New members of consumer groups, which then ask for locks."""
    count = itertools.count()

    async def call(_: int) -> None:
        group = f"flood-{next(count) % GROUPS}"
        member = f"member-{os.getpid()}-{next(count)}"
        joined = await target.controller.JoinGroup(
            controller_pb2.JoinGroupRequest(
                group=group, member_id=member, topics=[target.topic.name], session_ms=1_000
            )
        )
        await target.broker.AcquireLocks(
            broker_pb2.AcquireLocksRequest(
                group=group,
                member_id=member,
                generation=joined.generation,
                queues=target.queues,
                lock_ms=LOCK_MS,
                session_ms=1_000,
            )
        )

    return call


FLOODS: Final[Mapping[str, Callable[[Target], Call]]] = {
    "metadata": metadata,
    "list-offsets": list_offsets,
    "cold-reads": cold_reads,
    "verify": verify,
    "joins": joins,
}


async def ended() -> None:
    """Returns when the input has ended."""
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def flooding(call: Call, callers: int) -> Mapping[str, float]:
    """Floods until the input ends."""
    answered = refused = 0

    async def ask(number: int) -> None:
        nonlocal answered, refused
        while True:
            try:
                await call(number)
                answered += 1
            except grpc.aio.AioRpcError:
                refused += 1

    start = time.perf_counter()
    tasks = [asyncio.create_task(ask(number)) for number in range(callers)]
    await ended()
    seconds = time.perf_counter() - start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return {"answered_s": answered / seconds, "refused_s": refused / seconds}


async def burning() -> Mapping[str, float]:
    """Computes until the input ends, and calls nobody."""
    waits = asyncio.create_task(ended())
    while not waits.done():
        sum(range(1_000))
        await asyncio.sleep(0)
    return {}


async def play(kind: str, bootstrap: str, topic: str, callers: int) -> Mapping[str, float]:
    """One flood."""
    if kind == BURNER:
        print("begun", flush=True)
        return await burning()
    call = FLOODS[kind](Target(bootstrap, topic))
    print("begun", flush=True)
    return await flooding(call, callers)


if __name__ == "__main__":
    die_with_parent()
    os.nice(NICE)
    print(json.dumps(asyncio.run(play(**json.loads(sys.argv[1])))), flush=True)
    os._exit(0)  # a thread may still wait for the input
