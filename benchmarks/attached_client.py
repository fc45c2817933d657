"""Idle producers and consumers of one process, without the SDK; prints one line once attached.

How it works. Each application has the connections that the SDK opens: for calls and for routes to
the controller, for calls, for produce streams and for fetch streams to the master. Each of its
producers has stored one message and keeps its stream; each of its consumers is a member of a group,
holds a queue's lock and has a poll under way. The SDK would poll, renew and send heartbeats more
often than sessions of ten minutes need; that costs CPU, and that many SDKs do not fit on one
machine beside the nodes. The process ends with its standard input.

    python -m benchmarks.attached_client CONTROLLER BROKER --first 0 --applications 250 --each 5

Not here: the cluster and the measurement (`attached.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from contextlib import AsyncExitStack
from typing import Any, Final

import grpc
import grpc.aio
import pyarrow as pa

from benchmarks.floor_node import die_with_parent
from semel.protos import compat
from semel.protos.batch import Codec
from semel.protos.columns import Columns, encode_batch
from semel.protos.errors import Unavailable, from_detail
from semel.protos.ids import ProducerId, QueueId, QueueKey, Sequence, TopicId
from semel.protos.queue_refs import queue_ref
from semel.protos.rpc import CHANNEL_OPTIONS
from semel.protos.streams import (
    FETCH_METHOD,
    PRODUCE_METHOD,
    encode_produce,
)
from semel.protos.v1 import broker_pb2, broker_pb2_grpc, controller_pb2, controller_pb2_grpc
from tests.kit.fetch_replies import decode_fetch_reply

WRITTEN: Final = "written"
READ: Final = "read"
"""Stays empty, because every message would wake a consumer of each group."""
MEMBERS: Final = 10
"""Consumers of one group, as many as the topic has queues."""
OPENING: Final = 8
"""Number of applications that are attached at the same time."""
SESSION_MS: Final = 600_000
BEAT_S: Final = 150.0
POLL_MS: Final = 30_000
"""The longest time for which a broker holds a poll."""
CALL_S: Final = 120.0


class Application:
    """One set of connections, and the producers and consumers on them."""

    def __init__(self, exits: AsyncExitStack, controller: str, broker: str) -> None:
        self._exits = exits
        self._controller: Any = controller_pb2_grpc.ControllerStub(self._channel(controller))
        self._broker: Any = broker_pb2_grpc.BrokerStub(self._channel(broker))
        self._produce = self._channel(broker)
        self._fetch = self._channel(broker)
        self._streams: list[Any] = []
        self.running: list[asyncio.Task[None]] = []

    def _channel(self, address: str) -> grpc.aio.Channel:
        channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._exits.push_async_callback(channel.close)
        return channel

    async def attach(self, places: range) -> None:
        """Attaches one producer and one consumer for each place."""
        request = controller_pb2.GetRoutesRequest(topics=[WRITTEN, READ])
        watch = self._controller.WatchRoutes(request)
        routes = await watch.read()
        self._streams.append(watch)
        ids = {topic.name: TopicId(topic.topic_id) for topic in routes.topics}
        for place in places:
            queue_id = QueueId(place % MEMBERS)
            await self._produce_one(QueueKey(ids[WRITTEN], queue_id), place)
            await self._consume(QueueKey(ids[READ], queue_id), place)

    async def _produce_one(self, key: QueueKey, place: int) -> None:
        opened = await self._controller.OpenProducer(
            controller_pb2.OpenProducerRequest(open_id=place.to_bytes(16, "little")), timeout=CALL_S
        )
        await self._broker.FenceProducer(
            broker_pb2.FenceProducerRequest(
                queues=[queue_ref(key)],
                producer_id=opened.producer_id,
                epoch=opened.epoch,
                session=1,
            ),
            timeout=CALL_S,
        )
        stream: Any = self._produce.stream_stream(
            PRODUCE_METHOD, response_deserializer=broker_pb2.ProduceReply.FromString
        )()
        batch = encode_batch(
            Columns(values=pa.array([b"attached"], pa.binary())),
            topic_id=key.topic_id,
            queue_id=key.queue_id,
            producer_id=ProducerId(opened.producer_id),
            epoch=opened.epoch,
            session=1,
            previous_sequence=Sequence(-1),
            base_sequence=Sequence(0),
            last_sequence=Sequence(0),
            codec=Codec.NONE,
            timestamp_us=1,
        )
        await stream.write(encode_produce([batch]))
        reply = await stream.read()
        if reply is grpc.aio.EOF or reply.HasField("error") or not reply.acks:
            raise Unavailable(f"the master has not stored a message: {reply}")
        self._streams.append(stream)

    async def _consume(self, key: QueueKey, place: int) -> None:
        group = f"group-{place // MEMBERS}"
        joined = await self._controller.JoinGroup(
            controller_pb2.JoinGroupRequest(group=group, topics=[READ], session_ms=SESSION_MS),
            timeout=CALL_S,
        )
        acquired = await self._broker.AcquireLocks(
            broker_pb2.AcquireLocksRequest(
                group=group,
                member_id=joined.member_id,
                generation=joined.generation,
                queues=[queue_ref(key)],
                lock_ms=SESSION_MS,
                session_ms=SESSION_MS,
            ),
            timeout=CALL_S,
        )
        (grant,) = acquired.grants
        if not grant.token:
            raise from_detail(grant.error)
        wanted = broker_pb2.FetchQueue(
            queue=queue_ref(key), offset=grant.high_watermark, group=group, token=grant.token
        )
        self.running.append(asyncio.ensure_future(self._poll(wanted)))
        beats = self._beat(group, joined.member_id, joined.generation, key, grant.token)
        self.running.append(asyncio.ensure_future(beats))

    async def _beat(
        self, group: str, member_id: str, generation: int, key: QueueKey, token: int
    ) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            reply = await self._controller.HeartbeatGroup(
                controller_pb2.HeartbeatGroupRequest(
                    group=group, member_id=member_id, generation=generation, held=[queue_ref(key)]
                ),
                timeout=CALL_S,
            )
            generation = reply.generation
            lock = broker_pb2.LockRef(queue=queue_ref(key), token=token)
            renewed = await self._broker.RenewLocks(
                broker_pb2.RenewLocksRequest(group=group, member_id=member_id, locks=[lock]),
                timeout=CALL_S,
            )
            if renewed.lost:
                raise Unavailable(f"the lock of {group} on queue {key.queue_id} is lost")

    async def _poll(self, wanted: broker_pb2.FetchQueue) -> None:
        """Sends one poll after the other and reads the replies."""
        stream: Any = self._fetch.stream_stream(
            FETCH_METHOD, request_serializer=broker_pb2.FetchRequest.SerializeToString
        )()
        while True:
            await stream.write(broker_pb2.FetchRequest(queues=[wanted], max_wait_ms=POLL_MS))
            data = await stream.read()
            if data is grpc.aio.EOF:
                raise Unavailable("the master has ended a fetch stream")
            header, _ = decode_fetch_reply(data)
            if header.HasField("error"):
                raise from_detail(header.error)
            for result in header.results:
                if result.HasField("error"):
                    raise from_detail(result.error)
                wanted.offset = result.high_watermark


async def run(options: argparse.Namespace) -> None:
    """Attaches all, prints one line, and stays until standard input ends."""
    async with AsyncExitStack() as exits:
        turn = asyncio.Semaphore(OPENING)
        applications: list[Application] = []

        async def attach(number: int) -> None:
            async with turn:
                one = Application(exits, options.controller, options.broker)
                applications.append(one)
                await one.attach(range(number * options.each, (number + 1) * options.each))

        async with compat.TaskGroup() as tasks:
            for number in range(options.first, options.first + options.applications):
                tasks.create_task(attach(number))
        running = [task for one in applications for task in one.running]
        print(json.dumps({"attached": len(running)}), flush=True)
        ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await asyncio.wait([ended, *running], return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            if task.done():
                task.result()
            task.cancel()


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("controller")
    parser.add_argument("broker")
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--applications", type=int, required=True)
    parser.add_argument("--each", type=int, required=True)
    options = parser.parse_args()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too and ends this process
    asyncio.run(run(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
