"""Framed streams with TLS: a ticket is worth something only to whoever asked for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.config import BrokerConfig
from semel.broker.identity import NodeIdentity
from semel.broker.log import OsFiles
from semel.broker.raft import Message, MessageKind, encode_message
from semel.broker.replication import framed_port
from semel.broker.replication.receiver import PeerPort
from semel.broker.server.direct import DirectStreams
from semel.broker.server.stream import StreamContext
from semel.client.core.routing import StreamPlace
from semel.client.transport.connection import Purpose
from semel.client.transport.streams import DirectStream, Streams
from semel.protos import compat, seldom
from semel.protos.errors import InvalidRequest, Unauthenticated, Unavailable
from semel.protos.framed import ACCEPTED, encode_head, encode_hello
from semel.protos.ids import GroupId, NodeId
from semel.protos.levels import own_levels
from semel.protos.rpc import ServerInterceptor
from semel.protos.security.credentials import Contexts, Security
from semel.protos.security.guard import Guard
from semel.protos.security.identity import Identity
from semel.protos.security.networks import Networks
from semel.protos.security.tls_connection import TlsConnection
from semel.protos.security.tls_session import TlsFailed
from semel.protos.v1 import broker_pb2, raft_pb2
from tests.kit.authority import Authority

pytestmark = pytest.mark.both_loops

PRODUCE = broker_pb2.OpenDirectRequest(stream=broker_pb2.DIRECT_STREAM_PRODUCE)
OWN = NodeIdentity(
    BrokerConfig(
        data=Path("nowhere"),
        cluster_id="c",
        group_id=GroupId(1),
        node_id=NodeId(1),
        listen="127.0.0.1:1",
        members={NodeId(1): "127.0.0.1:1"},
    ),
    OsFiles(),
)
OWN.founding = "f"
HERE = Networks.parse(["127.0.0.0/8"])
ELSEWHERE = Networks.parse(["10.0.0.0/8", "fd00::/8"])


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(autouse=True)
def every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each refusal is logged, not only the first one in a while."""
    monkeypatch.setattr(seldom, "TELL_S", 0.0)


@pytest.fixture(scope="module")
def node(authority: Authority) -> Contexts:
    return authority.contexts(authority.broker(1))


def call(identity: Identity | None, peer: str = "ipv4:127.0.0.1:5") -> Any:
    """The context of a gRPC call by somebody."""
    names = [] if identity is None else [identity.uri.encode()]
    return SimpleNamespace(
        invocation_metadata=lambda: (),
        auth_context=lambda: {"x509_subject_alternative_name": names},
        peer=lambda: peer,
    )


# --- clients' streams


async def echo(_: object, context: StreamContext) -> None:
    while True:
        await context.write(bytes(await context.read()))


class Served:
    """A broker's port for clients, and clients that ask it for streams."""

    def __init__(
        self,
        tls: Contexts | None,
        admit: Callable[[str, Any], float | None] = lambda *_: None,
    ) -> None:
        """`admit` stands before what is asked for at the port."""
        self.contexts: list[Any] = []

        async def handler(request: object, context: StreamContext) -> None:
            self.contexts.append(context)
            await echo(request, context)

        self.direct = DirectStreams(
            {broker_pb2.DIRECT_STREAM_PRODUCE: handler},
            own_levels,
            tls=tls,
            place=("c", 1, 1),
            answering=ServerInterceptor(check_caller=admit).answering,
        )

    async def __aenter__(self) -> Served:
        await self.direct.serve("127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.direct.close()

    def client(
        self, caller: Identity | None, tls: Contexts | None, name: str = "node.c.semel"
    ) -> Streams:
        """A client that asks with one certificate and connects with, perhaps, another one."""

        async def ask(_: str, __: object, ___: str, request: Any, ____: float) -> Any:
            return await self.direct.open(request, call(caller))

        connections: Any = SimpleNamespace(call=ask, levels=own_levels())
        return Streams(connections, direct=True, patience_s=5.0, tls=tls, tls_name=name)

    def asking(self, tls: Contexts | None, name: str = "node.c.semel") -> Streams:
        """A client that knows the port and gets no ticket."""

        async def no_ticket(*_: object) -> Any:
            raise InvalidRequest("a ticket is not to be had")

        place = StreamPlace(
            port=self.direct.port, cluster_id="c", group_id=GroupId(1), node_id=NodeId(1)
        )
        connections: Any = SimpleNamespace(call=no_ticket, levels=own_levels())
        return Streams(
            connections,
            direct=True,
            patience_s=5.0,
            tls=tls,
            tls_name=name,
            place_of=lambda _: place,
        )


async def opened(streams: Streams) -> DirectStream:
    return await streams._open_direct("127.0.0.1:1", Purpose.PRODUCE, 10.0)


async def test_a_client_talks_with_a_broker(authority: Authority, node: Contexts) -> None:
    reader = authority.client("reader")
    async with Served(node) as served:
        stream = await opened(served.client(reader, authority.contexts(reader)))
        for size in (1, 1_000, 70_000, 5_000_000):
            await stream.write(bytes([7]) * size)
            async with compat.timeout(20):
                assert bytes(await stream.read()) == bytes([7]) * size
        (context,) = served.contexts
        assert context.whose == "client reader of cluster c"
        assert context.auth_context()["x509_subject_alternative_name"] == [reader.uri.encode()]
        stream.close()


async def test_a_ticket_is_worth_nothing_to_somebody_else(
    authority: Authority, node: Contexts, caplog: pytest.LogCaptureFixture
) -> None:
    reader, thief = authority.client("reader"), authority.client("thief")
    async with Served(node) as served:
        with pytest.raises(ConnectionResetError):
            await opened(served.client(reader, authority.contexts(thief)))
        with pytest.raises(ConnectionResetError):
            await opened(served.client(None, authority.contexts(thief)))
        assert not served.contexts
    assert "a stream of client thief of cluster c was opened with the ticket of client" in (
        caplog.text
    )


async def test_plaintext_to_a_broker_with_tls_is_told_on_both_sides(
    authority: Authority, node: Contexts, caplog: pytest.LogCaptureFixture
) -> None:
    async with Served(node) as served:
        with pytest.raises(TlsFailed, match="the port speaks TLS, and this client plaintext"):
            await opened(served.client(authority.client("reader"), None))
        while served.direct._port._strangers:
            await asyncio.sleep(0.01)
        assert not served.contexts
    assert caplog.text.count("it speaks plaintext, and this port speaks TLS") == 1


async def test_tls_to_a_broker_in_plaintext_is_told_on_both_sides(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    reader = authority.client("reader")
    async with Served(None) as served:
        with pytest.raises(TlsFailed, match="it answers in plaintext, and this end wants TLS"):
            await opened(served.client(None, authority.contexts(reader)))
    assert caplog.text.count("it wants TLS, and this port speaks plaintext") == 1


async def test_a_client_does_not_speak_to_another_cluster(
    authority: Authority, node: Contexts
) -> None:
    """Also not if its brokers have certificates of the same CA."""
    reader = authority.client("reader")
    async with Served(node) as served:
        streams = served.client(reader, authority.contexts(reader), "node.d.semel")
        with pytest.raises(TlsFailed, match="Hostname mismatch"):
            await opened(streams)


async def test_what_ended_an_encrypted_stream_is_told(authority: Authority, node: Contexts) -> None:
    reader = authority.client("reader")
    async with Served(node) as served:
        stream = await opened(served.client(reader, authority.contexts(reader)))
        for each in served.direct._port._streams:
            each._transport._raw.write(b"\x17\x03\x03\x00\x20" + bytes(32))  # type: ignore[union-attr]
        with pytest.raises(Unavailable, match="ended the stream: TLS fails"):
            await stream.read()


async def test_who_asks_at_the_port_is_known_by_the_certificate_of_the_connection(
    authority: Authority, node: Contexts
) -> None:
    """What stands before a call sees the same caller, and so do rights and quotas."""
    guard = Guard(Security.read(authority.write(authority.broker(1))))
    callers: list[Any] = []

    def admit(method: str, context: Any) -> float | None:
        assert method.endswith("/OpenDirect")
        callers.append(guard.peer(context))
        return guard.admit(method, context)

    reader = authority.client("reader")
    async with Served(node, admit) as served:
        stream = await opened(served.asking(authority.contexts(reader)))
        await stream.write(b"hello")
        async with compat.timeout(20):
            assert bytes(await stream.read()) == b"hello"
        (context,) = served.contexts
        assert context.whose == "client reader of cluster c"
        (peer,) = callers
        assert peer.identity == reader
        stream.close()


async def test_whom_the_guard_does_not_admit_gets_no_stream(
    authority: Authority, node: Contexts
) -> None:
    def refuse(*_: object) -> float | None:
        raise Unauthenticated("not you")

    async with Served(node, refuse) as served:
        streams = served.asking(authority.contexts(authority.client("reader")))
        with pytest.raises(InvalidRequest, match="a ticket"):  # it may ask by gRPC
            await opened(streams)
        assert not served.contexts


async def test_nothing_is_asked_for_in_plaintext_at_a_port_with_tls(
    authority: Authority, node: Contexts
) -> None:
    """Not even where a network is declared private."""
    async with Served(node, lambda *_: None) as served:
        served.direct._port._plaintext = lambda _: True
        with pytest.raises(InvalidRequest, match="a ticket"):
            await opened(served.asking(None))
        assert not served.contexts


# --- streams of peers


class Sink:
    def __init__(self) -> None:
        self.sources: asyncio.Queue[int] = asyncio.Queue()

    def on_message(
        self, message: Message, frames: Sequence[bytes], carried: Mapping[int, Any] | None = None
    ) -> None:
        self.sources.put_nowait(message.source)


class Dialled(asyncio.Protocol):
    """The sending end of a peer's stream."""

    def __init__(self) -> None:
        self.heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if not self.heard.done():
            self.heard.set_result(data)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.heard.done():
            self.heard.set_result(b"")


class Peers:
    """A node's port for peers, and connections to it."""

    def __init__(self, tls: Contexts, plaintext_within: Networks) -> None:
        self.sink = Sink()
        self.port = PeerPort(
            self.sink,
            OWN,
            lambda node: node in (1, 2, 3),
            tls=tls,
            plaintext_within=plaintext_within,
        )
        self._transports: list[Any] = []

    async def ask(
        self,
        identity: Identity | None,
        *,
        node: int = 2,
        wanted: bool = False,
        at: str = "127.0.0.1",
    ) -> raft_pb2.OpenStreamReply:
        return await self.port.OpenStream(
            raft_pb2.OpenStreamRequest(
                cluster_id="c",
                group_id=1,
                node_id=node,
                founding_id="f",
                to_node_id=1,
                plaintext_wanted=wanted,
            ),
            call(identity, f"ipv4:{at}:5"),
        )

    async def dial(self, reply: raft_pb2.OpenStreamReply, tls: Contexts | None) -> bytes:
        """What the port says to the ticket."""
        end = Dialled()
        protocol: asyncio.BaseProtocol = end
        if tls is not None:
            protocol = TlsConnection(end, tls.client(), server_hostname="broker-1.c.semel")
        await asyncio.get_running_loop().create_connection(
            lambda: protocol, "127.0.0.1", reply.port
        )
        self._transports.append(end.transport)
        end.transport.write(encode_hello(reply.ticket))
        async with compat.timeout(10):
            return await end.heard

    async def hears(self) -> int:
        """Sends a heartbeat of node 2 on the newest connection, and returns whose it is."""
        data = encode_message(
            Message(kind=MessageKind.HEARTBEAT, source=NodeId(2), target=NodeId(1), term=3)
        )
        self._transports[-1].write(encode_head(len(data)) + data)
        async with compat.timeout(10):
            return await self.sink.sources.get()

    async def close(self) -> None:
        await self.port.close()
        for transport in self._transports:
            transport.abort()


@pytest.fixture
async def peers(node: Contexts, request: pytest.FixtureRequest) -> AsyncIterator[Peers]:
    peers = Peers(node, getattr(request, "param", Networks()))
    await peers.port.serve("127.0.0.1", 0)
    yield peers
    await peers.close()


async def test_a_node_replicates_to_a_node(authority: Authority, peers: Peers) -> None:
    second = authority.broker(2)
    assert await peers.dial(await peers.ask(second), authority.contexts(second)) == ACCEPTED
    assert await peers.hears() == 2


async def test_only_the_node_itself_gets_a_ticket(authority: Authority, peers: Peers) -> None:
    other = Identity("broker", "2", "d")
    for who in (authority.broker(3), authority.client("2"), authority.controller(2), other, None):
        with pytest.raises(Unauthenticated):
            await peers.ask(who)


async def test_a_ticket_of_a_node_is_worth_nothing_to_another(
    authority: Authority, peers: Peers, caplog: pytest.LogCaptureFixture
) -> None:
    for thief in (authority.broker(3), authority.client("2")):
        reply = await peers.ask(authority.broker(2), wanted=True)
        assert not reply.plaintext
        assert await peers.dial(reply, authority.contexts(thief)) == b""
        assert f"a stream of {thief} was opened with the ticket of broker 2" in caplog.text
    reply = await peers.ask(authority.broker(2), wanted=True)
    assert (await peers.dial(reply, None))[:1] == b"\x15"


@pytest.mark.parametrize("peers", [HERE], indirect=True)
async def test_a_declared_network_may_do_without(authority: Authority, peers: Peers) -> None:
    second = authority.broker(2)
    reply = await peers.ask(second, wanted=True)
    assert reply.plaintext
    assert await peers.dial(reply, None) == ACCEPTED
    assert await peers.hears() == 2
    # Who does not want to is not made to, and no ticket for TLS serves in plaintext.
    reply = await peers.ask(second)
    assert not reply.plaintext
    assert await peers.dial(reply, None) == b""
    reply = await peers.ask(second, wanted=True)
    assert await peers.dial(reply, authority.contexts(second)) == ACCEPTED
    # Who calls from elsewhere gets none.
    assert not (await peers.ask(second, wanted=True, at="10.0.0.1")).plaintext


@pytest.mark.parametrize("peers", [ELSEWHERE], indirect=True)
async def test_another_network_may_not(authority: Authority, peers: Peers) -> None:
    second = authority.broker(2)
    assert not (await peers.ask(second, wanted=True)).plaintext
    # Even with a ticket that was given inside, there is no way in from outside.
    reply = await peers.ask(second, wanted=True, at="10.0.0.1")
    assert reply.plaintext
    assert (await peers.dial(reply, None))[:1] == b"\x15"


async def test_a_flood_of_handshakes_keeps_nobody_out(
    authority: Authority, peers: Peers, caplog: pytest.LogCaptureFixture
) -> None:
    """Handshakes that go nowhere are strangers like others: 64 at most."""
    caplog.set_level(logging.CRITICAL)
    second = authority.broker(2)
    flood = []
    for _ in range(100):
        reader, writer = await asyncio.open_connection("127.0.0.1", (await peers.ask(second)).port)
        writer.write(b"\x16\x03\x01\x02\x00")
        flood.append((reader, writer))
    contexts = authority.contexts(second)
    assert await peers.dial(await peers.ask(second), contexts) == ACCEPTED
    assert len(peers.port._port._strangers) <= 64
    for _, writer in flood:
        writer.transport.abort()


async def test_a_stranger_cannot_make_a_node_take_memory(
    authority: Authority, peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head of a message of 32 MiB before a ticket ends the connection."""
    second = authority.broker(2)
    end = Dialled()
    tls = TlsConnection(
        end, authority.contexts(second).client(), server_hostname="broker-1.c.semel"
    )
    port = (await peers.ask(second)).port
    await asyncio.get_running_loop().create_connection(lambda: tls, "127.0.0.1", port)
    end.transport.write(encode_head(32 << 20))
    async with compat.timeout(framed_port._TICKET_S / 2):
        assert await end.heard == b""
