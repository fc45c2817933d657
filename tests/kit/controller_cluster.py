"""A controller in this process and brokers that only remember queues, all over real gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from semel.controller import ControllerConfig, ControllerNode
from semel.controller.store import MemoryStore, MetadataStore
from semel.protos.errors import NotMaster, SemelError, Unavailable
from semel.protos.levels import LEVEL_MAX, own_levels
from semel.protos.rpc import CHANNEL_OPTIONS, ServerInterceptor, error_from_rpc
from semel.protos.v1 import broker_pb2, control_pb2
from semel.protos.v1 import controller_pb2 as pb
from semel.protos.v1.broker_pb2_grpc import BrokerServicer, add_BrokerServicer_to_server
from semel.protos.v1.common_pb2 import NodeAddress
from semel.protos.v1.controller_pb2_grpc import ControllerStub

LEVELS = own_levels(active=LEVEL_MAX)


class FakeBroker(BrokerServicer):
    """One node of a group; `queues` is shared by the group's nodes, as a replicated state is."""

    def __init__(self, group_id: int, node_id: int, queues: dict[tuple[int, int], Any]) -> None:
        self.group_id = group_id
        self.node_id = node_id
        self.queues = queues
        self.address = ""
        self.calls = 0
        self.before: Callable[[], Awaitable[object]] | None = None
        """Awaited before a call is applied; may raise."""
        self.after: Callable[[], Awaitable[object]] | None = None
        """Awaited after a call was applied; may raise, so that the answer is lost."""
        self.master: FakeBroker = self
        self._server = grpc.aio.server(interceptors=[ServerInterceptor()])

    async def start(self) -> None:
        add_BrokerServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    async def ApplyQueues(  # noqa: N802
        self, request: broker_pb2.ApplyQueuesRequest, context: Any
    ) -> broker_pb2.ApplyQueuesReply:
        self.calls += 1
        if self.master is not self:
            raise NotMaster("not me", master_address=self.master.address)
        if self.before is not None:
            await self.before()
        for record in request.records:
            self._apply(record)
        if self.after is not None:
            await self.after()
        return broker_pb2.ApplyQueuesReply()

    def _apply(self, record: control_pb2.ControlRecord) -> None:
        match record.WhichOneof("record"):
            case "create_queue":
                create = record.create_queue
                self.queues.setdefault((create.queue.topic_id, create.queue.queue_id), create)
            case "split_queue":
                split = record.split_queue
                parent = self.queues[split.queue.topic_id, split.queue.queue_id]
                for child in split.children:
                    made = control_pb2.CreateQueue()
                    made.CopyFrom(parent)
                    made.queue.queue_id = child.queue_id
                    made.slot_start, made.slot_end = child.slot_start, child.slot_end
                    self.queues.setdefault((split.queue.topic_id, child.queue_id), made)
            case "delete_queue":
                queue = record.delete_queue.queue
                self.queues.pop((queue.topic_id, queue.queue_id), None)
            case "alter_topic":
                for (topic_id, _), create in self.queues.items():
                    if topic_id == record.alter_topic.topic_id:
                        create.settings.CopyFrom(record.alter_topic.settings)
            case other:
                raise AssertionError(other)

    def report(self, **changes: Any) -> pb.ReportNodeRequest:
        """The report that this node sends to the controller."""
        fields: dict[str, Any] = {
            "group_id": self.group_id,
            "node": NodeAddress(node_id=self.node_id, address=self.address),
            "role": "master" if self.master is self else "slave",
            "term": 1,
            "master_id": self.master.node_id,
            "queues": len(self.queues),
        }
        return pb.ReportNodeRequest(**{"levels": LEVELS, **fields, **changes})


async def refuse() -> None:
    """For `before` and `after`."""
    raise Unavailable("told to fail")


class Clock:
    """Monotonic milliseconds that only a test moves."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.reads = 0

    def __call__(self) -> int:
        self.reads += 1
        return self.now_ms


class Client:
    """The controller's methods, raising SemelError."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._stub = ControllerStub(self.channel)

    async def call(self, method: str, request: Any, timeout: float | None = 10.0) -> Any:
        try:
            return await getattr(self._stub, method)(request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error

    async def create(self, name: str, queues: int = 4, **fields: Any) -> pb.CreateTopicReply:
        timeout = fields.pop("timeout", 10.0)
        request = pb.CreateTopicRequest(name=name, queues=queues, **fields)
        reply: pb.CreateTopicReply = await self.call("CreateTopic", request, timeout)
        return reply

    async def delete(self, name: str, **fields: Any) -> pb.DeleteTopicReply:
        timeout = fields.pop("timeout", 10.0)
        request = pb.DeleteTopicRequest(name=name, **fields)
        reply: pb.DeleteTopicReply = await self.call("DeleteTopic", request, timeout)
        return reply

    async def routes(self, *topics: str) -> pb.Routes:
        reply: pb.Routes = await self.call("GetRoutes", pb.GetRoutesRequest(topics=topics))
        return reply

    def watch(self, *topics: str) -> Any:
        return self._stub.WatchRoutes(pb.GetRoutesRequest(topics=topics))

    def watch_groups(self) -> Any:
        return self._stub.WatchRoutes(pb.GetRoutesRequest(groups_only=True))


class Cluster:
    """One controller over a store that outlives it, and fake brokers."""

    def __init__(self, directory: Path, store: MetadataStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.clock = Clock()
        self.brokers: list[FakeBroker] = []
        self.config = ControllerConfig(
            data=directory, listen="127.0.0.1:0", broker_call_timeout_ms=1_000, stop_ms=100
        )
        self.node: ControllerNode | None = None
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    async def add_group(self, group_id: int, node_ids: tuple[int, ...] = ()) -> list[FakeBroker]:
        """Starts a group of brokers and lets them report."""
        queues: dict[tuple[int, int], Any] = {}
        nodes = [FakeBroker(group_id, n, queues) for n in node_ids or (group_id * 10,)]
        for node in nodes:
            await node.start()
            node.master = nodes[0]
        self.brokers += nodes
        await self.report()
        return nodes

    async def report(self) -> None:
        """Lets all brokers report once."""
        for broker in self.brokers:
            await self.client.call("ReportNode", broker.report())

    async def start(self) -> None:
        self.node = ControllerNode(
            self.config, store=self.store, clock=self.clock, loop_clock=lambda: 0
        )
        await self.node.__aenter__()
        self._client = Client(self.node.address)

    async def stop(self) -> None:
        """Ends the controller; its store stays."""
        if self.node is not None:
            await self.node.__aexit__(None, None, None)
            self.node = None
        if self._client is not None:
            await self._client.channel.close()
            self._client = None

    async def restart(self) -> None:
        await self.stop()
        await self.start()


@asynccontextmanager
async def running_cluster(
    directory: Path, store: MetadataStore | None = None
) -> AsyncIterator[Cluster]:
    """A started cluster without brokers."""
    cluster = Cluster(directory, store)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()
        for broker in cluster.brokers:
            await broker.stop()
        await cluster.store.close()


async def raised_by(work: Awaitable[Any]) -> SemelError:
    """The error that `work` ends with."""
    try:
        await work
    except SemelError as error:
        return error
    raise AssertionError("no error")
