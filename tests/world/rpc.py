"""gRPC between simulated processes: channels, servers, calls, with the bytes of the real messages.

How it works. A channel and a server offer the part of grpc.aio's interface that the product uses;
generated stubs, service handlers and interceptors are the real ones, and every message is
serialized. A call is two pipes. The far end is found when the first message arrives; no server
there means "refused". What the far process writes before it dies may still arrive; then the status
is UNAVAILABLE.

In place of a TLS handshake, whose bytes would not repeat, each end has the identity of its
certificate: the caller checks the name of the far end, whose handlers see whom the caller's names.

Not here: order, delay and cuts (`network.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import Context, copy_context
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from semel.protos.security.identity import Identity, any_node
from tests.world.loop import PROCESS, Process

if TYPE_CHECKING:
    from tests.world.network import Network

CONNECT_S = 2.0
_NAMES = "x509_subject_alternative_name"
_EOF = object()


def _host(address: str) -> str:
    return address.rpartition(":")[0]


class SimChannel:
    """`grpc.aio.Channel`."""

    def __init__(
        self,
        network: Network,
        address: str,
        identity: Identity | None = None,
        expected: str = "",
    ) -> None:
        """With TLS `identity` is that of the caller, and `expected` the name that the far end must
        have."""
        self._network = network
        self._address = address
        self._identity = identity
        self._expected = expected
        self._calls: dict[SimCall, None] = {}

    async def __aenter__(self) -> SimChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        for call in list(self._calls):
            call.cancel()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """It connects for each call, and never by itself."""
        return grpc.ChannelConnectivity.IDLE

    def _begin(self, method: str, serialize: Any, deserialize: Any, **options: Any) -> SimCall:
        call = SimCall(
            self._network,
            self._address,
            method,
            serialize,
            deserialize,
            options.get("metadata") or (),
            options.get("timeout"),
            self._identity,
            self._expected,
        )
        self._calls[call] = None
        call.on_end = lambda: self._calls.pop(call, None)
        call.open()
        return call

    def unary_unary(
        self,
        method: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        _registered_method: bool = False,
    ) -> Callable[..., Any]:
        async def invoke(request: Any, **options: Any) -> Any:
            call = self._begin(method, request_serializer, response_deserializer, **options)
            try:
                call.put(request)
                call.put_end()
                reply = await call.read()
                if reply is grpc.aio.EOF:
                    raise call.error()
                return reply
            except asyncio.CancelledError:
                call.cancel()
                raise

        return invoke

    def unary_stream(
        self,
        method: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        _registered_method: bool = False,
    ) -> Callable[..., SimCall]:
        def invoke(request: Any, **options: Any) -> SimCall:
            call = self._begin(method, request_serializer, response_deserializer, **options)
            call.put(request)
            call.put_end()
            return call

        return invoke

    def stream_stream(
        self,
        method: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        _registered_method: bool = False,
    ) -> Callable[..., SimCall]:
        def invoke(**options: Any) -> SimCall:
            return self._begin(method, request_serializer, response_deserializer, **options)

        return invoke

    stream_unary = stream_stream


class SimCall:
    """One call, as its client holds it."""

    is_connection = True

    def __init__(
        self,
        network: Network,
        address: str,
        method: str,
        serialize: Any,
        deserialize: Any,
        metadata: Any,
        timeout: float | None,
        identity: Identity | None,
        expected: str,
    ) -> None:
        self.process: Process = PROCESS.get()
        self.identity = identity
        self._expected = expected
        self.server_process: Process | None = None
        self.on_end: Callable[[], object] = lambda: None
        self._context = copy_context()
        self._network = network
        self._address = address
        self._method = method
        self._metadata = tuple(metadata)
        self._serialize = serialize
        self._deserialize = deserialize
        self._deadline = None if timeout is None else network.loop.now + timeout
        host = _host(address)
        self._out = network.pipe(self.process.host, host)
        self._in = network.pipe(host, self.process.host)
        self._inbox: deque[Any] = deque()
        self._status: tuple[grpc.StatusCode, str, tuple[Any, ...]] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._handler: _Serving | None = None
        self._connected = False
        self._told: tuple[Any, ...] = ()
        """The server's initial metadata."""
        self._timers: list[asyncio.TimerHandle] = []

    # --- the client's side

    def open(self) -> None:
        network = self._network
        network.calls[self] = None
        loop = network.loop
        self._out.send(self._arrive)
        self._timers.append(loop.call_later(CONNECT_S, self._connect_timeout))
        if self._deadline is not None:
            wait = max(0.0, self._deadline - loop.now)
            self._timers.append(loop.call_at(loop.now + wait, self._timed_out))

    def _connect_timeout(self) -> None:
        if not self._connected and not self._is_heard():
            self._end(grpc.StatusCode.UNAVAILABLE, "connection attempt timed out")

    def _is_heard(self) -> bool:
        """Whether the call has arrived and the server only takes its time; of calls that may last
        for ever, because all others end by their deadline."""
        server = self.server_process
        if self._deadline is not None or server is None or not server.alive:
            return False
        cut = (server.host, self.process.host) in self._network.cut
        return not cut and server.stopped_until <= self._network.loop.now

    def _timed_out(self) -> None:
        self._tell_cancelled()
        self._end(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _tell_cancelled(self) -> None:
        if self._status is None:
            self._out.send(lambda: self._handler.cancel() if self._handler is not None else None)

    def cancel(self) -> bool:
        if self._status is not None:
            return False
        self._tell_cancelled()
        self._end(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")
        return True

    def _end(self, code: grpc.StatusCode, details: str, trailing: tuple[Any, ...] = ()) -> None:
        if self._status is None:
            self._status = (code, details, trailing)
            self._network.calls.pop(self, None)
            for timer in self._timers:
                timer.cancel()
            self.on_end()
            self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _wait(self) -> None:
        future = self._network.loop.create_future()
        self._waiters.append(future)
        await future

    def put(self, message: Any) -> None:
        data = message if self._serialize is None else self._serialize(message)
        self._out.send(lambda: self._hand_over(bytes(data)))

    def put_end(self) -> None:
        self._out.send(lambda: self._hand_over(_EOF))

    def _hand_over(self, item: Any) -> None:
        if self._handler is not None:
            self._handler.receive(item)

    async def write(self, message: Any) -> None:
        if self._status is not None:
            if self._status[0] is grpc.StatusCode.OK:
                raise asyncio.InvalidStateError("the call is over")
            raise self.error()
        self.put(message)

    async def done_writing(self) -> None:
        self.put_end()

    async def read(self) -> Any:
        while not self._inbox:
            if self._status is not None:
                if self._status[0] is grpc.StatusCode.OK:
                    return grpc.aio.EOF
                raise self.error()
            await self._wait()
        data = self._inbox.popleft()
        return data if self._deserialize is None else self._deserialize(data)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    async def initial_metadata(self) -> Any:
        while not self._connected and self._status is None:
            await self._wait()
        if self._status is not None and self._status[0] is not grpc.StatusCode.OK:
            raise self.error()
        return self._told

    async def code(self) -> grpc.StatusCode:
        while self._status is None:
            await self._wait()
        return self._status[0]

    def error(self) -> grpc.aio.AioRpcError:
        code, details, trailing = self._status or (grpc.StatusCode.UNKNOWN, "", ())
        return grpc.aio.AioRpcError(
            code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details=details
        )

    # --- arrivals, outside of any process

    def _on_client(self, action: Callable[..., None], *arguments: Any) -> None:
        self._network.loop.call_soon(action, *arguments, context=self._context)

    def _arrive(self) -> None:
        server = self._network.servers.get(self._address)
        reason = "connection refused"
        if server is not None and server.process.alive:
            reason = _mismatch(self.identity, self._expected, server.identity)
        if server is None or reason:
            self._in.send(lambda: self._on_client(self._end, grpc.StatusCode.UNAVAILABLE, reason))
            return
        self.server_process = server.process
        self._handler = _Serving(
            self, server, self._method, self._metadata, self._deadline, self._in
        )

    def on_server_lost(self) -> None:
        self._in.send(
            lambda: self._on_client(self._end, grpc.StatusCode.UNAVAILABLE, "connection reset")
        )

    def on_client_lost(self) -> None:
        self._network.calls.pop(self, None)
        self._out.send(lambda: self._handler.cancel() if self._handler is not None else None)

    def _connect(self, told: tuple[Any, ...]) -> None:
        self._connected = True
        self._told = told
        self._wake()

    def _receive(self, data: bytes) -> None:
        if self._status is None:
            self._inbox.append(data)
            self._wake()


def _mismatch(caller: Identity | None, expected: str, server: Identity | None) -> str:
    """Why a handshake between these two fails; empty if it does not."""
    if (caller is None) is not (server is None):
        return "Socket closed" if caller is None else "Ssl handshake failed: WRONG_VERSION_NUMBER"
    if server is not None and expected not in (server.tls_name, any_node(server.cluster)):
        return f"Hostname Verification Check failed: {expected}"
    return ""


class SimServer:
    """`grpc.aio.Server`."""

    def __init__(self, network: Network, interceptors: Sequence[Any]) -> None:
        self.process: Process = PROCESS.get()
        self.context: Context = copy_context()
        self._network = network
        self._interceptors = interceptors
        self._handlers: list[Any] = []
        self._address = ""
        self.identity: Identity | None = None
        """That of its certificate; None without TLS."""

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        self._handlers += handlers

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """The same methods come through `add_generic_rpc_handlers`."""

    def add_insecure_port(self, address: str) -> int:
        if address in self._network.servers:
            raise RuntimeError(f"{address} is in use")
        self._address = address
        return int(address.rpartition(":")[2])

    def add_secure_port(self, address: str, credentials: Identity) -> int:
        """A port with the certificate of an identity."""
        self.identity = credentials
        return self.add_insecure_port(address)

    async def start(self) -> None:
        self._network.servers[self._address] = self

    async def stop(self, grace: float | None = None) -> None:
        self._network.servers.pop(self._address, None)

    async def find(self, details: Any) -> Any:
        """The handler of a method behind all interceptors; None when there is none."""

        async def continuation(details: Any) -> Any:
            for handlers in self._handlers:
                found = handlers.service(details)
                if found is not None:
                    return found
            return None

        step = continuation
        for interceptor in reversed(self._interceptors):

            async def step(details: Any, interceptor: Any = interceptor, inner: Any = step) -> Any:
                return await interceptor.intercept_service(inner, details)

        return await step(details)


class _Serving:
    """One call at its server; the `ServicerContext` of its handler."""

    is_connection = True

    def __init__(
        self,
        call: SimCall,
        server: SimServer,
        method: str,
        metadata: tuple[Any, ...],
        deadline: float | None,
        out: Any,
    ) -> None:
        self._call = call
        self._server = server
        self._method = method
        self._metadata = metadata
        self._deadline = deadline
        self._out = out
        self._loop = server._network.loop
        self._inbox: deque[Any] = deque()
        self._ended = False
        self._told = False
        self._waiter: asyncio.Future[None] | None = None
        self._serialize: Any = None
        self._deserialize: Any = None
        self._task: asyncio.Task[None] | None = None
        self._loop.call_soon(self._start, context=server.context)

    def _start(self) -> None:
        self._task = self._loop.create_task(self._serve())

    def receive(self, item: Any) -> None:
        self._loop.call_soon(self._take, item, context=self._server.context)

    def _take(self, item: Any) -> None:
        self._inbox.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def cancel(self) -> None:
        self._loop.call_soon(self._cancel, context=self._server.context)

    def _cancel(self) -> None:
        self._ended = True
        if self._task is not None:
            self._task.cancel()

    async def _serve(self) -> None:
        details = SimpleNamespace(method=self._method, invocation_metadata=self._metadata)
        try:
            handler = await self._server.find(details)
            if handler is None:
                self._status(grpc.StatusCode.UNIMPLEMENTED, f"no {self._method}")
                return
            self._serialize = handler.response_serializer
            self._deserialize = handler.request_deserializer
            if handler.request_streaming:
                await handler.stream_stream(None, self)
            else:
                request = await self.read()
                if handler.response_streaming:
                    await handler.unary_stream(request, self)
                else:
                    await self.write(await handler.unary_unary(request, self))
            self._status(grpc.StatusCode.OK, "")
        except grpc.aio.AbortError:
            pass
        except Exception as error:
            self._loop.errors.append(f"{self._method}: {error!r}")
            self._status(grpc.StatusCode.UNKNOWN, repr(error))

    def _status(self, code: grpc.StatusCode, details: str, trailing: tuple[Any, ...] = ()) -> None:
        if not self._ended:
            self._ended = True
            call = self._call
            self._out.send(lambda: call._on_client(call._end, code, details, trailing))

    # --- what handlers use

    async def read(self) -> Any:
        while not self._inbox:
            self._waiter = self._loop.create_future()
            await self._waiter
        item = self._inbox.popleft()
        if item is _EOF:
            self._inbox.append(item)
            return grpc.aio.EOF
        return item if self._deserialize is None else self._deserialize(item)

    async def write(self, message: Any) -> None:
        if self._ended:
            return
        self._connect()
        data = message if self._serialize is None else self._serialize(message)
        call = self._call
        self._out.send(lambda: call._on_client(call._receive, bytes(data)))

    async def send_initial_metadata(self, metadata: Any) -> None:
        self._connect(tuple(metadata))

    def _connect(self, metadata: tuple[Any, ...] = ()) -> None:
        if not self._told:
            self._told = True
            call = self._call
            self._out.send(lambda: call._on_client(call._connect, metadata))

    def invocation_metadata(self) -> tuple[Any, ...]:
        return self._metadata

    def time_remaining(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - self._loop.now)

    def peer(self) -> str:
        return f"sim:{self._call.process}"

    def auth_context(self) -> dict[str, list[bytes]]:
        identity = self._call.identity
        return {} if identity is None else {_NAMES: [identity.uri.encode()]}

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: tuple[Any, ...] = ()
    ) -> None:
        self._status(code, details, tuple(trailing_metadata))
        raise grpc.aio.AbortError
