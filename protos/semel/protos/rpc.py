"""gRPC as all parts use it: options, and the bridge between errors and statuses.

How it works. A server installs `ServerInterceptor`: whatever a handler raises leaves as a status
with an `ErrorDetail` in the trailing metadata `semel-error-bin`. A client gives every RpcError to
`error_from_rpc` and gets the same exception back. A caller's feature levels (`levels.py`), which
stand in its call's metadata, are checked before the handler runs. Each call passes the gate of its
class (`call_gates.py`) before its request is decoded.

Invariants
1. Every status that a server with this interceptor ends a failed call of our services with carries
   a detail; a status without one comes from gRPC itself, and says nothing certain about a write.
2. Cancellation passes through untouched.
3. No handler sees anything of a caller that speaks none of this program's feature levels, or of a
   call that the server's checks refuse.
4. A stream ends when its caller's certificate expires, with an error after which the caller
   connects again.

Not here: the layout inside stream messages (`streams.py`), reconnecting and retrying (clients).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, NoReturn, Protocol
from urllib.parse import unquote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from semel.protos import compat
from semel.protos.call_gates import OPEN, CallGates, Gate
from semel.protos.errors import (
    InternalError,
    InvalidRequest,
    MessageTooLarge,
    PermissionDenied,
    SemelError,
    Throttled,
    TimedOut,
    Unauthenticated,
    Unavailable,
    UnsupportedVersion,
    from_detail,
    to_detail,
)
from semel.protos.levels import check_levels, own_levels, told_levels
from semel.protos.security.failures import tls_failure
from semel.protos.streams import STREAM_MESSAGE_BYTES_MAX
from semel.protos.v1.common_pb2 import Levels
from semel.protos.v1.errors_pb2 import ErrorDetail

__all__ = [
    "CHANNEL_OPTIONS",
    "ERROR_METADATA_KEY",
    "MESSAGE_BYTES_MAX",
    "PEER_CHANNEL_OPTIONS",
    "SERVER_OPTIONS",
    "ServerInterceptor",
    "error_from_rpc",
    "semel_error_of",
]

logger = logging.getLogger(__name__)

ERROR_METADATA_KEY: Final = "semel-error-bin"
MESSAGE_BYTES_MAX: Final = STREAM_MESSAGE_BYTES_MAX
_STRANGERS_MAX: Final = 100
_DETAILS_CHARS_MAX: Final = 1024
"""Status text and detail share gRPC's 8 KiB of metadata, and the text is percent-encoded."""

Options = tuple[tuple[str, Any], ...]

_LIMITS: Final[Options] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

_CHANNEL: Final[Options] = (
    *_LIMITS,
    # Channels to one address would otherwise share a connection, and bulk would delay control.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    # gRPC must not send anything twice on its own: retries are the sequence's business.
    ("grpc.enable_retries", 0),
    # In spite of its name this is the time one connection attempt may take.
    ("grpc.min_reconnect_backoff_ms", 2_000),
)

CHANNEL_OPTIONS: Final[Options] = (
    *_CHANNEL,
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
)
"""From clients to controllers and brokers."""

PEER_CHANNEL_OPTIONS: Final[Options] = (
    *_CHANNEL,
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.max_reconnect_backoff_ms", 200),
)
"""Between nodes of one group: a peer that is back must hear from its master before it stands."""

SERVER_OPTIONS: Final[Options] = (
    *_LIMITS,
    # A port in use is an error, not a port shared with whoever has it.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
)

Decode = Callable[[bytes], Any]


class CallChecks(Protocol):
    """Decides which calls the handlers see. Each method returns `behavior` behind its checks, which
    raise SemelError."""

    def single(self, method: str, behavior: Callable[..., Any]) -> Callable[..., Any]:
        """For one request and one reply."""
        ...

    def replies(self, method: str, behavior: Callable[..., Any]) -> Callable[..., Any]:
        """For one request and a stream of replies."""
        ...

    def requests(self, method: str, behavior: Callable[..., Any]) -> Callable[..., Any]:
        """For a stream of requests."""
        ...


# --- server -------------------------------------------------------------------------------------


class ServerInterceptor(grpc.aio.ServerInterceptor):
    """Checks the feature levels of callers, and turns what handlers raise into statuses with a
    detail."""

    def __init__(
        self,
        levels: Levels | None = None,
        check_caller: Callable[[str, Any], float | None] = lambda *_: None,
        checks: CallChecks | None = None,
        gates: CallGates | None = None,
    ) -> None:
        """`levels` are this program's, by default those that its code speaks.

        `check_caller` gets the method and the context of each call, and raises a SemelError for a
        caller that may not make it; it returns the seconds after which the caller's streams end,
        None for never. `checks` stands before each handler; None lets every call in. `gates` bound
        how many calls go on; None for no bound.
        """
        self._gates = gates
        self._check_caller = check_caller
        self._checks = checks
        self._levels = own_levels() if levels is None else levels
        self._strangers: set[str] = set()
        """Why callers of other versions were refused, as far as that was logged."""
        self._known: dict[str, tuple[Any, Any]] = {}
        """Each method's handler, and what stands before it: made once, not for every call."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = _text(handler_call_details.method)
        known = self._known.get(method)
        if known is None or known[0] is not handler:
            known = self._known[method] = (handler, self._before(method, handler))
        return known[1]

    def _before(self, method: str, handler: Any) -> Any:
        serializer = handler.response_serializer
        if handler.request_streaming:
            codec = (handler.request_deserializer, serializer)
            behavior = handler.stream_stream or handler.stream_unary
            if self._checks is not None:
                behavior = self._checks.requests(method, behavior)
            if handler.response_streaming:
                streaming = self._streaming(method, behavior, None)
                return grpc.stream_stream_rpc_method_handler(streaming, *codec)
            single = self._single(method, behavior, None)
            return grpc.stream_unary_rpc_method_handler(single, *codec)
        # gRPC would end a call whose request cannot be read with a traceback and no detail.
        decode = handler.request_deserializer
        if handler.response_streaming:
            behavior = handler.unary_stream
            if self._checks is not None:
                behavior = self._checks.replies(method, behavior)
            streaming = self._streaming(method, behavior, decode)
            return grpc.unary_stream_rpc_method_handler(streaming, None, serializer)
        behavior = handler.unary_unary
        if self._checks is not None:
            behavior = self._checks.single(method, behavior)
        single = self._single(method, behavior, decode)
        return grpc.unary_unary_rpc_method_handler(single, None, serializer)

    def _gate(self, method: str) -> Gate:
        return OPEN if self._gates is None else self._gates.of(method)

    def answering(
        self, method: str, behavior: Callable[..., Any], decode: Decode | None = None
    ) -> Callable[..., Awaitable[Any]]:
        """`behavior`, which answers one request with one reply, behind all that stands before a
        call of `method`: for requests that come by another way than gRPC. It gets and raises what
        they do; `decode` is None for a request that is no bytes."""
        if self._checks is not None:
            behavior = self._checks.single(method, behavior)
        return self._checked(method, behavior, decode)

    def _checked(
        self, method: str, behavior: Callable[..., Any], decode: Decode | None
    ) -> Callable[..., Awaitable[Any]]:
        gate = self._gate(method)

        async def answer(request: Any, context: Any) -> Any:
            self._admit(method, context)
            await gate.enter(0 if decode is None else len(request))
            try:
                return await behavior(_decoded(decode, request), context)
            finally:
                gate.leave()

        return answer

    def _single(
        self, method: str, behavior: Callable[..., Any], decode: Decode | None
    ) -> Callable[..., Any]:
        checked = self._checked(method, behavior, decode)

        async def answer(request: Any, context: Any) -> Any:
            try:
                return await checked(request, context)
            except Exception as error:
                return await _abort(method, context, error)

        return answer

    def _streaming(
        self, method: str, behavior: Callable[..., Any], decode: Decode | None
    ) -> Callable[..., Any]:
        gate = self._gate(method)

        async def answer(request: Any, context: Any) -> None:
            try:
                left_s = self._admit(method, context)
                await gate.enter(0 if decode is None else len(request))
                try:
                    replies = behavior(_decoded(decode, request), context)
                    async with until_expiry(left_s):
                        await _send(replies, context)
                finally:
                    gate.leave()
            except Exception as error:
                await _abort(method, context, error)

        return answer

    def _admit(self, method: str, context: Any) -> float | None:
        left_s = self._check_caller(method, context)
        told = told_levels(context.invocation_metadata())
        if told is not None:
            try:
                check_levels(self._levels, "this node", told, "the caller")
            except UnsupportedVersion as error:
                if error.message not in self._strangers and len(self._strangers) < _STRANGERS_MAX:
                    self._strangers.add(error.message)  # it may ask again and again
                    logger.warning("call refused method=%s reason=%s", method, error)
                raise
        return left_s


@asynccontextmanager
async def until_expiry(left_s: float | None) -> AsyncIterator[None]:
    """Ends what runs in it after `left_s`, when its caller's certificate expires; never for None.

    Raises Unavailable then.
    """
    try:
        async with compat.timeout(left_s) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise Unavailable(
            "the certificate of the stream's caller has expired: connect again"
        ) from None


async def _send(replies: Any, context: Any) -> None:
    if isinstance(replies, AsyncGenerator):
        # What gRPC does with a generator; to wrap it in another would cost more.
        async with aclosing(replies):
            async for reply in replies:
                await context.write(reply)
    else:
        await replies


def _decoded(decode: Decode | None, request: Any) -> Any:
    if decode is None:
        return request
    try:
        return decode(request)
    except DecodeError as error:
        raise InvalidRequest(f"the request of {len(request)} bytes cannot be read") from error


async def _abort(method: str, context: Any, error: Exception) -> NoReturn:
    """Ends the call with `error`'s status and detail; always raises."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    known = semel_error_of(error)
    if _is_gone(error):
        known = Unavailable("what was sent before did not arrive")
    elif known is None:
        logger.error("rpc failed method=%s", method, exc_info=error)
        known = InternalError(f"{method} failed: {type(error).__name__}; see the server's log")
    detail = to_detail(known)
    detail.message = detail.message[:_DETAILS_CHARS_MAX]
    try:
        await context.abort(
            grpc.StatusCode[known.status],
            detail.message,
            ((ERROR_METADATA_KEY, detail.SerializeToString()),),
        )
    except grpc.aio.InternalError as failed:
        # Nobody is left to be told. gRPC takes metadata whose sending has failed for unsent, and
        # would send it again with a status, fail, and log that as an error of the handler.
        raise asyncio.CancelledError from failed
    raise AssertionError("it raises")


def _is_gone(error: BaseException) -> bool:
    """Whether a reply could not be sent, and nothing else went wrong: the caller went away."""
    if isinstance(error, ExceptionGroup):
        return all(map(_is_gone, error.exceptions))
    return isinstance(error, grpc.aio.InternalError)


def semel_error_of(error: BaseException) -> SemelError | None:
    """`error`, or the first leaf of a group that holds nothing but SemelErrors; None for a bug."""
    if isinstance(error, SemelError):
        return error
    if isinstance(error, ExceptionGroup):
        leaves = [semel_error_of(leaf) for leaf in error.exceptions]
        return leaves[0] if None not in leaves else None
    return None


# --- client -------------------------------------------------------------------------------------


_UNREACHED: Final = re.compile(
    r"ipv[46]:(?P<address>\S+): Failed to connect to remote host: (?:connect: )?(?P<reason>.+)"
)
"""gRPC's paragraph about a connection that nobody took; an IPv6 address is percent-encoded."""

_FROM_STATUS: Final[dict[grpc.StatusCode, type[SemelError]]] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: TimedOut,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Throttled,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.UNIMPLEMENTED: UnsupportedVersion,
}


def error_from_rpc(error: grpc.RpcError) -> SemelError:
    """The exception that the server raised; else what gRPC's own status means.

    Statuses without a detail come from the transport. A stream that broke shows as UNAVAILABLE,
    CANCELLED, INTERNAL or UNKNOWN, so all of these are Unavailable: fate unknown, retriable.
    """
    detail = _detail_of(error)
    if detail is not None:
        return from_detail(detail)
    status: grpc.StatusCode = error.code()
    text = str(error.details() or status.name)
    unreached = _UNREACHED.search(text)
    if unreached:
        return Unavailable(f"{unquote(unreached['address'])}: {unreached['reason'].lower()}")
    if failure := tls_failure(text):
        return Unavailable(failure)
    if "larger than max" in text:
        return MessageTooLarge(text, limit_bytes=MESSAGE_BYTES_MAX)
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return UnsupportedVersion(f"the other side does not know this call, upgrade it: {text}")
    if "serializ" in text:
        return InternalError(f"peers do not understand each other: {text}")
    return _FROM_STATUS.get(status, Unavailable)(f"{status.name}: {text}")


def _detail_of(error: Any) -> ErrorDetail | None:
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_METADATA_KEY:
            try:
                return ErrorDetail.FromString(value)
            except (DecodeError, TypeError):
                return None
    return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
