"""A broker group inside the test's own event loop: real nodes, real gRPC, real disk, no processes.

Faster than processes and open to the test: a node's state and log can be looked at, its files
changed while it is stopped. `RawClient` speaks the protocol by hand, without any of the SDK's
retries, so that a test sees exactly what the broker answers.

Not here: kills, pauses and the SDK (`cluster.py`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import grpc
import grpc.aio
import pyarrow as pa

from semel.broker.config import BrokerConfig
from semel.broker.log import FileLayer, LogConfig
from semel.broker.node import BrokerNode
from semel.broker.raft import RaftConfig
from semel.protos.batch import Codec
from semel.protos.columns import Columns, encode_batch
from semel.protos.errors import NotMaster, Throttled
from semel.protos.ids import GroupId, NodeId, ProducerId, QueueId, QueueKey, TopicId
from semel.protos.ids import Sequence as Seq
from semel.protos.levels import LEVEL_MAX
from semel.protos.queue_refs import queue_ref
from semel.protos.rpc import CHANNEL_OPTIONS, error_from_rpc
from semel.protos.streams import (
    FETCH_METHOD,
    PRODUCE_METHOD,
    encode_produce,
)
from semel.protos.v1 import broker_pb2, broker_pb2_grpc, common_pb2, control_pb2
from tests.kit.batches import to_record_batch
from tests.kit.fetch_replies import decode_fetch_reply
from tests.kit.ports import free_ports

CLUSTER = "test-cluster"
TOPIC = TopicId(77)
QUEUE = QueueKey(TOPIC, QueueId(0))
QUICK_CLEANING: Final[Mapping[str, Any]] = {
    "log": LogConfig(segment_bytes=64 << 10, cache_bytes=64 << 10),
    "retained_log_bytes": 32 << 10,
    "retention_check_ms": 50,
}
"""Settings of a group whose logs are cleaned as soon as a record is dead."""


class BrokerGroup:
    """1, 3 or 5 nodes; `async with` stops what runs."""

    def __init__(self, directory: Path, nodes: int = 3, **settings: Any) -> None:
        self.directory = directory
        if nodes == 1:  # nobody to wait for
            patience = RaftConfig(heartbeat_ms=20, election_min_ms=50, election_max_ms=60)
            settings.setdefault("raft", patience)
        self.settings = settings
        ports = free_ports(nodes)
        self.addresses = {
            NodeId(number): f"127.0.0.1:{port}" for number, port in enumerate(ports, 1)
        }
        self.founding = dict(self.addresses)
        self.running: dict[NodeId, BrokerNode] = {}
        self.files: dict[int, FileLayer] = {}
        """File systems other than the real one, by node."""
        self._begun: set[int] = set()
        """Founders that were started before; no controllers are there to know it."""
        self.levels: dict[int, int] = {}
        """Highest feature levels of nodes that run an older program."""

    def config(self, node: int) -> BrokerConfig:
        """The configuration of one node."""
        config = BrokerConfig(
            data=self.directory / str(node),
            cluster_id=CLUSTER,
            group_id=GroupId(1),
            node_id=NodeId(node),
            listen=self.addresses[NodeId(node)],
            members=self.founding if node in self.founding else {},
            join=() if node in self.founding else tuple(self.founding.values()),
        )
        level_max = self.levels.get(node, LEVEL_MAX)
        return dataclasses.replace(config, level_max=level_max, **self.settings)

    async def __aenter__(self) -> Self:
        for node in self.founding:
            await self.start(node)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for node in list(self.running):
            await self.stop(node)

    async def start(self, node: int) -> BrokerNode:
        """Starts a node on its directory; the first start of a founder founds the group by
        order."""
        config = self.config(node)
        if node in self.founding and node not in self._begun:
            self._begun.add(node)
            config = dataclasses.replace(config, found="test")
        started = BrokerNode(config, files=self.files.get(node))
        await started.__aenter__()
        self.running[NodeId(node)] = started
        return started

    async def join(self, node: int) -> BrokerNode:
        """Starts a node that is no member, and waits for an operator to add it."""
        self.addresses[NodeId(node)] = f"127.0.0.1:{free_ports(1)[0]}"
        return await self.start(node)

    async def change(self, node: int, membership: Any) -> Any:
        """Asks the master for one step of membership."""
        request = broker_pb2.ChangeMemberRequest(
            cluster_id=CLUSTER,
            group_id=1,
            node=common_pb2.NodeAddress(node_id=node, address=self.addresses[NodeId(node)]),
            membership=membership,
        )
        while True:
            async with RawClient((await self.master()).address) as client:
                try:
                    return await client.call("ChangeMember", request)
                except (NotMaster, Throttled):
                    await asyncio.sleep(0.02)

    async def stop(self, node: int) -> None:
        """Stops it in good order; a master hands over."""
        await self.running.pop(NodeId(node)).__aexit__(None, None, None)

    def wipe(self, node: int) -> None:
        """Loses the data directory of a stopped node."""
        assert node not in self.running
        shutil.rmtree(self.directory / str(node))

    async def master(self) -> BrokerNode:
        """The node that serves as master; waits for it."""
        while True:
            for node in self.running.values():
                if node.replica.is_master:
                    return node
            changes = [node.replica.role_change() for node in self.running.values()]
            await asyncio.wait(changes, return_when=asyncio.FIRST_COMPLETED)
            for change in changes:
                change.cancel()

    async def settled(self) -> int:
        """Waits until every running node has applied what the master has; returns the index."""
        index = (await self.master()).replica.state.applied_index
        for node in self.running.values():
            await node.replica.wait_applied(index, 10)
        return index

    async def recomputed(self) -> broker_pb2.VerifiedQueue:
        """The test's queue as every running node recomputes it from its own log: all the same."""
        index = await self.settled()
        found = []
        for node in self.running.values():
            async with RawClient(node.address) as client:
                found.append((await client.verify(index))[QUEUE])
        assert all(queue == found[0] for queue in found)
        first: broker_pb2.VerifiedQueue = found[0]
        return first


class RawClient:
    """The protocol by hand, to one node."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self.stub = broker_pb2_grpc.BrokerStub(self.channel)
        self.members = broker_pb2_grpc.MembersStub(self.channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close(grace=0)

    async def call(self, method: str, request: Any) -> Any:
        """One ordinary call; raises the SemelError that the node sent."""
        stub = self.members if hasattr(self.members, method) else self.stub
        try:
            return await getattr(stub, method)(request, timeout=10)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None

    async def create_queue(
        self, key: QueueKey = QUEUE, settings: common_pb2.TopicSettings | None = None
    ) -> None:
        record = control_pb2.CreateQueue(
            queue=queue_ref(key), topic="t", slot_start=0, slot_end=65536, settings=settings
        )
        request = broker_pb2.ApplyQueuesRequest(
            cluster_id=CLUSTER, records=[control_pb2.ControlRecord(create_queue=record)]
        )
        await self.call("ApplyQueues", request)

    async def fence(
        self, epoch: int, session: int = 1, producer: int = 5, key: QueueKey = QUEUE
    ) -> Any:
        """Fences, and returns the row of the reply."""
        request = broker_pb2.FenceProducerRequest(
            queues=[queue_ref(key)], producer_id=producer, epoch=epoch, session=session, name="p"
        )
        return (await self.call("FenceProducer", request)).rows[0]

    def produce_stream(self) -> Any:
        return self.channel.stream_stream(
            PRODUCE_METHOD, response_deserializer=broker_pb2.ProduceReply.FromString
        )()

    async def produce(self, *batches: bytes) -> list[Any]:
        """Sends batches; returns one acknowledgement for each, in the order of arrival."""
        stream = self.produce_stream()
        await stream.write(encode_produce(batches))
        acks: list[Any] = []
        while len(acks) < len(batches):
            reply = await stream.read()
            assert reply is not grpc.aio.EOF, "the stream ended early"
            assert not reply.HasField("error"), reply.error
            acks += reply.acks
        stream.cancel()
        return acks

    async def produce_raw(self, message: bytes) -> Any:
        """The error that a malformed message gets."""
        stream = self.produce_stream()
        await stream.write(message)
        reply = await stream.read()
        assert reply is not grpc.aio.EOF
        assert await stream.read() is grpc.aio.EOF, "the stream goes on after an error"
        return reply.error

    async def fetch(self, **fields: Any) -> tuple[Any, list[bytes]]:
        """Header and stored batches of one fetch."""
        wanted = broker_pb2.FetchQueue(
            queue=queue_ref(fields.pop("key", QUEUE)),
            offset=fields.pop("offset", 0),
            group=fields.pop("group", ""),
            token=fields.pop("token", 0),
        )
        stream: Any = self.channel.stream_stream(
            FETCH_METHOD, request_serializer=broker_pb2.FetchRequest.SerializeToString
        )()
        await stream.write(broker_pb2.FetchRequest(correlation_id=9, queues=[wanted], **fields))
        header, parts = decode_fetch_reply(await stream.read())
        stream.cancel()
        return header, [bytes(part) for part in parts]

    async def values(self, key: QueueKey = QUEUE, any_replica: bool = False) -> list[bytes]:
        """All values of a queue, in offset order."""
        found: list[bytes] = []
        while True:
            header, parts = await self.fetch(
                key=key, offset=len(found), max_wait_ms=0, any_replica=any_replica
            )
            if not header.results:
                return found
            assert not header.results[0].HasField("error"), header.results[0].error
            for place, part in zip(header.results[0].batches, parts, strict=True):
                base = place.base_offset - place.row_start
                rows = to_record_batch(part, place.row_start, place.row_end, base_offset=base)
                assert rows.column("offset")[0].as_py() == len(found)
                found += rows.column("value").to_pylist()

    async def verify(self, index: int = 0, keys: Sequence[QueueKey] = ()) -> Mapping[QueueKey, Any]:
        """Verifies queues; returns a VerifiedQueue for each."""
        request = broker_pb2.VerifyQueuesRequest(queues=map(queue_ref, keys), index=index)
        found: dict[QueueKey, Any] = {}
        async for reply in self.stub.VerifyQueues(request):
            for queue in reply.queues:
                found[QueueKey(queue.queue.topic_id, queue.queue.queue_id)] = queue
        return found


async def acquire(client: RawClient, member: str, **fields: int) -> Any:
    """Acquires the test's queue for a member of the group g."""
    request = broker_pb2.AcquireLocksRequest(
        group="g",
        member_id=member,
        queues=[queue_ref(QUEUE)],
        lock_ms=fields.get("lock_ms", 300),
        session_ms=fields.get("session_ms", 10_000),
    )
    return (await client.call("AcquireLocks", request)).grants[0]


def make_batch(
    previous: int,
    values: Sequence[bytes],
    *,
    epoch: int = 1,
    session: int = 1,
    producer: int = 5,
    key: QueueKey = QUEUE,
    deliver_at_us: int = 0,
    ids: Sequence[bytes | None] | None = None,
) -> bytes:
    """A contiguous batch that follows `previous`."""
    message_ids = None if ids is None else pa.array(ids, pa.binary())
    return encode_batch(
        Columns(values=pa.array(values, pa.binary()), message_ids=message_ids),
        topic_id=key.topic_id,
        queue_id=key.queue_id,
        producer_id=ProducerId(producer),
        epoch=epoch,
        session=session,
        previous_sequence=Seq(previous),
        base_sequence=Seq(previous + 1),
        last_sequence=Seq(previous + len(values)),
        codec=Codec.NONE,
        timestamp_us=1,
        deliver_at_us=deliver_at_us,
    )
