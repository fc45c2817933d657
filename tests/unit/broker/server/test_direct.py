"""The broker's end of a direct stream: what its handler reads and writes, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.server import direct
from semel.broker.server.direct import DirectStreams
from semel.broker.server.fetch import FetchHandler
from semel.broker.server.stream import StreamContext
from semel.protos import compat
from semel.protos.call_classes import LIMITS
from semel.protos.call_gates import CallGates
from semel.protos.errors import (
    InvalidRequest,
    SemelError,
    Throttled,
    UnsupportedVersion,
    from_detail,
)
from semel.protos.framed import ACCEPTED, HEAD, encode_asking, encode_head, encode_hello
from semel.protos.levels import LEVEL_MAX, own_levels
from semel.protos.rpc import ServerInterceptor
from semel.protos.streams import STREAM_MESSAGE_BYTES_MAX
from semel.protos.v1 import broker_pb2, isolation_pb2
from semel.protos.v1.common_pb2 import Levels

PRODUCE = broker_pb2.OpenDirectRequest(stream=broker_pb2.DIRECT_STREAM_PRODUCE)
CALL: Any = SimpleNamespace(invocation_metadata=lambda: ())
pytestmark = pytest.mark.both_loops

Handler = Callable[[object, StreamContext], Awaitable[None]]


def framed(message: bytes) -> bytes:
    return encode_head(len(message)) + message


class Served:
    """A port whose streams have one handler, and clients of it."""

    def __init__(self, handler: Handler, gates: CallGates | None = None) -> None:
        self.streams = DirectStreams(
            {broker_pb2.DIRECT_STREAM_PRODUCE: handler},
            own_levels,
            place=("c", 1, 3),
            answering=ServerInterceptor(gates=gates).answering,
        )
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Served:
        await self.streams.serve("127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.transport.abort()
        await self.streams.close()

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reply = await self.streams.open(PRODUCE, CALL)
        reader, writer = await asyncio.open_connection("127.0.0.1", reply.port)
        self._writers.append(writer)
        writer.write(encode_hello(reply.ticket))
        assert await reader.readexactly(1) == ACCEPTED
        return reader, writer

    async def ask(
        self, request: bytes, behind: bytes = b""
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects without a ticket, and asks for a stream."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.streams.port)
        self._writers.append(writer)
        writer.write(encode_asking(request) + behind)
        return reader, writer


def asking(**different: Any) -> bytes:
    fields: dict[str, Any] = {
        "stream": broker_pb2.DIRECT_STREAM_PRODUCE,
        "cluster_id": "c",
        "group_id": 1,
        "node_id": 3,
        "levels": own_levels(),
    }
    return broker_pb2.AskStream(**{**fields, **different}).SerializeToString()


async def answer(reader: asyncio.StreamReader) -> broker_pb2.AskStreamReply:
    assert await reader.readexactly(1) == ACCEPTED
    return broker_pb2.AskStreamReply.FromString(await hear(reader))


async def hear(reader: asyncio.StreamReader) -> bytes:
    length, _ = HEAD.unpack(await reader.readexactly(HEAD.size))
    return await reader.readexactly(length)


async def gone(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionResetError:
        return True


async def echo(_: object, context: StreamContext) -> None:
    while True:
        await context.write(bytes(await context.read()))


async def test_messages_go_both_ways_whole_and_in_order() -> None:
    messages = [bytes([number]) * length for number, length in enumerate((1, 70_000, 3, 1 << 21))]
    async with Served(echo) as served:
        reader, writer = await served.dial()
        writer.write(b"".join(map(framed, messages)))
        assert [await hear(reader) for _ in messages] == messages


async def test_a_stream_that_is_unknown_gets_no_ticket() -> None:
    async with Served(echo) as served:
        with pytest.raises(InvalidRequest, match="stream 2 is not known"):
            await served.streams.open(
                broker_pb2.OpenDirectRequest(stream=broker_pb2.DIRECT_STREAM_FETCH), CALL
            )


async def test_who_is_not_read_is_held_up() -> None:
    """The broker keeps a little of what a client sends without end, and the rest stays outside."""
    reading = asyncio.Event()
    sums: list[int] = []

    async def slow(_: object, context: StreamContext) -> None:
        await reading.wait()
        while True:
            sums.append(len(await context.read()))
            await context.write(b"!")

    message = framed(bytes(100_000))
    async with Served(slow) as served:
        reader, writer = await served.dial()
        contexts = [task.get_coro().cr_frame.f_locals["context"] for task in served.streams._tasks]  # type: ignore[union-attr]
        for _ in range(200):
            writer.write(message)
        with pytest.raises(TimeoutError):
            async with compat.timeout(0.2):
                await writer.drain()
        assert contexts[0]._held <= direct._HELD_BYTES + 200_000
        reading.set()
        for _ in range(200):
            assert await hear(reader) == b"!"
        assert sums == [100_000] * 200


async def test_who_takes_nothing_off_is_not_written_to() -> None:
    written: list[int] = []

    async def talk(_: object, context: StreamContext) -> None:
        while True:
            await context.write(bytes(1 << 20))
            written.append(1)

    async with Served(talk) as served:
        reader, _ = await served.dial()
        before = -1
        while len(written) > before:  # until nothing more leaves
            before = len(written)
            await asyncio.sleep(0.1)
        assert before < 30
        for _ in range(before + 5):
            await hear(reader)
        assert len(written) > before


async def test_a_write_returns_when_it_has_left() -> None:
    """Bytes that are not taken off are the writer's: a fetch counts them against its limit."""
    written = asyncio.Event()

    async def talk(_: object, context: StreamContext) -> None:
        await context.write(bytes(STREAM_MESSAGE_BYTES_MAX))  # more than the kernel holds
        written.set()

    async with Served(talk) as served:
        reader, _ = await served.dial()
        with pytest.raises(TimeoutError):
            async with compat.timeout(0.2):
                await written.wait()
        assert len(await hear(reader)) == STREAM_MESSAGE_BYTES_MAX
        async with compat.timeout(60):
            await written.wait()


async def test_a_handler_ends_with_its_connection() -> None:
    ended = asyncio.Event()

    async def wait(_: object, context: StreamContext) -> None:
        try:
            await context.read()
        finally:
            ended.set()

    async with Served(wait) as served:
        _, writer = await served.dial()
        writer.transport.abort()
        async with compat.timeout(60):
            await ended.wait()


async def test_last_words_arrive_although_the_client_goes_on_talking() -> None:
    """A socket that is closed with something unread in it would take them back."""

    async def farewell(_: object, context: StreamContext) -> None:
        await context.read()
        await context.write(b"go to node 2")

    async with Served(farewell) as served:
        reader, writer = await served.dial()
        for _ in range(50):
            writer.write(framed(bytes(10_000)))
            await asyncio.sleep(0.001)
        assert await hear(reader) == b"go to node 2"
        assert await gone(reader)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
        pytest.param(HEAD.pack(5, 5), id="a head that is damaged"),
        pytest.param(encode_head(STREAM_MESSAGE_BYTES_MAX + 1), id="more than a message may have"),
    ],
)
async def test_nonsense_ends_its_stream_and_nothing_else(data: bytes) -> None:
    async with Served(echo) as served:
        other, others = await served.dial()
        reader, writer = await served.dial()
        writer.write(data)
        assert await gone(reader)
        others.write(framed(b"here"))
        assert await hear(other) == b"here"


@pytest.mark.parametrize("error", [InvalidRequest("no"), RuntimeError("a bug")])
async def test_a_handler_that_fails_ends_its_stream_and_nothing_else(error: Exception) -> None:
    async def fail(_: object, context: StreamContext) -> None:
        if bytes(await context.read()) == b"fail":
            raise error
        await context.write(b"fine")

    async with Served(fail) as served:
        reader, writer = await served.dial()
        writer.write(framed(b"fail"))
        assert await gone(reader)
        reader, writer = await served.dial()
        writer.write(framed(b"x"))
        assert await hear(reader) == b"fine"


async def test_a_clients_own_error_is_no_failure_of_the_broker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A fetch stream serves its requests in a task group, which raises a group of errors."""
    config = SimpleNamespace(
        fetches_per_stream_max=1, fetch_shared_bytes_max=0, fetch_bytes_max=1 << 20
    )
    node: Any = SimpleNamespace(config=config, levels=own_levels)
    async with Served(FetchHandler(node).fetch) as served:
        reader, writer = await served.dial()
        writer.write(framed(b"no request"))
        assert await gone(reader)
    (record,) = (record for record in caplog.records if record.name == direct.__name__)
    assert record.getMessage() == "stream refused error=fetch request is not a FetchRequest"
    assert record.exc_info is None


async def test_closing_the_port_ends_streams_and_waits_for_their_handlers() -> None:
    ended: list[str] = []

    async def wait(_: object, context: StreamContext) -> None:
        try:
            await context.read()
        finally:
            await asyncio.sleep(0)
            ended.append("yes")

    async with Served(wait) as served:
        reader, _ = await served.dial()
        await served.streams.close()
        assert ended == ["yes"]
        assert await gone(reader)


# --- streams that are asked for at the port -----------------------------------------------------


async def test_a_stream_is_asked_for_at_the_port_itself() -> None:
    async with Served(echo) as served:
        for before in range(3):
            reader, writer = await served.ask(asking())
            told = await answer(reader)
            assert told.levels == own_levels()
            assert told.streams == before
            assert not told.HasField("error")
            writer.write(framed(b"here"))
            assert await hear(reader) == b"here"
        assert not served.streams._port._strangers
        assert not served.streams._asking


@pytest.mark.parametrize(
    ("different", "error"),
    [
        ({"stream": broker_pb2.DIRECT_STREAM_FETCH}, InvalidRequest),
        ({"node_id": 2}, InvalidRequest),
        ({"group_id": 2}, InvalidRequest),
        ({"cluster_id": "d"}, InvalidRequest),
        ({"levels": Levels(min=LEVEL_MAX + 1, max=LEVEL_MAX + 1)}, UnsupportedVersion),
    ],
)
async def test_a_stream_that_is_not_granted_gets_the_error_of_a_call(
    different: dict[str, Any], error: type[SemelError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "_LAST_WORDS_S", 0.05)
    async with Served(echo) as served:
        reader, writer = await served.ask(asking(**different))
        told = await answer(reader)
        assert isinstance(from_detail(told.error), error)
        writer.write(framed(b"nevertheless"))
        assert await gone(reader)
        assert not served.streams._tasks


async def test_who_asks_passes_the_gate_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most so many are answered at once, so many wait, and the next is told to come later."""
    monkeypatch.setattr(direct, "_LAST_WORDS_S", 0.05)
    gates = CallGates(waiting_max=1)
    gate = gates.of("/semel.protos.v1.BrokerStream/OpenDirect")
    gate.running = LIMITS[isolation_pb2.CALL_CLASS_CONNECT].running_max
    async with Served(echo, gates) as served:
        waiting, _ = await served.ask(asking())
        while not gate.waiting:
            await asyncio.sleep(0)
        refused, _ = await served.ask(asking())
        assert isinstance(from_detail((await answer(refused)).error), Throttled)
        gate.leave()
        assert not (await answer(waiting)).HasField("error")


async def test_who_goes_away_is_not_answered_and_gives_its_place_back() -> None:
    gates = CallGates()
    gate = gates.of("/semel.protos.v1.BrokerStream/OpenDirect")
    gate.running = full = LIMITS[isolation_pb2.CALL_CLASS_CONNECT].running_max
    async with Served(echo, gates) as served:
        _, writer = await served.ask(asking())
        while not gate.waiting:
            await asyncio.sleep(0)
        writer.transport.abort()
        while gate.waiting:
            await asyncio.sleep(0)
        assert gate.running == full
        assert not served.streams._port._strangers


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(encode_asking(b"\xff\xff"), id="no request"),
        pytest.param(encode_asking(bytes(1_017)), id="longer than a hello may be"),
    ],
)
async def test_asking_for_nonsense_ends_the_connection(data: bytes) -> None:
    async with Served(echo) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.streams.port)
        served._writers.append(writer)
        writer.write(data)
        assert (await reader.read(1)) in (b"", ACCEPTED)
        assert not served.streams._tasks


async def test_who_does_not_wait_for_the_answer_is_not_served() -> None:
    gates = CallGates()
    gates.of("/semel.protos.v1.BrokerStream/OpenDirect").running = 1 << 20
    async with Served(echo, gates) as served:
        reader, _ = await served.ask(asking(), framed(b"now"))
        assert await gone(reader)
        assert not served.streams._tasks


async def test_a_port_of_tickets_alone_grants_nothing() -> None:
    async with Served(echo) as served:
        served.streams._port._granter = None
        reader, _ = await served.ask(asking())
        assert await gone(reader)
