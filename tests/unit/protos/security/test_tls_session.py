"""TLS in memory: what goes in comes out, however it is cut, and what is wrong has a reason."""

from __future__ import annotations

import ssl
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.protos.security import tls_session
from semel.protos.security.credentials import Contexts
from semel.protos.security.tls_session import (
    HANDSHAKE_BYTES_MAX,
    PIECE_BYTES,
    RECORD_BYTES,
    TlsFailed,
    TlsSession,
    begins_tls,
    is_tls_alert,
)
from tests.kit.authority import Authority

SIZES = (1, 8, 100, RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 1, PIECE_BYTES + 1, 400_000)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Contexts:
    return authority.contexts(authority.broker(1))


@pytest.fixture(scope="module")
def client(authority: Authority) -> Contexts:
    return authority.contexts(authority.client("reader"))


def pair(server: Contexts, client: Contexts, name: str = "") -> tuple[TlsSession, TlsSession]:
    name = name or "broker-1.c.semel"
    return (
        TlsSession(client.client(), server_side=False, server_hostname=name),
        TlsSession(server.server(), server_side=True),
    )


def shake(calling: TlsSession, called: TlsSession) -> None:
    """Exchanges bytes until both have a complete handshake. Raises TlsFailed of either."""
    calling.advance(b"")
    while not (calling.established and called.established):
        called.advance(calling.take())
        if not calling.established:
            calling.advance(called.take())
    calling.feed(called.take())
    assert not read_all(calling, 1)


def read_all(session: TlsSession, room: int) -> bytes:
    target = memoryview(bytearray(room))
    found = b""
    while session.readable:
        count = session.decrypt(target)
        found += bytes(target[:count])
    return found


@pytest.fixture
def ends(server: Contexts, client: Contexts) -> tuple[TlsSession, TlsSession]:
    calling, called = pair(server, client)
    shake(calling, called)
    assert calling.established
    assert called.established
    return calling, called


@settings(max_examples=30)
@given(
    sizes=st.lists(st.sampled_from(SIZES), min_size=1, max_size=5),
    cut=st.integers(1, 100_000),
    room=st.sampled_from([1_000, RECORD_BYTES, 70_000]),
)
def test_parts_come_out_as_they_went_in(
    server: Contexts, client: Contexts, sizes: list[int], cut: int, room: int
) -> None:
    calling, called = pair(server, client)
    shake(calling, called)
    parts = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    sent = b"".join(calling.encrypt(parts))
    found = b""
    for at in range(0, len(sent), cut):
        called.feed(sent[at : at + cut])
        found += read_all(called, room)
    assert found == b"".join(parts)
    assert not called.ended


def test_small_parts_share_a_record(ends: tuple[TlsSession, TlsSession]) -> None:
    calling, _ = ends
    (record,) = calling.encrypt([b"head", b"body" * 100, memoryview(b"end")])
    assert len(record) < 450
    assert len(list(calling.encrypt([bytes(8), bytes(RECORD_BYTES)]))) == 2  # 16,376 + 8, and 8
    assert not list(calling.encrypt([]))


def test_the_end_is_told(ends: tuple[TlsSession, TlsSession]) -> None:
    calling, called = ends
    called.feed(b"".join(calling.encrypt([b"last"])))
    calling.end()
    called.feed(calling.take())
    assert read_all(called, 100) == b"last"
    assert called.ended
    assert not called.readable


def test_a_flipped_bit_is_noticed(ends: tuple[TlsSession, TlsSession]) -> None:
    calling, called = ends
    sent = bytearray(b"".join(calling.encrypt([b"content"])))
    sent[-3] ^= 1
    called.feed(sent)
    with pytest.raises(TlsFailed, match="TLS fails"):
        read_all(called, 100)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("broker-2.c.semel", "certificate is not accepted: Hostname mismatch"),
        ("node.d.semel", "certificate is not accepted: Hostname mismatch"),
    ],
)
def test_a_caller_speaks_only_to_the_node_that_it_means(
    server: Contexts, client: Contexts, name: str, reason: str
) -> None:
    calling, called = pair(server, client, name)
    with pytest.raises(TlsFailed, match=reason):
        shake(calling, called)
    assert not calling.established
    alert = calling.take()
    assert is_tls_alert(alert)
    with pytest.raises(TlsFailed, match="the other end refuses: it does not accept this end's"):
        called.advance(alert)


def test_a_caller_of_another_ca_is_refused(server: Contexts, tmp_path: Path) -> None:
    strange = Authority(tmp_path)
    calling = TlsSession(
        _trusting_all(strange), server_side=False, server_hostname="broker-1.c.semel"
    )
    called = TlsSession(server.server(), server_side=True)
    calling.advance(b"")
    called.advance(calling.take())
    calling.advance(called.take())
    with pytest.raises(
        TlsFailed, match="its certificate is not accepted: self-signed certificate in cert"
    ):
        called.advance(calling.take())
    assert not called.established
    assert calling.established  # TLS 1.3: the caller hears of it behind the handshake
    calling.feed(called.take())
    with pytest.raises(TlsFailed, match="it does not trust the CA of this end's certificate"):
        read_all(calling, 100)


def test_a_caller_without_a_certificate_is_refused(server: Contexts) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    calling = TlsSession(context, server_side=False)
    called = TlsSession(server.server(), server_side=True)
    calling.advance(b"")
    called.advance(calling.take())
    calling.advance(called.take())
    with pytest.raises(TlsFailed, match="it shows no certificate"):
        called.advance(calling.take())
    calling.feed(called.take())
    with pytest.raises(TlsFailed, match="it wants a certificate"):
        read_all(calling, 100)


def test_tls_1_1_is_refused(server: Contexts, authority: Authority) -> None:
    context = authority.contexts(authority.client("old")).client()
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        context.minimum_version = ssl.TLSVersion.TLSv1_1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    calling = TlsSession(context, server_side=False, server_hostname="broker-1.c.semel")
    called = TlsSession(server.server(), server_side=True)
    calling.advance(b"")
    with pytest.raises(TlsFailed, match="unsupported protocol"):
        called.advance(calling.take())


@pytest.mark.parametrize("data", [b"\x18\x00\x00\x00", b"GET / HTTP/1.1\r\n", b"\x00", b"PRI *"])
def test_plaintext_is_told_from_tls(server: Contexts, client: Contexts, data: bytes) -> None:
    calling, called = pair(server, client)
    with pytest.raises(TlsFailed, match="it speaks plaintext, and this port speaks TLS") as told:
        called.advance(data)
    assert told.value.plaintext
    calling.advance(b"")
    assert begins_tls(calling.take())
    with pytest.raises(TlsFailed, match="it answers in plaintext, and this end wants TLS") as told:
        calling.advance(data)
    assert told.value.plaintext


def test_a_handshake_has_a_limit(server: Contexts) -> None:
    """A first message that never ends, in small records."""
    called = TlsSession(server.server(), server_side=True)
    called.advance(b"\x16\x03\x01\x01\x00" + b"\x01\x01\xff\xff" + bytes(252))
    for _ in range((HANDSHAKE_BYTES_MAX - 261) // 21):
        called.advance(b"\x16\x03\x01\x00\x10" + bytes(16))
    with pytest.raises(TlsFailed, match="longer than 65536 bytes"):
        called.advance(b"\x16\x03\x01\x00\x10" + bytes(16))


def test_what_comes_right_behind_a_handshake_does_not_count(
    server: Contexts, client: Contexts
) -> None:
    calling, called = pair(server, client)
    calling.advance(b"")
    called.advance(calling.take())
    calling.advance(called.take())
    assert calling.established
    called.advance(calling.take() + b"".join(calling.encrypt([bytes(2 * HANDSHAKE_BYTES_MAX)])))
    assert called.established
    assert read_all(called, 70_000) == bytes(2 * HANDSHAKE_BYTES_MAX)


@settings(max_examples=50)
@given(st.binary(min_size=1, max_size=2_000))
def test_any_bytes_end_in_an_error_or_wait(server: Contexts, data: bytes) -> None:
    called = TlsSession(server.server(), server_side=True)
    try:
        called.advance(b"\x16\x03\x01" + data)
    except TlsFailed as error:
        assert str(error)  # noqa: PT017
    assert not called.established


def test_every_alert_has_words() -> None:
    for name, meaning in tls_session._REFUSES.items():
        error = ssl.SSLError(1, "x")
        error.reason = f"TLSV1_ALERT_{name}"
        assert meaning in tls_session.explain(error)


def _trusting_all(authority: Authority) -> ssl.SSLContext:
    """The context of a caller that does not look at whom it calls."""
    context = authority.contexts(authority.client("stranger")).client()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
