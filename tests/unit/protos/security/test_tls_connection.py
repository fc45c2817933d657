"""TLS on real sockets: messages, pausing, ends and refusals, on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from semel.protos import compat
from semel.protos.errors import Unauthenticated
from semel.protos.loop_turns import LoopTurns
from semel.protos.security import tls_connection
from semel.protos.security.credentials import Contexts
from semel.protos.security.identity import check_peer, identity_of_ssl
from semel.protos.security.tls_connection import TlsConnection
from semel.protos.security.tls_session import TLS_REFUSAL, TlsFailed, TlsSession
from tests.kit.authority import Authority

pytestmark = pytest.mark.both_loops

NAME = "broker-1.c.semel"
HUGE = 32 << 20


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Contexts:
    return authority.contexts(authority.broker(1))


@pytest.fixture(scope="module")
def client(authority: Authority) -> Contexts:
    return authority.contexts(authority.client("reader"))


class End(asyncio.BufferedProtocol):
    """Keeps what comes; `transport` is the TLS connection."""

    def __init__(self, room: int = 64 << 10) -> None:
        self.received = bytearray()
        self.transport: Any = None
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.ended = False
        self.full = False
        self.echo = False
        self.pause_at = 0
        """Pauses reading whenever it has so many bytes more."""
        self.paused = False
        self._area = bytearray(room)
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._area

    def buffer_updated(self, nbytes: int) -> None:
        assert not self.paused, "bytes while it reads nothing"
        self.received += self._area[:nbytes]
        if self.echo:
            self.transport.writelines([self._area[:1], bytes(self._area[1:nbytes])])
        if self.pause_at and len(self.received) >= self.pause_at:
            self.paused = True
            self.transport.pause_reading()
        self._arrived.set()

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        self._writable.set()

    def eof_received(self) -> bool:
        self.ended = True
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(error)
        self._arrived.set()

    def read_on(self) -> None:
        self.paused = False
        self.transport.resume_reading()

    async def bytes(self, count: int) -> bytes:
        """The next bytes."""
        async with compat.timeout(20):
            while len(self.received) < count:
                assert not self.lost.done(), self.lost
                self._arrived.clear()
                await self._arrived.wait()
        found = bytes(self.received[:count])
        del self.received[:count]
        return found

    async def is_lost(self) -> Exception | None:
        async with compat.timeout(20):
            return await asyncio.shield(self.lost)

    async def writable(self) -> None:
        async with compat.timeout(20):
            while self.full:
                self._writable.clear()
                await self._writable.wait()


class Place:
    """A port, its ends, and those of its callers."""

    def __init__(self) -> None:
        self.address = ("127.0.0.1", 0)
        self.ends: list[End] = []
        self.transports: list[Any] = []
        self._server: asyncio.Server | None = None

    async def serve(
        self, context: ssl.SSLContext | None, new: Callable[[], End], **how: Any
    ) -> None:
        def accept() -> asyncio.BaseProtocol:
            end = new()
            self.ends.append(end)
            if context is None:
                return end
            return TlsConnection(end, context, server_side=True, **how)

        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(accept, *self.address)
        self.address = self._server.sockets[0].getsockname()[:2]

    async def call(self, contexts: Contexts | None, end: End, name: str = NAME, **how: Any) -> End:
        protocol: asyncio.BaseProtocol = end
        if contexts is not None:
            protocol = TlsConnection(end, contexts.client(), server_hostname=name, **how)
        transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: protocol, *self.address
        )
        self.transports.append(transport)
        return end

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for transport in self.transports:
            transport.abort()
        for end in self.ends:
            if end.transport is not None:
                end.transport.abort()
        for end in self.ends:
            await end.is_lost()


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    found = Place()
    yield found
    await found.close()


async def dial(place: Place, server: Contexts, client: Contexts) -> tuple[End, End]:
    """The called end, and the calling one."""
    await place.serve(server.server(), End)
    calling = await place.call(client, End())
    calling.transport.write(b"x")
    while not place.ends:
        await asyncio.sleep(0)
    await place.ends[0].bytes(1)
    return place.ends[0], calling


async def test_bytes_go_both_ways(place: Place, server: Contexts, client: Contexts) -> None:
    called, calling = await dial(place, server, client)
    called.echo = True
    for size in (1, 7, 16_384, 16_385, 300_000, 5_000_000):
        data = size.to_bytes(4, "little") + bytes(size)
        calling.transport.writelines([data[:3], memoryview(data)[3:]])
        assert await calling.bytes(len(data)) == data
    assert calling.transport.get_extra_info("ssl_object").version() == "TLSv1.3"
    assert str(identity_of_ssl(calling.transport.ssl_object)) == "broker 1 of cluster c"
    assert str(identity_of_ssl(called.transport.ssl_object)) == "client reader of cluster c"


async def test_what_is_written_before_the_handshake_leaves_after_it(
    place: Place, server: Contexts, client: Contexts
) -> None:
    await place.serve(server.server(), End)
    calling = await place.call(client, End())
    assert not calling.transport.encrypted
    calling.transport.write(b"early")
    calling.transport.writelines([b" ", b"words"])
    while not place.ends:
        await asyncio.sleep(0)
    assert await place.ends[0].bytes(11) == b"early words"


@pytest.mark.parametrize("count", [3, 30])
async def test_many_handshakes_are_a_few_in_each_turn(
    place: Place,
    server: Contexts,
    client: Contexts,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
) -> None:
    """However many come at once, what the loop does in one turn stays the same."""
    turns = LoopTurns(1)
    await place.serve(server.server(), End, turns=turns)
    steps: list[int] = []
    advance = TlsSession.advance

    def counted(self: TlsSession, data: Any) -> None:
        if self._server_side:
            steps[-1] += 1
        advance(self, data)

    async def count_turns() -> None:
        while True:
            steps.append(0)
            await asyncio.sleep(0)

    monkeypatch.setattr(TlsSession, "advance", counted)
    counting = asyncio.ensure_future(count_turns())
    await asyncio.sleep(0)
    calling = [await place.call(client, End()) for _ in range(count)]
    for number, end in enumerate(calling):
        end.transport.write(bytes([number]) * 5)
    while len(place.ends) < count:
        await asyncio.sleep(0)
    heard = [await end.bytes(5) for end in place.ends]
    counting.cancel()
    assert sorted(heard) == [bytes([number]) * 5 for number in range(count)]
    assert sum(steps) >= 2 * count
    assert max(steps) <= 2  # this one's place in a turn is not the loop's
    assert not turns.waiting


async def test_who_goes_away_in_line_is_forgotten(
    place: Place, server: Contexts, client: Contexts
) -> None:
    turns = LoopTurns(1)
    await place.serve(server.server(), End, turns=turns)
    turns._begun = 1 << 20
    turns._turning = True  # no turn comes
    calling = await place.call(client, End())
    while not turns.waiting:
        await asyncio.sleep(0)
    calling.transport.abort()
    place.ends[0].transport.abort()
    assert isinstance(await place.ends[0].is_lost(), TlsFailed)
    turns._on_turn()
    assert not turns.waiting


async def test_a_huge_message_arrives_whole(
    place: Place, server: Contexts, client: Contexts
) -> None:
    called, calling = await dial(place, server, client)
    data = bytes(range(256)) * (HUGE >> 8)
    calling.transport.writelines([b"head", data])
    assert await called.bytes(4 + HUGE) == b"head" + data


async def test_who_takes_nothing_off_is_not_written_to(
    place: Place, server: Contexts, client: Contexts
) -> None:
    called, calling = await dial(place, server, client)
    called.pause_at = 1
    called.transport.set_write_buffer_limits(high=1 << 20)
    sent = 0
    piece = bytes(1 << 20)
    while not calling.full:
        calling.transport.write(piece)
        sent += len(piece)
        await asyncio.sleep(0)
        assert sent < 100 << 20
    held = calling.transport.get_write_buffer_size()
    assert held <= 3 << 20
    assert len(called.received) <= 2 * tls_connection.AREA_BYTES
    called.pause_at = 0
    called.read_on()
    await calling.writable()
    assert len(await called.bytes(sent)) == sent


async def test_a_reader_that_pauses_again_and_again_misses_nothing(
    place: Place, server: Contexts, client: Contexts
) -> None:
    called, calling = await dial(place, server, client)
    data = bytes(range(256)) * 8_000
    called.pause_at = 1
    calling.transport.write(data)
    found = b""
    while len(found) < len(data):
        found += await called.bytes(1)
        found += bytes(called.received)
        called.received.clear()
        called.read_on()
    assert found == data


async def test_the_end_arrives_behind_what_was_sent(
    place: Place, server: Contexts, client: Contexts
) -> None:
    called, calling = await dial(place, server, client)
    calling.transport.write(bytes(3_000_000))
    calling.transport.close()
    assert len(await called.bytes(3_000_000)) == 3_000_000
    assert await called.is_lost() is None
    assert called.ended
    assert await calling.is_lost() is None


async def test_an_end_that_waits_for_a_reader_is_not_lost(
    place: Place, server: Contexts, client: Contexts
) -> None:
    """The reader pauses with bytes undecrypted; the sender goes; what it sent is there."""
    called, calling = await dial(place, server, client)
    called.pause_at = 1
    calling.transport.write(bytes(100_000))
    calling.transport.close()
    await calling.is_lost()
    found = 0
    while found < 100_000:
        found += len(await called.bytes(1)) + len(called.received)
        called.received.clear()
        called.read_on()
    assert await called.is_lost() is None


async def test_a_half_closed_connection_ends(
    place: Place, server: Contexts, client: Contexts
) -> None:
    """A TCP FIN without the end of TLS: what came counts, and the connection ends, as in
    plaintext."""
    called, calling = await dial(place, server, client)
    calling.transport.write(b"before")
    calling.transport._raw.write_eof()
    assert await called.bytes(6) == b"before"
    assert await called.is_lost() is None
    assert called.ended
    await calling.is_lost()


async def test_a_reset_connection_ends(place: Place, server: Contexts, client: Contexts) -> None:
    called, calling = await dial(place, server, client)
    calling.transport.abort()
    await called.is_lost()
    called.transport.write(b"nobody")
    called.transport.pause_reading()
    called.transport.resume_reading()
    called.transport.close()


async def test_damaged_bytes_end_the_connection(
    place: Place, server: Contexts, client: Contexts
) -> None:
    called, calling = await dial(place, server, client)
    calling.transport._raw.write(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert isinstance(await called.is_lost(), TlsFailed)
    lost = await calling.is_lost()
    assert isinstance(lost, TlsFailed)
    assert "refuses" in str(lost)
    assert bytes(called.received) == b""


async def test_a_protocol_that_fails_ends_its_connection(
    place: Place, server: Contexts, client: Contexts
) -> None:
    called, calling = await dial(place, server, client)
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    called.paused = True  # it asserts
    calling.transport.write(b"y")
    await called.is_lost()
    await calling.is_lost()
    assert told


# --- refusals


async def refused(place: Place, calling: End) -> tuple[str, str]:
    """What both ends hear."""
    found = await calling.is_lost()
    while not place.ends:
        await asyncio.sleep(0)
    told = await place.ends[0].is_lost()
    assert bytes(place.ends[0].received) == b""
    return str(found), str(told)


async def test_plaintext_to_a_port_with_tls(place: Place, server: Contexts) -> None:
    await place.serve(server.server(), End)
    calling = await place.call(None, End())
    calling.transport.write(b"\x18\x00\x00\x00 and more")
    assert await calling.bytes(len(TLS_REFUSAL)) == TLS_REFUSAL
    assert "plaintext, and this port speaks TLS" in (await refused(place, calling))[1]


async def test_tls_to_a_port_in_plaintext(place: Place, client: Contexts) -> None:
    await place.serve(None, End)
    calling = await place.call(client, End())
    while not place.ends:
        await asyncio.sleep(0)
    called = place.ends[0]
    assert (await called.bytes(2)) == b"\x16\x03"
    called.transport.write(b"\x02")
    told = await calling.is_lost()
    assert "it answers in plaintext, and this end wants TLS" in str(told)


async def test_tls_to_a_port_that_hangs_up(place: Place, client: Contexts) -> None:
    await place.serve(None, End)
    calling = await place.call(client, End())
    while not place.ends:
        await asyncio.sleep(0)
    await place.ends[0].bytes(2)
    place.ends[0].transport.close()
    assert "it refuses this end, or does not speak TLS" in str(await calling.is_lost())


async def test_another_node_than_the_one_meant(
    place: Place, server: Contexts, client: Contexts
) -> None:
    await place.serve(server.server(), End)
    calling = await place.call(client, End(), "broker-2.c.semel")
    calling.transport.write(b"secret")
    here, there = await refused(place, calling)
    assert "Hostname mismatch" in here
    assert "the other end refuses" in there


async def test_a_stranger_of_the_same_ca(
    place: Place, server: Contexts, client: Contexts, authority: Authority
) -> None:
    """A client's certificate at a port for nodes, and a client that serves as a node."""
    await place.serve(
        server.server(),
        End,
        check=lambda shown: check_peer(identity_of_ssl(shown), "c", ("broker",)),
    )
    calling = await place.call(client, End())
    calling.transport.write(b"let me in")
    assert "that of client reader" in (await refused(place, calling))[1]
    with pytest.raises(Unauthenticated):
        check_peer(identity_of_ssl(calling.transport.ssl_object), "d")

    posing = Place()
    await posing.serve(authority.contexts(authority.client("liar")).server(), End)
    try:
        calling = await posing.call(client, End())
        assert "certificate is not accepted" in (await refused(posing, calling))[0]
    finally:
        await posing.close()


async def test_a_slow_handshake_ends(
    place: Place, server: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_connection, "HANDSHAKE_S", 0.2)
    await place.serve(server.server(), End)
    calling = await place.call(None, End())
    calling.transport.write(b"\x16\x03\x01\x02\x00")
    assert "handshake takes longer" in (await refused(place, calling))[1]


async def test_a_handshake_that_the_caller_leaves_is_told(place: Place, server: Contexts) -> None:
    await place.serve(server.server(), End)
    calling = await place.call(None, End())
    calling.transport.write(b"\x16\x03\x01\x02\x00")
    calling.transport.close()
    assert "ended the connection during the TLS handshake" in (await refused(place, calling))[1]


async def test_a_caller_that_says_nothing_is_no_error(place: Place, server: Contexts) -> None:
    """A check of health, or a scan: nobody wants a line for each."""
    await place.serve(server.server(), End)
    calling = await place.call(None, End())
    calling.transport.close()
    assert (await refused(place, calling))[1] == "None"


async def test_plaintext_where_it_is_allowed(
    place: Place, server: Contexts, client: Contexts
) -> None:
    await place.serve(
        server.server(), End, plaintext=lambda raw: raw.get_extra_info("peername")[0] == "127.0.0.1"
    )
    calling = await place.call(None, End())
    calling.transport.write(b"hello in the clear" + bytes(200_000))
    while not place.ends:
        await asyncio.sleep(0)
    called = place.ends[0]
    assert await called.bytes(200_018) == b"hello in the clear" + bytes(200_000)
    assert called.transport.get_extra_info("ssl_object") is None
    called.transport.writelines([b"a", b"b"])
    assert await calling.bytes(2) == b"ab"
    called.pause_at = 1
    calling.transport.write(b"1")
    await called.bytes(1)
    calling.transport.write(b"2")
    await asyncio.sleep(0.05)
    assert not called.received
    called.read_on()
    assert await called.bytes(1) == b"2"
    encrypted = await place.call(client, End())
    encrypted.transport.write(b"!")
    while len(place.ends) < 2:
        await asyncio.sleep(0)
    assert await place.ends[1].bytes(1) == b"!"
    assert place.ends[1].transport.encrypted


async def test_openssl_and_asyncio_speak_with_it(
    place: Place, server: Contexts, client: Contexts
) -> None:
    """The other end may be any TLS: here asyncio's own, on both sides."""
    await place.serve(server.server(), End)
    reader, writer = await asyncio.open_connection(
        *place.address, ssl=client.client(), server_hostname=NAME
    )
    writer.write(b"word")
    while not place.ends:
        await asyncio.sleep(0)
    place.ends[0].echo = True
    assert await reader.readexactly(4) == b"word"
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    await place.ends[0].is_lost()


async def test_replaced_certificates_count_from_the_next_connection(
    place: Place, client: Contexts, tmp_path: Path
) -> None:
    other = Authority(tmp_path)
    contexts = other.contexts(other.broker(1))
    trusting = other.contexts(other.client("reader"))
    await place.serve(contexts.server(), End)
    first = await place.call(trusting, End())
    first.transport.write(b"1")
    while not place.ends:
        await asyncio.sleep(0)
    await place.ends[0].bytes(1)
    before = first.transport.ssl_object.getpeercert(binary_form=True)
    other.write(other.broker(1))
    second = await place.call(trusting, End())
    second.transport.write(b"2")
    while len(place.ends) < 2:
        await asyncio.sleep(0)
    await place.ends[1].bytes(1)
    assert second.transport.ssl_object.getpeercert(binary_form=True) != before
    first.transport.write(b"3")
    assert await place.ends[0].bytes(1) == b"3"


async def test_a_blocking_program_speaks_with_it(
    place: Place, server: Contexts, client: Contexts
) -> None:
    """Records that come byte by byte, from Python's plain sockets."""
    await place.serve(server.server(), End)

    def talk() -> bytes:
        with socket.create_connection(place.address) as plain:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with client.client().wrap_socket(plain, server_hostname=NAME) as connection:
                for byte in b"letters":
                    connection.sendall(bytes([byte]))
                return connection.recv(1)

    talking = asyncio.ensure_future(asyncio.to_thread(talk))
    while not place.ends:
        await asyncio.sleep(0.01)
    assert await place.ends[0].bytes(7) == b"letters"
    place.ends[0].transport.write(b"!")
    assert await talking == b"!"
