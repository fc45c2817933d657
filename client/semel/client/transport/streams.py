"""The produce and fetch streams to a broker: on sockets of their own if possible, else on gRPC.

How it works. The routes tell the broker's port of streams. A client connects and asks for a stream
there (`AskStream`), which takes no connection of gRPC: after the death of a master all of its
clients do so. If that fails, or the port is not known, the client asks over gRPC (`OpenDirect`),
connects and shows its ticket. Either way the socket then carries the messages of the gRPC stream,
framed. A broker may not know the call, or its port may be unreachable (a firewall, a translated
address). The client remembers that for `_AGAIN_S` and runs the stream on gRPC, as other clients do.
Both kinds of streams have the same few methods, and raise SemelErrors only.

The broker tells its feature levels as it opens the stream, before anything else. A client that did
not know what its broker understands could send data that the broker stores as something else. It
also tells how many streams of clients it has, so that a client knows how many come when it ends.

Invariant: nothing is sent on a stream to a broker with which this client has no level in common,
and no batch to one that does not tell its levels.

Not here: when a stream is opened and what is sent on it (`transport/produce_stream.py`,
`transport/fetch_streams.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from semel.client.core.routing import StreamPlace
from semel.client.transport.connection import Connections, Purpose, translate
from semel.client.transport.runtime import finish
from semel.protos import compat
from semel.protos.addresses import Address
from semel.protos.errors import (
    InvalidRequest,
    SemelError,
    Throttled,
    TimedOut,
    Unauthenticated,
    Unavailable,
    UnsupportedVersion,
    from_detail,
)
from semel.protos.framed import (
    ACCEPTED,
    DIRECT_SILENCE_MAX_S,
    MessageBuffer,
    encode_asking,
    encode_head,
    encode_hello,
    tune,
)
from semel.protos.levels import check_levels, told_levels, untold_levels
from semel.protos.security.credentials import Contexts
from semel.protos.security.tls_connection import HANDSHAKE_S, TlsConnection
from semel.protos.security.tls_session import TlsFailed, is_tls_alert
from semel.protos.streams import FETCH_METHOD, PRODUCE_METHOD, STREAM_MESSAGE_BYTES_MAX
from semel.protos.v1 import broker_pb2, broker_pb2_grpc
from semel.protos.v1.common_pb2 import Levels

logger = logging.getLogger(__name__)

_AGAIN_S: Final = 60.0
PATIENCE_MAX: Final = 8
"""How many times longer than at first a broker may take to answer, after it did not in time."""
FEW: Final = 100
"""The most clients of a broker that are few."""
THERE_S: Final = 0.1
"""Time limit in seconds for a connection that tells whether a node is there."""
_SILENT_TWICE: Final = 4
_SERVED_S: Final = 0.005
"""Seconds in which a slow broker opens a stream, TLS included. If so many come at once, the last
one waits as many times as long, ..."""
_MANY_S: Final = 10.0
"""… but not longer than this, in seconds."""
_END_S: Final = 1.0
"""Seconds after which an open stream without levels is taken for an old broker's."""
_METHODS: Final = {Purpose.PRODUCE: PRODUCE_METHOD, Purpose.FETCH: FETCH_METHOD}
_KINDS: Final = {
    Purpose.PRODUCE: broker_pb2.DIRECT_STREAM_PRODUCE,
    Purpose.FETCH: broker_pb2.DIRECT_STREAM_FETCH,
}
_STREAMS: Final[type[Any]] = broker_pb2_grpc.BrokerStreamStub

Metadata: TypeAlias = tuple[tuple[str, bytes], ...]


class Stream(Protocol):
    """A stream of messages to and from a broker."""

    levels: Levels
    """The feature levels that the broker has told."""

    level: int
    """The feature level up to which the stream may be used, as far as the broker has told."""

    async def read(self) -> bytes | memoryview:
        """Returns the next message. Raises SemelError when the stream has ended."""
        ...

    async def write(self, message: bytes) -> None:
        """Sends a message and returns when there is room for another. Raises SemelError."""
        ...

    def write_now(self, message: bytes) -> bool:
        """Sends a message. False, and nothing is sent, if that might have to wait."""
        ...

    def close(self) -> None: ...


class Streams:
    """Opens the streams of one client. Lives on the I/O thread."""

    def __init__(
        self,
        connections: Connections,
        *,
        direct: bool,
        patience_s: float,
        tls: Contexts | None = None,
        tls_name: str = "",
        place_of: Callable[[str], StreamPlace | None] = lambda _: None,
        watches: Callable[[], int] = lambda: 0,
    ) -> None:
        """`direct` uses sockets where possible. A broker may take `patience_s` to answer, and twice
        as long after each time it did not: very many clients that come at once, and each begin anew
        before the broker gets to them, would never be served. `tls` is None for plaintext; with it,
        a broker's certificate must have the name `tls_name`. `place_of` tells where the node at an
        address may be asked for streams, and `watches` how many clients there are, as far as
        controllers know."""
        self.crowd = 0
        """Streams of clients at the broker to which one was opened last, as it has told."""
        self._place_of = place_of
        self._watches = watches
        self._connections = connections
        self._tls = tls
        self._tls_name = tls_name
        self._direct = direct
        self._patience_s = patience_s
        self._patience: dict[str, int] = {}
        """By how much the patience with an address has grown; 1 for those that are left out."""
        self._not_before: dict[str, float] = {}
        """Loop time, by address, before which the address is not asked for a socket again."""
        self._no_asking_before: dict[str, float] = {}
        """The same for its port of streams."""

    @property
    def clients(self) -> int:
        """How many may come to the next broker at once."""
        return max(self.crowd, self._watches())

    async def open(self, address: str, purpose: Purpose) -> Stream:
        """Opens a stream that may be written to. Raises SemelError; a broker that is too old or too
        new gives UnsupportedVersion."""
        patience = self._patience.get(address, 1)
        many_s = min(self.clients * _SERVED_S, _MANY_S)
        patience_s = max(self._patience_s * patience, many_s)
        try:
            stream = await self._open(address, purpose, patience_s)
        except TimedOut as error:
            self._patience[address] = min(2 * patience, PATIENCE_MAX)
            if self.clients > FEW and patience < PATIENCE_MAX:
                # It may not have got to this client. To look for a master would cost it more.
                raise Throttled(
                    f"{error.message}: {self.clients} clients may have come to it at once",
                    retry_after_ms=0,
                ) from None
            raise
        self._patience.pop(address, None)
        try:
            own = self._connections.levels
            check_levels(own, "this client", stream.levels, f"broker {address}")
            if purpose is Purpose.PRODUCE and not stream.levels.version:
                raise UnsupportedVersion(
                    f"broker {address} is older than this client, which runs Semel {own.version},"
                    " and does not say what it understands; nothing was sent to it: upgrade the"
                    " brokers before the clients"
                )
        except BaseException:
            stream.close()
            raise
        stream.level = min(own.max, stream.levels.active or own.max)
        return stream

    async def _open(self, address: str, purpose: Purpose, patience_s: float) -> Stream:
        if self._direct:
            loop = asyncio.get_running_loop()
            if self._not_before.get(address, 0.0) <= loop.time():
                try:
                    return await self._open_direct(address, purpose, patience_s)
                except (OSError, TimeoutError, InvalidRequest, UnsupportedVersion) as error:
                    self._not_before[address] = loop.time() + _AGAIN_S
                    logger.info(
                        "no direct stream, gRPC instead address=%s reason=%s",
                        address,
                        error or "it does not answer",
                    )
        channel = self._connections.channel(address, purpose)
        stream = GrpcStream(channel, purpose, address, self._connections.told)
        try:
            async with compat.timeout(patience_s):
                await stream.hear_levels(min(_END_S, patience_s / 2))
        except TimeoutError:
            stream.close()
            raise TimedOut(f"{address} does not answer") from None
        except BaseException:
            stream.close()
            raise
        return stream

    async def _open_direct(self, address: str, purpose: Purpose, patience_s: float) -> DirectStream:
        """Opens a socket. Raises the call's SemelError, UnsupportedVersion when the broker does not
        know the call, and OSError or TimeoutError when the port cannot be reached."""
        loop = asyncio.get_running_loop()
        place = self._place_of(address)
        if place is not None and self._asks_at(address):
            try:
                return await self._ask(address, place, purpose, patience_s)
            except (OSError, InvalidRequest, Unauthenticated) as error:
                if self.clients > FEW and _is_too_busy(error):
                    raise TimedOut(f"{address} has opened no stream: {error}") from None
                # The node may have another port by now, and gRPC knows more ways to prove who asks.
                logger.debug("a ticket is needed address=%s reason=%s", address, error)
                if isinstance(error, TimeoutError):
                    self._no_asking_before[address] = loop.time() + _AGAIN_S
        reply = await self._connections.call(
            address,
            _STREAMS,
            "OpenDirect",
            broker_pb2.OpenDirectRequest(stream=_KINDS[purpose]),
            patience_s,
        )
        stream, protocol = self._new_direct(address)
        stream.levels = reply.levels if reply.HasField("levels") else untold_levels()
        try:
            async with compat.timeout(patience_s):
                await loop.create_connection(
                    lambda: protocol, Address.parse(address).host, reply.port
                )
                await stream.show(reply.ticket)
        except BaseException:
            stream.close()
            raise
        self.crowd = reply.streams
        return stream

    def _asks_at(self, address: str) -> bool:
        """Whether to ask at the node's port of streams. Not after it was silent twice, or three
        times to one of many: another program may have that port by now."""
        silent = PATIENCE_MAX if self.clients > FEW else _SILENT_TWICE
        if self._patience.get(address, 1) >= silent:
            return False
        now = asyncio.get_running_loop().time()
        return self._no_asking_before.get(address, 0.0) <= now

    async def is_there(self, address: str) -> bool:
        """Whether something listens at the node's port of streams, as far as the port is known.
        That is the least that tells a node that is gone from a connection that broke."""
        place = self._place_of(address)
        if place is None:
            return False
        host, loop = Address.parse(address).host, asyncio.get_running_loop()
        try:
            async with compat.timeout(THERE_S):
                transport, _ = await loop.create_connection(asyncio.Protocol, host, place.port)
        except OSError:
            return False
        transport.abort()
        return True

    async def _ask(
        self, address: str, place: StreamPlace, purpose: Purpose, patience_s: float
    ) -> DirectStream:
        """Opens a socket and asks for a stream on it. Raises SemelError, and OSError or
        TimeoutError when the port cannot be reached."""
        request = broker_pb2.AskStream(
            stream=_KINDS[purpose],
            cluster_id=place.cluster_id,
            group_id=place.group_id,
            node_id=place.node_id,
            levels=self._connections.levels,
        )
        loop = asyncio.get_running_loop()
        stream, protocol = self._new_direct(address, patience_s)
        connect_s = self._patience_s if self.clients <= FEW else patience_s
        try:
            async with compat.timeout(connect_s):
                await loop.create_connection(
                    lambda: protocol, Address.parse(address).host, place.port
                )
            try:
                async with compat.timeout(patience_s):
                    reply = await stream.ask(request.SerializeToString())
            except TimeoutError:
                raise TimedOut(f"{address} does not answer") from None
            if reply.HasField("error"):
                raise from_detail(reply.error)
        except BaseException:
            stream.close()
            raise
        stream.levels = reply.levels
        self.crowd = reply.streams
        return stream

    def _new_direct(
        self, address: str, patience_s: float = 0.0
    ) -> tuple[DirectStream, asyncio.BaseProtocol]:
        """Returns a stream, and the protocol of its connection."""
        stream = DirectStream(address)
        if self._tls is None:
            return stream, stream
        return stream, TlsConnection(
            stream,
            self._tls.client(),
            server_hostname=self._tls_name,
            handshake_s=max(HANDSHAKE_S, patience_s),
        )


def _is_too_busy(error: Exception) -> bool:
    """Whether a connection failed as those to a node do that very many come to."""
    return isinstance(error, OSError) and not isinstance(error, ConnectionRefusedError)


class GrpcStream:
    """A stream on gRPC."""

    def __init__(
        self, channel: grpc.aio.Channel, purpose: Purpose, address: str, told: Metadata
    ) -> None:
        """`told` are this client's feature levels."""
        self.levels = untold_levels()
        self.level = 0
        self._address = address
        self._purpose = purpose
        self._call: Any = channel.stream_stream(
            _METHODS[purpose], request_serializer=None, response_deserializer=None
        )(metadata=told)

    async def hear_levels(self, end_s: float) -> None:
        """Waits for the broker's feature levels, which come first. Raises SemelError. A stream
        without levels may take `end_s` to report its end."""
        try:
            told = told_levels(await self._call.initial_metadata())
        except grpc.RpcError as error:
            raise translate(error, self._address) from None
        if told is not None:
            self.levels = told
        elif await self._has_ended(end_s):
            await self.read()  # raises the error that ended the stream

    async def _has_ended(self, within_s: float) -> bool:
        """Whether the stream ended before the broker sent a message. The end arrives in the same
        frame as the empty metadata, but gRPC reports the two one after the other."""
        try:
            async with compat.timeout(within_s):
                await self._call.code()
        except TimeoutError:
            return False
        return True

    async def read(self) -> bytes:
        try:
            message = await self._call.read()
            if message is not grpc.aio.EOF:
                return cast("bytes", message)
            code = await self._call.code()
        except grpc.RpcError as error:
            raise translate(error, self._address) from None
        raise Unavailable(f"{self._address} ended the {self._purpose.value} stream: {code.name}")

    async def write(self, message: bytes) -> None:
        try:
            await self._call.write(message)
        except grpc.RpcError as error:
            raise translate(error, self._address) from None
        except asyncio.InvalidStateError:
            raise Unavailable(f"{self._address} ended the {self._purpose.value} stream") from None

    def write_now(self, message: bytes) -> bool:
        return False  # gRPC's `write` is awaited

    def close(self) -> None:
        self._call.cancel()


class DirectStream(asyncio.BufferedProtocol):
    """A stream on a socket of its own."""

    def __init__(self, address: str) -> None:
        self.levels = untold_levels()
        self.level = 0
        self._address = address
        self._transport: asyncio.Transport | None = None
        self._buffer: MessageBuffer | None = None
        """None until the broker has let this client in."""
        self._messages: deque[bytes | memoryview] = deque()
        self._arrived: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        """While the socket is full."""
        self._failure: SemelError | None = None
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def show(self, ticket: bytes) -> None:
        """Shows the ticket and waits for the broker to accept it. Raises OSError."""
        assert self._transport is not None
        self._transport.write(encode_hello(ticket))
        await self._accepted

    async def ask(self, request: bytes) -> broker_pb2.AskStreamReply:
        """Asks for the stream and returns the broker's answer. Raises OSError, SemelError."""
        assert self._transport is not None
        self._transport.write(encode_asking(request))
        await self._accepted
        try:
            return broker_pb2.AskStreamReply.FromString(bytes(await self.read()))
        except DecodeError:
            raise Unavailable(f"{self._address} answers what is no answer") from None

    async def read(self) -> bytes | memoryview:
        while not self._messages:
            if self._failure is not None:
                raise self._failure
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        return self._messages.popleft()

    async def write(self, message: bytes) -> None:
        while self._room is not None:
            await asyncio.shield(self._room)
        if self._failure is not None:
            raise self._failure
        self._write_parts((encode_head(len(message)), message))

    def write_now(self, message: bytes) -> bool:
        if self._room is not None or self._failure is not None:
            return False
        self._write_parts((encode_head(len(message)), message))
        return True

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------------ asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tune(transport, silence_max_s=DIRECT_SILENCE_MAX_S)
        self._transport = cast("asyncio.Transport", transport)
        self._write_parts = compat.parts_writer(self._transport)
        self._buffer = MessageBuffer(self._on_message, length_max=STREAM_MESSAGE_BYTES_MAX)

    def get_buffer(self, sizehint: int) -> memoryview:
        assert self._buffer is not None
        target = self._buffer.target()
        return target if self._accepted.done() else target[:1]

    def buffer_updated(self, nbytes: int) -> None:
        assert self._buffer is not None
        if not self._accepted.done():
            self._on_word(bytes(self._buffer.target()[:1]))
            return
        try:
            self._buffer.received(nbytes)
        except SemelError as error:
            self._fail(Unavailable(f"{self._address}: {error.message}"))
            self.close()

    def pause_writing(self) -> None:
        self._room = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        room, self._room = self._room, None
        finish(room)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._accepted.done():
            self._refuse(
                error
                if isinstance(error, TlsFailed)
                else ConnectionResetError("the broker refused the ticket")
            )
        why = f": {error}" if isinstance(error, TlsFailed) else ""
        self._fail(Unavailable(f"{self._address} ended the stream{why}"))
        self.resume_writing()

    def _on_word(self, word: bytes) -> None:
        if word == ACCEPTED:
            self._accepted.set_result(None)
            return
        if is_tls_alert(word):
            self._refuse(
                TlsFailed(
                    "the port speaks TLS, and this client plaintext: give it the CA, a certificate "
                    "and a key"
                )
            )
        self.close()

    def _refuse(self, error: OSError) -> None:
        self._accepted.set_exception(error)
        self._accepted.exception()  # there may be no waiter

    def _on_message(self, data: memoryview) -> None:
        assert self._buffer is not None
        self._messages.append(data if self._buffer.owned else bytes(data))
        finish(self._arrived)

    def _fail(self, error: SemelError) -> None:
        if self._failure is None:
            self._failure = error
        finish(self._arrived)
