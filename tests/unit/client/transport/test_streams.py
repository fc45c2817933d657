"""How long a client waits for a broker that is slow to open a stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from semel.client.core.routing import StreamPlace
from semel.client.transport.connection import Purpose
from semel.client.transport.streams import DirectStream, Streams
from semel.protos.errors import (
    InvalidRequest,
    SemelError,
    Throttled,
    TimedOut,
    Unavailable,
    to_detail,
)
from semel.protos.framed import ACCEPTED, HEAD, encode_head
from semel.protos.ids import GroupId, NodeId
from semel.protos.levels import own_levels
from semel.protos.v1 import broker_pb2


class SlowBrokers:
    """Connections whose calls end with an error, and which note how long each might have taken."""

    def __init__(self) -> None:
        self.levels = own_levels()
        self.limits: list[float] = []
        self.error: Exception = TimedOut("no answer")

    async def call(
        self, address: str, service: Any, method: str, request: Any, timeout_s: float
    ) -> Any:
        self.limits.append(timeout_s)
        raise self.error


async def test_a_broker_that_did_not_answer_in_time_gets_twice_as_long_each_time() -> None:
    brokers = SlowBrokers()
    streams = Streams(cast(Any, brokers), direct=True, patience_s=1.5)
    for _ in range(5):
        with pytest.raises(TimedOut):
            await streams.open("b:1", Purpose.PRODUCE)
    with pytest.raises(TimedOut):
        await streams.open("b:2", Purpose.FETCH)
    assert brokers.limits == [1.5, 3.0, 6.0, 12.0, 12.0, 1.5]


async def test_a_broker_that_refuses_gets_no_longer() -> None:
    brokers = SlowBrokers()
    brokers.error = Unavailable("connection refused")
    streams = Streams(cast(Any, brokers), direct=True, patience_s=1.5)
    for _ in range(3):
        with pytest.raises(Unavailable):
            await streams.open("b:1", Purpose.PRODUCE)
    assert brokers.limits == [1.5, 1.5, 1.5]


async def test_whoever_comes_with_many_others_has_the_patience_for_all_of_them() -> None:
    brokers = SlowBrokers()
    streams = Streams(cast(Any, brokers), direct=True, patience_s=1.5)
    streams.crowd = 2_000
    for _ in range(3):  # it is asked again, and not for another master
        with pytest.raises(Throttled, match="2000 clients may have come"):
            await streams.open("b:1", Purpose.PRODUCE)
    with pytest.raises(TimedOut):
        await streams.open("b:1", Purpose.PRODUCE)
    assert brokers.limits == [10.0, 10.0, 10.0, 12.0]


async def test_one_of_many_asks_at_the_port_again_instead_of_by_grpc() -> None:
    """A connection of gRPC would cost a busy broker more than what it has no time for."""
    brokers = SlowBrokers()

    async def closes(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    server = await asyncio.start_server(closes, "127.0.0.1", 0)
    port = Port()
    port.number = server.sockets[0].getsockname()[1]
    streams = Streams(cast(Any, brokers), direct=True, patience_s=0.2, place_of=port.place)
    streams.crowd = 200
    async with server:
        for _ in range(3):
            with pytest.raises(Throttled):
                await streams.open("127.0.0.1:1", Purpose.PRODUCE)
        assert brokers.limits == []
        with pytest.raises(TimedOut):
            await streams.open("127.0.0.1:1", Purpose.PRODUCE)
        assert len(brokers.limits) == 1


# --- streams that are asked for at their port ---------------------------------------------------


class Port:
    """A broker's port of streams, which answers as the test says."""

    def __init__(self) -> None:
        self.reply: broker_pb2.AskStreamReply | None = broker_pb2.AskStreamReply(
            levels=own_levels(), streams=7
        )
        """None for no answer."""
        self.asked: list[broker_pb2.AskStream] = []
        self.number = 0
        self._serving: set[asyncio.Task[Any]] = set()

    def place(self, _: str) -> StreamPlace:
        return StreamPlace(port=self.number, cluster_id="c", group_id=GroupId(1), node_id=NodeId(3))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            length, _ = HEAD.unpack(await reader.readexactly(HEAD.size))
            hello = await reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            writer.transport.abort()  # its client has given up on a busy machine
            return
        self.asked.append(broker_pb2.AskStream.FromString(hello[8:]))
        if self.reply is not None:
            answer = self.reply.SerializeToString()
            writer.write(ACCEPTED + encode_head(len(answer)) + answer)
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        writer.transport.abort()

    async def close(self) -> None:
        """Returns when all clients have gone."""
        await asyncio.gather(*self._serving)


@asynccontextmanager
async def asking(
    brokers: SlowBrokers, patience_s: float = 10.0
) -> AsyncIterator[tuple[Streams, Port]]:
    port = Port()
    server = await asyncio.start_server(port.serve, "127.0.0.1", 0)
    port.number = server.sockets[0].getsockname()[1]
    async with server:
        yield (
            Streams(cast(Any, brokers), direct=True, patience_s=patience_s, place_of=port.place),
            port,
        )
        await port.close()


async def test_a_stream_is_opened_without_a_call_where_its_port_is_known() -> None:
    brokers = SlowBrokers()
    async with asking(brokers) as (streams, port):
        for purpose in (Purpose.PRODUCE, Purpose.FETCH):
            stream = await streams.open("127.0.0.1:1", purpose)
            assert isinstance(stream, DirectStream)
            assert stream.levels == own_levels()
            stream.close()
    assert brokers.limits == []
    assert streams.crowd == 7
    assert [asked.stream for asked in port.asked] == [
        broker_pb2.DIRECT_STREAM_PRODUCE,
        broker_pb2.DIRECT_STREAM_FETCH,
    ]
    (first, _) = port.asked
    assert (first.cluster_id, first.group_id, first.node_id) == ("c", 1, 3)
    assert first.levels == own_levels()


async def test_where_another_node_has_the_port_a_ticket_is_asked_for() -> None:
    brokers = SlowBrokers()
    async with asking(brokers) as (streams, port):
        port.reply = broker_pb2.AskStreamReply(error=to_detail(InvalidRequest("another node")))
        with pytest.raises(TimedOut, match="no answer"):
            await streams.open("127.0.0.1:1", Purpose.PRODUCE)
    assert len(brokers.limits) == 1


async def test_where_nobody_listens_a_ticket_is_asked_for() -> None:
    brokers = SlowBrokers()
    async with asking(brokers) as (streams, _):
        pass
    with pytest.raises(TimedOut, match="no answer"):
        await streams.open("127.0.0.1:1", Purpose.PRODUCE)
    assert len(brokers.limits) == 1


@pytest.mark.parametrize(
    "error",
    [Throttled("come back", retry_after_ms=100), Unavailable("no")],
)
async def test_what_the_broker_says_to_who_asks_is_raised(error: SemelError) -> None:
    brokers = SlowBrokers()
    async with asking(brokers) as (streams, port):
        port.reply = broker_pb2.AskStreamReply(error=to_detail(error))
        with pytest.raises(type(error)):
            await streams.open("127.0.0.1:1", Purpose.PRODUCE)
    assert brokers.limits == []


async def test_a_broker_that_hangs_is_asked_at_one_place_at_a_time() -> None:
    """It accepts connections as long as its machine lives. A ticket would not come either."""
    brokers = SlowBrokers()
    async with asking(brokers, 0.5) as (streams, port):
        port.reply = None
        with pytest.raises(TimedOut, match="does not answer"):
            await streams.open("127.0.0.1:1", Purpose.PRODUCE)
        assert brokers.limits == []
        assert len(port.asked) == 1
        for _ in range(3):  # or another program has that port and says nothing
            with pytest.raises(TimedOut):
                await streams.open("127.0.0.1:1", Purpose.PRODUCE)
    assert len(port.asked) == 2
    assert len(brokers.limits) == 2
