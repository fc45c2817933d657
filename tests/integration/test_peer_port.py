"""The peers' port: who is let in, and what a stream that makes no sense does to a node."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from semel.broker.config import BrokerConfig
from semel.broker.identity import NodeIdentity
from semel.broker.log import OsFiles
from semel.broker.memory import Carried
from semel.broker.raft import Message, MessageKind, encode_message
from semel.broker.replication.framed_port import FramedStream, TicketPort
from semel.broker.replication.receiver import PeerPort
from semel.protos import compat
from semel.protos.errors import DataDirectoryError
from semel.protos.framed import ACCEPTED, HELLO_BYTES_MAX, encode_head, encode_hello
from semel.protos.ids import GroupId, NodeId
from semel.protos.v1 import raft_pb2

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


class Sink:
    """Keeps what arrives."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Message] = asyncio.Queue()

    def on_message(
        self,
        message: Message,
        frames: Sequence[bytes],
        carried: Mapping[int, Sequence[Carried]] | None = None,
    ) -> None:
        self.messages.put_nowait(message)


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
async def port(sink: Sink) -> AsyncIterator[PeerPort]:
    port = PeerPort(sink, OWN, lambda node: node in (1, 2, 3))
    await port.serve("127.0.0.1", 0)
    yield port
    await port.close()


async def ask(port: PeerPort, node: int = 2) -> raft_pb2.OpenStreamReply:
    return await port.OpenStream(request(node_id=node), None)


def request(**fields: Any) -> raft_pb2.OpenStreamRequest:
    """What a peer asks, of another founding or group or as another node."""
    whole = {"cluster_id": "c", "group_id": 1, "node_id": 2, "founding_id": "f", "to_node_id": 1}
    return raft_pb2.OpenStreamRequest(**{**whole, **fields})


class Peer:
    """Connections of this test, closed at its end."""

    def __init__(self, port: PeerPort) -> None:
        self._port = port
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that says nothing."""
        reply = await ask(self._port)
        reader, writer = await asyncio.open_connection("127.0.0.1", reply.port)
        self.writers.append(writer)
        return reader, writer

    async def dial(
        self, ticket: bytes | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that shows a ticket of its own, or `ticket`."""
        given = (await ask(self._port)).ticket
        reader, writer = await self.connect()
        writer.write(encode_hello(given if ticket is None else ticket))
        return reader, writer


@pytest.fixture
async def peer(port: PeerPort) -> AsyncIterator[Peer]:
    peer = Peer(port)
    yield peer
    for writer in peer.writers:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionResetError:
        return True


def heartbeat(source: int = 2, target: int = 1) -> bytes:
    message = Message(
        kind=MessageKind.HEARTBEAT, source=NodeId(source), target=NodeId(target), term=3
    )
    data = encode_message(message)
    return encode_head(len(data)) + data


async def test_a_peer_with_a_ticket_is_heard(peer: Peer, sink: Sink) -> None:
    reader, writer = await peer.dial()
    assert await reader.readexactly(1) == ACCEPTED
    writer.write(heartbeat() + heartbeat())
    for _ in range(2):
        message = await sink.messages.get()
        assert (message.kind, message.source) == (MessageKind.HEARTBEAT, 2)


@pytest.mark.parametrize("ticket", [bytes(16), b"\xff" * 16])
async def test_a_wrong_ticket_is_shown_the_door(peer: Peer, ticket: bytes) -> None:
    reader, _ = await peer.dial(ticket)
    assert await closed(reader)


async def test_a_ticket_serves_once(port: PeerPort, peer: Peer) -> None:
    reply = await ask(port)
    first, _ = await peer.dial(reply.ticket)
    assert await first.readexactly(1) == ACCEPTED
    second, _ = await peer.dial(reply.ticket)
    assert await closed(second)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(heartbeat(source=3), id="in another node's name"),
        pytest.param(heartbeat(target=2), id="to another node"),
        pytest.param(heartbeat()[:-1] + b"\x00", id="damaged message"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
        pytest.param(encode_head(3) + b"abc", id="cut short"),
    ],
)
async def test_nonsense_ends_its_stream_and_nothing_else(
    peer: Peer, sink: Sink, data: bytes
) -> None:
    reader, writer = await peer.dial()
    assert await reader.readexactly(1) == ACCEPTED
    writer.write(data)
    assert await closed(reader)
    assert sink.messages.empty()
    reader, writer = await peer.dial()
    assert await reader.readexactly(1) == ACCEPTED
    writer.write(heartbeat())
    assert (await sink.messages.get()).source == 2


async def test_a_stranger_makes_the_node_hold_nothing(peer: Peer) -> None:
    """A first message of many bytes is refused by its head alone."""
    reader, writer = await peer.connect()
    writer.write(encode_head(HELLO_BYTES_MAX + 1))
    assert await closed(reader)


async def test_a_flood_of_strangers_is_few_lines_of_the_log(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(30):
        reader, _ = await peer.dial(bytes(16))
        assert await closed(reader)
    assert 1 <= len(caplog.records) < 10
    assert not any(record.levelname == "ERROR" for record in caplog.records)


async def test_nothing_is_written_to_a_connection_that_is_gone() -> None:
    """Some event loops raise then, and the taker hears of it a turn later."""

    class Gone:
        def is_closing(self) -> bool:
            return True

    stream: Any = FramedStream(TicketPort(silence_max_s=1))
    stream._transport = Gone()
    stream._write_parts = None
    stream.write(b"x")


async def test_another_protocol_is_not_let_in(peer: Peer) -> None:
    reader, writer = await peer.connect()
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert await closed(reader)


async def test_strangers_are_few_and_do_not_keep_peers_out(peer: Peer) -> None:
    """64 connections of a flood without tickets wait, older ones are closed; a peer gets in."""
    flood = [await peer.connect() for _ in range(100)]
    reader, _ = await peer.dial()
    assert await reader.readexactly(1) == ACCEPTED
    assert all([await closed(reader) for reader, _ in flood[:36]])
    newest, _ = flood[-1]
    with pytest.raises(TimeoutError):
        async with compat.timeout(0.05):
            await newest.read(1)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (request(cluster_id="other"), "cluster other"),
        (request(group_id=9), "group 9"),
        (request(node_id=7), "node 7 is not a"),
        (request(node_id=0), "not a member"),
        (request(to_node_id=3), "the call is for node 3"),
        (request(founding_id="g"), "begun anew"),
    ],
)
async def test_who_belongs_elsewhere_gets_no_ticket(
    port: PeerPort, request_: raft_pb2.OpenStreamRequest, reason: str
) -> None:
    with pytest.raises(DataDirectoryError, match=reason):
        await port.OpenStream(request_, None)


@pytest.mark.parametrize("turns", range(5))
async def test_a_connection_made_while_the_port_closes_is_closed(turns: int) -> None:
    """Whatever turn of the loop it is in; an open one would be a warning, which is an error."""
    port = PeerPort(Sink(), OWN, lambda node: True)
    await port.serve("127.0.0.1", 0)
    reply = await ask(port)
    with socket.create_connection(("127.0.0.1", reply.port)) as caller:
        for _ in range(turns):
            await asyncio.sleep(0)
        await port.close()
        for _ in range(3):
            await asyncio.sleep(0)
        gc.collect()
        caller.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.to_thread(caller.recv, 1) == b""
