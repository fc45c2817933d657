"""Channels to nodes that cannot be reached: gRPC would knock at their doors for ever."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc.aio
import pytest

from semel.client.transport.connection import BROKER, CONTROLLER, Connections, Purpose
from semel.protos import compat
from semel.protos.errors import InvalidRequest, SemelError, Unavailable
from semel.protos.rpc import ServerInterceptor
from semel.protos.v1 import broker_pb2, broker_pb2_grpc, controller_pb2

QUESTION = broker_pb2.NodeStatusRequest(role_only=True)


class Knocks:
    """A port at which connections are counted and ended."""

    def __init__(self) -> None:
        self.count = 0
        self.one = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.count += 1
        self.one.set()
        writer.transport.abort()


async def test_a_node_that_cannot_be_reached_is_left_alone_after_the_question() -> None:
    knocks = Knocks()
    server = await asyncio.start_server(knocks.serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    connections = Connections()
    async with server:
        for asked in range(1, 4):
            with pytest.raises(Unavailable):
                await connections.call(address, BROKER, "GetNodeStatus", QUESTION, 5.0)
            assert knocks.count >= asked
        assert not connections._channels
        await asyncio.gather(*connections._closing)
        before = knocks.count
        knocks.one.clear()
        with contextlib.suppress(TimeoutError):  # gRPC would be back after 50 ms
            async with compat.timeout(0.3):
                await knocks.one.wait()
        assert knocks.count == before
    await connections.close()
    assert not connections._under_way


class Refuses(broker_pb2_grpc.BrokerServicer):
    """Answers every question with an error."""

    def __init__(self, error: SemelError) -> None:
        self._error = error

    async def GetNodeStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise self._error


@pytest.mark.parametrize("error", [InvalidRequest("no"), Unavailable("it starts")])
async def test_a_node_that_answers_with_an_error_keeps_its_channel(error: SemelError) -> None:
    server = grpc.aio.server(interceptors=[ServerInterceptor()])
    broker_pb2_grpc.add_BrokerServicer_to_server(Refuses(error), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    connections = Connections()
    opened = connections.channel(address, Purpose.CALLS)
    with pytest.raises(type(error)):
        await connections.call(address, BROKER, "GetNodeStatus", QUESTION, 5.0)
    assert connections.channel(address, Purpose.CALLS) is opened
    await connections.close()
    await server.stop(None)


async def test_a_channel_that_other_calls_use_is_not_closed() -> None:
    knocks = Knocks()
    server = await asyncio.start_server(knocks.serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    connections = Connections()
    async with server:
        connections._under_way[address] += 1
        opened = connections.channel(address, Purpose.CALLS)
        with pytest.raises(Unavailable):
            await connections.call(address, BROKER, "GetNodeStatus", QUESTION, 5.0)
        assert connections.channel(address, Purpose.CALLS) is opened
        connections._on_end(address)
        watch = connections.stream(
            address, CONTROLLER, "WatchRoutes", controller_pb2.GetRoutesRequest(), 5.0
        )
        with pytest.raises(grpc.aio.AioRpcError):
            async for _ in watch:
                pass
        assert not connections._under_way
    await connections.close()
