"""Outgoing streams to the other replicas of the group.

How it works. To each peer this node opens one stream for control messages (votes, heartbeats,
acknowledgements) and one for APPENDs, so that a heartbeat never queues behind a megabyte. An empty
APPEND asks whether those before it were lost, so it uses their stream: if it overtook them, they
would be sent again and again over a link that is slow already. Messages go one way; the peer
answers through its own streams. Raft survives lost messages, so nothing is kept for a peer that is
not connected: the core hears that a stream broke, and probes anew. That the peer is *unreachable*,
so that its slaves need not wait for an election timeout, the core hears only when the stream
broke and nobody listens at the peer's address any more: its process is gone. A timeout, or a live
peer that refuses this node, says nothing like that.

A message is written in the call that sends it, so that it costs no turn of the loop. It waits in
line only behind other messages, while the socket is full, or while its entries are read from disk.
Those reads run in the reader pool, so that a slow disk holds up one peer's stream and nothing else.

Invariants
1. Per peer and stream, messages leave in the order in which they were given.
2. Messages wait without the bytes of their entries: the socket's buffer holds `_BUFFER_BYTES` and
   one message more, the core's byte window bounds the rest.

Not here: what is sent and when (`raft/`, `replica/driver.py`), the receiving side
(`replication/receiver.py`), the bytes (`protos/framed.py`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, cast

import grpc
import grpc.aio

from semel.broker.identity import NodeIdentity
from semel.broker.log import IndexUnavailable, Log
from semel.broker.memory import BodyStore, pack_bodies
from semel.broker.raft import Message, MessageKind, encode_message
from semel.protos import compat
from semel.protos.addresses import Address
from semel.protos.errors import CorruptSegment, InvalidRequest, UnsupportedVersion
from semel.protos.framed import ACCEPTED, encode_head, encode_hello, tune
from semel.protos.ids import NodeId
from semel.protos.levels import check_levels, check_member, levels_metadata, own_levels
from semel.protos.security.credentials import Contexts
from semel.protos.security.identity import BROKER, Identity
from semel.protos.security.networks import Networks
from semel.protos.security.tls_connection import TlsConnection
from semel.protos.security.tls_session import TlsFailed, is_tls_alert
from semel.protos.v1 import raft_pb2, raft_pb2_grpc
from semel.protos.v1.common_pb2 import Levels

logger = logging.getLogger(__name__)

_RECONNECT_MIN_S = 0.02
_RECONNECT_MAX_S = 0.2
_OPEN_TIMEOUT_S = 2.0
_WAITING_MAX = 4096
_BUFFER_BYTES = 2 << 20
SILENCE_MAX_S: Final = 3
"""A link that is silent for this long is given up."""
_CONTROL: Final = 0
_BULK: Final = 1


class PeerLink:
    """The two streams to one peer; `run` keeps them open until it is cancelled."""

    def __init__(
        self,
        *,
        peer_id: NodeId,
        address: str,
        identity: NodeIdentity,
        log: Log,
        readers: Executor,
        on_broken: Callable[[NodeId], None],
        on_unreachable: Callable[[NodeId], None],
        route: str = "",
        levels: Callable[[], Levels] = own_levels,
        level_needed: Callable[[], int] = int,
        bodies: BodyStore | None = None,
        tls: Contexts | None = None,
        plaintext_within: Networks = Networks(),  # noqa: B008 (it is frozen)
    ) -> None:
        """`on_broken` hears of each stream that was open and is lost, `on_unreachable` of each
        reconnect after that which was refused because nobody listens there.

        `route` is HOST:PORT under which the peer's stream port is reached, if not directly;
        `levels` are this node's, and `level_needed` what every member must know, as they are now;
        `bodies` are those of topics in memory. `tls` is None for plaintext; with it,
        connections inside of `plaintext_within` do without if the peer agrees.
        """
        self.peer_id = peer_id
        self.address = address
        self._identity = identity
        self._log = log
        self._readers = readers
        self._on_broken = on_broken
        self._on_unreachable = on_unreachable
        self._route = route
        self._own_levels = levels
        self._level_needed = level_needed
        self._bodies = bodies
        self._tls = tls
        self._plaintext_within = plaintext_within
        self._streams: list[_Stream | None] = [None, None]
        """For control messages and for entries; None while not open."""
        self.levels: Levels | None = None
        """The levels that the peer's program named for its newest stream; None if not heard."""

    def send(self, message: Message) -> None:
        """Sends one message; drops it when the peer is not connected."""
        stream = self._streams[_BULK if message.kind is MessageKind.APPEND else _CONTROL]
        if stream is not None:
            stream.send(message)

    async def run(self) -> None:
        """Opens, feeds and reopens both streams."""
        async with compat.TaskGroup() as tasks:
            tasks.create_task(self._keep(_CONTROL))
            tasks.create_task(self._keep(_BULK))

    async def _keep(self, kind: int) -> None:
        delay = _RECONNECT_MIN_S
        complaint = ""
        was_open = False
        while True:
            stream = _Stream(self.peer_id, self._log, self._readers, self._bodies)
            gone = False
            try:
                async with compat.timeout(_OPEN_TIMEOUT_S):
                    await self._open(stream)
                delay = _RECONNECT_MIN_S
                complaint = ""
                was_open = True
                self._streams[kind] = stream
                await stream.run()
            except (grpc.aio.AioRpcError, UnsupportedVersion, InvalidRequest) as error:
                reason = _complaint(error)
                if reason:
                    delay = _RECONNECT_MAX_S
                if reason not in ("", complaint):
                    # A node that waits to join, or was removed, asks again and again.
                    if isinstance(error, grpc.aio.AioRpcError):
                        logger.error(
                            "peer refuses this node peer=%s reason=%s", self.peer_id, reason
                        )
                    else:
                        logger.error("peer is not let in peer=%s reason=%s", self.peer_id, reason)
                    complaint = reason
                gone = _nobody_listens(error)
            except ConnectionRefusedError:
                gone = True
            except TlsFailed as error:
                delay = _RECONNECT_MAX_S
                if str(error) != complaint:
                    complaint = str(error)
                    logger.error("stream to peer fails peer=%s reason=%s", self.peer_id, error)
            except (OSError, TimeoutError):
                pass  # not up yet, or gone meanwhile
            finally:
                was_lost, self._streams[kind] = self._streams[kind] is not None, None
                stream.close()
                if not any(self._streams):
                    self.levels = None  # the peer may come back with another program
            if was_lost:
                self._on_broken(self.peer_id)
            elif gone and was_open:
                self._on_unreachable(self.peer_id)
            await asyncio.sleep(delay)
            delay = min(delay * 2, _RECONNECT_MAX_S)

    async def _open(self, stream: _Stream) -> None:
        """Asks for a ticket and connects with it; returns once the peer has let it in.

        Raises UnsupportedVersion for a peer that does not know the rules of the group's log.
        """
        own = self._identity
        levels = self._own_levels()
        async with own.channel(self.peer_id, self.address) as channel:
            reply: raft_pb2.OpenStreamReply = await raft_pb2_grpc.RaftPeerStub(channel).OpenStream(
                raft_pb2.OpenStreamRequest(
                    cluster_id=own.cluster_id,
                    group_id=own.group_id,
                    node_id=own.node_id,
                    founding_id=own.founding,
                    to_node_id=self.peer_id,
                    address=own.address,
                    levels=levels,
                    plaintext_wanted=self._tls is not None and bool(self._plaintext_within),
                ),
                timeout=_OPEN_TIMEOUT_S,
                metadata=levels_metadata(levels),
            )
        told = reply.levels
        if not reply.HasField("levels"):
            told = Levels(max=reply.feature_level_max)  # its program is older than `levels`
        self.levels = told
        check_levels(levels, "this node", told, f"node {self.peer_id}")
        check_member(f"node {self.peer_id}", told, self._level_needed())
        peer = Address.parse(self._route or self.address, what=f"address of node {self.peer_id}")
        port = peer.port if self._route else reply.port
        host = await self._plaintext_host(peer.host, port) if reply.plaintext else ""
        if host:
            logger.info("stream to peer in plaintext peer=%s address=%s", self.peer_id, host)
        protocol: asyncio.BaseProtocol = stream
        if self._tls is not None and not host:
            protocol = TlsConnection(
                stream,
                self._tls.client(),
                server_hostname=Identity(BROKER, str(self.peer_id), own.cluster_id).tls_name,
            )
        await asyncio.get_running_loop().create_connection(
            lambda: protocol, host or peer.host, port
        )
        await stream.accepted(reply.ticket)

    async def _plaintext_host(self, host: str, port: int) -> str:
        """The peer's IP address if it is in a network for plaintext, else an empty string."""
        if self._tls is None or not self._plaintext_within:
            return ""
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(place[0]) for *_, place in found]
        if not all(address in self._plaintext_within for address in addresses):
            return ""
        return addresses[0]


class _Stream(asyncio.Protocol):
    """One connection to the peer and the messages that wait for it."""

    def __init__(
        self, peer_id: NodeId, log: Log, readers: Executor, bodies: BodyStore | None = None
    ) -> None:
        self._peer_id = peer_id
        self._bodies = bodies
        self._log = log
        self._readers = readers
        self._transport: asyncio.Transport | None = None
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting: deque[Message] = deque()
        self._wake = asyncio.Event()
        self._paused = False
        self._lost = False
        self._unread = ""
        """Why the newest entries could not be read from disk; empty if they could."""
        self._refused: TlsFailed | None = None

    # ------------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tune(transport, silence_max_s=SILENCE_MAX_S)
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_BUFFER_BYTES)
        self._write_parts = compat.parts_writer(self._transport)

    def data_received(self, data: bytes) -> None:
        if not self._accepted.done() and data == ACCEPTED:
            self._accepted.set_result(None)
            return
        if not self._accepted.done() and is_tls_alert(data):
            self._refused = TlsFailed(
                "it speaks TLS on its peer port, and this node plaintext: give this node the CA, a "
                "certificate and a key"
            )
        self.close()  # a peer sends nothing else

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._wake.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        self._wake.set()
        if not self._accepted.done():
            self._accepted.set_exception(
                self._refused
                or (error if isinstance(error, TlsFailed) else None)
                or ConnectionResetError("the peer closed the stream")
            )
            self._accepted.exception()  # perhaps nobody awaits it

    # ------------------------------------------------------------------ sending

    async def accepted(self, ticket: bytes) -> None:
        """Shows the ticket and waits until the peer has accepted it. Raises OSError."""
        assert self._transport is not None
        self._transport.write(encode_hello(ticket))
        await self._accepted

    def send(self, message: Message) -> None:
        """Writes the message at once if that is possible; else it waits in line."""
        if self._lost:
            return
        if not self._waiting and not self._paused:
            frames = self._cached(message)
            if frames is not None:
                self._write(message, frames)
                return
        if len(self._waiting) >= _WAITING_MAX:
            self._waiting.popleft()  # as if it were lost on the way: Raft repeats what matters
        self._waiting.append(message)
        self._wake.set()

    async def run(self) -> None:
        """Sends what waits in line, until the connection is lost."""
        waiting = self._waiting
        while not self._lost:
            if self._paused or not waiting:
                self._wake.clear()
                await self._wake.wait()
                continue
            message = waiting[0]  # in line until it is written, so that nothing overtakes it
            frames = self._cached(message)
            if frames is None:
                frames = await self._read(message)
            if waiting and waiting[0] is message:
                waiting.popleft()
            if frames is not None and not self._lost:
                self._write(message, frames)

    def close(self) -> None:
        self._lost = True
        self._waiting.clear()
        self._wake.set()
        if self._transport is not None:
            self._transport.abort()

    def _write(self, message: Message, frames: list[bytes]) -> None:
        assert self._transport is not None
        head = encode_message(message)
        if not frames:
            self._transport.write(encode_head(len(head)) + head)
            return
        bodies: list[bytes | memoryview] = []
        first = message.entries[0].index
        if self._bodies is not None and self._bodies.records_from(first):
            bodies = pack_bodies(first, frames, self._bodies)
        length = len(head) + sum(map(len, frames)) + sum(map(len, bodies))
        self._write_parts((encode_head(length) + head, *frames, *bodies))

    def _cached(self, message: Message) -> list[bytes] | None:
        """The entries' frames, if none of them must be read from disk."""
        entries = message.entries
        if not entries:
            return []
        return self._of_this_term(
            message, self._log.cached_frames(entries[0].index, entries[-1].index + 1)
        )

    async def _read(self, message: Message) -> list[bytes] | None:
        """The entries' frames, or None if they cannot be read.

        They may be gone by now (the core will offer a snapshot), or this node lacks descriptors or
        has a sick disk. That says nothing about the peer, so the stream stays open; the core sends
        them again.
        """
        lo, hi = message.entries[0].index, message.entries[-1].index + 1
        loop = asyncio.get_running_loop()
        try:
            frames = await loop.run_in_executor(self._readers, self._log.read_frames, lo, hi)
        except (IndexUnavailable, CorruptSegment) as error:
            logger.warning("entries not sent peer=%s reason=%s", self._peer_id, error)
            return None
        except OSError as error:
            if str(error) != self._unread:  # the core asks again and again
                logger.error("entries not read peer=%s reason=%s", self._peer_id, error)
                self._unread = str(error)
            return None
        self._unread = ""
        return self._of_this_term(message, frames)

    def _of_this_term(self, message: Message, frames: list[bytes] | None) -> list[bytes] | None:
        """`frames`, or None if the entries of the message were truncated and replaced since."""
        last = message.entries[-1]
        return frames if self._log.term_at(last.index) == last.term else None


def _complaint(error: grpc.aio.AioRpcError | UnsupportedVersion | InvalidRequest) -> str:
    """What a living peer and this node have against each other; empty when it is something else."""
    if isinstance(error, UnsupportedVersion | InvalidRequest):
        return error.message
    refused = error.code() is grpc.StatusCode.FAILED_PRECONDITION
    return str(error.details()) if refused else ""


def _nobody_listens(error: Exception) -> bool:
    """Whether the operating system of the peer's machine refused the connection: no process has the
    port. gRPC says so in the status's text only; one that times out or ends has the same code."""
    return (
        isinstance(error, grpc.aio.AioRpcError)
        and error.code() is grpc.StatusCode.UNAVAILABLE
        and "connection refused" in str(error.details()).lower()
    )
