"""Connections of Kafka's clients, with handlers that only wait: order, limits, garbage, the end."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from semel.gateway import api_versions
from semel.gateway.config import GatewayConfig
from semel.gateway.dispatch import Dispatcher, GatewayPlace, Handler, RequestContext, Software
from semel.gateway.server import KafkaServer
from semel.gateway.versions import TABLE, ApiKey
from semel.gateway.wire import Raw
from semel.protos import compat
from semel.protos.connection_limits import ConnectionLimits

OWN = GatewayPlace(1, "127.0.0.1", 9092)


class Alone:
    own = OWN
    present = (OWN,)
    missed: tuple[GatewayPlace, ...] = ()

    async def checked(self) -> tuple[GatewayPlace, ...]:
        return self.present


class Port:
    """A server, and what its handlers were given."""

    def __init__(self, **settings: Any) -> None:
        self.begun: list[Any] = []
        self.software: list[Software] = []
        self.gates: list[asyncio.Event] = []
        self.clients: list[Client] = []
        handlers: dict[ApiKey, Handler] = dict.fromkeys(TABLE, self._wait)
        del handlers[ApiKey.API_VERSIONS]
        dispatcher = Dispatcher(handlers, api_versions.handlers())
        config = GatewayConfig(listen="127.0.0.1:0", **settings)
        client: Any = None
        self.server = KafkaServer(config, client, Alone(), dispatcher)
        self.port = 0

    async def _wait(self, request: Any, context: RequestContext) -> Any:
        gate = asyncio.Event()
        self.gates.append(gate)
        self.begun.append(context.api_key)
        self.software.append(context.software)
        await gate.wait()
        if context.client_id == "mistake":
            raise RuntimeError("a mistake of ours")
        if context.client_id == "silent":
            return None
        return Raw((b"answer",))

    async def until(self, begun: int) -> None:
        async with compat.timeout(10):
            while len(self.begun) < begun:
                await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Port]:
    port = Port(**settings)
    listener = socket.create_server(("127.0.0.1", 0))
    port.port = listener.getsockname()[1]
    await port.server.start(listener)
    try:
        yield port
    finally:
        for gate in port.gates:
            gate.set()
        await port.server.stop()
        listener.close()
        for client in port.clients:
            client.writer.close()
            with contextlib.suppress(ConnectionError):
                await client.writer.wait_closed()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, port: Port) -> Client:
        port.clients.append(cls(*await asyncio.open_connection("127.0.0.1", port.port)))
        return port.clients[-1]

    def send(self, data: bytes) -> None:
        self.writer.write(struct.pack(">i", len(data)) + data)

    async def answer(self) -> tuple[int, bytes]:
        async with compat.timeout(10):
            (length,) = struct.unpack(">i", await self.reader.readexactly(4))
            data = await self.reader.readexactly(length)
        return int.from_bytes(data[:4], "big"), data[4:]

    async def is_closed(self) -> bool:
        async with compat.timeout(10):
            with contextlib.suppress(ConnectionError):
                return await self.reader.read(1) == b""
        return True


def head(key: int, version: int, correlation_id: int, client_id: str = "me") -> bytes:
    name = client_id.encode()
    return struct.pack(">hhih", key, version, correlation_id, len(name)) + name


def produce(correlation_id: int, client_id: str = "me") -> bytes:
    body = struct.pack(">hhii", -1, 1, 1000, 0)
    return head(ApiKey.PRODUCE, 8, correlation_id, client_id) + body


def heartbeat(correlation_id: int) -> bytes:
    kind: Any = load_request_schema(ApiKey.HEARTBEAT, 0)
    buffer = io.BytesIO()
    entity_writer(kind)(buffer, kind(group_id="g", generation_id=1, member_id="m"))
    return head(ApiKey.HEARTBEAT, 0, correlation_id) + buffer.getvalue()


def read_response(version: int, data: bytes) -> tuple[Any, int]:
    kind: Any = load_response_schema(ApiKey.API_VERSIONS, version)
    found: tuple[Any, int] = entity_reader(kind)(data, 0)
    return found


def versions_request(version: int, correlation_id: int = 5) -> bytes:
    body = b"" if version < 3 else b"\0\x02a\x02b\0"
    return head(ApiKey.API_VERSIONS, version, correlation_id) + body


@pytest.mark.parametrize("version", [0, 1, 2, 3])
async def test_api_versions_tells_the_table(version: int) -> None:
    async with serving() as port:
        client = await Client.to(port)
        client.send(versions_request(version))
        correlation_id, data = await client.answer()
        found, end = read_response(version, data)
        assert (correlation_id, end, found.error_code) == (5, len(data), 0)
        table = {each.api_key: (each.min_version, each.max_version) for each in found.api_keys}
        assert table == {key.value: (row.lowest, row.highest) for key, row in TABLE.items()}


@pytest.mark.parametrize("version", [4, 5, 99, -1])
async def test_a_later_api_versions_is_answered_so_that_every_client_can_read_it(
    version: int,
) -> None:
    async with serving() as port:
        client = await Client.to(port)
        client.send(head(ApiKey.API_VERSIONS, version, 5) + b"\xff\xfewhatever comes then")
        correlation_id, data = await client.answer()
        found, end = read_response(0, data)
        assert (correlation_id, end, found.error_code) == (5, len(data), 35)
        assert len(found.api_keys) == len(TABLE)
        client.send(versions_request(0))
        await client.answer()


async def test_what_a_client_calls_itself_is_known_to_its_connection_alone() -> None:
    async with serving() as port:
        named, silent = await Client.to(port), await Client.to(port)
        for number, (client, version) in enumerate(((named, 3), (silent, 0)), start=1):
            client.send(versions_request(version))
            await client.answer()
            client.send(heartbeat(6))
            await port.until(number)
        assert port.software == [Software("a", "b"), Software()]


async def test_answers_come_in_the_order_of_the_requests() -> None:
    async with serving() as port:
        client = await Client.to(port)
        for number in range(3):
            client.send(produce(number))
        await port.until(3)
        for gate in reversed(port.gates):
            gate.set()
            await asyncio.sleep(0)
        assert [(await client.answer())[0] for _ in range(3)] == [0, 1, 2]


async def test_other_requests_begin_when_those_before_them_are_answered() -> None:
    async with serving() as port:
        client = await Client.to(port)
        for data in (produce(0), produce(1), heartbeat(2), heartbeat(3), produce(4)):
            client.send(data)
        await port.until(2)
        await asyncio.sleep(0.02)
        assert port.begun == [ApiKey.PRODUCE] * 2
        for number in range(5):
            await port.until(number + 1)
            if number >= 1:
                assert len(port.begun) == max(2, number + 1)
            port.gates[number].set()
            assert (await client.answer())[0] == number
        assert port.server.held_bytes == 0


async def test_a_request_that_wants_no_answer_gets_none() -> None:
    async with serving() as port:
        client = await Client.to(port)
        client.send(produce(0, "silent"))
        client.send(produce(1))
        await port.until(2)
        for gate in port.gates:
            gate.set()
        assert (await client.answer())[0] == 1


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        struct.pack(">i", 2**31 - 1) + bytes(20),
        struct.pack(">i", -1) + bytes(20),
        struct.pack(">i", 0) + bytes(20),
        struct.pack(">i", 7) + bytes(20),
        struct.pack(">i", 60) + head(99, 0, 1) + bytes(50),
        struct.pack(">i", 60) + head(ApiKey.PRODUCE, 99, 1) + bytes(50),
        struct.pack(">i", 22) + head(ApiKey.METADATA, 8, 1) + b"\x7f\xff\xff\xff" + bytes(6),
        struct.pack(">i", 26) + produce(1) + b"behind",
    ],
    ids=["http", "tls", "2 GB", "negative", "empty", "short", "key", "version", "lie", "behind"],
)
async def test_garbage_closes_the_connection_with_one_line(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as port:
        other = await Client.to(port)
        client = await Client.to(port)
        with caplog.at_level(logging.DEBUG, "semel"):
            client.writer.write(data)
            assert await client.is_closed()
        lines = [record for record in caplog.records if record.name.startswith("semel")]
        assert len(lines) == 1
        assert "connection closed" in lines[0].message
        assert lines[0].exc_info is None
        assert port.server.held_bytes == 0
        other.send(versions_request(0))
        await other.answer()
    assert port.begun == []


async def test_a_mistake_of_ours_closes_the_connection_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as port:
        client, other = await Client.to(port), await Client.to(port)
        client.send(produce(1, "mistake"))
        await port.until(1)
        port.gates[0].set()
        assert await client.is_closed()
        assert "a mistake of ours" in caplog.text
        other.send(versions_request(0))
        await other.answer()


async def test_who_goes_away_at_once_leaves_nothing_behind() -> None:
    async with serving() as port:
        for _ in range(20):
            client = await Client.to(port)
            for number in range(30):
                client.send(produce(number))
            client.writer.transport.abort()
        async with compat.timeout(10):
            while port.server.connections.count:
                await asyncio.sleep(0.001)
        assert port.server.held_bytes == 0


async def test_a_client_that_sends_much_at_once_is_not_read_any_more() -> None:
    async with serving(stop_s=0.1) as port:
        client = await Client.to(port)
        for number in range(2_000):
            client.send(produce(number))
        await port.until(16)
        await asyncio.sleep(0.05)
        assert len(port.begun) == 16
        assert port.server.held_bytes < 100 * len(produce(0))


async def test_connections_are_limited_and_free_again() -> None:
    limits = ConnectionLimits(in_all_max=1)
    async with serving(connections=limits) as port:
        first = await Client.to(port)
        first.send(versions_request(0))
        await first.answer()
        second = await Client.to(port)
        assert await second.is_closed()
        first.writer.close()
        async with compat.timeout(10):
            while port.server.connections.count:
                await asyncio.sleep(0.001)
        third = await Client.to(port)
        third.send(versions_request(0))
        await third.answer()


async def test_a_request_that_stops_in_the_middle_ends_and_so_does_silence() -> None:
    async with serving(cut_s=0.05, idle_s=0.05) as port:
        half, silent, waiting = await Client.to(port), await Client.to(port), await Client.to(port)
        half.writer.write(struct.pack(">i", 100) + b"abc")
        waiting.send(heartbeat(1))
        assert await half.is_closed()
        assert await silent.is_closed()
        port.gates[0].set()
        assert (await waiting.answer())[0] == 1


async def test_the_end_answers_what_was_begun() -> None:
    async with serving() as port:
        client, idle = await Client.to(port), await Client.to(port)
        client.send(produce(1))
        await port.until(1)
        stopping = asyncio.create_task(port.server.stop())
        assert await idle.is_closed()
        port.gates[0].set()
        assert (await client.answer())[0] == 1
        assert await client.is_closed()
        await stopping
        assert port.server.connections.count == 0
