"""What a port speaks, asked of the port; and the one line that a caller gets of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest

from semel.protos.errors import Unavailable
from semel.protos.security.credentials import Security
from semel.protos.security.failures import CLOSED
from semel.protos.security.identity import any_node
from semel.protos.security.wire_probe import Wire, why_closed, wire_of
from tests.kit.certificates import TestCa
from tests.kit.who_port import ask, ask_on, serving


def secured(ca: TestCa, directory: Path, name: str = "2") -> Security:
    return Security.read(ca.files(directory / name, "broker", name))


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(on_connection, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_ports_of_grpc_say_what_they_speak(tmp_path: Path) -> None:
    ca = TestCa()
    async with serving(secured(ca, tmp_path)) as address:
        assert await wire_of(address) is Wire.TLS
    async with serving(None) as address:
        assert await wire_of(address) is Wire.PLAIN_GRPC
        assert await ask(address, None) == "nobody", "it goes on"


@pytest.mark.parametrize(
    ("answer", "wire"),
    [
        (b"\x15\x03\x03\x00\x02\x02\x28", Wire.TLS),
        (b"HTTP/1.0 400 Bad Request\r\n", Wire.UNKNOWN),
        (b"\x00\x00", Wire.UNKNOWN),
        (b"", Wire.UNKNOWN),
    ],
)
async def test_other_answers(answer: bytes, wire: Wire) -> None:
    async with answering(answer) as address:
        assert await wire_of(address) is wire


async def test_a_port_that_is_silent_or_away_is_unknown_soon() -> None:
    assert await wire_of("127.0.0.1:1") is Wire.UNKNOWN
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert await wire_of(f"127.0.0.1:{silent.getsockname()[1]}") is Wire.UNKNOWN


async def test_a_closed_connection_is_explained(tmp_path: Path) -> None:
    ca, stranger = TestCa(), TestCa()
    async with serving(secured(ca, tmp_path)) as address:
        with pytest.raises(Unavailable, match=CLOSED) as closed:
            await ask(address, None)
        told = await why_closed(closed.value.message, address, tls=False)
        assert told.startswith(f"{address}: the port speaks TLS and this program does not")
        certificate, key = stranger.issue("client", "eve")
        credentials = grpc.ssl_channel_credentials(ca.pem, key, certificate)
        options = (("grpc.ssl_target_name_override", any_node(ca.cluster)),)
        async with grpc.aio.secure_channel(address, credentials, options) as opened:
            with pytest.raises(Unavailable, match=CLOSED) as refused:
                await ask_on(opened)
        told = await why_closed(refused.value.message, address, tls=True)
        assert told.startswith(f"{address}: this program's certificate is refused there")
    async with serving(None) as address:
        told = await why_closed(f"{address}: {CLOSED}", address, tls=True)
        assert told.startswith(f"{address}: this program speaks TLS, and the port does not")
        same = f"{address}: {CLOSED} (…)"
        assert await why_closed(same, address, tls=False) == same


async def test_other_failures_are_left_as_they_are_and_nobody_is_asked() -> None:
    assert await why_closed("refused", "nowhere:1", tls=True) == "refused"
