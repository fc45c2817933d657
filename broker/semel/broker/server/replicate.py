"""The receiving side of replication: streams of Raft messages from the other replicas.

How it works. A peer asks over gRPC for a stream; who it says to be is checked there, and a ticket
given. With that it connects to the peer port and sends Raft messages, on which nothing is answered
(`peer_stream.py`). A message is decoded, its frames are checked (both CRCs), and the node gets it
in the same loop turn in which its last byte arrived.

Invariants
1. A connection says nothing before it has shown a ticket, and a ticket serves once.
2. A stream whose bytes make no sense, or which speaks for another node, ends; no node does.
3. Connections without a ticket are few and short-lived, however many knock.

Not here: the sending side (`peers.py`), snapshots' bytes (`snapshots.py`), what a message does
(`raft/`, `node.py`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from semel.broker.peer_stream import (
    ACCEPTED,
    TICKET_BYTES,
    MessageBuffer,
    decode_hello,
    tune,
)
from semel.broker.peers import Identity
from semel.broker.raft import EntryMeta, Membership, Message, decode_message, envelope_length
from semel.broker.state import FEATURE_LEVEL_MAX
from semel.protos.control_records import membership_nodes
from semel.protos.errors import DataDirectoryError, InvalidRequest, SemelError
from semel.protos.frames import (
    FRAME_HEADER_BYTES,
    RECORD_HEADER_STRUCT,
    FrameHeader,
    RecordKind,
    check_frame,
    frame_length_at,
    iter_records,
)
from semel.protos.ids import NodeId
from semel.protos.v1 import raft_pb2, raft_pb2_grpc

logger = logging.getLogger(__name__)

_TICKET_S = 5.0
_TICKETS_MAX = 256
_STRANGERS_MAX = 64


class MessageSink(Protocol):
    """The node, as this module needs it."""

    def on_message(self, message: Message, frames: Sequence[bytes]) -> None: ...


def frame_meta(frame: bytes, header: FrameHeader) -> EntryMeta:
    """What the Raft core knows of a frame that was checked before."""
    membership = None
    kind: int = RECORD_HEADER_STRUCT.unpack_from(frame, FRAME_HEADER_BYTES)[1]
    if kind == RecordKind.MEMBERSHIP:
        _, _, payload = next(iter_records(frame))
        voters, learners = membership_nodes(payload)
        membership = Membership(voters=frozenset(voters), learners=frozenset(learners))
    return EntryMeta(index=header.index, term=header.term, size=len(frame), membership=membership)


def split_message(data: memoryview) -> tuple[Message, list[bytes]]:
    """The message and the frames behind it, all checked. Raises SemelError."""
    at = envelope_length(data)
    end = len(data)
    frames: list[bytes] = []
    metas: list[EntryMeta] = []
    while at < end:
        frame = bytes(data[at : at + frame_length_at(data, at)])
        metas.append(frame_meta(frame, check_frame(frame)))
        frames.append(frame)
        at += len(frame)
    return decode_message(data, tuple(metas)), frames


class PeerPort(raft_pb2_grpc.RaftPeerServicer):
    """Lets peers in and hands their messages on; `serve` and `close` open and shut the port."""

    def __init__(
        self, sink: MessageSink, identity: Identity, is_member: Callable[[NodeId], bool]
    ) -> None:
        self._sink = sink
        self._identity = identity
        self._is_member = is_member
        self._server: asyncio.Server | None = None
        self._port = 0
        self._closed = False
        self._tickets: dict[bytes, tuple[NodeId, float]] = {}
        """Node and end of life (loop time, s) by ticket."""
        self._strangers: dict[_Incoming, None] = {}
        """Connected and without a ticket so far, oldest first."""
        self._peers: set[_Incoming] = set()

    async def serve(self, host: str, port: int) -> None:
        """Listens; port 0 takes a free one. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Incoming(self), host, port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Ends every stream."""
        self._closed = True
        if self._server is not None:
            loop = asyncio.get_running_loop()
            if isinstance(loop, asyncio.SelectorEventLoop):
                # asyncio forgets a connection, open, that it accepted one turn before its server
                # closes: so nothing more is accepted, and that one is finished first.
                for listening in self._server.sockets:
                    loop.remove_reader(listening.fileno())
                await asyncio.sleep(0)
            self._server.close()
        for stream in (*self._strangers, *self._peers):
            stream.abort()

    async def OpenStream(  # noqa: N802
        self, request: raft_pb2.OpenStreamRequest, context: object
    ) -> raft_pb2.OpenStreamReply:
        """A ticket for one stream. Raises DataDirectoryError when the caller belongs elsewhere."""
        own = self._identity
        if request.cluster_id != own.cluster_id or request.group_id != own.group_id:
            raise DataDirectoryError(
                f"this is node {own.node_id} of group {own.group_id} of cluster "
                f"{own.cluster_id}, the caller belongs to group {request.group_id} of cluster "
                f"{request.cluster_id}"
            )
        peer = NodeId(request.node_id)
        if not self._is_member(peer):
            raise DataDirectoryError(
                f"node {request.node_id or '?'} is not a member of group {own.group_id}"
            )
        now = asyncio.get_running_loop().time()
        if len(self._tickets) >= _TICKETS_MAX:
            self._tickets = {
                ticket: holder for ticket, holder in self._tickets.items() if holder[1] > now
            }
            if len(self._tickets) >= _TICKETS_MAX:
                del self._tickets[next(iter(self._tickets))]
        ticket = secrets.token_bytes(TICKET_BYTES)
        self._tickets[ticket] = (peer, now + _TICKET_S)
        return raft_pb2.OpenStreamReply(
            port=self._port, ticket=ticket, feature_level_max=FEATURE_LEVEL_MAX
        )

    # ------------------------------------------------------------------ what a stream tells

    def on_connected(self, stream: _Incoming) -> None:
        if self._closed:
            stream.abort()
            return
        if len(self._strangers) >= _STRANGERS_MAX:
            # Not the newest: a peer shows its ticket at once, a flood would keep it out.
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.abort()
        self._strangers[stream] = None

    def on_hello(self, stream: _Incoming, ticket: bytes) -> NodeId:
        """The node that the ticket was given to. Raises InvalidRequest."""
        peer, end = self._tickets.pop(ticket, (NodeId(0), 0.0))
        if end <= asyncio.get_running_loop().time():
            raise InvalidRequest("a stream was opened with a ticket that was not given out")
        self._strangers.pop(stream, None)
        self._peers.add(stream)
        return peer

    def on_message(self, peer: NodeId, data: memoryview) -> None:
        """Raises InvalidRequest and other SemelErrors when `data` is malformed."""
        message, frames = split_message(data)
        if message.source != peer or message.target != self._identity.node_id:
            raise InvalidRequest(
                f"message of node {message.source} to node {message.target} on a stream of node "
                f"{peer} to node {self._identity.node_id}"
            )
        self._sink.on_message(message, frames)

    def on_lost(self, stream: _Incoming) -> None:
        self._strangers.pop(stream, None)
        self._peers.discard(stream)


class _Incoming(asyncio.BufferedProtocol):
    """One connection at the peer port."""

    def __init__(self, port: PeerPort) -> None:
        self._port = port
        self._transport: asyncio.Transport | None = None
        self._peer: NodeId | None = None
        self._buffer = MessageBuffer(self._on_message)
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tune(transport)
        self._transport = cast("asyncio.Transport", transport)
        self._patience = asyncio.get_running_loop().call_later(_TICKET_S, self.abort)
        self._port.on_connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.target()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._buffer.received(nbytes)
        except SemelError as error:
            logger.error(
                "malformed message dropped with its stream peer=%s error=%s", self._peer, error
            )
            self.abort()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._port.on_lost(self)

    def abort(self) -> None:
        """Ends the connection, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()

    def _on_message(self, data: memoryview) -> None:
        if self._peer is not None:
            self._port.on_message(self._peer, data)
            return
        self._peer = self._port.on_hello(self, decode_hello(data))
        assert self._patience is not None
        assert self._transport is not None
        self._patience.cancel()
        self._transport.write(ACCEPTED)
