"""Errors cross a real gRPC server and come back as the same exceptions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from semel.protos import compat, errors, rpc
from semel.protos.levels import LEVEL_MAX, levels_metadata
from semel.protos.rpc import (
    CHANNEL_OPTIONS,
    ERROR_METADATA_KEY,
    MESSAGE_BYTES_MAX,
    SERVER_OPTIONS,
    ServerInterceptor,
    error_from_rpc,
)
from semel.protos.streams import frame_data, frame_prefix
from semel.protos.v1.common_pb2 import Frame, Levels
from semel.protos.v1.errors_pb2 import ErrorDetail

SERVICE = "semel.tests.Echo"
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")

Behavior = Callable[..., Any]
Decode = Callable[[bytes], Any]


class _Handlers(grpc.GenericRpcHandler):
    """One method for each kind of call; bytes in, bytes out."""

    def __init__(self, behaviors: dict[str, Behavior], decode: Decode | None) -> None:
        self._behaviors = behaviors
        self._decode = decode

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        kind = handler_call_details.method.rsplit("/", 1)[1]
        behavior = self._behaviors.get(kind)
        return behavior and getattr(grpc, f"{kind}_rpc_method_handler")(behavior, self._decode)


async def _read(request: Any) -> None:
    """Takes a streamed request off. A call that ends while the client still writes is told to the
    client as "Internal error from Core" now and then, and nothing of why it ended."""
    if hasattr(request, "__aiter__"):
        async for _ in request:
            break


def _failing(error: BaseException) -> dict[str, Behavior]:
    async def single(request: Any, context: Any) -> bytes:
        await _read(request)
        raise error

    async def stream(request: Any, context: Any) -> AsyncIterator[bytes]:
        await _read(request)
        yield b"first"
        raise error

    return dict(zip(KINDS, (single, stream, single, stream), strict=True))


@asynccontextmanager
async def _serving(
    behaviors: dict[str, Behavior],
    metadata: tuple[tuple[str, bytes], ...] = (),
    decode: Decode | None = None,
) -> AsyncIterator[Callable[..., Awaitable[list[bytes]]]]:
    """A server and a function that calls one of its methods and collects the replies."""
    server = grpc.aio.server(interceptors=[ServerInterceptor()], options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers((_Handlers(behaviors, decode),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as channel:

        async def call(
            kind: str, request: bytes = b"request", *, withhold: bool = False
        ) -> list[bytes]:
            async def requests() -> AsyncIterator[bytes]:
                if withhold:  # until the call is over: it ends before anything is read
                    await asyncio.Event().wait()
                yield request

            method = getattr(channel, kind)(f"/{SERVICE}/{kind}")
            given = requests() if kind.startswith("stream") else request
            if kind.endswith("unary"):
                return [await method(given, timeout=10, metadata=metadata)]
            return [reply async for reply in method(given, timeout=10, metadata=metadata)]

        try:
            yield call
        finally:
            await server.stop(None)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_comes_back_with_its_class_and_attributes(kind: str) -> None:
    sent = errors.NotMaster("ask the other", master_address="h:1", master_id=3, term=8)
    async with _serving(_failing(sent)) as call:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(kind)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert repr(error_from_rpc(caught.value)) == repr(sent)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_bug_becomes_internal_and_is_logged_without_its_text(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with _serving(_failing(KeyError("secret payload"))) as call:
        with caplog.at_level(logging.ERROR), pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(kind)
    error = error_from_rpc(caught.value)
    assert type(error) is errors.InternalError
    assert "secret" not in error.message
    assert any(record.exc_info for record in caplog.records if record.name == "semel.protos.rpc")


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream"])
async def test_a_request_that_cannot_be_read_is_refused_without_a_word_in_the_log(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def echo(request: ErrorDetail, context: Any) -> bytes:
        return request.message.encode()

    async def stream(request: ErrorDetail, context: Any) -> AsyncIterator[bytes]:
        yield request.message.encode()

    behaviors = {"unary_unary": echo, "unary_stream": stream}
    async with _serving(behaviors, decode=ErrorDetail.FromString) as call:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(kind, b"\xff\xff\xff")
        error = error_from_rpc(caught.value)
        assert type(error) is errors.InvalidRequest
        assert error.message == "the request of 3 bytes cannot be read"
        assert await call(kind, ErrorDetail(message="a").SerializeToString()) == [b"a"]
    assert not [record for record in caplog.records if not of_grpcs_poller(record)]


def of_grpcs_poller(record: logging.LogRecord) -> bool:
    """The loops of other threads' tests read the bytes that gRPC's poller has woken this one by:
    programs pass that over, too (`client/transport/runtime.py`)."""
    return record.name == "asyncio" and (record.exc_info or (None,))[0] is BlockingIOError


@pytest.mark.parametrize("kind", KINDS)
async def test_replies_pass_unchanged(kind: str) -> None:
    async def single(request: Any, context: Any) -> bytes:
        return b"one"

    async def stream(request: Any, context: Any) -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    async with _serving(dict(zip(KINDS, (single, stream, single, stream), strict=True))) as call:
        assert await call(kind) == ([b"one", b"two"] if kind.endswith("stream") else [b"one"])


async def test_a_handler_that_writes_itself_passes_too() -> None:
    async def stream(request: Any, context: Any) -> None:
        await context.write(b"one")
        raise errors.Throttled("slow down", retry_after_ms=5)

    async with _serving({"unary_stream": stream}) as call:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call("unary_stream")
    assert repr(error_from_rpc(caught.value)) == repr(
        errors.Throttled("slow down", retry_after_ms=5)
    )


async def test_a_task_group_of_known_errors_is_one_known_error() -> None:
    group = ExceptionGroup("tasks", [ExceptionGroup("inner", [errors.LockLost("gone")])])
    async with _serving(_failing(group)) as call:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call("unary_unary")
    assert type(error_from_rpc(caught.value)) is errors.LockLost


async def test_a_handler_may_abort_by_itself() -> None:
    async def single(request: Any, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "no")
        return b""

    async with _serving({"unary_unary": single}) as call:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call("unary_unary")
    assert type(error_from_rpc(caught.value)) is errors.PermissionDenied


async def test_a_long_message_is_cut_and_not_lost() -> None:
    async with _serving(_failing(errors.InvalidRequest("ü" * 50_000))) as call:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call("unary_unary")
    error = error_from_rpc(caught.value)
    assert type(error) is errors.InvalidRequest
    assert error.message == "ü" * 1024


async def test_a_cancelled_stream_closes_its_generator() -> None:
    closed = asyncio.Event()

    async def stream(request: Any, context: Any) -> AsyncIterator[bytes]:
        try:
            yield b"one"
            await asyncio.Event().wait()
        finally:
            closed.set()

    async with _serving({"unary_stream": stream}) as call:
        waiting = asyncio.ensure_future(call("unary_stream"))
        await asyncio.wait([waiting], timeout=0.1)
        waiting.cancel()
        async with compat.timeout(60):
            await closed.wait()
    assert waiting.cancelled() or waiting.done()


async def test_metadata_that_could_not_be_sent_leaves_no_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """gRPC for Python takes metadata whose sending has failed for unsent. It would send it again
    with the status, fail, and log that as an error of the handler."""

    begun = asyncio.Event()

    async def behavior(_: Any, context: Any) -> None:
        sending = asyncio.ensure_future(context.send_initial_metadata(()))
        await asyncio.sleep(0)
        sending.cancel()  # core has it
        begun.set()
        raise _unsent()

    async def other(_: Any, context: Any) -> bytes:
        return b""

    async with _serving({"stream_stream": behavior, "unary_unary": other}) as call:
        waiting = asyncio.ensure_future(call("stream_stream"))
        await begun.wait()
        for _ in range(3):  # the first call has ended meanwhile
            assert await call("unary_unary") == [b""]
        waiting.cancel()
    assert [record.getMessage() for record in caplog.records] == []


async def test_what_grpc_says_itself() -> None:
    async def hang(request: Any, context: Any) -> bytes:
        await asyncio.Event().wait()
        return b""

    async with _serving({"unary_unary": hang}) as call:
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await call("stream_stream", withhold=True)
        with pytest.raises(grpc.aio.AioRpcError) as large:
            await call("unary_unary", bytes(MESSAGE_BYTES_MAX + 1))
    async with grpc.aio.insecure_channel("127.0.0.1:1", options=CHANNEL_OPTIONS) as channel:
        nowhere: Any = channel.unary_unary("/a/b")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await nowhere(b"", timeout=10)
    assert type(error_from_rpc(unknown.value)) is errors.UnsupportedVersion
    assert type(error_from_rpc(large.value)) is errors.MessageTooLarge
    error = error_from_rpc(refused.value)
    assert (type(error), error.message) == (
        errors.Unavailable,
        "127.0.0.1:1: connection refused",
    )


async def test_a_compressed_message_counts_as_what_it_unpacks_to() -> None:
    seen: list[int] = []

    async def behavior(request: bytes, context: Any) -> bytes:
        seen.append(len(request))
        return b""

    options = (("grpc.max_receive_message_length", 16 << 10),)
    server = grpc.aio.server(interceptors=[ServerInterceptor()], options=options)
    server.add_generic_rpc_handlers((_Handlers({"unary_unary": behavior}, None),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary(f"/{SERVICE}/unary_unary")
        await call(bytes(8 << 10), compression=grpc.Compression.Gzip, timeout=10)
        with pytest.raises(grpc.aio.AioRpcError) as bomb:
            await call(bytes(4 << 20), compression=grpc.Compression.Gzip, timeout=10)
    await server.stop(None)
    assert seen == [8 << 10]
    assert type(error_from_rpc(bomb.value)) is errors.MessageTooLarge


@pytest.mark.parametrize(
    ("details", "message"),
    [
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv6:%5B::1%5D:7070: "
            "Failed to connect to remote host: connect: Network is unreachable (101)",
            "[::1]:7070: network is unreachable (101)",
        ),
        ("recvmsg:Connection reset by peer", "UNAVAILABLE: recvmsg:Connection reset by peer"),
    ],
)
def test_a_connection_that_nobody_took_is_told_in_few_words(details: str, message: str) -> None:
    error = error_from_rpc(_rpc_error(grpc.StatusCode.UNAVAILABLE, details=details))
    assert (type(error), error.message) == (errors.Unavailable, message)


def _rpc_error(
    code: grpc.StatusCode, trailing: tuple[tuple[str, bytes], ...] = (), details: str = "text"
) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details=details
    )


@pytest.mark.parametrize("status", list(grpc.StatusCode))
def test_every_status_without_a_detail_has_a_meaning(status: grpc.StatusCode) -> None:
    error = error_from_rpc(_rpc_error(status))
    assert type(error) is not errors.SemelError
    assert "text" in error.message


def test_statuses_without_a_detail() -> None:
    of = {status: type(error_from_rpc(_rpc_error(status))) for status in grpc.StatusCode}
    assert of[grpc.StatusCode.UNAVAILABLE] is errors.Unavailable
    assert of[grpc.StatusCode.CANCELLED] is errors.Unavailable
    assert of[grpc.StatusCode.DEADLINE_EXCEEDED] is errors.TimedOut
    assert of[grpc.StatusCode.UNIMPLEMENTED] is errors.UnsupportedVersion
    broken = _rpc_error(grpc.StatusCode.INTERNAL, details="Exception deserializing response!")
    assert type(error_from_rpc(broken)) is errors.InternalError


def test_a_damaged_detail_falls_back_to_the_status() -> None:
    error = error_from_rpc(
        _rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, ((ERROR_METADATA_KEY, b"\xff\xff"),))
    )
    assert type(error) is errors.TimedOut


def test_a_detail_with_a_newer_code_is_not_retriable() -> None:
    detail = ErrorDetail(message="new")
    detail.ParseFromString(detail.SerializeToString() + b"\x08\xe7\x07")
    error = error_from_rpc(
        _rpc_error(grpc.StatusCode.UNAVAILABLE, ((ERROR_METADATA_KEY, detail.SerializeToString()),))
    )
    assert type(error) is errors.SemelError
    assert not error.retriable


@pytest.mark.parametrize("length", [1, 127, 128, 16383, 16384, 2_097_151, 2_097_152])
def test_the_frame_prefix_is_protobufs(length: int) -> None:
    data = bytes(length)
    wire = Frame(data=data).SerializeToString()
    assert frame_prefix(length) + data == wire
    assert frame_data(wire) == data


@pytest.mark.parametrize("message", [b"", b"\x0a", b"\x12\x01a", b"\x0a\x02a", b"\x0a\x01ab"])
def test_a_message_that_is_no_frame_is_refused(message: bytes) -> None:
    with pytest.raises(errors.InvalidRequest):
        frame_data(message)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_caller_without_a_common_level_is_refused_before_its_handler(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []

    async def handler(request: Any, context: Any) -> bytes:
        seen.append(request)
        return b""

    newer = Levels(min=LEVEL_MAX + 1, max=LEVEL_MAX + 2, version="9.1")
    async with _serving({kind: handler}, metadata=levels_metadata(newer)) as call:
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(kind, withhold=True)
            error = error_from_rpc(caught.value)
            assert isinstance(error, errors.UnsupportedVersion)
            assert "Semel 9.1" in error.message
            assert error.message.endswith("upgrade this node")
    assert seen == []
    told = [record for record in caplog.records if "call refused" in record.message]
    assert len(told) == 1, "it may ask again and again"


def _unsent() -> Exception:
    """What gRPC raises when a reply cannot be sent."""
    return grpc.aio.InternalError('Failed "execute_batch"')


@pytest.mark.parametrize(
    ("error", "is_gone"),
    [
        (_unsent(), True),
        (ExceptionGroup("tasks", [ExceptionGroup("inner", [_unsent()]), _unsent()]), True),
        (ExceptionGroup("tasks", [_unsent(), ValueError("a bug")]), False),
        (ValueError("a bug"), False),
    ],
)
async def test_a_caller_that_went_away_is_no_error_of_the_log(
    error: Exception, is_gone: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Context:
        async def abort(self, *_: object) -> None:
            raise grpc.aio.AbortError

    with pytest.raises(grpc.aio.AbortError):
        await rpc._abort("/a/b", Context(), error)
    assert [record.levelname for record in caplog.records] == ([] if is_gone else ["ERROR"])
