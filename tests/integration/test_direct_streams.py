"""The SDK on direct streams, and on gRPC where there are none."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from semel.client.config import ClientConfig
from semel.client.transport import master_search, streams
from semel.client.transport.connection import Connections, Purpose
from semel.client.transport.controllers import Controllers
from semel.client.transport.streams import DirectStream, GrpcStream, Stream, Streams
from semel.protos import compat
from semel.protos.errors import SemelError, Unavailable, UnsupportedVersion
from semel.protos.framed import ACCEPTED, HEAD, HELLO
from semel.protos.levels import LEVEL_MAX, levels_metadata, own_levels
from semel.protos.rpc import ServerInterceptor
from semel.protos.streams import encode_ping, encode_produce
from semel.protos.v1 import broker_pb2
from semel.protos.v1.common_pb2 import Levels
from tests.kit.brokers import BrokerGroup, RawClient, make_batch
from tests.kit.cluster import Cluster
from tests.kit.waiting import until

pytestmark = pytest.mark.both_loops

PATIENCE_S = 0.3
LEVELS = own_levels(active=LEVEL_MAX)
COUNT = 2_000


@pytest.fixture
async def connections() -> AsyncIterator[Connections]:
    connections = Connections()
    yield connections
    await connections.close()


@pytest.fixture
def opener(connections: Connections) -> Streams:
    return Streams(connections, direct=True, patience_s=PATIENCE_S)


async def heard(stream: Stream) -> broker_pb2.ProduceReply:
    async with compat.timeout(10):
        return broker_pb2.ProduceReply.FromString(bytes(await stream.read()))


async def alive(stream: Stream) -> bool:
    await stream.write(encode_ping(7))
    return (await heard(stream)).pong == 7


async def last_of(stream: Stream) -> None:
    while True:
        await stream.read()


# --- against a broker -------------------------------------------------------------------------


async def test_batches_are_acknowledged_and_read_on_direct_streams(
    tmp_path: Path, opener: Streams
) -> None:
    async with BrokerGroup(tmp_path, 1) as group:
        master = await group.master()
        async with RawClient(master.address) as raw:
            await raw.create_queue()
            await raw.fence(1)
            stream = await opener.open(master.address, Purpose.PRODUCE)
            assert isinstance(stream, DirectStream)
            await stream.write(encode_produce([make_batch(-1, [b"a", b"b"])]))
            (ack,) = (await heard(stream)).acks
            assert (ack.status, ack.base_offset) == (broker_pb2.PRODUCE_STATUS_COMMITTED, 0)
            large = make_batch(1, [bytes(900_000)] * 3)
            await stream.write(encode_produce([large]))
            (ack,) = (await heard(stream)).acks
            assert ack.base_offset == 2
            assert (await raw.values())[:2] == [b"a", b"b"]
            stream.close()


async def test_a_malformed_request_is_named_and_ends_the_stream_alone(
    tmp_path: Path, opener: Streams
) -> None:
    async with BrokerGroup(tmp_path, 1) as group:
        address = (await group.master()).address
        bad = await opener.open(address, Purpose.PRODUCE)
        good = await opener.open(address, Purpose.PRODUCE)
        await bad.write(b"\x0a\x03abc")
        reply = await heard(bad)
        assert "cut" in reply.error.message
        with pytest.raises(Unavailable, match="ended the stream"):
            await bad.read()
        assert await alive(good)
        fetching = await opener.open(address, Purpose.FETCH)
        await fetching.write(b"\xff\xff\xff")
        with pytest.raises(Unavailable, match="ended the stream"):
            await fetching.read()
        assert await alive(good)
        good.close()


async def test_a_slave_sends_its_clients_to_the_master(tmp_path: Path, opener: Streams) -> None:
    async with BrokerGroup(tmp_path) as group:
        master = await group.master()
        slave = next(node for node in group.running.values() if node is not master)
        stream = await opener.open(slave.address, Purpose.PRODUCE)
        assert isinstance(stream, DirectStream)
        with contextlib.suppress(SemelError):
            for _ in range(100):  # it talks on while it is told
                await stream.write(encode_produce([make_batch(-1, [bytes(10_000)])]))
        while not (reply := await heard(stream)).HasField("error"):
            pass
        assert reply.error.master_address == master.address
        stream.close()


async def test_a_node_stops_with_streams_open(tmp_path: Path, opener: Streams) -> None:
    async with BrokerGroup(tmp_path, 1) as group:
        stream = await opener.open((await group.master()).address, Purpose.PRODUCE)
        fetching = await opener.open((await group.master()).address, Purpose.FETCH)
    for each in (stream, fetching):
        with pytest.raises(SemelError):
            await last_of(each)
        with pytest.raises(SemelError):
            await each.write(encode_ping(1))


# --- where there is none ----------------------------------------------------------------------


class Older:
    """A broker's gRPC port whose `OpenDirect` answers as a test wants it; both streams echo."""

    def __init__(
        self,
        open_direct: Callable[..., Awaitable[object]] | None,
        tells: Levels | None = LEVELS,
    ) -> None:
        self.asked = 0
        self.heard = 0
        self.address = ""

        async def echo(_: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            await context.send_initial_metadata(() if tells is None else levels_metadata(tells))
            while (message := await context.read()) is not grpc.aio.EOF:
                self.heard += 1
                await context.write(message)

        methods: dict[str, Any] = {
            name: grpc.stream_stream_rpc_method_handler(echo) for name in ("Produce", "Fetch")
        }
        if open_direct is not None:

            async def counted(request: object, context: object) -> object:
                self.asked += 1
                return await open_direct()

            methods["OpenDirect"] = grpc.unary_unary_rpc_method_handler(
                counted,
                request_deserializer=broker_pb2.OpenDirectRequest.FromString,
                response_serializer=broker_pb2.OpenDirectReply.SerializeToString,
            )
        self._server = grpc.aio.server(interceptors=[ServerInterceptor()])
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("semel.protos.v1.BrokerStream", methods),)
        )

    async def __aenter__(self) -> Older:
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def leading_to(answer: Answer) -> AsyncIterator[Older]:
    """A broker that names a port at which each connection is answered so."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def open_direct() -> broker_pb2.OpenDirectReply:
        return broker_pb2.OpenDirectReply(port=port, ticket=bytes(16), levels=LEVELS)

    async with server, Older(open_direct) as older:
        yield older


async def echoes(opener: Streams, address: str) -> bool:
    """The stream is one on gRPC, and works."""
    stream = await opener.open(address, Purpose.PRODUCE)
    assert isinstance(stream, GrpcStream)
    await stream.write(b"hello")
    async with compat.timeout(10):
        answer = await stream.read()
    stream.close()
    return answer == b"hello"


async def test_an_older_broker_is_spoken_to_on_grpc(opener: Streams) -> None:
    async with Older(None) as older:
        assert await echoes(opener, older.address)


async def test_a_broker_that_does_not_tell_its_levels_is_sent_nothing(opener: Streams) -> None:
    """It would store a delayed message as an ordinary one, and its acknowledgements say less than a
    client needs. Reading from it is safe."""

    async def direct() -> broker_pb2.OpenDirectReply:
        return broker_pb2.OpenDirectReply(port=1, ticket=bytes(16))

    for open_direct in (None, direct):
        async with Older(open_direct, tells=None) as older:
            with pytest.raises(UnsupportedVersion, match="upgrade the brokers before the clients"):
                await opener.open(older.address, Purpose.PRODUCE)
            stream = await opener.open(older.address, Purpose.FETCH)
            stream.close()
            assert older.heard == 0


async def test_programs_without_a_common_level_name_each_other(opener: Streams) -> None:
    newer = Levels(min=LEVEL_MAX + 1, max=LEVEL_MAX + 3, version="9.1", active=LEVEL_MAX + 2)
    async with Older(None, tells=newer) as older:
        for purpose in Purpose.PRODUCE, Purpose.FETCH:
            with pytest.raises(UnsupportedVersion, match=r"runs Semel 9\.1 .*upgrade this client"):
                await opener.open(older.address, purpose)
        assert older.heard == 0


async def test_a_stream_may_be_used_up_to_the_level_of_its_group(
    connections: Connections, opener: Streams
) -> None:
    for active, usable in ((0, LEVEL_MAX), (4, 4), (LEVEL_MAX, LEVEL_MAX)):
        told = Levels(max=LEVEL_MAX, version="1", active=active)
        async with Older(None, tells=told) as older:
            stream = await opener.open(older.address, Purpose.PRODUCE)
            assert stream.level == usable
            stream.close()


async def test_a_port_that_nobody_listens_on(
    opener: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for again after a while, not with each stream."""
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()

    async def closed_port() -> broker_pb2.OpenDirectReply:
        return broker_pb2.OpenDirectReply(port=port, ticket=bytes(16), levels=LEVELS)

    async with Older(closed_port) as older:
        assert await echoes(opener, older.address)
        assert await echoes(opener, older.address)
        assert older.asked == 1
        monkeypatch.setattr(streams, "_AGAIN_S", 0.0)
        opener._not_before.clear()
        assert await echoes(opener, older.address)
        assert await echoes(opener, older.address)
        assert older.asked == 3


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"", id="a port that is silent"),
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", id="a port of something else"),
        pytest.param(None, id="a port that closes"),
    ],
)
async def test_a_port_that_leads_elsewhere(opener: Streams, answer: bytes | None) -> None:
    over = asyncio.Event()

    async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if answer is not None:
            await reader.readexactly(HEAD.size + HELLO.size)
            writer.write(answer)
            with contextlib.suppress(ConnectionError):
                await over.wait()
        writer.close()

    async with leading_to(stranger) as older:
        assert await echoes(opener, older.address)
        over.set()
        await asyncio.sleep(0)


async def test_a_broker_that_does_not_answer_is_given_up(opener: Streams) -> None:
    async def never() -> object:
        await asyncio.Event().wait()
        return None

    async with Older(never) as older:
        with pytest.raises(SemelError):
            await opener.open(older.address, Purpose.PRODUCE)


async def test_damage_on_the_way_ends_the_stream(opener: Streams) -> None:
    async def damaged(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(HEAD.size + HELLO.size)
        writer.write(ACCEPTED + HEAD.pack(3, 3) + b"abc")
        await reader.read()
        writer.close()

    async with leading_to(damaged) as older:
        stream = await opener.open(older.address, Purpose.PRODUCE)
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:\d+: .*damaged"):
            await stream.read()


# --- the SDK over processes -------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(module_path: Path) -> Iterator[Cluster]:
    with Cluster(module_path / "cluster") as running:
        yield running


@pytest.mark.parametrize("direct", [True, False])
def test_a_client_does_the_same_on_both(
    cluster: Cluster, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from semel.client import connect

    opened: Counter[tuple[type, Purpose]] = Counter()
    original = Streams.open

    async def counted(self: Streams, address: str, purpose: Purpose) -> Stream:
        stream = await original(self, address, purpose)
        opened[type(stream), purpose] += 1
        return stream

    monkeypatch.setattr(Streams, "open", counted)
    topic = f"both-{direct}".lower()
    values = [b"%d" % number for number in range(COUNT)]
    with connect(cluster.bootstrap, direct_streams=direct) as client:
        client.admin.create_topic(topic, queues=2)
        with client.producer() as producer:
            producer.send_many(topic, values)
            assert producer.send(topic, b"last").result(timeout=10).offset >= 0
        with client.reader(topic, end="latest") as reader:
            found = sorted(message.value for message in reader)
    assert found == sorted([*values, b"last"])
    kind = DirectStream if direct else GrpcStream
    assert opened == {(kind, Purpose.PRODUCE): 1, (kind, Purpose.FETCH): 1}


def test_one_of_many_finds_the_next_master_without_a_new_connection_of_grpc(
    module_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it costs does not grow with their number: no question to any other node, one socket. The
    one that dies may be asked, if its port is still open then."""
    from semel.client import connect

    called: list[tuple[str, str]] = []
    call = Connections.call

    async def noted(self: Connections, address: str, *what: Any) -> Any:
        called.append((address, what[1]))
        return await call(self, address, *what)

    watching: list[Controllers] = []
    watch = Controllers.watch

    async def kept(self: Controllers, *what: Any) -> None:
        watching.append(self)
        await watch(self, *what)

    monkeypatch.setattr(Controllers, "watch", kept)
    with Cluster(module_path / "many") as running, connect(running.bootstrap) as client:
        client.admin.create_topic("many", queues=1)
        with client.producer() as producer:
            producer.send("many", b"before", key=b"k").result(timeout=10)
            until(lambda: any(each.watching for each in watching), 30, "a watch of the routes")
            monkeypatch.setattr(Streams, "clients", property(lambda _: 200))
            monkeypatch.setattr(master_search, "WATCHED_S", (60.0, 60.0))
            monkeypatch.setattr(Connections, "call", noted)
            master = running.master()
            running.kill(master)
            producer.send("many", b"after", key=b"k").result(timeout=40)
            brokers = {node.address for node in running.brokers}
            asked = [pair for pair in called if pair[0] in brokers]
            assert asked in ([], [(master.address, "GetNodeStatus")])
            assert running.master() is not master
        running.start_node(master)


def test_direct_streams_are_the_default() -> None:
    assert ClientConfig().direct_streams
